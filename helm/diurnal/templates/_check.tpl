{{/* What no schema can say: values that contradict one another, and what the operator would refuse later. */}}

{{- define "diurnal.check" -}}
{{- include "diurnal.check.names" . -}}
{{- include "diurnal.check.config" . -}}
{{- include "diurnal.check.groups" . -}}
{{- include "diurnal.check.services" . -}}
{{- include "diurnal.check.schedule" . -}}
{{- end }}

{{- define "diurnal.check.names" -}}
{{- $name := include "diurnal.fullname" . -}}
{{- if gt (len $name) 36 -}}
{{- fail (printf "the release's name %q has %d characters: KubeRay allows 36 here; fix: a shorter name, or fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "the release's name %q must begin with a letter and hold a-z, 0-9 and - alone; fix: fullnameOverride" $name) -}}
{{- end -}}
{{- end }}

{{- define "diurnal.check.config" -}}
{{- range $key, $text := pick .Values.config "run" "schema" -}}
{{- if not (trim $text) -}}
{{- fail (printf "config.%s is empty; fix: --set-file config.%s=FILE.toml" $key $key) -}}
{{- end -}}
{{- $parsed := fromToml $text -}}
{{- if and (hasKey $parsed "Error") (eq (len $parsed) 1) -}}
{{- fail (printf "config.%s is no TOML: %s" $key $parsed.Error) -}}
{{- end -}}
{{- end -}}
{{- $asked := include "diurnal.asked" . | fromYaml -}}
{{- if not (or (hasPrefix "/" $asked.dataPath) (contains "://" $asked.dataPath)) -}}
{{- fail (printf "the data are at %q, which means nothing on a cluster; fix: data.path, a URL or the path below data.claim's mount, /var/lib/diurnal-data" $asked.dataPath) -}}
{{- end -}}
{{- if and .Values.data.claim (not (hasPrefix "/var/lib/diurnal-data" $asked.dataPath)) -}}
{{- fail (printf "data.claim is mounted at /var/lib/diurnal-data, and the data are at %q; fix: data.path" $asked.dataPath) -}}
{{- end -}}
{{- $isBelowStorage := and (hasPrefix "/var/lib/diurnal/" $asked.dataPath) (not .Values.storage.url) -}}
{{- if and (hasPrefix "/" $asked.dataPath) (not .Values.data.claim) (not $isBelowStorage) -}}
{{- fail (printf "no pod has a folder %q; fix: data.claim, or data.path below the storage, /var/lib/diurnal" $asked.dataPath) -}}
{{- end -}}
{{- end }}

{{- define "diurnal.check.groups" -}}
{{- $asked := include "diurnal.asked" . | fromYaml -}}
{{- $train := .Values.cluster.train -}}
{{- $data := .Values.cluster.data -}}
{{- range $name, $group := dict "data" $data "train" $train -}}
{{- if gt (int $group.min) (int $group.max) -}}
{{- fail (printf "cluster.%s.min = %d is more than max = %d" $name (int $group.min) (int $group.max)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $group := pick .Values.cluster "head" "data" "train" -}}
{{- $need := add (include "diurnal.bytes" $group.objectStore | int64) 1610612736 -}}
{{- if lt (include "diurnal.bytes" $group.memory | int64) $need -}}
{{- fail (printf "cluster.%s.memory = %s must hold the object store (%s, in shared memory), 512Mi of shared memory more, and 1Gi to run in" $name $group.memory $group.objectStore) -}}
{{- end -}}
{{- end -}}
{{- $places := mul (int $train.max) (int $train.workers) -}}
{{- if gt (int $asked.max) (int $places) -}}
{{- fail (printf "config.run asks for workers.max = %d, and cluster.train has room for max %d pods x %d workers = %d; fix: either" (int $asked.max) (int $train.max) (int $train.workers) (int $places)) -}}
{{- end -}}
{{- if ne (eq (int $asked.gpus) 1) $train.gpu -}}
{{- fail (printf "config.run has workers.gpus = %d, and cluster.train.gpu is %t; fix: make both say the same" (int $asked.gpus) $train.gpu) -}}
{{- end -}}
{{- if gt (include "diurnal.trainCpus" . | int) (int $train.cpu) -}}
{{- fail (printf "cluster.train.cpu = %d is less than its %d workers reserve, %s CPUs" (int $train.cpu) (int $train.workers) (include "diurnal.trainCpus" .)) -}}
{{- end -}}
{{- $readers := mulf $asked.max $asked.readCpus -}}
{{- if gt (float64 $readers) (float64 (mul (int $data.max) (int $data.cpu))) -}}
{{- fail (printf "%d workers read with %v CPUs, and cluster.data has max %d pods x %d CPUs; fix: raise cluster.data.max, or lower data.read_cpus of config.run" (int $asked.max) $readers (int $data.max) (int $data.cpu)) -}}
{{- end -}}
{{- if and .Values.storage.url .Values.storage.claim -}}
{{- fail "versions are at storage.url or on the volume of storage.claim; fix: give one of them" -}}
{{- end -}}
{{- if and (not .Values.storage.url) (eq .Values.storage.accessMode "ReadWriteOnce") (not .Values.storage.oneNode) -}}
{{- fail "storage.accessMode ReadWriteOnce holds on one node alone: versions would be lost to the others; fix: ReadWriteMany, or storage.oneNode=true where the cluster has one node" -}}
{{- end -}}
{{- end }}

{{- define "diurnal.check.services" -}}
{{- if and (eq .Values.postgresql.mode "external") (not .Values.postgresql.host) -}}
{{- fail "postgresql.mode is external; fix: postgresql.host" -}}
{{- end -}}
{{- if and (eq .Values.postgresql.mode "bundled") .Values.postgresql.host -}}
{{- fail "postgresql.host names a server, and postgresql.mode is bundled; fix: mode=external, or no host" -}}
{{- end -}}
{{- if and (eq .Values.mlflow.mode "external") (not .Values.mlflow.uri) -}}
{{- fail "mlflow.mode is external; fix: mlflow.uri" -}}
{{- end -}}
{{- if and (ne .Values.mlflow.mode "external") .Values.mlflow.uri -}}
{{- fail (printf "mlflow.uri names a server, and mlflow.mode is %s; fix: mode=external, or no uri" .Values.mlflow.mode) -}}
{{- end -}}
{{- if and .Values.cluster.faultTolerance.redisAddress (ne .Values.cluster.mode "longLived") -}}
{{- fail "cluster.faultTolerance is for a cluster that outlives its runs; a run of its own goes on from its last commit" -}}
{{- end -}}
{{- if and .Values.cluster.faultTolerance.secret (not .Values.cluster.faultTolerance.redisAddress) -}}
{{- fail "cluster.faultTolerance.secret is the password of a Redis that is not named; fix: redisAddress" -}}
{{- end -}}
{{- end }}

{{- define "diurnal.check.schedule" -}}
{{- if and (eq .Values.schedule.mode "rayCronJob") (ne .Values.cluster.mode "perRun") -}}
{{- fail "schedule.mode rayCronJob makes a cluster for each run; fix: cluster.mode=perRun" -}}
{{- end -}}
{{- if .Values.kueue.queue -}}
{{- if ne .Values.cluster.mode "perRun" -}}
{{- fail "kueue.queue admits whole runs: a cluster that is always there would hold its quota for ever; fix: cluster.mode=perRun" -}}
{{- end -}}
{{- if eq .Values.schedule.mode "rayCronJob" -}}
{{- fail "a RayCronJob cannot label its runs, so that none would enter kueue.queue; fix: schedule.mode=cronJob" -}}
{{- end -}}
{{- else if .Values.kueue.elastic -}}
{{- fail "kueue.elastic needs kueue.queue" -}}
{{- end -}}
{{- if and (eq .Values.cluster.mode "perRun") (gt (int .Values.run.waitSeconds) (int .Values.run.deadlineSeconds)) -}}
{{- fail (printf "run.waitSeconds = %d is more than run.deadlineSeconds = %d" (int .Values.run.waitSeconds) (int .Values.run.deadlineSeconds)) -}}
{{- end -}}
{{- end }}

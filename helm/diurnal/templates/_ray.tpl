{{/* The Ray cluster, as the spec of a RayCluster and inside a RayJob. */}}

{{/* (dict "root" . "part" head|data|train): a pod of the cluster. */}}
{{- define "diurnal.ray.pod" -}}
{{- $root := .root -}}
{{- $group := index $root.Values.cluster .part -}}
{{- $gpu := and (eq .part "train") $group.gpu -}}
{{- $resources := dict "cpu" ($group.cpu | toString) "memory" $group.memory "ephemeral-storage" $group.disk -}}
{{- if $gpu -}}
{{- $_ := set $resources $group.gpuResource ($group.workers | toString) -}}
{{- end -}}
metadata:
  labels:
    {{- include "diurnal.part" (list $root .part) | nindent 4 }}
  annotations:
    {{- include "diurnal.stay" $root | nindent 4 }}
spec:
  serviceAccountName: {{ include "diurnal.fullname" $root }}-{{ ternary "head" "worker" (eq .part "head") }}
  automountServiceAccountToken: {{ eq .part "head" }}
  restartPolicy: Never
  terminationGracePeriodSeconds: 90
  enableServiceLinks: false
  {{- with include "diurnal.pullSecrets" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "diurnal.podSecurity" $root | nindent 4 }}
  {{- with $group.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $group.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ ternary "ray-head" "ray-worker" (eq .part "head") }}
      image: {{ include "diurnal.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      env:
        {{- include "diurnal.env" $root | nindent 8 }}
        {{- with include "diurnal.env.objectStore" $root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- if eq .part "head" }}
        {{- include "diurnal.env.driver" $root | nindent 8 }}
        - {name: DIURNAL_NODE_LIMITS, value: {{ include "diurnal.nodeLimits" $root | quote }}}
        # A job that is stopped has so long for a last commit, and to close what it opened.
        - {name: RAY_JOB_STOP_WAIT_TIME_S, value: "70"}
        {{- end }}
        {{- if not $root.Values.cluster.tokenAuth }}
        {{- include "diurnal.env.token" $root | nindent 8 }}
        {{- end }}
      {{- with include "diurnal.envFrom.objectStore" $root }}
      {{- . | nindent 6 }}
      {{- end }}
      ports:
        {{- if eq .part "head" }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: as-metrics, containerPort: 44217}
        - {name: dash-metrics, containerPort: 44227}
        {{- end }}
        - {name: metrics, containerPort: 8080}
      resources:
        requests:
          {{- toYaml $resources | nindent 10 }}
        limits:
          {{- toYaml $resources | nindent 10 }}
      securityContext:
        {{- include "diurnal.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        {{- include "diurnal.configMounts" $root | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        {{- if not $root.Values.storage.url }}
        - {name: storage, mountPath: /var/lib/diurnal}
        {{- end }}
        {{- if $root.Values.data.claim }}
        - {name: data, mountPath: /var/lib/diurnal-data, readOnly: true}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "diurnal.fullname" $root }}-config}
    # Ray's sessions, logs and spilled objects.
    - name: tmp
      emptyDir: {sizeLimit: {{ $group.disk }}}
    # The object store lies in it, beside what torch and NCCL share.
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ add (include "diurnal.bytes" $group.objectStore | int64) 536870912 | quote }}
    {{- if not $root.Values.storage.url }}
    - name: storage
      persistentVolumeClaim: {claimName: {{ include "diurnal.storageClaim" $root }}}
    {{- end }}
    {{- with $root.Values.data.claim }}
    - name: data
      persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
    {{- end }}
{{- end }}

{{/* (dict "root" . "part" NAME "cpus" N "gpus" N): what Ray is told of a node. */}}
{{- define "diurnal.ray.start" -}}
{{- $group := index .root.Values.cluster .part -}}
num-cpus: {{ .cpus | toString | quote }}
num-gpus: {{ .gpus | toString | quote }}
object-store-memory: {{ include "diurnal.bytes" $group.objectStore | quote }}
metrics-export-port: "8080"
{{- end }}

{{- define "diurnal.ray.group" -}}
{{- $root := .root -}}
{{- $group := index $root.Values.cluster .part -}}
groupName: {{ .part }}
{{- if include "diurnal.ray.autoscales" $root }}
replicas: {{ $group.min | int }}
minReplicas: {{ $group.min | int }}
maxReplicas: {{ $group.max | int }}
idleTimeoutSeconds: {{ $group.idleSeconds | int }}
{{- else }}
replicas: {{ $group.max | int }}
minReplicas: {{ $group.max | int }}
maxReplicas: {{ $group.max | int }}
{{- end }}
labels: {diurnal.dev/role: {{ .part }}}
rayStartParams:
  {{- include "diurnal.ray.start" . | nindent 2 }}
template:
  {{- include "diurnal.ray.pod" . | nindent 2 }}
{{- end }}

{{/* Kueue counts a run's pods when it admits it, so that only its elastic runs may change their number. */}}
{{- define "diurnal.ray.autoscales" -}}
{{- if or (not .Values.kueue.queue) .Values.kueue.elastic }}true{{ end -}}
{{- end }}

{{- define "diurnal.ray.cluster" -}}
{{- $cluster := .Values.cluster -}}
rayVersion: {{ $cluster.rayVersion | quote }}
{{- if $cluster.tokenAuth }}
authOptions: {mode: token, secretName: {{ include "diurnal.secret.ray" . }}}
{{- end }}
{{- if and $cluster.recreateOnUpgrade (eq $cluster.mode "longLived") }}
upgradeStrategy: {type: Recreate}
{{- end }}
{{- if include "diurnal.ray.autoscales" . }}
enableInTreeAutoscaling: true
autoscalerOptions:
  version: v2
  upscalingMode: {{ $cluster.upscalingMode }}
  idleTimeoutSeconds: {{ $cluster.data.idleSeconds | int }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  resources:
    requests: {cpu: 500m, memory: 512Mi}
    limits: {cpu: 500m, memory: 512Mi}
  securityContext:
    {{- include "diurnal.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
{{- else }}
enableInTreeAutoscaling: false
{{- end }}
{{- with $cluster.faultTolerance }}
{{- if .redisAddress }}
gcsFaultToleranceOptions:
  redisAddress: {{ .redisAddress | quote }}
  {{- with .secret }}
  redisPassword:
    valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
  {{- end }}
{{- end }}
{{- end }}
headGroupSpec:
  labels: {diurnal.dev/role: head}
  rayStartParams:
    dashboard-host: 0.0.0.0
    {{- include "diurnal.ray.start" (dict "root" . "part" "head" "cpus" 0 "gpus" 0) | nindent 4 }}
  template:
    {{- include "diurnal.ray.pod" (dict "root" . "part" "head") | nindent 4 }}
workerGroupSpecs:
  - {{- include "diurnal.ray.group" (dict "root" . "part" "data" "cpus" $cluster.data.cpu "gpus" 0) | nindent 4 }}
  - {{- include "diurnal.ray.group" (dict "root" . "part" "train" "cpus" (include "diurnal.trainCpus" .) "gpus" (ternary $cluster.train.workers 0 $cluster.train.gpu)) | nindent 4 }}
{{- end }}

{{/* The spec of one run on a cluster of its own. The operator submits it, so that no pod beside the cluster is needed. */}}
{{- define "diurnal.ray.job" -}}
entrypoint: python -P -m diurnal.cluster.job {{ join " " .Values.schedule.command }} {{ include "diurnal.configFiles" . }}
submissionMode: HTTPMode
shutdownAfterJobFinishes: true
ttlSecondsAfterFinished: {{ .Values.run.keepSeconds | int }}
activeDeadlineSeconds: {{ .Values.run.deadlineSeconds | int }}
{{- with .Values.run.waitSeconds }}
preRunningDeadlineSeconds: {{ . | int }}
{{- end }}
backoffLimit: {{ .Values.run.retries | int }}
rayClusterSpec:
  {{- include "diurnal.ray.cluster" . | nindent 2 }}
{{- end }}

{{/* One run. Scheduled, its pod gives it the name of the tick; otherwise each revision of the release is one run. */}}
{{- define "diurnal.rayJob" -}}
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {{ include "diurnal.fullname" . }}-r{{ .Release.Revision }}
  labels:
    {{- include "diurnal.labels" . | nindent 4 }}
    {{- with .Values.kueue.queue }}
    kueue.x-k8s.io/queue-name: {{ . }}
    {{- end }}
  {{- if .Values.kueue.elastic }}
  annotations:
    kueue.x-k8s.io/elastic-job: "true"
  {{- end }}
spec:
  {{- include "diurnal.ray.job" . | nindent 2 }}
{{- end }}

{{/* The configuration of a run: the user's two files as they are, and what differs on the cluster, which wins. */}}

{{- define "diurnal.config" -}}
run.toml: |2
  {{- .Values.config.run | nindent 2 }}
schema.toml: |2
  {{- .Values.config.schema | nindent 2 }}
cluster.toml: |
  # Written by the chart.
  storage = {{ .Values.storage.url | default "/var/lib/diurnal" | toJson }}

  [data]
  schema_file = "/etc/diurnal/schema.toml"
  node_labels = { "diurnal.dev/role" = "data" }
  {{- with .Values.data.path }}
  path = {{ . | toJson }}
  {{- end }}

  [workers]
  address = "auto"

  [ledger]
  url = {{ include "diurnal.postgresql.url" (list . .Values.postgresql.database) | toJson }}

  [tracking]
  {{- if eq .Values.mlflow.mode "off" }}
  enabled = false
  {{- else }}
  uri = {{ include "diurnal.mlflow.uri" . | toJson }}
  {{- end }}
{{- end }}

{{/* What the chart has to know of the run, as YAML: max, cpus, gpus, readCpus, dataPath. */}}
{{- define "diurnal.asked" -}}
{{- $run := fromToml .Values.config.run -}}
{{- $workers := $run.workers | default dict -}}
{{- $data := $run.data | default dict -}}
max: {{ $workers.max | default 1 }}
cpus: {{ $workers.cpus | default 1 }}
gpus: {{ $workers.gpus | default 0 }}
readCpus: {{ $data.read_cpus | default 1 }}
dataPath: {{ .Values.data.path | default ($data.path | default "") | toJson }}
{{- end }}

{{/* CPUs that Ray is told of on a training pod: what its workers reserve and no more, so that no data task fits. */}}
{{- define "diurnal.trainCpus" -}}
{{- $asked := include "diurnal.asked" . | fromYaml -}}
{{- mulf $asked.cpus .Values.cluster.train.workers | ceil | int -}}
{{- end }}

{{/* What the cluster can become, which Ray does not tell: diurnal refuses what never fits by it. */}}
{{- define "diurnal.nodeLimits" -}}
{{- $data := .Values.cluster.data -}}
{{- $train := .Values.cluster.train -}}
{{- $gpus := ternary $train.workers 0 $train.gpu -}}
{{- $limits := list -}}
{{- $limits = append $limits (dict "name" "data" "max" $data.max "resources" (dict "CPU" $data.cpu "GPU" 0)) -}}
{{- $limits = append $limits (dict "name" "train" "max" $train.max "resources" (dict "CPU" (include "diurnal.trainCpus" . | int) "GPU" $gpus)) -}}
{{- toJson $limits -}}
{{- end }}

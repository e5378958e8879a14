{{/* Names, labels and addresses. Every name that others refer to is made here, once. */}}

{{- define "diurnal.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{- define "diurnal.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/name: diurnal
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
Of one part: (list . "head"). Pods, policies and monitors select by these alone: the names that are usual,
app.kubernetes.io/name among them, are KubeRay's on the pods of a cluster, and its head Service selects by them.
*/}}
{{- define "diurnal.part" -}}
diurnal.dev/release: {{ (index . 0).Release.Name }}
diurnal.dev/part: {{ index . 1 }}
{{- end }}

{{- define "diurnal.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "diurnal.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "diurnal.secret.ray" -}}
{{ .Values.secrets.ray | default (printf "%s-ray" (include "diurnal.fullname" .)) }}
{{- end }}

{{- define "diurnal.secret.postgresql" -}}
{{ .Values.secrets.postgresql | default (printf "%s-postgresql" (include "diurnal.fullname" .)) }}
{{- end }}

{{- define "diurnal.secret.mlflow" -}}
{{ .Values.secrets.mlflow | default (printf "%s-mlflow" (include "diurnal.fullname" .)) }}
{{- end }}

{{- define "diurnal.storageClaim" -}}
{{ .Values.storage.claim | default (printf "%s-storage" (include "diurnal.fullname" .)) }}
{{- end }}

{{/* KubeRay names the head's Service after the cluster. */}}
{{- define "diurnal.dashboard" -}}
http://{{ include "diurnal.fullname" . }}-head-svc:8265
{{- end }}

{{- define "diurnal.postgresql.host" -}}
{{- if eq .Values.postgresql.mode "bundled" -}}
{{ include "diurnal.fullname" . }}-postgresql
{{- else -}}
{{ .Values.postgresql.host }}
{{- end -}}
{{- end }}

{{/* (list . DATABASE). The password comes from PGPASSWORD, which libpq reads by itself. */}}
{{- define "diurnal.postgresql.url" -}}
{{- $root := index . 0 -}}
{{- $server := $root.Values.postgresql -}}
postgresql+psycopg://{{ $server.user }}@{{ include "diurnal.postgresql.host" $root }}:{{ $server.port }}/{{ index . 1 }}
{{- with $server.sslMode }}?sslmode={{ . }}{{ end -}}
{{- end }}

{{- define "diurnal.mlflow.uri" -}}
{{- if eq .Values.mlflow.mode "bundled" -}}
http://{{ include "diurnal.fullname" . }}-mlflow:5000
{{- else -}}
{{ .Values.mlflow.uri }}
{{- end -}}
{{- end }}

{{/* Hosts that clients of the bundled server send; MLflow answers 403 to any other. */}}
{{- define "diurnal.mlflow.hosts" -}}
{{- $name := printf "%s-mlflow" (include "diurnal.fullname" .) -}}
{{- $hosts := list -}}
{{- range list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) "localhost" "127.0.0.1" -}}
{{- $hosts = concat $hosts (list . (printf "%s:*" .)) -}}
{{- end -}}
{{- concat $hosts .Values.mlflow.allowedHosts | join "," -}}
{{- end }}

{{- define "diurnal.configFiles" -}}
--config /etc/diurnal/run.toml --config /etc/diurnal/cluster.toml
{{- end }}

{{/* QUANTITY -> bytes. values.schema.json lets only Mi, Gi and Ti through. */}}
{{- define "diurnal.bytes" -}}
{{- $unit := regexFind "[MGT]i$" . -}}
{{- mul (trimSuffix $unit . | int64) (get (dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit | int64) -}}
{{- end }}

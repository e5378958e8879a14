{{/* What pods have in common: who they are, what they may, what they see. */}}

{{- define "diurnal.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "diurnal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A run is not moved to tidy nodes up: it would start again from its last commit. For both usual node autoscalers. */}}
{{- define "diurnal.stay" -}}
cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
karpenter.sh/do-not-disrupt: "true"
{{- end }}

{{/* The same for every container that runs diurnal. HOME lies on the one folder that can be written. */}}
{{- define "diurnal.env" -}}
- {name: HOME, value: /tmp}
- {name: MLFLOW_DISABLE_TELEMETRY, value: "true"}
- {name: DO_NOT_TRACK, value: "true"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- end }}

{{- define "diurnal.env.postgresql" -}}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "diurnal.secret.postgresql" . }}, key: password}}
{{- end }}

{{- define "diurnal.env.objectStore" -}}
{{- with .Values.objectStore.endpoint -}}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{ end -}}
{{- with .Values.objectStore.region -}}
- {name: AWS_DEFAULT_REGION, value: {{ . | quote }}}
{{ end -}}
{{- end }}

{{- define "diurnal.envFrom.objectStore" -}}
{{- with .Values.objectStore.secret -}}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{/* The driver opens the ledger and the run in MLflow; workers do neither. */}}
{{- define "diurnal.env.driver" -}}
{{ include "diurnal.env.postgresql" . }}
{{- if and (ne .Values.mlflow.mode "off") .Values.mlflow.auth }}
- name: MLFLOW_TRACKING_USERNAME
  valueFrom: {secretKeyRef: {name: {{ include "diurnal.secret.mlflow" . }}, key: username}}
- name: MLFLOW_TRACKING_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "diurnal.secret.mlflow" . }}, key: password}}
{{- end }}
{{- end }}

{{- define "diurnal.env.token" -}}
{{- if .Values.cluster.tokenAuth }}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "diurnal.secret.ray" . }}, key: auth_token}}
{{- else }}
- {name: RAY_AUTH_MODE, value: disabled}
{{- end }}
{{- end }}

{{- define "diurnal.configVolumes" -}}
- name: config
  configMap: {name: {{ include "diurnal.fullname" . }}-config}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- end }}

{{- define "diurnal.configMounts" -}}
- {name: config, mountPath: /etc/diurnal, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* A changed configuration restarts what reads it at start only. */}}
{{- define "diurnal.configSum" -}}
diurnal.dev/config: {{ include "diurnal.config" . | sha256sum | trunc 16 }}
{{- end }}

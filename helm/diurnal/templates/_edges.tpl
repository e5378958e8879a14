{{/*
Who talks to whom, once: each line is an edge that both ends' policies let through, and nothing else passes.

`from` and `to` are parts of the chart, or parties outside it, which networkPolicy.peers describes. Without ports an
edge is open on all of them: Ray picks the ports of its workers itself.
*/}}
{{- define "diurnal.edges" -}}
{{- $ray := list "head" "data" "train" -}}
{{- $isBundled := eq .Values.postgresql.mode "bundled" -}}
{{- $database := printf "to: %s, tcp: [%d]" (ternary "postgresql" "externalPostgresql" $isBundled) (ternary 5432 (int .Values.postgresql.port) $isBundled) -}}
{{- $mlflow := .Values.mlflow.mode -}}
{{- $cron := eq .Values.schedule.mode "cronJob" -}}
{{- $perRun := eq .Values.cluster.mode "perRun" -}}
{{- range $from := $ray }}
{{- range $to := $ray }}
- {from: {{ $from }}, to: {{ $to }}}
{{- end }}
- {from: {{ $from }}, to: dns, udp: [53], tcp: [53]}
{{- if or $.Values.objectStore.secret $.Values.objectStore.endpoint (contains "://" (include "diurnal.asked" $ | fromYaml).dataPath) }}
- {from: {{ $from }}, to: objectStore, tcp: [{{ include "diurnal.objectStorePort" $ }}]}
{{- end }}
{{- end }}
- {from: operator, to: head, tcp: [8265]}
- {from: head, to: kubernetes, tcp: [443, 6443]}
- {from: head, {{ $database }}}
{{- if eq $mlflow "bundled" }}
- {from: head, to: mlflow, tcp: [5000]}
- {from: mlflow, to: dns, udp: [53], tcp: [53]}
- {from: mlflow, {{ $database }}}
- {from: people, to: mlflow, tcp: [5000]}
{{- else if eq $mlflow "external" }}
- {from: head, to: externalMlflow, tcp: [{{ include "diurnal.portOf" .Values.mlflow.uri }}]}
{{- end }}
- {from: people, to: head, tcp: [8265]}
{{- if $cron }}
- {from: submit, to: dns, udp: [53], tcp: [53]}
{{- if $perRun }}
- {from: submit, to: kubernetes, tcp: [443, 6443]}
{{- else }}
- {from: submit, to: head, tcp: [8265]}
{{- end }}
{{- end }}
{{- if .Values.exporter.enabled }}
- {from: exporter, to: dns, udp: [53], tcp: [53]}
- {from: exporter, {{ $database }}}
{{- end }}
{{- if .Values.monitoring.podMonitors }}
- {from: prometheus, to: head, tcp: [8080, 44217, 44227]}
- {from: prometheus, to: data, tcp: [8080]}
- {from: prometheus, to: train, tcp: [8080]}
{{- if .Values.exporter.enabled }}
- {from: prometheus, to: exporter, tcp: [9108]}
{{- end }}
{{- end }}
{{- with .Values.cluster.faultTolerance.redisAddress }}
- {from: head, to: redis, tcp: [{{ regexFind "[0-9]+$" . }}]}
{{- end }}
{{- end }}

{{/* The parts that run, each of which gets a policy. */}}
{{- define "diurnal.parts" -}}
{{- $parts := list "head" "data" "train" -}}
{{- if eq .Values.schedule.mode "cronJob" }}{{ $parts = append $parts "submit" }}{{ end -}}
{{- if .Values.exporter.enabled }}{{ $parts = append $parts "exporter" }}{{ end -}}
{{- if eq .Values.mlflow.mode "bundled" }}{{ $parts = append $parts "mlflow" }}{{ end -}}
{{- if eq .Values.postgresql.mode "bundled" }}{{ $parts = append $parts "postgresql" }}{{ end -}}
{{- toJson $parts -}}
{{- end }}

{{/* URL -> the port that it is reached at. */}}
{{- define "diurnal.portOf" -}}
{{- $host := (urlParse .).host -}}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" -}}
{{- $port | default (ternary "443" "80" (hasPrefix "https:" .)) -}}
{{- end }}

{{- define "diurnal.objectStorePort" -}}
{{- with .Values.objectStore.endpoint }}{{ include "diurnal.portOf" . }}{{ else }}443{{ end -}}
{{- end }}

{{/* (dict "root" . "name" NAME): the `from` or `to` of a rule. */}}
{{- define "diurnal.peers" -}}
{{- $peers := .root.Values.networkPolicy.peers -}}
{{- if has .name (include "diurnal.parts" .root | fromJsonArray) -}}
- podSelector:
    matchLabels:
      {{- include "diurnal.part" (list .root .name) | nindent 6 }}
{{- else -}}
{{- $party := get (dict "externalPostgresql" "postgresql" "externalMlflow" "mlflow") .name | default .name -}}
{{- get $peers $party | toYaml -}}
{{- end -}}
{{- end }}

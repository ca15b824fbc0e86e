{{- define "viptrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "viptrace" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-viptrace" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Helm itself adds app.kubernetes.io/managed-by, so that the plain manifests do not claim it. */}}
{{- define "viptrace.labels" -}}
{{ include "viptrace.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "viptrace.selectorLabels" -}}
app.kubernetes.io/name: viptrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "viptrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "viptrace.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed with serviceAccount.create=false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "viptrace.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s%s" .Values.image.repository $tag (ternary "-tools" "" .Values.image.tools) -}}
{{- end -}}
{{- end -}}

{{- define "viptrace.tlsFolder" -}}/etc/viptrace-tls{{- end -}}

{{/* The agent's configuration as YAML: `config` and the consequences of other values. Helm removes a key whose value is null, so
an empty text stands for the agent's null. */}}
{{- define "viptrace.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- range tuple (tuple "metrics" "listen") (tuple "health" "listen") (tuple "recorder" "folder") (tuple "stream" "socket") -}}
{{- if eq (dig (first .) (last .) "-" $config) "" -}}
{{- $_ := set (get $config (first .)) (last .) nil -}}
{{- end -}}
{{- end -}}
{{- $metrics := $config.metrics | default dict -}}
{{- if .Values.metricsTLS.secretName -}}
{{- $folder := include "viptrace.tlsFolder" . -}}
{{- $tls := dict "certificate" (printf "%s/tls.crt" $folder) "key" (printf "%s/tls.key" $folder) -}}
{{- $_ := set $config "metrics" (mergeOverwrite $metrics (dict "tls" $tls)) -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled (regexMatch "^(127\\.|\\[::1\\]|localhost|$)" (include "viptrace.metricsListen" .)) -}}
{{- fail "podMonitor.enabled needs a metrics address that Prometheus can reach: set config.metrics.listen, for example to \"[::]:9478\", and see the README about config.metrics.authorization" -}}
{{- end -}}
{{- if and (eq (include "viptrace.authorization" .) "token") (not (or .Values.metricsTLS.secretName (dig "tls" "certificate" "" $metrics))) -}}
{{- fail "config.metrics.authorization=token needs TLS, so that tokens are encrypted: set metricsTLS.secretName" -}}
{{- end -}}
{{- if and (not .Values.configSecret) (ge (int (include "viptrace.drainMilliseconds" .)) (mul 1000 .Values.terminationGracePeriodSeconds | int)) -}}
{{- fail (printf "config.drain (%s) has to be shorter than terminationGracePeriodSeconds (%d), or the kubelet kills the agent before it has ended" (dig "drain" "10s" .Values.config) (int .Values.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The time that the agent may take to end. The agent itself refuses text that is no duration. */}}
{{- define "viptrace.drainMilliseconds" -}}
{{- $drain := dig "drain" "10s" .Values.config | toString -}}
{{- $unit := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+$" $drain) | default 0 -}}
{{- mul (regexFind "^[0-9]+" $drain | atoi) $unit -}}
{{- end -}}

{{/* The addresses and paths. A key that is absent has the agent's default; an empty text means none. */}}
{{- define "viptrace.metricsListen" -}}
{{- dig "metrics" "listen" "127.0.0.1:9478" .Values.config -}}
{{- end -}}
{{- define "viptrace.healthListen" -}}
{{- dig "health" "listen" "127.0.0.1:9479" .Values.config -}}
{{- end -}}
{{- define "viptrace.authorization" -}}
{{- dig "metrics" "authorization" "none" .Values.config -}}
{{- end -}}
{{- define "viptrace.recorderFolder" -}}
{{- dig "recorder" "folder" "" .Values.config -}}
{{- end -}}
{{- define "viptrace.socketFolder" -}}
{{- with dig "stream" "socket" "/run/viptrace/agent.sock" .Values.config }}{{ dir . }}{{ end -}}
{{- end -}}

{{/* An httpGet at a path of the health server. The kubelet is on the same node, so a wildcard is reached at its loopback. */}}
{{- define "viptrace.probe" -}}
{{- $address := regexReplaceAll ":[0-9]+$" .listen "" | trimAll "[]" -}}
httpGet:
  host: {{ ternary "127.0.0.1" $address (has $address (list "0.0.0.0" "::")) | quote }}
  path: {{ .path }}
  port: {{ regexFind "[0-9]+$" .listen }}
{{- end -}}

{{- define "viptrace.capabilities" -}}
{{- $added := list "BPF" "NET_ADMIN" "PERFMON" -}}
{{- if .sysAdmin }}{{ $added = append $added "SYS_ADMIN" }}{{ end -}}
{{- if .sysPtrace }}{{ $added = append $added "SYS_PTRACE" }}{{ end -}}
{{- if .netRaw }}{{ $added = append $added "NET_RAW" }}{{ end -}}
{{- if .sysResource }}{{ $added = append $added "SYS_RESOURCE" }}{{ end -}}
{{- if .syslog }}{{ $added = append $added "SYSLOG" }}{{ end -}}
{{- toJson (sortAlpha $added) -}}
{{- end -}}

{{/* Labels of each object. */}}
{{- define "imagelet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "imagelet.selector" . }}
{{- end -}}

{{/* Labels that an installation keeps. */}}
{{- define "imagelet.selector" -}}
app.kubernetes.io/name: imagelet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* A node selector without the keys that `null` takes out: helm leaves those that the chart does not have. */}}
{{- define "imagelet.nodeSelector" -}}
{{- $keys := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $keys $key $value -}}
{{- end -}}
{{- end -}}
{{- if $keys }}{{ toYaml $keys }}{{ end -}}
{{- end -}}

{{- define "imagelet.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A container that needs no right. */}}
{{- define "imagelet.restricted" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
runAsGroup: 65532
runAsNonRoot: true
runAsUser: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* A CEL expression: whether the request is of a subject of the daemons. */}}
{{- define "imagelet.isDaemon" -}}
{{- $any := list -}}
{{- range .Values.node.subjects -}}
{{- if eq .kind "Group" -}}
{{- $any = append $any (printf "%s in request.userInfo.groups" (toJson .name)) -}}
{{- else -}}
{{- $user := ternary (printf "system:serviceaccount:%s:%s" .namespace .name) .name (eq .kind "ServiceAccount") -}}
{{- $any = append $any (printf "request.userInfo.username == %s" (toJson $user)) -}}
{{- end -}}
{{- end -}}
{{ join " || " $any }}
{{- end -}}

{{/* The daemon's configuration besides the runtime and the node. */}}
{{- define "imagelet.configuration" -}}
{{- $keys := deepCopy .Values.node.configuration -}}
{{- if .Values.serviceMonitor.enabled -}}
{{- $http := dict "address" (printf "0.0.0.0:%d" (int .Values.serviceMonitor.port)) "tokenFile" "/opt/imagelet/http-token" -}}
{{- $_ := set $keys "http" (merge $http ($keys.http | default dict)) -}}
{{- end -}}
{{- if $keys }}{{ toYaml $keys }}{{ end -}}
{{- end -}}

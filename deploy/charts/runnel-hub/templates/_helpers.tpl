{{- define "runnel-hub.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "runnel-hub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "runnel-hub.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "runnel-hub.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "runnel-hub.selectorLabels" -}}
app.kubernetes.io/name: {{ include "runnel-hub.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of pods: without what changes while the pod need not. */}}
{{- define "runnel-hub.podLabels" -}}
{{ include "runnel-hub.selectorLabels" . }}
app.kubernetes.io/component: hub
app.kubernetes.io/part-of: runnel
{{- end -}}

{{- define "runnel-hub.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{ include "runnel-hub.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "runnel-hub.priorityClass" -}}
{{- if .Values.priorityClass.create -}}
{{- default (include "runnel-hub.fullname" .) .Values.priorityClassName -}}
{{- else -}}
{{- .Values.priorityClassName -}}
{{- end -}}
{{- end -}}

{{- define "runnel-hub.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "runnel-hub.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: with serviceAccount.create=false, name the ServiceAccount to use" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* registry/repository:tag@digest; the digest decides where both are given. */}}
{{- define "runnel-hub.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "runnel-hub.subject" -}}
- kind: ServiceAccount
  name: {{ include "runnel-hub.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "runnel-hub.sourceRules" -}}
- apiGroups: [""]
  resources: [configmaps, secrets]
  verbs: [get, list, watch]
{{- end -}}

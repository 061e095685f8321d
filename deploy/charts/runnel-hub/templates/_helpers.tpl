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

{{/* The labels of pods: without labels whose change would restart the pod. */}}
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

{{/* registry/repository:tag@digest; the digest takes precedence over the tag. */}}
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

{{/* What a word in a list of kinds stands for: kinds with namespaces, and kinds without. */}}
{{- define "runnel-hub.presets" -}}
{"kinds": {
"networking": ["services", "ingresses.networking.k8s.io", "networkpolicies.networking.k8s.io"],
"policy": ["limitranges", "poddisruptionbudgets.policy", "resourcequotas"],
"rbac": ["serviceaccounts", "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io"],
"workloads": ["persistentvolumeclaims", "cronjobs.batch", "daemonsets.apps", "deployments.apps", "horizontalpodautoscalers.autoscaling", "jobs.batch", "statefulsets.apps"]},
"clusterKinds": {
"networking": ["ingressclasses.networking.k8s.io"],
"rbac": ["clusterrolebindings.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io"],
"workloads": ["priorityclasses.scheduling.k8s.io", "storageclasses.storage.k8s.io"]}}
{{- end -}}

{{/* A list of kinds as JSON, with the kinds of its presets in their place. Takes a list: the kinds, and the names of the lists of
presets that count. */}}
{{- define "runnel-hub.withPresets" -}}
{{- $presets := include "runnel-hub.presets" . | fromJson -}}
{{- $all := list -}}
{{- range $kind := first . -}}
{{- $known := list -}}
{{- range $field := rest $ -}}
{{- $known = concat $known (default list (get (get $presets $field) $kind)) -}}
{{- end -}}
{{- if and (empty $known) (or (hasKey $presets.kinds $kind) (hasKey $presets.clusterKinds $kind)) -}}
{{- fail (printf "%s: %s stands for no kinds here: remove it" (last $) $kind) -}}
{{- end -}}
{{- $all = concat $all (ternary (list $kind) $known (empty $known)) -}}
{{- end -}}
{{- uniq $all | toJson -}}
{{- end -}}

{{/* The right to read kinds, a list, by API group. */}}
{{- define "runnel-hub.sourceRules" -}}
{{- $groups := dict -}}
{{- range uniq . -}}
{{- $kind := splitn "." 2 . -}}
{{- $group := default "" $kind._1 -}}
{{- $_ := set $groups $group (append (default list (get $groups $group)) $kind._0) -}}
{{- end -}}
{{- range $group, $plurals := $groups }}
- apiGroups: [{{ $group | quote }}]
  resources: [{{ join ", " $plurals }}]
  verbs: [get, list, watch]
{{- end -}}
{{- end -}}

{{/* The milliseconds of a duration such as 1h30m. */}}
{{- define "runnel-hub.milliseconds" -}}
{{- $units := dict "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[smhd])" . -1 -}}
{{- $unit := regexReplaceAll "[0-9]+" . "" -}}
{{- $sum = add $sum (mul (trimSuffix $unit . | atoi) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Fails if a duration is outside of the limits of the process. Empty: the default of the process. */}}
{{- define "runnel-hub.within" -}}
{{- if .value -}}
{{- $it := include "runnel-hub.milliseconds" .value | atoi -}}
{{- if or (lt $it (include "runnel-hub.milliseconds" .least | atoi)) (gt $it (include "runnel-hub.milliseconds" .most | atoi)) -}}
{{- fail (printf "%s: %s is not between %s and %s" .field .value .least .most) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks that a schema cannot express, or without a clear message: the process refuses these values, and its pods would crash. */}}
{{- define "runnel-hub.check" -}}
{{- range .Values.advertise -}}
{{- if not (regexMatch "^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$" .) -}}
{{- fail (printf "advertise: `%s` is no address: write host:port without a scheme, such as hub.example.com:8443" .) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.image.tag "latest" -}}
{{- fail "image.tag: `latest` says nothing about what runs: name a version, or leave it empty for the chart's own" -}}
{{- end -}}
{{- template "runnel-hub.within" dict "field" "sourceGoneGrace" "value" .Values.sourceGoneGrace "least" "0s" "most" "24h" -}}
{{- with .Values.certificate -}}
{{- template "runnel-hub.within" dict "field" "certificate.life" "value" .life "least" "4s" "most" "720h" -}}
{{- template "runnel-hub.within" dict "field" "certificate.expiredRenewalLimit" "value" .expiredRenewalLimit "least" "0s" "most" "8760h" -}}
{{- template "runnel-hub.within" dict "field" "certificate.caLife" "value" .caLife "least" "2160h" "most" "876000h" -}}
{{- end -}}
{{- with .Values.lease -}}
{{- template "runnel-hub.within" dict "field" "lease.duration" "value" .duration "least" "1s" "most" "120s" -}}
{{- $duration := include "runnel-hub.milliseconds" .duration | atoi -}}
{{- $deadline := include "runnel-hub.milliseconds" .renewDeadline | atoi -}}
{{- $retry := include "runnel-hub.milliseconds" .retryPeriod | atoi -}}
{{- if or (ge $deadline $duration) (ge $retry $deadline) (eq $retry 0) -}}
{{- fail (printf "lease: duration (%s) must be longer than renewDeadline (%s), and that longer than retryPeriod (%s), which is not 0" .duration .renewDeadline .retryPeriod) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Kinds whose objects carry rights, run programs or change how the cluster works: API groups, and kinds of the core group. */}}
{{- define "runnel-hub.privileged" -}}
{"groups": ["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
"authorization.k8s.io", "batch", "certificates.k8s.io", "discovery.k8s.io", "flowcontrol.apiserver.k8s.io", "rbac.authorization.k8s.io",
"apps.openshift.io", "argoproj.io", "authorization.openshift.io", "helm.toolkit.fluxcd.io", "kustomize.toolkit.fluxcd.io",
"kyverno.io", "oauth.openshift.io", "security.openshift.io", "user.openshift.io"],
"resources": ["endpoints", "namespaces", "nodes", "persistentvolumes", "pods", "podtemplates", "replicationcontrollers", "serviceaccounts"]}
{{- end -}}

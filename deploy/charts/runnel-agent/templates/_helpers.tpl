{{- define "runnel-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "runnel-agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "runnel-agent.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "runnel-agent.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "runnel-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "runnel-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of pods: without labels whose change would restart the pod. */}}
{{- define "runnel-agent.podLabels" -}}
{{ include "runnel-agent.selectorLabels" . }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: runnel
{{- end -}}

{{- define "runnel-agent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{ include "runnel-agent.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "runnel-agent.priorityClass" -}}
{{- if .Values.priorityClass.create -}}
{{- default (include "runnel-agent.fullname" .) .Values.priorityClassName -}}
{{- else -}}
{{- .Values.priorityClassName -}}
{{- end -}}
{{- end -}}

{{- define "runnel-agent.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "runnel-agent.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: with serviceAccount.create=false, name the ServiceAccount to use" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* registry/repository:tag@digest; the digest takes precedence over the tag. */}}
{{- define "runnel-agent.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "runnel-agent.subject" -}}
- kind: ServiceAccount
  name: {{ include "runnel-agent.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* "true" if the policy has only exact names of namespaces: then the agent's rights are Roles in these. */}}
{{- define "runnel-agent.limited" -}}
{{- if not (contains "*" (join "" .Values.policy.namespaces)) }}true{{ end -}}
{{- end -}}

{{/* What a word in a list of kinds stands for: kinds with namespaces, and kinds without. */}}
{{- define "runnel-agent.presets" -}}
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
{{- define "runnel-agent.withPresets" -}}
{{- $presets := include "runnel-agent.presets" . | fromJson -}}
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

{{/* The policy with the kinds of its presets, as JSON. */}}
{{- define "runnel-agent.policy" -}}
{{- $policy := deepCopy .Values.policy -}}
{{- range $field := list "kinds" "clusterKinds" -}}
{{- $_ := set $policy $field (include "runnel-agent.withPresets" (list (get $policy $field) $field) | fromJsonArray) -}}
{{- end -}}
{{- $_ := set $policy "allowPrivileged" (include "runnel-agent.withPresets" (list $policy.allowPrivileged "kinds" "clusterKinds") | fromJsonArray) -}}
{{- toJson $policy -}}
{{- end -}}

{{/* Kinds whose objects carry rights, run programs or change how the cluster works: API groups, and kinds of the core group. */}}
{{- define "runnel-agent.privileged" -}}
{"groups": ["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
"authorization.k8s.io", "batch", "certificates.k8s.io", "discovery.k8s.io", "flowcontrol.apiserver.k8s.io", "rbac.authorization.k8s.io",
"apps.openshift.io", "argoproj.io", "authorization.openshift.io", "helm.toolkit.fluxcd.io", "kustomize.toolkit.fluxcd.io",
"kyverno.io", "oauth.openshift.io", "security.openshift.io", "user.openshift.io"],
"resources": ["endpoints", "namespaces", "nodes", "persistentvolumes", "pods", "podtemplates", "replicationcontrollers", "serviceaccounts"]}
{{- end -}}

{{/* The kinds of a list of the policy as a JSON map from API groups to plurals. Fails for privileged kinds that the values do not
allow. Takes a list: the root, and the name of the list. */}}
{{- define "runnel-agent.kinds" -}}
{{- $root := index . 0 -}}
{{- $field := index . 1 -}}
{{- $policy := include "runnel-agent.policy" $root | fromJson -}}
{{- $privileged := include "runnel-agent.privileged" $root | fromJson -}}
{{- $byGroup := dict -}}
{{- range $kind := uniq (get $policy $field) | sortAlpha -}}
{{- $parts := splitn "." 2 $kind -}}
{{- $group := default "" $parts._1 -}}
{{- $isPrivileged := ternary (has $kind $privileged.resources) (has $group $privileged.groups) (empty $group) -}}
{{- if and $isPrivileged (not (has $kind $policy.allowPrivileged)) -}}
{{- fail (printf "policy.%s: %s carry rights, run programs or change how the cluster works: name it in policy.allowPrivileged, too, or remove it" $field $kind) -}}
{{- end -}}
{{- if eq $group "runnel.dev" -}}
{{- fail (printf "policy.%s: %s are objects of Runnel itself, which it never distributes: remove it" $field $kind) -}}
{{- end -}}
{{- if and (eq $field "clusterKinds") (has $kind $policy.kinds) -}}
{{- fail (printf "policy.clusterKinds: %s is in policy.kinds, too: write kinds with namespaces into policy.kinds, and kinds without into policy.clusterKinds" $kind) -}}
{{- end -}}
{{- $_ := set $byGroup $group (append (default list (get $byGroup $group)) $parts._0) -}}
{{- end -}}
{{- toJson $byGroup -}}
{{- end -}}

{{/* The rights on copies in namespaces, and on Events. */}}
{{- define "runnel-agent.copyRules" -}}
{{- include "runnel-agent.kindRules" (include "runnel-agent.kinds" (list . "kinds") | fromJson) }}
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* The rights on copies without namespaces, except on namespaces themselves. */}}
{{- define "runnel-agent.clusterCopyRules" -}}
{{- $kinds := include "runnel-agent.kinds" (list . "clusterKinds") | fromJson -}}
{{- with without (default list (get $kinds "")) "namespaces" -}}
{{- $_ := set $kinds "" . -}}
{{- else -}}
{{- $_ := unset $kinds "" -}}
{{- end -}}
{{- include "runnel-agent.kindRules" $kinds }}
{{- if .Values.policy.deleteNamespaces }}
- apiGroups: ["*"]
  resources: ["*"]
  verbs: [list]
{{- end }}
{{- end -}}

{{/* The rights on namespaces: as targets, and as copies. */}}
{{- define "runnel-agent.namespaceVerbs" -}}
{{- $policy := include "runnel-agent.policy" . | fromJson -}}
{{- $areCopies := has "namespaces" $policy.clusterKinds -}}
{{- $verbs := list "get" "list" "watch" -}}
{{- if or $policy.createNamespaces $areCopies }}{{ $verbs = append $verbs "create" }}{{ end -}}
{{- if $areCopies }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- if and $areCopies $policy.deleteNamespaces }}{{ $verbs = append $verbs "delete" }}{{ end -}}
[{{ $verbs | sortAlpha | join ", " }}]
{{- end -}}

{{/* The rights on copies of kinds, a map from API groups to plurals. A Role is written only by who has its rights, or may
escalate. */}}
{{- define "runnel-agent.kindRules" -}}
{{- range $group, $plurals := . }}
- apiGroups: [{{ quote $group }}]
  resources: {{ toJson $plurals }}
  verbs: [create, delete, get, list, patch, watch]
{{- if eq $group "rbac.authorization.k8s.io" }}
{{- $roles := list }}
{{- range $plurals }}{{ if has . (list "roles" "clusterroles") }}{{ $roles = append $roles . }}{{ end }}{{ end }}
{{- with $roles }}
- apiGroups: [{{ quote $group }}]
  resources: {{ toJson . }}
  verbs: [bind, escalate]
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The accounts of policy.impersonate as a JSON map from namespaces to names. */}}
{{- define "runnel-agent.accounts" -}}
{{- $byNamespace := dict -}}
{{- $seen := list -}}
{{- range .Values.policy.impersonate -}}
{{- if has .hubNamespace $seen -}}
{{- fail (printf "policy.impersonate: %s has two entries: remove one of them" .hubNamespace) -}}
{{- end -}}
{{- $seen = append $seen .hubNamespace -}}
{{- $parts := splitn "/" 2 .serviceAccount -}}
{{- $names := append (default list (get $byNamespace $parts._0)) $parts._1 | uniq | sortAlpha -}}
{{- $_ := set $byNamespace $parts._0 $names -}}
{{- end -}}
{{- toJson $byNamespace -}}
{{- end -}}

{{/* The users whose writes are those of the agent, as a JSON list, which is also a CEL list. */}}
{{- define "runnel-agent.writers" -}}
{{- $users := list (printf "system:serviceaccount:%s:%s" .Release.Namespace (include "runnel-agent.serviceAccount" .)) -}}
{{- range $namespace, $names := include "runnel-agent.accounts" . | fromJson -}}
{{- range $names }}{{ $users = append $users (printf "system:serviceaccount:%s:%s" $namespace .) }}{{ end -}}
{{- end -}}
{{- toJson $users -}}
{{- end -}}

{{- define "runnel-agent.joinSecret" -}}
{{- default (printf "%s-join" (include "runnel-agent.fullname" .)) .Values.join.existingSecret -}}
{{- end -}}

{{/* The agent's own Secrets, as a JSON list, which is also a CEL list. */}}
{{- define "runnel-agent.ownSecrets" -}}
{{- toJson (list "runnel-agent-identity" "runnel-agent-terms") -}}
{{- end -}}

{{/* Types of Secrets that are credentials of the cluster and are never written. */}}
{{- define "runnel-agent.refusedTypes" -}}
["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release*"]
{{- end -}}

{{/* Namespaces of the system and of controllers, which no glob matches. */}}
{{- define "runnel-agent.reserved" -}}
["kube-*", "*-system", "openshift", "openshift-*", "argocd", "argo-cd", "cert-manager", "cattle-*", "linkerd*", "calico-*", "kyverno", "tigera-operator", "external-secrets", "open-cluster-management*", "velero",
"argo", "azure-arc", "external-dns", "gke-*", "ingress-nginx", "rook-ceph", "tekton-*", "traefik", "vault"]
{{- end -}}

{{/* A regular expression in a CEL string that matches any of a list of names and globs. */}}
{{- define "runnel-agent.anyOf" -}}
{{- $all := list -}}
{{- range . }}{{ $all = append $all (. | replace "." "[.]" | replace "*" ".*") }}{{ end -}}
{{- printf "^(%s)$" (join "|" $all) -}}
{{- end -}}

{{/* The names among names and globs, as a JSON list, which is also a CEL list. */}}
{{- define "runnel-agent.literals" -}}
{{- $names := list -}}
{{- range . }}{{ if not (contains "*" .) }}{{ $names = append $names . }}{{ end }}{{ end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Names and labels of the chart's objects. */}}

{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end }}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "baton.name" .) .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "baton.name" .) -}}
{{- end -}}
{{- end }}

{{/* Labels by which Deployments and Services select pods. A Deployment's selector must never change. */}}
{{- define "baton.selectorLabels" -}}
app.kubernetes.io/name: {{ include "baton.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The name of this Baton: its release, joined with its alias if a release has several. The underscore keeps
it apart from the names of other releases, which cannot have one. */}}
{{- define "baton.instance" -}}
{{- $instance := eq .Chart.Name "baton" | ternary .Release.Name (printf "%s_%s" .Release.Name .Chart.Name) -}}
{{- if gt (len $instance) 63 -}}
{{- $instance = printf "%s_%s" (trunc 54 $instance) ($instance | sha256sum | trunc 8) -}}
{{- end -}}
{{- $instance -}}
{{- end }}

{{/* Labels that select Ray's pods, together with KubeRay's ray.io/*, including pods of an older chart's
cluster. app.kubernetes.io/name is left out because KubeRay's Service of the head selects by it, and so is
whatever changes with the chart's version, since each upgrade would then make a new cluster. */}}
{{- define "baton.releaseLabels" -}}
app.kubernetes.io/instance: {{ include "baton.instance" . }}
{{- end }}

{{/* Pods of this Baton as peers in a network policy: Ray's pods, and with an alias also the others. */}}
{{- define "baton.ownPeers" -}}
- podSelector:
    matchLabels:
      {{- include "baton.releaseLabels" . | nindent 6 }}
{{- if ne (include "baton.instance" .) .Release.Name }}
- podSelector:
    matchLabels:
      {{- include "baton.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes root, name and optionally annotations and labels. */}}
{{- define "baton.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "baton.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "baton.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry | default .Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag }}{{ end -}}
{{- end }}

{{/* A third-party image, from global.imageRegistry unless it names a registry itself. */}}
{{- define "baton.otherImage" -}}
{{- $first := splitList "/" .image | first -}}
{{- $namesRegistry := and (contains "/" .image) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- if and .root.Values.global.imageRegistry (not $namesRegistry) }}{{ .root.Values.global.imageRegistry }}/{{ end -}}
{{- .image -}}
{{- end }}

{{/* Placement of a pod that is not Ray's. */}}
{{- define "baton.placement" -}}
{{- range $key := list "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $ $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "baton.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "baton.tlsSecret" -}}
{{- if .Values.tls.secretName -}}
{{- .Values.tls.secretName -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- include "baton.fullname" . }}-tls
{{- end -}}
{{- end }}

{{/* Names of Secrets, which are mounted if they exist. */}}
{{- define "baton.keysSecret" -}}
{{- .Values.security.keys | default (printf "%s-keys" (include "baton.fullname" .)) -}}
{{- end }}

{{/* "true" or "": whether gateways ask clients for a key. */}}
{{- define "baton.hasKeys" -}}
{{- $keys := concat (.Values.config.gateway.api_keys | default list) (.Values.config.gateway.operator_keys | default list) -}}
{{- range $_, $tenant := .Values.config.gateway.tenants -}}{{- $keys = concat $keys ($tenant.api_keys | default list) -}}{{- end -}}
{{- if $keys }}true{{ end -}}
{{- end }}

{{- define "baton.clusterSecret" -}}
{{- .Values.security.certificate | default (printf "%s-cluster" (include "baton.fullname" .)) -}}
{{- end }}

{{- define "baton.modelClaim" -}}
{{- if .Values.model.claim.existingClaim -}}
{{- .Values.model.claim.existingClaim -}}
{{- else if .Values.model.claim.create -}}
{{- include "baton.fullname" . }}-models
{{- end -}}
{{- end }}

{{/* Worker groups completed with workerDefaults, as YAML under the key `groups`. */}}
{{- define "baton.groups" -}}
groups:
{{- range .Values.workerGroups }}
  - {{- mergeOverwrite (deepCopy $.Values.workerDefaults) . | toYaml | nindent 4 }}
{{- end }}
{{- end }}

{{/* Name of the one group with the role gateway. */}}
{{- define "baton.gatewayGroup" -}}
{{- range .Values.workerGroups }}{{ if eq .role "gateway" }}{{ .name }}{{ end }}{{ end -}}
{{- end }}

{{/* Ports of the gateways, with the application's defaults. */}}
{{- define "baton.httpPort" -}}
{{- .Values.config.gateway.port | default 8000 -}}
{{- end }}

{{- define "baton.grpcPort" -}}
{{- .Values.config.gateway.grpc_port | default 8001 -}}
{{- end }}

{{/* The longest that a request may take, in whole seconds. */}}
{{- define "baton.requestSeconds" -}}
{{- $seconds := .Values.config.gateway.request_timeout_s | default 600 | float64 -}}
{{- range $_, $tenant := .Values.config.gateway.tenants -}}
  {{- $seconds = maxf $seconds ($tenant.request_timeout_s | default 0 | float64) -}}
{{- end -}}
{{- ceil $seconds | int -}}
{{- end }}

{{/* Seconds of a duration as the Gateway API writes it: 1h30m, 500ms. */}}
{{- define "baton.durationSeconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9]+(h|ms|m|s)" . -1 -}}
  {{- $seconds = addf $seconds (mulf (regexFind "^[0-9]+" . | float64) (get $units (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}

{{/* The first of a role's ports for Prometheus and probes. */}}
{{- define "baton.firstPage" -}}
{{- $default := dict "gateway" 9400 "prefill" 9420 "decode" 9440 -}}
{{- get (.root.Values.config.metrics | default dict) (printf "%s_port" .role) | default (get $default .role) -}}
{{- end }}

{{/* The numeric part of Ray's version, since semverCompare does not take Python's 2.60.0rc1 or 3.0.0.dev0. */}}
{{- define "baton.rayRelease" -}}
{{- regexFind "^[0-9]+\\.[0-9]+(\\.[0-9]+)?" .Values.rayVersion -}}
{{- end }}

{{/* Accelerators of a pod as Ray counts them: of a device plugin, or of claims through num-gpus. */}}
{{- define "baton.numDevices" -}}
{{- get .rayStartParams "num-gpus" | default (get .rayResources "GPU") | default .accelerator.count | int -}}
{{- end }}

{{/* CPUs of a pod as Ray counts them, whole ones; empty: it looks itself, or they are a quantity such as 2k. */}}
{{- define "baton.numCpus" -}}
{{- $cpus := get .rayStartParams "num-cpus" | default (get .rayResources "CPU") | default (.resources.limits).cpu | default (.resources.requests).cpu | default "" | toString -}}
{{- if regexMatch "^[0-9.]+m$" $cpus -}}
{{- divf (trimSuffix "m" $cpus | float64) 1000 | ceil -}}
{{- else if regexMatch "^[0-9]+(\\.[0-9]+)?$" $cpus -}}
{{- float64 $cpus | ceil -}}
{{- end -}}
{{- end }}

{{/* Ranks of one engine, which are on one pod. Takes a pool of the configuration. */}}
{{- define "baton.engineRanks" -}}
{{- $ranks := 1 -}}
{{- range $axis := list "tensor" "pipeline" "context" -}}
  {{- $ranks = mul $ranks (get ($.parallel | default dict) $axis | default 1 | int) -}}
{{- end -}}
{{- $ranks -}}
{{- end }}

{{/* How many such ports a pod of a group has: one for each process. Takes root and group. */}}
{{- define "baton.numPages" -}}
{{- $metrics := .root.Values.config.metrics | default dict -}}
{{- $pool := get .root.Values.config .group.role -}}
{{- $gpus := ($pool.resources).num_gpus | default 0 -}}
{{- if and (hasKey $metrics "enabled") (not $metrics.enabled) -}}
0
{{- else if .group.processes -}}
{{- .group.processes -}}
{{- else if or (eq .group.role "gateway") (not (and $gpus (include "baton.numDevices" .group | int))) -}}
1
{{- else -}}
{{- $gpus = mulf $gpus (include "baton.engineRanks" $pool | int) -}}
{{- divf (include "baton.numDevices" .group | int) $gpus | floor | int | max 1 | min 16 -}}
{{- end -}}
{{- end }}

{{/* "true" or "": a tri-state value, and the kind that null looks for. */}}
{{- define "baton.isWanted" -}}
{{- if kindIs "invalid" .enabled -}}
{{- if .root.Capabilities.APIVersions.Has .kind }}true{{ end -}}
{{- else if .enabled -}}
true
{{- end -}}
{{- end }}

{{/*
The application for Ray Serve, derived from `config` only.

    args          what processes start with: a change restarts all of them
    user_config   what running processes of each deployment are told; files/live.json lists the settings
*/}}
{{- define "baton.serveConfig" -}}
{{- $known := .Files.Get "files/live.json" | fromJson -}}
{{- $config := deepCopy .Values.config -}}
{{- if and (include "baton.followsGroups" .) (not $config.planner.groups_url) -}}
  {{- $_ := set $config.planner "groups_url" (printf "http://%s-groups.%s:9480" (include "baton.fullname" .) .Release.Namespace) -}}
{{- end -}}
{{- if .Values.collector.enabled -}}
  {{- $tracing := $config.tracing | default dict -}}
  {{- if not $tracing.otlp_endpoint -}}
    {{- $_ := set $tracing "otlp_endpoint" (printf "http://%s-collector.%s:4317" (include "baton.fullname" .) .Release.Namespace) -}}
    {{- if not (hasKey $tracing "sample_ratio") -}}{{- $_ := set $tracing "sample_ratio" .Values.collector.sampleRatio -}}{{- end -}}
    {{- $_ := set $config "tracing" $tracing -}}
  {{- end -}}
{{- end -}}
{{- $health := $config.health | default dict -}}
{{- $ray := $config.ray | default dict -}}
{{- $registry := $config.registry | default dict -}}
proxy_location: Disabled
applications:
  - name: {{ $ray.app_name | default "baton" }}
    route_prefix: null
    import_path: baton.platform.serve_app:app
    {{- with $ray.runtime_env }}
    runtime_env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    args:
      {{- include "baton.fixed" (dict "config" $config "known" $known) | nindent 6 }}
    deployments:
      {{- range $known.deployments }}
      {{- $pool := get $config .pool | default dict }}
      {{- $replicas := hasKey $pool "replicas" | ternary $pool.replicas 1 }}
      {{- if or (ne .pool "prefill") $replicas }}
      {{- $deployment := . }}
      {{- $names := list .name }}
      {{- if eq .name "Registry" }}
      {{- range $number := untilStep 1 ($registry.replicas | default 1 | int) 1 }}{{ $names = append $names (printf "Registry-%d" $number) }}{{ end }}
      {{- end }}
      {{- range $name := $names }}
      {{- with $deployment }}
      - name: {{ $name }}
        {{- if and .pool (ne .pool "gateway") (get ($config.planner | default dict) "idle_s") }}
        autoscaling_config: {min_replicas: {{ $replicas }}, initial_replicas: {{ $replicas }}, max_replicas: {{ $replicas }}}
        {{- else if .pool }}
        num_replicas: {{ $replicas }}
        {{- end }}
        health_check_period_s: {{ $health.check_period_s | default 1 }}
        graceful_shutdown_timeout_s: {{ .drains | ternary ($health.drain_s | default 30) 0.1 | addf $known.shutdown_slack_s }}
        user_config:
          {{- include "baton.live" (dict "config" $config "settings" .settings) | nindent 10 }}
      {{- end }}
      {{- end }}
      {{- end }}
      {{- end }}
{{- end }}

{{/* The part of the configuration that consists of these settings. */}}
{{- define "baton.live" -}}
{{- $found := dict -}}
{{- range $path := .settings -}}
  {{- $keys := splitList "." $path -}}
  {{- $above := initial $keys | join "." -}}
  {{- $node := $.config -}}
  {{- range initial $keys -}}{{- $node = get $node . | default dict -}}{{- end -}}
  {{- if hasKey $node (last $keys) -}}
    {{- $place := $found -}}
    {{- range initial $keys -}}
      {{- if not (hasKey $place .) -}}{{- $_ := set $place . dict -}}{{- end -}}
      {{- $place = get $place . -}}
    {{- end -}}
    {{- $_ := set $place (last $keys) (get $node (last $keys)) -}}
  {{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}

{{/* The other settings, with the tenants' kv_share and whether there are prefill replicas, which engines need
at their start. Empty branches are left out, since they would appear and vanish with the live settings. */}}
{{- define "baton.fixed" -}}
{{- $fixed := deepCopy .config -}}
{{- $kept := dict -}}
{{- range $name, $tenant := (.config.gateway).tenants -}}
  {{- if $tenant.kv_share -}}{{- $_ := set $kept $name (pick $tenant "kv_share" "api_keys") -}}{{- end -}}
{{- end -}}
{{- range $path := concat .known.live .known.of_the_driver -}}
  {{- $keys := splitList "." $path -}}
  {{- if eq (len $keys) 1 -}}
    {{- $_ := unset $fixed $path -}}
  {{- else if hasKey $fixed (first $keys) -}}
    {{- $branch := get $fixed (first $keys) -}}
    {{- $_ := unset $branch (last $keys) -}}
    {{- if not $branch -}}{{- $_ := unset $fixed (first $keys) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- if $kept -}}
  {{- $_ := set $fixed "gateway" (merge (dict "tenants" $kept) (get $fixed "gateway" | default dict)) -}}
{{- end -}}
{{- if and (hasKey (.config.prefill | default dict) "replicas") (not .config.prefill.replicas) -}}
  {{- $_ := set $fixed "prefill" (merge (dict "replicas" 0) (get $fixed "prefill" | default dict)) -}}
{{- end -}}
{{- toYaml $fixed -}}
{{- end }}

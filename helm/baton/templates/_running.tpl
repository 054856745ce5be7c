{{/*
What the pods that run lack, and the configuration would want. With the upgrade type None KubeRay
leaves them as they are while Serve is told of the new configuration: processes would start anew and
look for a file, a port or a device that never comes. Helm knows pods that run in an upgrade alone,
and `helm template` in none.
*/}}
{{- define "baton.checkRunning" -}}
{{- if and .Release.IsUpgrade (eq .Values.upgrade.type "None") .Values.upgrade.compare (.Capabilities.APIVersions.Has "ray.io/v1") -}}
  {{- $service := lookup "ray.io/v1" "RayService" .Release.Namespace (include "baton.fullname" .) -}}
  {{- with (($service.status).activeServiceStatus).rayClusterName -}}
    {{- $cluster := lookup "ray.io/v1" "RayCluster" $.Release.Namespace . -}}
    {{- $running := dict -}}
    {{- range ($cluster.spec).workerGroupSpecs -}}
      {{- $_ := set $running .groupName .template.spec -}}
    {{- end -}}
    {{- range $group := (include "baton.groups" $ | fromYaml).groups -}}
      {{- with get $running $group.name -}}
        {{- $pod := include "baton.pod" (dict "root" $ "pod" $group "kind" $group.role "group" $group.name) | fromYaml -}}
        {{- include "baton.checkRunningPod" (dict "root" $ "group" $group "wanted" $pod.spec "running" .) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* Takes root, group, and the specs of its pods as they are wanted and as they run. */}}
{{- define "baton.checkRunningPod" -}}
{{- $config := .root.Values.config -}}
{{- $remedy := "and upgrade.type None leaves them as they are; set upgrade.type: NewCluster for this upgrade, or uninstall the release and install it anew (upgrade.compare: false upgrades all the same)" -}}
{{- $paths := dict "models" (prepend (values ($config.adapters | default dict) | sortAlpha) ($config.model | default "")) "keys" list "cluster-certificate" (list (($config.security).tls_cert_file | default "") (($config.security).token_file | default "")) "tls" (list ($config.gateway.tls_cert_file | default "")) -}}
{{- range concat ($config.gateway.api_keys | default list) ($config.gateway.operator_keys | default list) (list ($config.gateway.cache_secret | default "")) -}}
  {{- $_ := set $paths "keys" (append $paths.keys (trimPrefix "file:" .)) -}}
{{- end -}}
{{- range $_, $tenant := $config.gateway.tenants -}}
  {{- range $tenant.api_keys -}}{{- $_ := set $paths "keys" (append $paths.keys (trimPrefix "file:" .)) -}}{{- end -}}
{{- end -}}
{{- $there := dict -}}
{{- range .running.volumes -}}{{- $_ := set $there .name . -}}{{- end -}}
{{- $mounts := dict -}}
{{- range (first .wanted.containers).volumeMounts -}}{{- $_ := set $mounts .name .mountPath -}}{{- end -}}
{{- range $volume := .wanted.volumes -}}
  {{- $has := get $there $volume.name | default dict -}}
  {{- $source := (($volume.secret).secretName) | default (($volume.persistentVolumeClaim).claimName) | default (($volume.hostPath).path) -}}
  {{- $source = $source | default "" -}}
  {{- $runs := (($has.secret).secretName) | default (($has.persistentVolumeClaim).claimName) | default (($has.hostPath).path) -}}
  {{- range get $paths $volume.name | default list -}}
    {{- if and (hasPrefix (printf "%s/" (get $mounts $volume.name)) .) (ne $source ($runs | default "")) -}}
    {{- fail (printf "workerGroups, %s: config names %s, which would be of %s, and its pods run with %s there, %s" $.group.name . $source ($runs | default "nothing") $remedy) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $container := first .running.containers -}}
{{- $model := $config.model | default "demo" -}}
{{- if and (ne .group.role "gateway") (ne $model "demo") (not (hasPrefix "/" $model)) -}}
  {{- if and (hasKey $mounts "models") (not (hasKey $there "models")) -}}
  {{- fail (printf "workerGroups, %s: %s would be downloaded into the home of its pods, which have no volume for models, %s" .group.name $model $remedy) -}}
  {{- end -}}
  {{- $has := list -}}
  {{- range $container.env -}}{{- $has = append $has .name -}}{{- end -}}
  {{- range $container.envFrom -}}{{- $has = append $has ((.secretRef).name) -}}{{- end -}}
  {{- range list (ternary "HF_TOKEN" "" (not (empty .root.Values.model.hubToken.existingSecret))) .root.Values.model.objectStore.existingSecret -}}
    {{- if and . (not (has . $has)) -}}
    {{- fail (printf "workerGroups, %s: its pods, which download %s, run without %s, %s" $.group.name $model . $remedy) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $container.ports -}}{{- $_ := set $ports .name (int .containerPort) -}}{{- end -}}
{{- range (first .wanted.containers).ports -}}
  {{- if and (has .name (list "http" "grpc" "baton-0")) (ne (int .containerPort) (get $ports .name | default 0 | int)) -}}
  {{- fail (printf "workerGroups, %s: config gives it the port %v, and the %s port of its pods is %v, %s" $.group.name .containerPort .name (get $ports .name | default "none") $remedy) -}}
  {{- end -}}
{{- end -}}
{{- $scheme := (((first .wanted.containers).readinessProbe).httpGet).scheme | default "HTTP" -}}
{{- $asked := (($container.readinessProbe).httpGet).scheme | default "HTTP" -}}
{{- if ne $scheme $asked -}}
{{- fail (printf "workerGroups, %s: gateways would speak %s, and the probe of its pods asks by %s, %s" .group.name $scheme $asked $remedy) -}}
{{- end -}}
{{- $pool := get $config .group.role | default dict -}}
{{- $engine := mulf (include "baton.engineRanks" $pool | int) (($pool.resources).num_gpus | default 0) -}}
{{- with .group.accelerator.resource -}}
  {{- $has := get (($container.resources).limits | default dict) . | default 0 | int -}}
  {{- if gt $engine (float64 $has) -}}
  {{- fail (printf "workerGroups, %s: an engine wants %v accelerators of one pod, and its pods run with %d of %s, %s" $.group.name $engine $has . $remedy) -}}
  {{- end -}}
{{- end -}}
{{- end }}

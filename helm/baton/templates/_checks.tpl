{{/*
Refuses mistakes that neither the values' schema nor the CRD would refuse.
Each message names the value and the remedy.
*/}}
{{- define "baton.checks" -}}
{{- include "baton.checkNames" . -}}
{{- include "baton.checkGroups" . -}}
{{- include "baton.checkConfig" . -}}
{{- include "baton.checkSecrets" . -}}
{{- include "baton.checkPlaces" . -}}
{{- include "baton.checkUpgrade" . -}}
{{- include "baton.checkFaultTolerance" . -}}
{{- include "baton.checkNetwork" . -}}
{{- include "baton.checkFollow" . -}}
{{- include "baton.checkRunning" . -}}
{{- end }}

{{- define "baton.checkFollow" -}}
{{- if include "baton.followsGroups" . -}}
  {{- if and (eq .Values.rayAuth.mode "token") (not .Values.rayAuth.secretName) -}}
  {{- fail "config.planner.nodes kuberay: the adapter needs Ray's token, whose Secret KubeRay names itself; create a Secret with the key auth_token, and set rayAuth.secretName to its name" -}}
  {{- end -}}
  {{- $num := 0 -}}
  {{- range (include "baton.groups" . | fromYaml).groups -}}
    {{- $min := kindIs "invalid" .minReplicas | ternary .replicas .minReplicas | int -}}
    {{- $max := kindIs "invalid" .maxReplicas | ternary .replicas .maxReplicas | int -}}
    {{- if and (ne .role "gateway") (lt $min $max) -}}{{- $num = add $num 1 -}}{{- end -}}
  {{- end -}}
  {{- if not $num -}}
  {{- fail "config.planner.nodes kuberay: no prefill or decode group may change its number of pods; set minReplicas below maxReplicas in one" -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkNames" -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
  {{- if hasKey ($.Values.commonLabels | default dict) $key -}}
  {{- fail (printf "commonLabels: ServiceMonitors select their Service by %s; use another label" $key) -}}
  {{- end -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]+\\.[0-9]+(\\.[0-9]+)?([-+.a-z].*)?$" .Values.rayVersion) -}}
{{- fail (printf "rayVersion: %q is not a version; set it to that of Ray in the image, such as 2.60.0" .Values.rayVersion) -}}
{{- end -}}
{{- $name := include "baton.fullname" . -}}
{{- if gt (len $name) 47 -}}
{{- fail (printf "the RayService would be called %s, which has %d characters: KubeRay takes 47; set fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "the RayService would be called %s: it must begin with a letter and have lower-case letters, digits and hyphens alone; set fullnameOverride" $name) -}}
{{- end -}}
{{- end }}

{{- define "baton.checkGroups" -}}
{{- if and .Values.image.digest (not (regexMatch "^sha256:[0-9a-f]{64}$" .Values.image.digest)) -}}
{{- fail "image.digest must be sha256: and 64 hexadecimal digits, as the registry shows it; set that, or only image.tag" -}}
{{- end -}}
{{- if ge (.Values.rayPorts.minWorker | int) (.Values.rayPorts.maxWorker | int) -}}
{{- fail (printf "rayPorts: minWorker is %v and maxWorker %v: Ray gives each process a port between them; raise the latter" .Values.rayPorts.minWorker .Values.rayPorts.maxWorker) -}}
{{- end -}}
{{- $names := list -}}
{{- $roles := list -}}
{{- range (include "baton.groups" . | fromYaml).groups -}}
  {{- $where := printf "workerGroups, %s" .name -}}
  {{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .name) -}}
  {{- fail (printf "%s: a group's name begins with a letter and has lower-case letters, digits and hyphens alone; rename it" $where) -}}
  {{- end -}}
  {{- if has .name $names -}}
  {{- fail (printf "%s: two groups have this name; rename the later one" $where) -}}
  {{- end -}}
  {{- $names = append $names .name -}}
  {{- $roles = append $roles .role -}}
  {{- $min := kindIs "invalid" .minReplicas | ternary .replicas .minReplicas | int -}}
  {{- $max := kindIs "invalid" .maxReplicas | ternary .replicas .maxReplicas | int -}}
  {{- if gt $min $max -}}
  {{- fail (printf "%s: minReplicas is %d, maxReplicas %d; raise the latter" $where $min $max) -}}
  {{- end -}}
  {{- if or (lt (.replicas | int) $min) (gt (.replicas | int) $max) -}}
  {{- fail (printf "%s: replicas is %d, which is not between minReplicas %d and maxReplicas %d; change one of them" $where (.replicas | int) $min $max) -}}
  {{- end -}}
  {{- include "baton.checkPod" (dict "pod" . "where" $where "root" $) -}}
{{- end -}}
{{- if ne (len (without $roles "prefill" "decode")) 1 -}}
{{- fail "workerGroups: exactly one group has the role gateway, as the Service selects it by its name; give it more replicas instead" -}}
{{- end -}}
{{- if not (has "decode" $roles) -}}
{{- fail "workerGroups: no group has the role decode, and every request ends on a decode replica; add one" -}}
{{- end -}}
{{- $num := hasKey .Values.config.prefill "replicas" | ternary .Values.config.prefill.replicas 1 | int -}}
{{- if and $num (not (has "prefill" $roles)) -}}
{{- fail (printf "config.prefill.replicas is %d, and no group has the role prefill; add one, or set it to 0: decode replicas then compute prompts" $num) -}}
{{- end -}}
{{- include "baton.checkPod" (dict "pod" .Values.head "where" "head" "root" .) -}}
{{- end }}

{{/* Checks of a pod's values. Takes pod, where (the place named in messages) and root. */}}
{{- define "baton.checkPod" -}}
{{- $where := .where -}}
{{- $root := .root -}}
{{- range $key := list "labels" "resources" -}}
  {{- if hasKey $.pod.rayStartParams $key -}}
  {{- fail (printf "%s: rayStartParams.%s: KubeRay refuses it beside the group's own; use %s" $where $key (eq $key "labels" | ternary "rayLabels" "rayResources")) -}}
  {{- end -}}
{{- end -}}
{{- range $key := list "num-cpus" "num-gpus" "memory" -}}
  {{- if and $.pod.rayResources (hasKey $.pod.rayStartParams $key) -}}
  {{- fail (printf "%s: rayStartParams.%s: KubeRay refuses it beside rayResources; name CPU, GPU or memory there" $where $key) -}}
  {{- end -}}
{{- end -}}
{{- range $key, $value := .pod.rayLabels | default dict -}}
  {{- if not (and (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $key) (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" $value)) -}}
  {{- fail (printf "%s: rayLabels.%s: %q is not a label value of Kubernetes (at most 63 letters, digits, - _ .); change it" $where $key $value) -}}
  {{- end -}}
{{- end -}}
{{- range $key := list "redis-password" "redis-username" -}}
  {{- if hasKey $.pod.rayStartParams $key -}}
  {{- fail (printf "%s: rayStartParams.%s: set faultTolerance.%s instead" $where $key (eq $key "redis-password" | ternary "redisPassword" "redisUsername")) -}}
  {{- end -}}
{{- end -}}
{{- range .pod.env -}}
  {{- if and (or $root.Values.faultTolerance.enabled (eq $where "head")) (has .name (list "REDIS_PASSWORD" "RAY_REDIS_ADDRESS" "REDIS_USERNAME")) -}}
  {{- fail (printf "%s: env %s: KubeRay takes Redis by its own options alone; set faultTolerance.redisAddress, redisUsername and redisPassword" $where .name) -}}
  {{- end -}}
  {{- if eq .name "RAY_enable_autoscaler_v2" -}}
  {{- fail (printf "%s: env RAY_enable_autoscaler_v2: set autoscaler.version instead, and autoscaler.enabled" $where) -}}
  {{- end -}}
{{- end -}}
{{- if and (get .pod "priority") (semverCompare "<2.56.0" (include "baton.rayRelease" $root)) -}}
{{- fail (printf "%s: priority: Ray %s has none; it takes 2.56, or leave it out" $where $root.Values.rayVersion) -}}
{{- end -}}
{{- range $key := list "idleTimeoutSeconds" "priority" -}}
  {{- if and (get $.pod $key) (not (and $root.Values.autoscaler.enabled (eq $root.Values.autoscaler.version "v2"))) -}}
  {{- fail (printf "%s: %s: KubeRay takes it with its autoscaler alone; set autoscaler.enabled and version v2, or leave it out" $where $key) -}}
  {{- end -}}
{{- end -}}
{{- $drain := ($root.Values.config.health).drain_s | default 30 | float64 -}}
{{- if and (ne $where "head") (gt (addf $drain 30) (.pod.terminationGracePeriodSeconds | float64)) -}}
{{- fail (printf "%s: terminationGracePeriodSeconds is %v, and a drain may take %v s (config.health.drain_s) after replacements have come up; allow 30 s more than that" $where .pod.terminationGracePeriodSeconds $drain) -}}
{{- end -}}
{{- range $key := list "app.kubernetes.io/instance" "app.kubernetes.io/component" "ray.io/is-ray-node" "ray.io/cluster" "ray.io/node-type" "ray.io/group" -}}
  {{- if hasKey ($.pod.podLabels | default dict) $key -}}
  {{- fail (printf "%s: podLabels: by %s Services and network policies select the pod; use another label" $where $key) -}}
  {{- end -}}
{{- end -}}
{{- if hasKey ($.pod.podLabels | default dict) "app.kubernetes.io/name" -}}
{{- fail (printf "%s: podLabels: app.kubernetes.io/name is KubeRay's, whose Service of the head selects it; use another label" $where) -}}
{{- end -}}
{{- range $name, $devices := dict "accelerator" .pod.accelerator "rdma" .pod.rdma -}}
  {{- if ne (empty $devices.resource) (empty $devices.count) -}}
  {{- fail (printf "%s: %s.resource and %s.count belong together: set both, or none" $where $name $name) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkConfig" -}}
{{- $gateway := .Values.config.gateway -}}
{{- if has ($gateway.host | default "127.0.0.1") (list "127.0.0.1" "localhost" "::1") -}}
{{- fail "config.gateway.host: gateways would listen only inside their own pod; set 0.0.0.0 (or ::)" -}}
{{- end -}}
{{- if has ((.Values.config.metrics).host | default "") (list "127.0.0.1" "localhost" "::1") -}}
{{- fail "config.metrics.host: probes and Prometheus could not reach the process at the pod's address; leave it empty" -}}
{{- end -}}
{{- range $key := list "port" "grpc_port" -}}
  {{- if and (hasKey $gateway $key) (not (get $gateway $key)) -}}
  {{- fail (printf "config.gateway.%s is 0, and the Service needs a fixed port; set one" $key) -}}
  {{- end -}}
{{- end -}}
{{- if (.Values.config.ray).address -}}
{{- fail "config.ray.address: the application runs in the cluster of its RayService; leave it empty" -}}
{{- end -}}
{{- range $role := list "gateway" "prefill" "decode" -}}
  {{- $asked := index (((index $.Values.config $role).placement).labels | default dict) "baton-role" | default "" -}}
  {{- if not (contains $role $asked) -}}
  {{- fail (printf "config.%s.placement.labels: baton-role must be %s, or it could run on any pod; set it" $role $role) -}}
  {{- end -}}
{{- end -}}
{{- $wanted := include "baton.tlsSecret" . -}}
{{- $has := $gateway.tls_cert_file | default "" -}}
{{- if and $wanted (not $has) -}}
{{- fail "tls: the certificate mounted at /etc/baton/tls is not used; set config.gateway.tls_cert_file: /etc/baton/tls/tls.crt and tls_key_file: /etc/baton/tls/tls.key" -}}
{{- end -}}
{{- if and (hasPrefix "/etc/baton/tls/" $has) (not $wanted) -}}
{{- fail "config.gateway.tls_cert_file: nothing is mounted there; set tls.secretName or tls.certManager" -}}
{{- end -}}
{{- $inside := (.Values.config.security).tls_cert_file | default "" -}}
{{- if and .Values.security.certificate (not $inside) -}}
{{- fail "security.certificate: the certificate mounted at /etc/baton/cluster is not used; name its tls.crt, tls.key and ca.crt in config.security" -}}
{{- end -}}
{{- end }}

{{/* Refuses secrets in the values, which would be readable in the release's Secret, the RayService and
Ray's control store. */}}
{{- define "baton.checkSecrets" -}}
{{- $gateway := .Values.config.gateway -}}
{{- $secrets := dict -}}
{{- range $key := list "api_keys" "operator_keys" -}}
  {{- $_ := set $secrets (printf "config.gateway.%s" $key) (get $gateway $key | default list) -}}
{{- end -}}
{{- $_ := set $secrets "config.gateway.cache_secret" (compact (list ($gateway.cache_secret | default ""))) -}}
{{- range $name, $tenant := $gateway.tenants -}}
  {{- $_ := set $secrets (printf "config.gateway.tenants.%s.api_keys" $name) $tenant.api_keys -}}
{{- end -}}
{{- range $path, $values := $secrets -}}
  {{- range $values -}}
    {{- if not (regexMatch "^(file|env):" .) -}}
    {{- fail (printf "%s: values must not hold secrets; put it into the Secret %s and give its file: file:/etc/baton/keys/NAME" $path (include "baton.keysSecret" $)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $path, $ref := dict "faultTolerance.redisUsername" .Values.faultTolerance.redisUsername "faultTolerance.redisPassword" .Values.faultTolerance.redisPassword "security.token" .Values.security.token "model.hubToken" .Values.model.hubToken "test.apiKey" .Values.test.apiKey -}}
  {{- if ne (empty $ref.existingSecret) (empty $ref.key) -}}
  {{- fail (printf "%s: existingSecret and key belong together: set both, or none" $path) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses worker groups with too little room for the replicas of their role. */}}
{{- define "baton.checkPlaces" -}}
{{- $groups := (include "baton.groups" . | fromYaml).groups -}}
{{- range $role := list "prefill" "decode" -}}
  {{- $pool := index $.Values.config $role -}}
  {{- $replicas := hasKey $pool "replicas" | ternary $pool.replicas 1 | int -}}
  {{- $ofEngine := include "baton.engineRanks" $pool | int -}}
  {{- $ranks := mul $ofEngine (($pool.parallel).data | default 1 | int) -}}
  {{- $asked := mulf $replicas $ranks (($pool.resources).num_gpus | default 0) -}}
  {{- $there := 0 -}}
  {{- $most := 0 -}}
  {{- $cpus := mulf $ofEngine (($pool.resources).num_cpus | default 1) -}}
  {{- $mostCpus := 0.0 -}}
  {{- range $groups -}}
    {{- if eq .role $role -}}
      {{- $pods := kindIs "invalid" .maxReplicas | ternary .replicas .maxReplicas | int -}}
      {{- $there = add $there (mul (ternary $pods (.replicas | int) (include "baton.areGroupsSized" $ | not | not)) (.numOfHosts | int) (include "baton.numDevices" . | int)) -}}
      {{- $most = max $most (include "baton.numDevices" . | int) -}}
      {{- $mostCpus = maxf $mostCpus (include "baton.numCpus" . | default $cpus | float64) -}}
    {{- end -}}
  {{- end -}}
  {{- if gt $asked (float64 $there) -}}
  {{- fail (printf "config.%s wants %v accelerators (%d replicas of %d ranks), and its worker groups have %d; give them more replicas, or a higher accelerator.count (with resourceClaims: rayStartParams.num-gpus)" $role $asked $replicas $ranks $there) -}}
  {{- end -}}
  {{- $wanted := mulf $ofEngine (($pool.resources).num_gpus | default 0) -}}
  {{- if and $asked (gt $wanted (float64 $most)) -}}
  {{- fail (printf "config.%s.parallel: the %d ranks of an engine want %v accelerators of one pod, and those of its worker groups have %d; raise accelerator.count, or spread by parallel.data, whose engines may be on several pods" $role $ofEngine $wanted $most) -}}
  {{- end -}}
  {{- if and $replicas (gt (float64 $cpus) $mostCpus) -}}
  {{- fail (printf "config.%s.resources.num_cpus: the %d ranks of an engine want %v CPUs of one pod, and Ray counts %v there, of its resources.limits; lower it, or raise these" $role $ofEngine $cpus $mostCpus) -}}
  {{- end -}}
{{- end -}}
{{- range $groups -}}
  {{- if eq .role "gateway" -}}
    {{- $pods := kindIs "invalid" .maxReplicas | ternary .replicas .maxReplicas | int -}}
    {{- $pods = mul .numOfHosts (ternary $pods (.replicas | int) $.Values.autoscaler.enabled) -}}
    {{- $asked := $.Values.config.gateway.replicas | default 1 | int -}}
    {{- if gt $asked $pods -}}
    {{- fail (printf "config.gateway.replicas is %d, and the group %s has %d pods with a gateway each; make them equal" $asked .name $pods) -}}
    {{- end -}}
    {{- if and (lt $asked $pods) (not $.Values.autoscaler.enabled) -}}
    {{- fail (printf "config.gateway.replicas is %d, and the group %s has %d pods: those without a gateway would never be ready; make them equal" $asked .name $pods) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "baton.checkUpgrade" -}}
{{- $surge := .Values.upgrade.surge -}}
{{- if eq .Values.upgrade.type "NewClusterWithIncrementalUpgrade" -}}
  {{- if not .Values.autoscaler.enabled -}}
  {{- fail "upgrade.type NewClusterWithIncrementalUpgrade: KubeRay wants the autoscaler for it; set autoscaler.enabled, or the type NewCluster" -}}
  {{- end -}}
  {{- if not $surge.gatewayClassName -}}
  {{- fail "upgrade.type NewClusterWithIncrementalUpgrade: KubeRay moves traffic with a Gateway; set upgrade.surge.gatewayClassName" -}}
  {{- end -}}
  {{- if gt ($surge.stepSizePercent | int) ($surge.maxSurgePercent | int) -}}
  {{- fail "upgrade.surge: stepSizePercent must not be above maxSurgePercent; lower it" -}}
  {{- end -}}
{{- end -}}
{{- if and (eq .Values.rayAuth.mode "token") (semverCompare "<2.52.0" (include "baton.rayRelease" .)) -}}
{{- fail (printf "rayAuth.mode token: Ray %s has none; it takes 2.52, or the mode disabled" .Values.rayVersion) -}}
{{- end -}}
{{- end }}

{{- define "baton.checkFaultTolerance" -}}
{{- if and .Values.faultTolerance.enabled (not .Values.faultTolerance.redisAddress) -}}
{{- fail "faultTolerance.enabled: set faultTolerance.redisAddress to host:port of your Redis" -}}
{{- end -}}
{{- if and .Values.faultTolerance.enabled (not (regexMatch "^(rediss?://)?([^/@:]+|\\[[0-9a-fA-F:.]+\\]):[0-9]+$" .Values.faultTolerance.redisAddress)) -}}
{{- fail "faultTolerance.redisAddress: it is host:port, or rediss://host:port for TLS; name the port, and give user and password by redisUsername and redisPassword" -}}
{{- end -}}
{{- $timeout := .Values.rayService.initializingTimeout -}}
{{- if or (not (regexMatch "^([0-9]+|([0-9]+(\\.[0-9]+)?(h|m|s))+)$" $timeout)) (not (regexMatch "[1-9]" $timeout)) -}}
{{- fail (printf "rayService.initializingTimeout: %q is neither seconds nor a duration such as 1h30m; change it" $timeout) -}}
{{- end -}}
{{- range $key := list "ray.io/ft-enabled" "ray.io/external-storage-namespace" -}}
  {{- if and $.Values.faultTolerance.enabled (hasKey $.Values.rayService.annotations $key) -}}
  {{- fail (printf "rayService.annotations: KubeRay refuses %s beside faultTolerance; remove it" $key) -}}
  {{- end -}}
{{- end -}}
{{- if hasKey .Values.rayService.annotations "ray.io/initializing-timeout" -}}
{{- fail "rayService.annotations: ray.io/initializing-timeout is set by rayService.initializingTimeout; use that" -}}
{{- end -}}
{{- end }}

{{- define "baton.checkNetwork" -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.enabled: set ingress.hosts" -}}
{{- end -}}
{{- range $name, $route := dict "httpRoute" .Values.httpRoute "grpcRoute" .Values.grpcRoute -}}
  {{- if and $route.enabled (not $route.parentRefs) -}}
  {{- fail (printf "%s.enabled: name the Gateway that carries it in %s.parentRefs" $name $name) -}}
  {{- end -}}
{{- end -}}
{{- with .Values.httpRoute.requestTimeout -}}
  {{- if not (regexMatch "^([0-9]{1,5}(h|m|s|ms)){1,4}$" .) -}}
  {{- fail (printf "httpRoute.requestTimeout: %q is not a duration of the Gateway API; write it as 600s or 1h30m" .) -}}
  {{- end -}}
  {{- $seconds := include "baton.durationSeconds" . | float64 -}}
  {{- $wanted := include "baton.requestSeconds" $ -}}
  {{- if and $seconds (lt $seconds (float64 $wanted)) -}}
  {{- fail (printf "httpRoute.requestTimeout is %s, and gateways give a request %s s (request_timeout_s of config.gateway and its tenants): the Gateway would cut it off with 504; leave requestTimeout empty, or lower request_timeout_s" . $wanted) -}}
  {{- end -}}
{{- end -}}
{{- $policy := .Values.tls.backendPolicy -}}
{{- if and (or .Values.httpRoute.enabled .Values.grpcRoute.enabled) .Values.config.gateway.tls_cert_file (not $policy.madeBy) -}}
{{- fail "tls: a Gateway would speak plain HTTP to gateways that speak TLS; set tls.backendPolicy.madeBy: chart (a BackendTLSPolicy, Gateway API 1.4) or others, or let the Gateway end TLS and leave config.gateway.tls_cert_file empty" -}}
{{- end -}}
{{- if and (eq $policy.madeBy "chart") (not (or $policy.hostname .Values.tls.certManager.dnsNames)) -}}
{{- fail "tls.backendPolicy: set hostname to a name that the certificate bears" -}}
{{- end -}}
{{- range concat (list (merge (dict "name" "head") .Values.head)) (include "baton.groups" . | fromYaml).groups -}}
  {{- if and .hostNetwork $.Values.networkPolicy.enabled (not $.Values.networkPolicy.hostNetworkCidrs) -}}
  {{- fail (printf "%s: hostNetwork: network policies see such a pod only by its node's address, so head and workers could not reach each other; list the nodes in networkPolicy.hostNetworkCidrs, or set networkPolicy.enabled: false" .name) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.enabled: name the Service of the endpoint picker in inferencePool.endpointPicker.name" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not (and .Values.tls.certManager.issuerRef .Values.tls.certManager.dnsNames)) -}}
{{- fail "tls.certManager.enabled: set issuerRef and dnsNames" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled -}}
{{- fail "monitoring: podMonitor and serviceMonitor scrape the same processes, and all series would exist twice; set one of them to false" -}}
{{- end -}}
{{- if and .Values.collector.enabled (not .Values.collector.exporters) -}}
{{- fail "collector.enabled: name at least one of collector.exporters" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled .Values.tls.secretName -}}
{{- fail "tls: secretName and certManager both give a certificate; set one of them" -}}
{{- end -}}
{{- if and .Values.model.hostPath (include "baton.modelClaim" .) -}}
{{- fail "model: hostPath and claim both give a folder of models; set one of them" -}}
{{- end -}}
{{- $model := .Values.config.model | default "demo" -}}
{{- $isDownloaded := not (or (eq $model "demo") (hasPrefix "/" $model)) -}}
{{- if and $isDownloaded (not (include "baton.hasModels" .)) -}}
  {{- range (include "baton.groups" . | fromYaml).groups -}}
    {{- if and (ne .role "gateway") (eq .homeSize "5Gi") -}}
    {{- fail (printf "config.model: %s would be downloaded into each pod of %s, which is evicted at 5Gi (homeSize); set model.claim, or a homeSize that holds it" $model .name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.model.hostPath $isDownloaded -}}
{{- fail (printf "config.model: %s cannot be downloaded to model.hostPath, which belongs to root while pods run as user 10001; put it there beforehand and give its folder, %s/NAME, or set model.claim" $model .Values.model.mountPath) -}}
{{- end -}}
{{- range $name, $where := .Values.config.adapters -}}
  {{- if and $.Values.model.hostPath (not (hasPrefix "/" $where)) -}}
  {{- fail (printf "config.adapters.%s: %s cannot be downloaded to model.hostPath, which belongs to root while pods run as user 10001; put it there beforehand and give its folder, %s/NAME, or set model.claim" $name $where $.Values.model.mountPath) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.model.claim.create .Values.model.claim.existingClaim -}}
{{- fail "model.claim: create and existingClaim exclude each other; set one of them" -}}
{{- end -}}
{{- end }}

{{/*
A pod of Ray: of the head, or of a worker group. Takes root, pod (its values), kind (head or the
group's role) and group (head or the group's name).

Whatever stands here is hashed by KubeRay: nothing of it may follow the chart's or the release's
version.
*/}}
{{- define "baton.pod" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $pod := .pod -}}
{{- $isHead := eq .kind "head" -}}
{{- $grace := $pod.terminationGracePeriodSeconds | int -}}
{{- if $isHead -}}
  {{- range (include "baton.groups" $root | fromYaml).groups -}}{{- $grace = max $grace (.terminationGracePeriodSeconds | int) | int -}}{{- end -}}
{{- end -}}
metadata:
  labels:
    {{- include "baton.releaseLabels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .kind }}
    {{- with $pod.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pod.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- /* KubeRay lets the account that a head names patch RayClusters for the autoscaler, or makes one. */}}
  {{- if not (and $isHead $values.autoscaler.enabled) }}
  serviceAccountName: {{ include "baton.serviceAccountName" $root }}
  {{- end }}
  automountServiceAccountToken: {{ and $isHead $values.autoscaler.enabled }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $grace }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $pod.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $pod.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- merge (dict) . (dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/instance" (include "baton.instance" $root) "ray.io/group" (eq $.group "head" | ternary "headgroup" $.group)))) | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $pod.schedulerName }}
  schedulerName: {{ . }}
  {{- end }}
  {{- with $pod.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $pod.resourceClaims }}
  resourceClaims:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with $pod.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $isHead | ternary "ray-head" "ray-worker" }}
      image: {{ $pod.image | default (include "baton.image" $root) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if $pod.rdma.count }}
          add: [IPC_LOCK]
          {{- end }}
      ports:
        {{- include "baton.ports" . | nindent 8 }}
      env:
        {{- include "baton.env" . | nindent 8 }}
      {{- with include "baton.envFrom" . }}
      envFrom:
        {{- . | nindent 8 }}
      {{- end }}
      resources:
        {{- include "baton.resources" . | nindent 8 }}
      {{- include "baton.probes" . | nindent 6 }}
      lifecycle:
        preStop:
          exec:
            command: [baton, k8s, leave, {{ if $isHead }}--head, {{ end }}--seconds, {{ sub $grace ($isHead | ternary 5 15) | quote }}]
      volumeMounts:
        {{- include "baton.mounts" . | nindent 8 }}
    {{- with $pod.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "baton.volumes" . | nindent 4 }}
{{- end }}

{{- define "baton.ports" -}}
{{- if eq .kind "head" -}}
- {name: gcs-server, containerPort: 6379}
- {name: dashboard, containerPort: 8265}
- {name: client, containerPort: 10001}
- {name: serve, containerPort: {{ include "baton.httpPort" .root }}}
- {name: as-metrics, containerPort: 44217}
- {name: dash-metrics, containerPort: 44227}
{{ else if eq .kind "gateway" -}}
- {name: http, containerPort: {{ include "baton.httpPort" .root }}}
- {name: grpc, containerPort: {{ include "baton.grpcPort" .root }}}
{{ end -}}
- {name: metrics, containerPort: {{ .root.Values.rayPorts.metrics }}}
- {name: agent, containerPort: {{ .root.Values.rayPorts.agent }}}
{{- if ne .kind "head" }}
{{- $first := include "baton.firstPage" (dict "root" .root "role" .kind) | int }}
{{- range $number := until (include "baton.numPages" (dict "root" .root "group" .pod) | int) }}
- {name: baton-{{ $number }}, containerPort: {{ add $first $number }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.env" -}}
{{- $values := .root.Values -}}
- {name: HOME, value: /home/baton}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS, value: "1"}
{{- if ne .kind "head" }}
- {name: RAY_preload_python_modules, value: baton.platform.cluster.worker_imports}
{{- if $values.faultTolerance.enabled }}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: {{ $values.faultTolerance.reconnectSeconds | quote }}}
{{- end }}
{{- if include "baton.hasModels" .root }}
- {name: HF_HOME, value: {{ $values.model.mountPath }}/hub}
- {name: BATON_MODEL_CACHE, value: {{ $values.model.mountPath }}/baton}
{{- if $values.model.readOnly }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- end }}
{{- with $values.model.hubToken }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end }}
{{- with $values.security.token }}
{{- if .existingSecret }}
- name: BATON_CLUSTER_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .pod.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "baton.envFrom" -}}
{{- $name := .root.Values.model.objectStore.existingSecret -}}
{{- if and $name (ne .kind "head") -}}
- secretRef: {name: {{ $name }}}
{{ end -}}
{{- with .pod.envFrom }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* What the values say, and the devices in both requests and limits. */}}
{{- define "baton.resources" -}}
{{- $devices := dict -}}
{{- range list .pod.accelerator .pod.rdma -}}
  {{- if .count -}}{{- $_ := set $devices .resource (toString .count) -}}{{- end -}}
{{- end -}}
{{- $resources := deepCopy .pod.resources -}}
{{- $claims := list -}}
{{- range .pod.resourceClaims -}}{{- $claims = append $claims (dict "name" .name) -}}{{- end -}}
{{- range $side := list "requests" "limits" -}}
  {{- with merge (dict) (get $resources $side | default dict) $devices -}}
  {{- $_ := set $resources $side . -}}
  {{- end -}}
{{- end -}}
{{- with $claims -}}{{- $_ := set $resources "claims" . -}}{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{/* Ray's node answers on its agent's port, whatever runs there: Serve replaces what does not, and no
pod ends for it. Gateways and replicas say themselves whether they take requests. KubeRay would give pods without probes its own, which ask a Serve proxy. */}}
{{- define "baton.probes" -}}
{{- $agent := dict "httpGet" (dict "path" "/api/healthz" "port" "agent") -}}
{{- $startup := merge (dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" (div (add .pod.startupSeconds 4) 5)) $agent -}}
{{- $liveness := merge (dict "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 12) $agent -}}
{{- $readiness := merge (dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 3) $agent -}}
{{- if eq .kind "gateway" -}}
{{- $scheme := .root.Values.config.gateway.tls_cert_file | empty | ternary "HTTP" "HTTPS" -}}
{{- $_ := set $readiness "httpGet" (dict "path" "/ready" "port" "http" "scheme" $scheme) -}}
{{- else if ne .kind "head" -}}
{{- if include "baton.numPages" (dict "root" .root "group" .pod) | int -}}
{{- $_ := set $readiness "httpGet" (dict "path" "/readyz" "port" "baton-0") -}}
{{- end -}}
{{- end -}}
startupProbe:
  {{- .pod.probes.startup | default $startup | toYaml | nindent 2 }}
livenessProbe:
  {{- .pod.probes.liveness | default $liveness | toYaml | nindent 2 }}
readinessProbe:
  {{- .pod.probes.readiness | default $readiness | toYaml | nindent 2 }}
{{- end }}

{{- define "baton.hasModels" -}}
{{- if or .Values.model.hostPath (include "baton.modelClaim" .) }}true{{ end -}}
{{- end }}

{{- define "baton.mounts" -}}
{{- $values := .root.Values -}}
- {name: shared-memory, mountPath: /dev/shm}
- {name: scratch, mountPath: /tmp}
- {name: home, mountPath: /home/baton}
{{- if and (ne .kind "head") (include "baton.hasModels" .root) }}
- {name: models, mountPath: {{ $values.model.mountPath }}, readOnly: {{ $values.model.readOnly }}}
{{- end }}
{{- if and (eq .kind "gateway") (include "baton.tlsSecret" .root) }}
- {name: tls, mountPath: /etc/baton/tls, readOnly: true}
{{- end }}
{{- if eq .kind "gateway" }}
- {name: keys, mountPath: /etc/baton/keys, readOnly: true}
{{- end }}
{{- if ne .kind "head" }}
- {name: cluster-certificate, mountPath: /etc/baton/cluster, readOnly: true}
{{- end }}
{{- with .pod.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* /dev/shm holds Ray's object store, and what NCCL's ranks of one pod say to each other. */}}
{{- define "baton.sharedMemory" -}}
{{- .pod.sharedMemory | default (printf "%dMi" (add 256 (mul 1024 (include "baton.numDevices" .pod | int)))) -}}
{{- end }}

{{/* A Secret that is named must be there, or the pod waits for it. One that is not may come later, and
its files are then in pods that run: a volume that came later would be of another cluster. */}}
{{- define "baton.secretVolume" -}}
secretName: {{ .name | default .default }}
defaultMode: 0440
{{- if not .name }}
optional: true
{{- end }}
{{- end }}

{{- define "baton.volumes" -}}
{{- $values := .root.Values -}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ include "baton.sharedMemory" . }}}
- name: scratch
  emptyDir: {sizeLimit: {{ .pod.scratchSize }}}
- name: home
  emptyDir: {sizeLimit: {{ .pod.homeSize }}}
{{- if ne .kind "head" }}
{{- if $values.model.hostPath }}
- name: models
  hostPath: {path: {{ $values.model.hostPath }}, type: Directory}
{{- else if include "baton.modelClaim" .root }}
- name: models
  persistentVolumeClaim: {claimName: {{ include "baton.modelClaim" .root }}, readOnly: {{ $values.model.readOnly }}}
{{- end }}
{{- if and (eq .kind "gateway") (include "baton.tlsSecret" .root) }}
- name: tls
  secret: {secretName: {{ include "baton.tlsSecret" .root }}, defaultMode: 0440}
{{- end }}
{{- if eq .kind "gateway" }}
- name: keys
  secret: {{- include "baton.secretVolume" (dict "name" $values.security.keys "default" (include "baton.keysSecret" .root)) | nindent 4 }}
{{- end }}
- name: cluster-certificate
  secret: {{- include "baton.secretVolume" (dict "name" $values.security.certificate "default" (include "baton.clusterSecret" .root)) | nindent 4 }}
{{- end }}
{{- with .pod.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Options of `ray start`: ports that network policies can name, and a store that no request passes
through. */}}
{{- define "baton.rayStartParams" -}}
{{- $ports := .root.Values.rayPorts -}}
{{- $params := dict "object-store-memory" "83886080" -}}
{{- range $option, $port := dict "node-manager-port" $ports.nodeManager "object-manager-port" $ports.objectManager "runtime-env-agent-port" $ports.runtimeEnvAgent "dashboard-agent-grpc-port" $ports.agentGrpc "dashboard-agent-listen-port" $ports.agent "metrics-export-port" $ports.metrics "min-worker-port" $ports.minWorker "max-worker-port" $ports.maxWorker -}}
  {{- $_ := set $params $option (toString $port) -}}
{{- end -}}
{{- if eq .kind "head" -}}
{{- $params = merge (dict "dashboard-host" "0.0.0.0") $params -}}
{{- if not .pod.rayResources -}}{{- $_ := set $params "num-cpus" "0" -}}{{- end -}}
{{- end -}}
{{- merge (dict) .pod.rayStartParams $params | toYaml -}}
{{- end }}

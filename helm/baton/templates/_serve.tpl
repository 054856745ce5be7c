{{/* What Ray Serve is told: the application, and the deployment as its only arguments. */}}
{{- define "baton.serveConfig" -}}
proxy_location: Disabled
applications:
  - name: {{ .Values.application.name }}
    route_prefix: null
    import_path: {{ .Values.application.importPath }}
    {{- with .Values.application.runtimeEnv }}
    runtime_env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    args:
      {{- toYaml .Values.config | nindent 6 }}
{{- end }}

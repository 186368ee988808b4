{{/* The reference of an image: dict "image" (repository, tag, digest) "root" (the root context). */}}
{{- define "frond.image" -}}
{{- $repository := required "an image needs a repository" .image.repository -}}
{{- with .root.Values.global.imageRegistry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if .image.digest }}{{ printf "%s@%s" $repository .image.digest }}
{{- else }}{{ printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* Labels of an object: dict "name" (of the application) "root". */}}
{{- define "frond.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: frond
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The fields of a pod that hub and cloudcore share: dict "name" "values" "root". */}}
{{- define "frond.scheduling" -}}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 0 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 0 }}
{{- end }}
{{- if .root.Values.spreadOverZones }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Never on a gateway: whoever holds one reads the Secrets of its pods. */}}
{{- define "frond.notOnGateways" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    - matchExpressions: [{key: node-role.kubernetes.io/edge, operator: DoesNotExist}]
{{- end }}

{{- define "frond.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Refuses what cannot work, before anything is changed. A dry run and `helm template` have no cluster to ask. */}}
{{- define "frond.validate" -}}
{{- if ne .Release.Namespace "frond-system" }}
{{- fail (printf "the namespace of the release is %q; frond init makes keys and configuration in frond-system: install with --namespace frond-system" .Release.Namespace) }}
{{- end }}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- $settings := lookup "v1" "ConfigMap" "frond-system" "frond" }}
{{- if not $settings }}
{{- fail "ConfigMap frond-system/frond is missing: run frond init --hub-url tls://HOST:7422 first; it makes the keys and the configuration that these pods mount" }}
{{- end }}
{{- $servers := dig "data" "hubServers" "" $settings }}
{{- if and $servers (ne (toString .Values.hub.servers) $servers) }}
{{- fail (printf "hub.servers is %v, and frond init made keys for %s: set hub.servers to %s, or run frond init --hub-servers %v first" .Values.hub.servers $servers $servers .Values.hub.servers) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A digest of what cloudcore reads only when it starts: its configuration and the keys of its users. Empty without a cluster. */}}
{{- define "frond.cloudcoreDigest" -}}
{{- $read := dict }}
{{- with lookup "v1" "ConfigMap" .Release.Namespace "frond-cloudcore" }}{{ $read = set $read "configuration" .data }}{{ end }}
{{- with lookup "v1" "Secret" .Release.Namespace "frond-cloudcore" }}
{{- range $key, $value := .data }}{{ if hasSuffix ".nk" $key }}{{ $read = set $read $key $value }}{{ end }}{{ end }}
{{- end }}
{{- if $read }}{{ toJson $read | sha256sum }}{{ end }}
{{- end }}

{{/* A digest of the files of the hub's servers, which a server reads when it starts or gets SIGHUP. Empty without a cluster. */}}
{{- define "frond.hubDigest" -}}
{{- $read := dict }}
{{- range $i := until (int .Values.hub.servers) }}
{{- with lookup "v1" "Secret" $.Release.Namespace (printf "frond-hub-%d" $i) }}{{ $read = set $read .metadata.name .data }}{{ end }}
{{- end }}
{{- if $read }}{{ toJson $read | sha256sum }}{{ end }}
{{- end }}

{{/* Annotations of pods: dict "digest" (of the files that they read at start) "annotations" (of the user). */}}
{{- define "frond.podAnnotations" -}}
{{- $all := deepCopy .annotations }}
{{- with .digest }}{{ $all = set $all "frond.io/files-digest" . }}{{ end }}
{{- with $all }}{{ toYaml . }}{{ end }}
{{- end }}

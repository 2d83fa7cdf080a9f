{{/*
The components that may be "auto": true where the cluster serves their types, and the configuration has what mcs needs.
*/}}
{{- define "semaphore.auto" -}}
{{- $mcs := .Values.components.mcs -}}
{{- if eq (toString $mcs) "auto" -}}
{{- $mcs = and (or (.Capabilities.APIVersions.Has "multicluster.x-k8s.io/v1beta1/ServiceImport")
  (.Capabilities.APIVersions.Has "multicluster.x-k8s.io/v1alpha1/ServiceImport")) .Values.features.services
  (not .Values.foreignExporter) .Values.exporter.config.localBroker
  (.Values.broker.config.globalServices | default dict).podSubnets -}}
{{- end -}}
{{- $monitors := .Values.components.monitors -}}
{{- if eq (toString $monitors) "auto" }}{{ $monitors = .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" }}{{ end -}}
{{- dict "mcs" (not (not $mcs)) "monitors" $monitors | toYaml -}}
{{- end -}}

{{/* Enables mcs in a configuration of exporter or broker that says nothing of it, where the component is. */}}
{{- define "semaphore.enableMCS" -}}
{{- if (include "semaphore.auto" .root | fromYaml).mcs -}}
{{- $mcs := .config.mcs | default dict -}}
{{- if not (hasKey $mcs "enabled") }}{{ $_ := set .config "mcs" (set $mcs "enabled" true) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
Which files of the chart belong to these values: the same that kustomize has in its kustomization.yaml, which a test compares
object by object.
*/}}
{{- define "semaphore.files" -}}
{{- $f := .Values.features -}}
{{- $c := deepCopy .Values.components -}}
{{- range $name, $on := include "semaphore.auto" . | fromYaml }}{{ $_ := set $c $name $on }}{{ end -}}
{{- $files := list "broker/deployment.yaml" "broker/disruption.yaml" "broker/service.yaml" "broker/serviceaccount.yaml" "broker/leader.yaml"
  "broker/rbac.yaml" "broker/node-writes.yaml" "broker/object-writes.yaml" "broker/remotes.yaml" "broker/viewer.yaml" "exporter/remotes.yaml" "exporter/deployment.yaml" "exporter/disruption.yaml"
  "exporter/service.yaml" "exporter/serviceaccount.yaml" "exporter/leader.yaml" "exporter/source.yaml" -}}
{{- if .Values.createNamespace }}{{ $files = append $files "namespace/namespace.yaml" }}{{ end -}}
{{- if $f.encryption }}{{ $files = concat $files (list "agent/daemonset.yaml" "agent/service.yaml" "agent/serviceaccount.yaml") }}{{ end -}}
{{- range $feature := list "encryption" "services" "policy" -}}
{{- if index $f $feature }}{{ $files = concat $files (list (printf "features/%s/broker/rbac.yaml" $feature) (printf "features/%s/exporter/rbac.yaml" $feature)) }}{{ end -}}
{{- end -}}
{{- range $name, $file := dict "adoptServices" "adopt-services/rbac.yaml" "gke" "gke/quota.yaml" "ippools" "ippools/rbac.yaml" "networkPolicies"
  "network-policies/policies.yaml" "networksets" "networksets/rbac.yaml" "tunnelAddresses" "tunnel-addresses/rbac.yaml" "monitors"
  "monitors/monitors.yaml" "alerts" "alerts/rules.yaml" -}}
{{- if index $c $name }}{{ $files = append $files (printf "features/%s" $file) }}{{ end -}}
{{- end -}}
{{- if $c.dns }}{{ $files = concat $files (list "features/dns/rbac.yaml" "features/dns/writes.yaml") }}{{ end -}}
{{- if $c.ownNames }}{{ $files = concat $files (list "features/own-names/rbac.yaml" "features/own-names/writes.yaml") }}{{ end -}}
{{- if $c.mcs }}{{ $files = concat $files (list "features/mcs/rbac.yaml" "features/mcs/writes.yaml") }}{{ end -}}
{{- if .Values.foreignExporter -}}
{{- $files = list "exporter/deployment.yaml" "exporter/disruption.yaml" "exporter/service.yaml" "exporter/serviceaccount.yaml" "exporter/leader.yaml" -}}
{{- if .Values.createNamespace }}{{ $files = append $files "foreign-exporter/namespace.yaml" }}{{ end -}}
{{- if $c.monitors }}{{ $files = append $files "features/monitors/monitors.yaml" }}{{ end -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}

{{/* A part's configuration file: what the values say, the features, and the cluster's name last, as kustomize adds it. */}}
{{- define "semaphore.config" -}}
{{- $config := deepCopy .config -}}
{{- if not .agent -}}
{{- $features := list -}}
{{- range $feature := list "encryption" "services" "policy" }}{{ if index $.root.Values.features $feature }}{{ $features = append $features $feature }}{{ end }}{{ end -}}
{{- if lt (len $features) 3 }}{{ $_ := set $config "features" $features }}{{ end -}}
{{- include "semaphore.enableMCS" (dict "root" .root "config" $config) -}}
{{- end -}}
{{- if $config }}{{ toYaml $config }}
{{ end }}cluster: {{ .root.Values.cluster }}
{{- end -}}

{{/* A ConfigMap with a part's file. Pods are replaced when it changes, by an annotation with its checksum. */}}
{{- define "semaphore.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: semaphore-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
data:
  config.yaml: |
    {{- include "semaphore.config" . | nindent 4 }}
{{ end -}}

{{/* One object of the manifests as these values have it, in JSON. */}}
{{- define "semaphore.object" -}}
{{- $o := .object -}}
{{- $root := .root -}}
{{- $namespace := $root.Release.Namespace -}}
{{- if hasKey $o.metadata "namespace" }}{{ $_ := set $o.metadata "namespace" $namespace }}{{ end -}}
{{- if eq $o.kind "Namespace" }}{{ $_ := set $o.metadata "name" $namespace }}{{ end -}}
{{- range $subject := ($o.subjects | default list) }}{{ if eq ($subject.namespace | default "") "semaphore" }}{{ $_ := set $subject "namespace" $namespace }}{{ end }}{{ end -}}
{{- if and (eq $o.kind "ValidatingAdmissionPolicyBinding") $o.spec.paramRef }}{{ $_ := set $o.spec.paramRef "namespace" $namespace }}{{ end -}}
{{- if has $o.kind (list "Deployment" "DaemonSet") -}}
{{- $part := trimPrefix "semaphore-" $o.metadata.name -}}
{{- $values := index $root.Values $part -}}
{{- $template := $o.spec.template -}}
{{- $container := index $template.spec.containers 0 -}}
{{- $image := $root.Values.image -}}
{{- if $image.digest -}}
{{- $_ := set $container "image" (printf "%s@%s" $image.repository $image.digest) -}}
{{- else -}}
{{- $_ := set $container "image" (printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag)) -}}
{{- end -}}
{{- if $values.resources }}{{ $_ := set $container "resources" $values.resources }}{{ end -}}
{{- $config := include "semaphore.config" (dict "root" $root "config" $values.config "agent" (eq $part "agent")) -}}
{{- $_ := set $template.metadata "annotations" (dict "checksum/config" ($config | sha256sum)) -}}
{{- if $root.Values.foreignExporter -}}
{{- $_ := unset $template.spec "priorityClassName" -}}
{{- if not $values.resources }}{{ $_ := set $container.resources "limits" (dict "memory" "1Gi") }}{{ end -}}
{{- $_ := set $container "env" (append $container.env (dict "name" "GOMEMLIMIT" "value" "900MiB")) -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "reader" "mountPath" "/etc/semaphore/reader" "readOnly" true)) -}}
{{- $_ := set $template.spec "volumes" (append $template.spec.volumes (dict "name" "reader" "secret" (dict "secretName" "semaphore-reader"))) -}}
{{- end -}}
{{- if $values.env -}}
{{- /* A name that is there twice is lost when Helm merges an upgrade. */ -}}
{{- $names := list }}{{ range $values.env }}{{ $names = append $names .name }}{{ end -}}
{{- $env := list }}{{ range $container.env }}{{ if not (has .name $names) }}{{ $env = append $env . }}{{ end }}{{ end -}}
{{- $_ := set $container "env" (concat $env $values.env) -}}
{{- end -}}
{{- if eq $part "agent" -}}
{{- range $volume := $template.spec.volumes -}}
{{- if eq $volume.name "token" -}}
{{- $token := index $volume.projected.sources 0 "serviceAccountToken" -}}
{{- $_ := set $token "audience" (printf "semaphore-broker.%s" $root.Values.cluster) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $template.spec "nodeSelector" (merge (dict) $values.nodeSelector $template.spec.nodeSelector) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $o.kind "Service") (eq $o.metadata.name "semaphore-broker-federation") -}}
{{- $federation := $root.Values.broker.federation -}}
{{- if ne $federation.type "ClusterIP" }}{{ $_ := set $o.spec "type" $federation.type }}{{ end -}}
{{- if $federation.nodePort }}{{ $_ := set (index $o.spec.ports 0) "nodePort" (int $federation.nodePort) }}{{ end -}}
{{- if $federation.annotations }}{{ $_ := set $o.metadata "annotations" $federation.annotations }}{{ end -}}
{{- end -}}
{{- toJson $o -}}
{{- end -}}

{{/* Labels of every object. Call with (list $ "component"). */}}
{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | quote }}
{{- end -}}

{{/* Labels of a monitoring object, starting with those of the values. Call with (list $ .labels). */}}
{{- define "holdfast.monitoringLabels" -}}
{{ merge (deepCopy (index . 1 | default dict)) (include "holdfast.labels" (list (index . 0) "monitoring") | fromYaml) | toYaml }}
{{- end -}}

{{/* Labels that select pods; they never change. Call with (list $ "component"). */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* An image. Call with (list $ .Values.x.image). */}}
{{- define "holdfast.image" -}}
{{- $image := index . 1 -}}
{{ printf "%s:%s" $image.repository ($image.tag | default (index . 0).Chart.AppVersion) }}
{{- end -}}

{{/* Namespaces whose Secrets may be read, as a JSON list. */}}
{{- define "holdfast.secretNamespaces" -}}
{{ concat (list .Release.Namespace) .Values.secretNamespaces | uniq | toJson }}
{{- end -}}

{{/* The StorageClass for `helm test`: the first one with an ObjectStore that deletes its volumes; empty if none exists. Call with $. */}}
{{- define "holdfast.testClass" -}}
{{- $class := "" -}}
{{- range .Values.storageClasses -}}
{{- if and (not $class) (ne (.reclaimPolicy | default "Delete") "Retain") (ne (.backend | default "object") "memory") -}}
{{- $class = .name -}}
{{- end -}}
{{- end -}}
{{ $class }}
{{- end -}}

{{/* `true` if a StorageClass is for memory volumes, otherwise empty. Call with $. */}}
{{- define "holdfast.hasMemoryClass" -}}
{{- $found := "" -}}
{{- range .Values.storageClasses -}}
{{- if eq (.backend | default "object") "memory" -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{ $found }}
{{- end -}}

{{/* A Kubernetes quantity of memory, in bytes (`2Gi`, `1.5Gi`). Call with (list "name of the value" quantity). */}}
{{- define "holdfast.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "P" 1000000000000000 "Pi" 1125899906842624 -}}
{{- $text := index . 1 -}}
{{- if not (kindIs "string" $text) -}}{{- $text = int64 $text | toString -}}{{- end -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?[A-Za-z]*$" $text) (hasKey $units $unit)) -}}
{{- fail (printf "%s: %s is not a number of bytes; write for example 2Gi" (index . 0) $text) -}}
{{- end -}}
{{- $number := trimSuffix $unit $text -}}
{{- if contains "." $number -}}
{{- mulf (float64 $number) (get $units $unit) | ceil | int64 -}}
{{- else -}}
{{- mul (int64 $number) (int64 (get $units $unit)) -}}
{{- end -}}
{{- end -}}

{{/* Resources of the node daemon: its own need, and the memory volumes that are charged to it. Call with $. */}}
{{- define "holdfast.nodeResources" -}}
{{- $resources := deepCopy (.Values.node.resources | default dict) -}}
{{- if and .Values.node.memoryVolumes ($resources.limits).memory -}}
{{- $own := include "holdfast.bytes" (list "node.resources.limits.memory" $resources.limits.memory) -}}
{{- $volumes := include "holdfast.bytes" (list "node.memoryVolumes" .Values.node.memoryVolumes) -}}
{{- $_ := set $resources.limits "memory" (add (int64 $own) (int64 $volumes) | toString) -}}
{{- end -}}
{{- if $resources }}{{ toYaml $resources }}{{ end -}}
{{- end -}}

{{/* The node daemon's socket. Call with $. */}}
{{- define "holdfast.nodeSocket" -}}
{{ printf "%s/node.sock" .Values.node.runDir }}
{{- end -}}

{{/* The node daemon's configuration. Call with $. */}}
{{- define "holdfast.nodeConfig" -}}
{{- if and (ne (include "holdfast.bytes" (list "node.memorySpill" (.Values.node.memorySpill | default "0"))) "0") (eq (include "holdfast.bytes" (list "node.memoryVolumes" (.Values.node.memoryVolumes | default "0"))) "0") }}
{{- fail "node.memorySpill: no node makes memory volumes, which alone use it. Set node.memoryVolumes to the memory that those of a node may take, or leave memorySpill empty" }}
{{- end -}}
# The node's name comes from the environment variable HOLDFAST_NODE_NAME.
kubernetes = true

[node]
state_dir = {{ .Values.node.stateDir | quote }}
run_dir = {{ .Values.node.runDir | quote }}

[data]
{{- with .Values.node.transport }}
transport = {{ . | quote }}
{{- end }}
{{- with .Values.node.ringThreads }}
ring_threads = {{ . }}
{{- end }}
{{- with .Values.node.slabSize }}
slab_size = {{ . | quote }}
{{- end }}
{{- with .Values.node.cacheSize }}
cache_size = {{ . | quote }}
{{- end }}
{{- with .Values.node.sealSize }}
seal_size = {{ . | quote }}
{{- end }}
{{- with .Values.node.maxDirty }}
max_dirty = {{ . | quote }}
{{- end }}
{{- with .Values.node.uploadMemory }}
upload_memory = {{ . | quote }}
{{- end }}
{{- with .Values.node.memoryVolumes }}
memory_volumes = {{ . | quote }}
{{- end }}
{{- with .Values.node.memorySpill }}
memory_spill = {{ . | quote }}
{{- end }}

[api]
socket = {{ include "holdfast.nodeSocket" . | quote }}

[metrics]
listen = "[::]:9181"
{{- end -}}

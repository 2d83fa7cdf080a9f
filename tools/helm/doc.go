// Package helm tests the chart in deploy/ with Helm's own engine: it makes the same objects as kustomize does. It is a
// module of its own, as nothing else needs Helm.
package helm

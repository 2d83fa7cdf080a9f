// Package helm tests the chart in deploy/ with Helm's own code: it makes the same objects as kustomize does, and its
// documented removal leaves nothing. It is a module of its own, as nothing else needs Helm.
package helm

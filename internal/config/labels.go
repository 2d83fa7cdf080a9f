package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// MaxServiceLabels is the most labels of a Service that are exported.
const MaxServiceLabels = 32

// LabelKeys lists the label keys that may be exported: whole keys, or all keys of a prefix, as in
// "app.kubernetes.io/*".
type LabelKeys []string

// defaultLabelKeys are the recommended labels of Kubernetes, by which ServiceMonitors and dashboards select Services.
var defaultLabelKeys = LabelKeys{"app.kubernetes.io/*"}

const anyOfPrefix = "/*"

// Takes reports whether a label with that key may be exported. Labels with a meaning for Kubernetes, semaphore
// or a deployment tool never are.
func (l LabelKeys) Takes(key string) bool {
	return !naming.Reserved(key) && slices.ContainsFunc(l, func(pattern string) bool {
		prefix, any := strings.CutSuffix(pattern, anyOfPrefix)
		domain, _, prefixed := strings.Cut(key, "/")
		return pattern == key || any && prefixed && domain == prefix
	})
}

// complete fills in the default of an absent list; an empty one stays.
func (l *LabelKeys) complete(p *problems, field string) {
	if *l == nil {
		*l = slices.Clone(defaultLabelKeys)
	}
	for _, pattern := range *l {
		key := pattern
		if prefix, any := strings.CutSuffix(pattern, anyOfPrefix); any {
			key = prefix + "/any"
		}
		p.addEach(field, validation.IsQualifiedName(key), "%q is no key of a label, such as team or app.kubernetes.io/*",
			pattern)
		if naming.Reserved(key) {
			p.add(field, "%q has a meaning for Kubernetes, for semaphore or for a deployment tool, and never crosses between "+
				"clusters: take it out", pattern)
		}
	}
}

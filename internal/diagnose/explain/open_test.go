package explain

import (
	"strings"
	"testing"
)

// TestOpenToRemotes: a selector without a cluster admits every cluster that has such a set; one that names or excludes
// clusters does not.
func TestOpenToRemotes(t *testing.T) {
	const name, cluster = "semaphore.uw.systems/name == 'front'", "semaphore.uw.systems/cluster == 'c2'"
	for _, c := range []struct {
		name, selector, more string
		open                 bool
	}{
		{"name alone", name, "namespaceSelector: global()", true},
		{"name and namespace", name + " && semaphore.uw.systems/namespace == 'web'", "namespaceSelector: global()", true},
		{"any cluster that is named", "has(semaphore.uw.systems/cluster)", "namespaceSelector: global()", true},
		{"every cluster but one", "semaphore.uw.systems/cluster != 'c3'", "namespaceSelector: global()", true},
		{"name and cluster", name + " && " + cluster, "namespaceSelector: global()", false},
		{"cluster alone", cluster, "namespaceSelector: global()", false},
		{"one of several clusters", "semaphore.uw.systems/cluster in {'c2', 'c3'}", "namespaceSelector: global()", false},
		{"name or cluster", name + " || " + cluster, "namespaceSelector: global()", true},
		{"own pods", "app == 'front'", "namespaceSelector: global()", false},
		{"no set in the namespace", name, "", false},
		{"nets beside it", name, "namespaceSelector: global()\n        nets: [10.2.0.0/16]", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, packet := world(t, `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  selector: all()
  types: [Ingress]
  ingress:
    - action: Allow
      source:
        selector: `+c.selector+`
        `+c.more)
			for what, got := range map[string][]string{"OpenToRemotes": OpenToRemotes(cluster),
				"Explain": Explain(cluster, packet).OpenToRemotes} {
				if open := len(got) > 0; open != c.open {
					t.Errorf("%s: %q", what, got)
				} else if open && (!strings.Contains(got[0], "NetworkPolicy shop/db of Calico, ingress rule 1") ||
					!strings.Contains(got[0], "semaphore.uw.systems/cluster == 'CLUSTER'")) {
					t.Errorf("%s: %q names no rule, or no way out", what, got)
				}
			}
		})
	}
}

package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/internal/naming"
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
		{"a name that no set has yet", "semaphore.uw.systems/name == 'later'", "namespaceSelector: global()", true},
		{"name and namespace of no set yet",
			`semaphore.uw.systems/name == "later" && semaphore.uw.systems/namespace in {'x', 'y'}`,
			"namespaceSelector: global()", true},
		{"a part of a name", "semaphore.uw.systems/name starts with 'la'", "namespaceSelector: global()", true},
		{"a name of no set yet, of a cluster", "semaphore.uw.systems/name == 'later' && " + cluster,
			"namespaceSelector: global()", false},
		{"the cluster's own apps", "app.kubernetes.io/name == 'later'", "namespaceSelector: global()", false},
		{"all global sets", "", "namespaceSelector: global()", true},
		{"all pods of namespaces", "", "namespaceSelector: team == 'blue'", false},
		{"all but some", name, "namespaceSelector: global()\n        notSelector: has(semaphore.uw.systems/cluster)",
			false},
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
        selector: "`+strings.ReplaceAll(c.selector, `"`, `\"`)+`"
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

// TestOpenToRemotesToCome: a selector without a cluster is reported before any remote has such a set, and where the
// broker writes sets into namespaces, one that selects there.
func TestOpenToRemotesToCome(t *testing.T) {
	const namespaced = `
---
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {namespace: other, name: c2-other-x, labels: {semaphore.uw.systems/name: x,
  semaphore.uw.systems/namespace: other, semaphore.uw.systems/cluster: c2}}
spec: {}`
	for _, c := range []struct {
		name, source, sets string
		open               bool
	}{
		{"no set at all", "{selector: semaphore.uw.systems/name == 'front', namespaceSelector: global()}", "", true},
		{"of the namespace, without sets there", "{selector: semaphore.uw.systems/name == 'front'}", "", false},
		{"of the namespace", "{selector: semaphore.uw.systems/name == 'front'}", namespaced, true},
		{"of the namespace, another remote namespace",
			"{selector: semaphore.uw.systems/name == 'front' && semaphore.uw.systems/namespace == 'other'}", namespaced,
			false},
		{"namespaces by their label", "{namespaceSelector: team == 'blue'}", namespaced, true},
		{"other namespaces by their label",
			"{selector: semaphore.uw.systems/name == 'x', namespaceSelector: team == 'red'}",
			namespaced, true},
		{"another namespace by its label", "{namespaceSelector: team == 'red', selector: has(semaphore.uw.systems/name)}",
			namespaced, true},
		{"no namespace with this label", "{namespaceSelector: team == 'green'}", namespaced, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, _ := world(t, `
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec:
  selector: all()
  ingress:
    - action: Allow
      source: `+c.source+c.sets)
			cluster.GlobalSets = nil
			if got := OpenToRemotes(cluster); len(got) > 0 != c.open {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestExamplesNameTheCluster: no example of docs/policies.md lets in a remote that it does not name, and each names the
// namespace, too, but for those that let in a whole cluster and that select in one namespace.
func TestExamplesNameTheCluster(t *testing.T) {
	page, err := os.ReadFile("../../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?s)<!-- policy: ([a-z-]+) -->\n```yaml\n(.*?)```\n")
	examples := row.FindAllStringSubmatch(string(page), -1)
	if len(examples) < 6 {
		t.Fatalf("%d examples were found", len(examples))
	}
	for _, example := range examples {
		cluster, _ := world(t, example[2])
		if got := OpenToRemotes(cluster); len(got) > 0 {
			t.Errorf("%s: %q", example[1], got)
		}
		rules := []calicov3.Rule{}
		for _, p := range cluster.GlobalPolicies {
			rules = append(rules, p.Spec.Ingress...)
		}
		for _, p := range cluster.Policies {
			rules = append(rules, p.Spec.Ingress...)
		}
		for _, r := range rules {
			if s := r.Source.Selector; r.Action == calicov3.Allow && strings.Contains(s, naming.DefaultLabelDomain) &&
				!strings.Contains(s, "/namespace ==") && example[1] != "whole-cluster" && example[1] != "tenant" {
				t.Errorf("%s: %s names no namespace", example[1], s)
			}
		}
	}
}

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// anyRemote stands for a cluster that no selector names.
const anyRemote = "any-remote.invalid"

// OpenToRemotes returns the rules of Calico's policies that admit a set of any cluster, a sentence each. A remote, and
// everybody who may label pods there, chooses the namespaces and names of its sets, so that a selector without the
// cluster admits every remote that wants it.
func OpenToRemotes(c *Cluster) []string {
	var all []policy
	for i := range c.GlobalPolicies {
		p := &c.GlobalPolicies[i]
		all = append(all, policy{title: "GlobalNetworkPolicy " + p.Name, rules: p.Spec.Ingress})
	}
	for i := range c.Policies {
		p := &c.Policies[i]
		all = append(all, policy{title: fmt.Sprintf("NetworkPolicy %s/%s of Calico", p.Namespace, p.Name),
			namespace: p.Namespace, rules: p.Spec.Ingress})
	}
	return openToRemotes(c, all)
}

func openToRemotes(c *Cluster, policies []policy) []string {
	var out []string
	sets := remoteSets(c)
	for _, p := range policies {
		for i := range p.rules {
			r := &p.rules[i]
			if r.Action != calicov3.Allow || r.Source.Selector == "" || len(r.Source.Nets) > 0 || p.foreign[i] {
				continue
			}
			of, err := entity(&r.Source, p.namespace)
			if err != nil {
				continue // asked about a packet, explain says so
			}
			for _, s := range sets {
				if !of.matches(s.labels) || r.Source.NotSelector != "" && excepted(r.Source.NotSelector, s.labels) {
					continue
				}
				out = append(out, fmt.Sprintf("%s, ingress rule %d lets in a set of any remote that is called so, as it names no "+
					"cluster: add `%s == 'CLUSTER'` to %s",
					p.title, i+1, s.name, r.Source.Selector))
				break
			}
		}
	}
	return out
}

func excepted(selector string, labels map[string]string) bool {
	var x expression
	return x.and(selector, "") == nil && x.matches(labels)
}

// remoteSets returns the existing sets of remotes as an unknown remote could have them; the name of each is the label
// that names the cluster.
func remoteSets(c *Cluster) []set {
	var out []set
	add := func(labels map[string]string, namespace string) {
		for key := range labels {
			domain, found := strings.CutSuffix(key, "/cluster")
			if _, named := labels[domain+"/name"]; !found || !named {
				continue
			}
			all := inherited(c.Namespaces[namespace], namespacePrefix)
			maps.Copy(all, labels)
			all[key] = anyRemote
			if namespace != "" {
				all[calicov3.LabelNamespace] = namespace
			}
			for k, v := range all {
				if strings.HasSuffix(k, "/source-cluster") && v == labels[key] {
					all[k] = anyRemote
				}
			}
			out = append(out, set{name: key, labels: all})
		}
	}
	for i := range c.GlobalSets {
		add(c.GlobalSets[i].Labels, "")
	}
	for i := range c.Sets {
		add(c.Sets[i].Labels, c.Sets[i].Namespace)
	}
	slices.SortFunc(out, func(a, b set) int { return strings.Compare(a.name, b.name) })
	return out
}

package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/internal/naming"
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
			if r.Action != calicov3.Allow || r.Source.Selector+r.Source.NamespaceSelector == "" || len(r.Source.Nets) > 0 ||
				p.foreign[i] {
				continue
			}
			of, not, err := entity(&r.Source, p.namespace)
			if err != nil {
				continue // asked about a packet, explain says so
			}
			for _, s := range possible(c, sets, &r.Source, p.namespace) {
				if !of.matches(s.labels) || r.Source.NotSelector != "" && not.matches(s.labels) {
					continue
				}
				to := r.Source.Selector
				if to == "" {
					to = "its selector, which is empty"
				}
				out = append(out,
					fmt.Sprintf("%s, ingress rule %d lets in a set of any remote that is called so, as it names no "+
						"cluster: add `%s == 'CLUSTER'` to %s", p.title, i+1, s.name, to))
				break
			}
		}
	}
	return out
}

// literal is a value in a selector; maxLiterals bounds those of one that are tried as names.
var literal = regexp.MustCompile(`'[^']*'|"[^"]*"`)

const maxLiterals = 32

// possible returns the sets that a remote can have against a rule of a policy in namespace (empty for of all): those
// that remotes have, and each of them with the values in the rule's selectors as its name and namespace, which a remote
// chooses. A set in a namespace is of the remote's namespace with the same name.
func possible(c *Cluster, sets []set, r *calicov3.EntityRule, namespace string) []set {
	values := []string{"any"}
	for _, v := range literal.FindAllString(r.Selector+r.NotSelector, maxLiterals) {
		values = append(values, v[1:len(v)-1])
	}
	namespaces := []string{namespace}
	if r.NamespaceSelector != "" {
		namespaces = slices.Sorted(maps.Keys(c.Namespaces))
	}
	out := slices.Clone(sets)
	tried := map[string]bool{}
	for _, s := range sets {
		kind := fmt.Sprint(s.name, s.global)
		if tried[kind] {
			continue
		}
		tried[kind] = true
		domain := strings.TrimSuffix(s.name, "/cluster")
		called := func(name, namespace string) map[string]string {
			labels := maps.Clone(s.labels)
			labels[domain+"/name"], labels[domain+"/namespace"] = name, namespace
			return labels
		}
		for _, name := range values {
			if s.global {
				for _, namespace := range values {
					out = append(out, set{s.name, called(name, namespace), true})
				}
				continue
			}
			for _, namespace := range namespaces {
				if namespace == "" {
					continue // a set without namespace is as good for a policy of all
				}
				labels := called(name, namespace)
				maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, namespacePrefix) })
				maps.Copy(labels, inherited(c.Namespaces[namespace], namespacePrefix, namespace))
				labels[calicov3.LabelNamespace] = namespace
				out = append(out, set{s.name, labels, false})
			}
		}
	}
	return out
}

// remoteSets returns the existing sets of remotes as an unknown remote could have them, and one of a broker's
// usual configuration; the name of each is the label that names the cluster.
func remoteSets(c *Cluster) []set {
	var out []set
	add := func(labels map[string]string, namespace string) {
		for key := range labels {
			domain, found := strings.CutSuffix(key, "/cluster")
			if _, named := labels[domain+"/name"]; !found || !named {
				continue
			}
			all := inherited(c.Namespaces[namespace], namespacePrefix, namespace)
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
			out = append(out, set{key, all, namespace == ""})
		}
	}
	for i := range c.GlobalSets {
		add(c.GlobalSets[i].Labels, "")
	}
	for i := range c.Sets {
		add(c.Sets[i].Labels, c.Sets[i].Namespace)
	}
	const usual = naming.DefaultLabelDomain
	out = append(out, set{usual + "/cluster", map[string]string{
		usual + "/cluster": anyRemote, usual + "/name": "any", usual + "/namespace": "any",
		naming.LabelManagedBy: naming.ManagedByBroker, naming.LabelSourceCluster: anyRemote,
		naming.LabelSetManagedBy: "semaphore-policy",
	}, true})
	slices.SortStableFunc(out, func(a, b set) int { return strings.Compare(a.name, b.name) })
	return out
}

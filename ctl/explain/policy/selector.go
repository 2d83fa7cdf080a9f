package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Calico's prefixes for the labels that pods and sets have from their namespace and ServiceAccount.
const (
	namespacePrefix      = "pcns."
	serviceAccountPrefix = "pcsa."
	nameLabel            = "projectcalico.org/name"
)

// expression is a selector; the zero value matches all.
type expression struct{ all []Selector }

func (x expression) matches(labels map[string]string) bool {
	return !slices.ContainsFunc(x.all, func(s Selector) bool { return !s(labels) })
}

func (x expression) empty() bool { return len(x.all) == 0 }

// scopes are the meanings of a selector of each prefix. all() and global() in a selector of namespaces mean objects in
// some namespace, and in none.
var scopes = map[string]Scope{
	namespacePrefix: {Prefix: namespacePrefix, All: Has(calicov3.LabelNamespace),
		Global: Not(Has(calicov3.LabelNamespace))},
	serviceAccountPrefix: {Prefix: serviceAccountPrefix, All: Has(calicov3.LabelServiceAccount)},
}

// and adds a selector, whose labels get a prefix.
func (x *expression) and(text, prefix string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	s, err := ParseSelector(text, scopes[prefix])
	if err != nil {
		return fmt.Errorf("selector %.200q: %w", text, err)
	}
	x.all = append(x.all, s)
	return nil
}

// selectorOf returns the conjunction of a policy's own selectors.
func selectorOf(own, namespace, serviceAccount string) (expression, error) {
	var x expression
	for _, part := range []struct{ text, prefix string }{{own, ""}, {namespace, namespacePrefix},
		{serviceAccount, serviceAccountPrefix}} {
		if err := x.and(part.text, part.prefix); err != nil {
			return x, err
		}
	}
	return x, nil
}

// entity returns which objects a rule's end selects, and which it excepts if it has a NotSelector, for a policy of
// namespace, or of all if that is empty. With any selector a policy of one namespace means only that namespace, unless
// it selects others.
func entity(r *calicov3.EntityRule, namespace string) (of, not expression, err error) {
	accounts := cmp.Or(r.ServiceAccounts, &calicov3.ServiceAccountMatch{})
	if of, err = selectorOf(r.Selector, r.NamespaceSelector, accounts.Selector); err == nil {
		err = not.and(r.NotSelector, "")
	}
	if len(accounts.Names) > 0 {
		of.all = append(of.all, In(calicov3.LabelServiceAccount, sets.New(accounts.Names...)))
	}
	if r.NamespaceSelector == "" && namespace != "" && (!of.empty() || r.NotSelector != "") {
		of.all = append(of.all, In(calicov3.LabelNamespace, sets.New(namespace)))
	}
	return of, not, err
}

// set is a network set that contains the address in question.
type set struct {
	name   string
	labels map[string]string
	// global is set if it is in no namespace.
	global bool
}

// setsWith returns the sets that contain an address, those of all namespaces first.
func setsWith(c *Cluster, ip netip.Addr) []set {
	var out []set
	for i := range c.GlobalSets {
		if s := &c.GlobalSets[i]; holds(s.Spec.Nets, ip) {
			out = append(out, set{"GlobalNetworkSet " + s.Name, s.Labels, true})
		}
	}
	for i := range c.Sets {
		s := &c.Sets[i]
		if !holds(s.Spec.Nets, ip) {
			continue
		}
		all := inherited(c.Namespaces[s.Namespace], namespacePrefix, s.Namespace)
		maps.Copy(all, s.Labels)
		all[calicov3.LabelNamespace] = s.Namespace
		out = append(out, set{fmt.Sprintf("NetworkSet %s/%s", s.Namespace, s.Name), all, false})
	}
	return out
}

func holds(nets []string, ip netip.Addr) bool {
	for _, text := range nets {
		if n, err := netip.ParsePrefix(text); err == nil {
			if n.Contains(ip) {
				return true
			}
		} else if one, err := netip.ParseAddr(text); err == nil && one == ip {
			return true
		}
	}
	return false
}

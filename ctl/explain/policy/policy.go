package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policy is a policy of any kind that applies to ingress of the pod.
type policy struct {
	title string
	// namespace is empty for a policy of all namespaces.
	namespace string
	tier      string
	order     *float64
	name      string
	rules     []calicov3.Rule
	// foreign holds, by index, which rules of Kubernetes name pods: no remote one can match.
	foreign map[int]bool
}

// Where Calico's conversion puts policies of Kubernetes in the default tier, and how it names them.
const (
	kubeOrder  = float64(1000)
	kubePrefix = "knp.default."
)

// selecting returns the policies that select the pod for ingress, in the order within their tier.
func (e *explainer) selecting() []policy {
	own := e.podLabels()
	var out []policy
	for i := range e.cluster.GlobalPolicies {
		p := &e.cluster.GlobalPolicies[i]
		if !e.about(p.Spec.Types, p.Spec.Egress, p.Spec.Ingress) {
			continue
		}
		title := "GlobalNetworkPolicy " + p.Name
		if p.Spec.DoNotTrack || p.Spec.PreDNAT {
			e.aside = append(e.aside, title+" applies to host endpoints only (doNotTrack, preDNAT)")
			continue
		}
		of, err := selectorOf(p.Spec.Selector, p.Spec.NamespaceSelector, p.Spec.ServiceAccountSelector)
		if e.selects(title, of, err, own) {
			out = append(out, policy{title: title, tier: tierOf(p.Spec.Tier), order: p.Spec.Order, name: p.Name,
				rules: e.rules(p.Spec.Ingress, p.Spec.Egress)})
		}
	}
	for i := range e.cluster.Policies {
		p := &e.cluster.Policies[i]
		if p.Namespace != e.packet.To.Namespace || !e.about(p.Spec.Types, p.Spec.Egress, p.Spec.Ingress) {
			continue
		}
		if strings.HasPrefix(p.Name, kubePrefix) {
			continue // Calico's API server lists those of Kubernetes, too, under such names
		}
		title := fmt.Sprintf("NetworkPolicy %s/%s of Calico", p.Namespace, p.Name)
		of, err := selectorOf(p.Spec.Selector, "", p.Spec.ServiceAccountSelector)
		if e.selects(title, of, err, own) {
			out = append(out, policy{title: title, namespace: p.Namespace, tier: tierOf(p.Spec.Tier), order: p.Spec.Order,
				name: p.Name, rules: e.rules(p.Spec.Ingress, p.Spec.Egress)})
		}
	}
	for i := range e.cluster.KubePolicies {
		p := &e.cluster.KubePolicies[i]
		if p.Namespace != e.packet.To.Namespace || !e.aboutKube(&p.Spec) {
			continue
		}
		of, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		title := fmt.Sprintf("NetworkPolicy %s/%s", p.Namespace, p.Name)
		if err != nil {
			e.skip("%s: %v", title, err)
			continue
		}
		if of.Matches(labels.Set(e.packet.To.Labels)) {
			order := kubeOrder
			converted := kubePolicy(policy{title: title, namespace: p.Namespace, tier: tierDefault, order: &order,
				name: kubePrefix + p.Name}, e.kubeRules(&p.Spec))
			if e.packet.Egress {
				turn(converted.rules)
			}
			out = append(out, converted)
		}
	}
	slices.SortStableFunc(out, func(a, b policy) int {
		return cmp.Or(compareOrder(a.order, b.order), strings.Compare(a.name, b.name),
			strings.Compare(a.namespace, b.namespace))
	})
	return out
}

// about says whether a policy is about the packet's direction, with Calico's defaults for a policy without types.
func (e *explainer) about(types []calicov3.PolicyType, egress, ingress []calicov3.Rule) bool {
	switch {
	case e.packet.Egress:
		return slices.Contains(types, calicov3.PolicyTypeEgress) || len(types) == 0 && len(egress) > 0
	case len(types) > 0:
		return slices.Contains(types, calicov3.PolicyTypeIngress)
	}
	return len(egress) == 0 || len(ingress) > 0
}

func (e *explainer) rules(ingress, egress []calicov3.Rule) []calicov3.Rule {
	if e.packet.Egress {
		return egress
	}
	return ingress
}

// aboutKube is about for a policy of Kubernetes, where one that names no types is about ingress, and about egress if it
// has rules for that.
func (e *explainer) aboutKube(spec *networkingv1.NetworkPolicySpec) bool {
	if e.packet.Egress {
		return slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress) ||
			len(spec.PolicyTypes) == 0 && len(spec.Egress) > 0
	}
	return len(spec.PolicyTypes) == 0 || slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress)
}

// kubeRules are the rules of the packet's direction, with From for the remote end of both.
func (e *explainer) kubeRules(spec *networkingv1.NetworkPolicySpec) []networkingv1.NetworkPolicyIngressRule {
	if !e.packet.Egress {
		return spec.Ingress
	}
	var out []networkingv1.NetworkPolicyIngressRule
	for _, r := range spec.Egress {
		out = append(out, networkingv1.NetworkPolicyIngressRule{Ports: r.Ports, From: r.To})
	}
	return out
}

// turn makes rules about ingress, whose remote end is the source, into rules about egress. Ports are those of the
// destination in both.
func turn(rules []calicov3.Rule) {
	for i := range rules {
		ports := rules[i].Destination.Ports
		rules[i].Source, rules[i].Destination = calicov3.EntityRule{}, rules[i].Source
		rules[i].Destination.Ports = ports
	}
}

func tierOf(name string) string { return cmp.Or(name, tierDefault) }

func (e *explainer) selects(title string, of expression, err error, labels map[string]string) bool {
	if err != nil {
		e.skip("%s: %v", title, err)
		return false
	}
	return of.matches(labels)
}

// podLabels returns the labels by which Calico selects the pod: its own, its namespace's and its ServiceAccount's.
func (e *explainer) podLabels() map[string]string {
	pod := e.packet.To
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	out := inherited(e.cluster.Namespaces[pod.Namespace], namespacePrefix, pod.Namespace)
	maps.Copy(out, inherited(e.cluster.ServiceAccounts[account], serviceAccountPrefix, account))
	maps.Copy(out, pod.Labels)
	out[calicov3.LabelNamespace] = pod.Namespace
	out[calicov3.LabelOrchestrator] = calicov3.OrchestratorKubernetes
	out[calicov3.LabelServiceAccount] = account
	return out
}

// inherited are the labels that pods and sets have of their namespace or ServiceAccount, as by Calico's profiles.
func inherited(labels map[string]string, prefix, name string) map[string]string {
	out := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		out[prefix+k] = v
	}
	if name != "" {
		out[prefix+nameLabel] = name
	}
	return out
}

// kubePolicy converts the rules of Kubernetes to Calico's form. Peers that select pods or namespaces mean the cluster's
// own, and match no other source.
func kubePolicy(p policy, rules []networkingv1.NetworkPolicyIngressRule) policy {
	p.foreign = map[int]bool{}
	for _, r := range rules {
		protocols := map[string][]numorstring.Port{}
		for _, port := range r.Ports {
			protocol := "TCP"
			if port.Protocol != nil {
				protocol = string(*port.Protocol)
			}
			protocols[protocol] = append(protocols[protocol], kubePort(port)...)
		}
		var sources []calicov3.EntityRule
		pods := false
		for _, from := range r.From {
			if from.IPBlock != nil {
				sources = append(sources, calicov3.EntityRule{Nets: []string{from.IPBlock.CIDR}, NotNets: from.IPBlock.Except})
			} else {
				pods = true
			}
		}
		if len(r.From) == 0 {
			sources = append(sources, calicov3.EntityRule{})
		}
		add := func(source calicov3.EntityRule, pods bool) {
			if len(r.Ports) == 0 {
				protocols = map[string][]numorstring.Port{"": nil}
			}
			for _, protocol := range slices.Sorted(maps.Keys(protocols)) {
				rule := calicov3.Rule{Action: calicov3.Allow, Source: source,
					Destination: calicov3.EntityRule{Ports: protocols[protocol]}}
				if protocol != "" {
					named := numorstring.ProtocolFromString(protocol)
					rule.Protocol = &named
				}
				p.foreign[len(p.rules)] = pods
				p.rules = append(p.rules, rule)
			}
		}
		for _, source := range sources {
			add(source, false)
		}
		if pods {
			add(calicov3.EntityRule{}, true)
		}
	}
	return p
}

// kubePort returns nothing for all ports.
func kubePort(p networkingv1.NetworkPolicyPort) []numorstring.Port {
	switch {
	case p.Port == nil:
		return []numorstring.Port{{MinPort: 0, MaxPort: 65535}}
	case p.Port.Type == intstr.String:
		return []numorstring.Port{numorstring.NamedPort(p.Port.StrVal)}
	case p.EndPort != nil:
		return []numorstring.Port{{MinPort: uint16(p.Port.IntVal), MaxPort: uint16(*p.EndPort)}}
	}
	return []numorstring.Port{numorstring.SinglePort(uint16(p.Port.IntVal))}
}

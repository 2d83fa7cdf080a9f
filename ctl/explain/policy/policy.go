package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// policy is a policy of any kind that applies to ingress of the pod.
type policy struct {
	title string
	// namespace is empty for a policy of all namespaces.
	namespace string
	tier      string
	order     float64
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
		if !e.aboutCalico(p.Spec.Types, p.Spec.Egress, p.Spec.Ingress) {
			continue
		}
		title := "GlobalNetworkPolicy " + p.Name
		if p.Spec.DoNotTrack || p.Spec.PreDNAT {
			e.aside = append(e.aside, title+" applies to host endpoints only (doNotTrack, preDNAT)")
			continue
		}
		of, err := selectorOf(p.Spec.Selector, p.Spec.NamespaceSelector, p.Spec.ServiceAccountSelector)
		if e.selects(title, of, err, own) {
			out = append(out, policy{title: title, tier: cmp.Or(p.Spec.Tier, tierDefault), order: orderOf(p.Spec.Order),
				name: p.Name, rules: e.rules(p.Spec.Ingress, p.Spec.Egress)})
		}
	}
	for i := range e.cluster.Policies {
		p := &e.cluster.Policies[i]
		if p.Namespace != e.packet.To.Namespace || !e.aboutCalico(p.Spec.Types, p.Spec.Egress, p.Spec.Ingress) {
			continue
		}
		if strings.HasPrefix(p.Name, kubePrefix) {
			continue // Calico's API server lists those of Kubernetes, too, under such names
		}
		title := fmt.Sprintf("NetworkPolicy %s/%s of Calico", p.Namespace, p.Name)
		of, err := selectorOf(p.Spec.Selector, "", p.Spec.ServiceAccountSelector)
		if e.selects(title, of, err, own) {
			out = append(out, policy{title: title, namespace: p.Namespace, tier: cmp.Or(p.Spec.Tier, tierDefault),
				order: orderOf(p.Spec.Order), name: p.Name, rules: e.rules(p.Spec.Ingress, p.Spec.Egress)})
		}
	}
	for i := range e.cluster.KubePolicies {
		p := &e.cluster.KubePolicies[i]
		if p.Namespace != e.packet.To.Namespace || !about(e, p.Spec.PolicyTypes, true, len(p.Spec.Egress) > 0) {
			continue
		}
		of, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		title := fmt.Sprintf("NetworkPolicy %s/%s", p.Namespace, p.Name)
		if err != nil {
			e.skip("%s: %v", title, err)
			continue
		}
		if of.Matches(labels.Set(e.packet.To.Labels)) {
			out = append(out, e.kubePolicy(policy{title: title, namespace: p.Namespace, tier: tierDefault, order: kubeOrder,
				name: kubePrefix + p.Name}, &p.Spec))
		}
	}
	slices.SortStableFunc(out, func(a, b policy) int {
		return cmp.Or(cmp.Compare(a.order, b.order), strings.Compare(a.name, b.name),
			strings.Compare(a.namespace, b.namespace))
	})
	return out
}

// about says whether a policy is about the packet's direction: by its types, or without them if its rules imply ingress
// or egress.
func about[T ~string](e *explainer, types []T, ingress, egress bool) bool {
	direction, implied := T(calicov3.PolicyTypeIngress), ingress
	if e.packet.Egress {
		direction, implied = T(calicov3.PolicyTypeEgress), egress
	}
	return slices.Contains(types, direction) || len(types) == 0 && implied
}

func (e *explainer) aboutCalico(types []calicov3.PolicyType, egress, ingress []calicov3.Rule) bool {
	return about(e, types, len(egress) == 0 || len(ingress) > 0, len(egress) > 0)
}

func (e *explainer) rules(ingress, egress []calicov3.Rule) []calicov3.Rule {
	if e.packet.Egress {
		return egress
	}
	return ingress
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
func (e *explainer) kubePolicy(p policy, spec *networkingv1.NetworkPolicySpec) policy {
	p.foreign = map[int]bool{}
	for _, r := range e.kubeRules(spec) {
		protocols := map[string][]numorstring.Port{}
		for _, port := range r.Ports {
			protocol := string(ptr.Deref(port.Protocol, corev1.ProtocolTCP))
			protocols[protocol] = append(protocols[protocol], kubePort(port))
		}
		if len(r.Ports) == 0 {
			protocols[""] = nil
		}
		add := func(remote calicov3.EntityRule, pods bool) {
			for _, protocol := range slices.Sorted(maps.Keys(protocols)) {
				rule := calicov3.Rule{Action: calicov3.Allow}
				end, _ := e.ends(&rule)
				*end = remote
				rule.Destination.Ports = protocols[protocol]
				if protocol != "" {
					rule.Protocol = new(numorstring.ProtocolFromString(protocol))
				}
				p.foreign[len(p.rules)] = pods
				p.rules = append(p.rules, rule)
			}
		}
		if len(r.From) == 0 {
			add(calicov3.EntityRule{}, false)
		}
		pods := false
		for _, from := range r.From {
			if from.IPBlock != nil {
				add(calicov3.EntityRule{Nets: []string{from.IPBlock.CIDR}, NotNets: from.IPBlock.Except}, false)
			} else {
				pods = true
			}
		}
		if pods {
			add(calicov3.EntityRule{}, true)
		}
	}
	return p
}

func kubePort(p networkingv1.NetworkPolicyPort) numorstring.Port {
	switch {
	case p.Port == nil:
		return numorstring.Port{MinPort: 0, MaxPort: 65535}
	case p.Port.Type == intstr.String:
		return numorstring.NamedPort(p.Port.StrVal)
	}
	return numorstring.Port{MinPort: uint16(p.Port.IntVal), MaxPort: uint16(ptr.Deref(p.EndPort, p.Port.IntVal))}
}

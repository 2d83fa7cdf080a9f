// Package policy decides how the policies of a cluster judge a packet from a remote pod to one of the cluster's own,
// and the missing rules if they deny it; and at which link the path between two pods fails: policies are one link
// (path.go).
//
// It is pure: inputs are the broker's report on the remote pod and the apiserver's objects; the output is a verdict
// with its reasons. It follows Calico's rules as Felix does (tiers, order, selectors of rules as policies of one
// namespace or of all have them; https://docs.tigera.io/calico/latest/reference/resources/networkpolicy). It judges the
// policies of one cluster: the ingress of its pod, or the egress of its pod to a remote one. The remote cluster alone
// knows its own policies. It names the questions that these inputs cannot answer, and never guesses.
package policy

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
)

type Cluster struct {
	// Namespaces are the labels of all namespaces, by name; ServiceAccounts those of the pod's namespace.
	Namespaces      map[string]map[string]string
	ServiceAccounts map[string]map[string]string
	Tiers           []calicov3.Tier
	GlobalPolicies  []calicov3.GlobalNetworkPolicy
	Policies        []calicov3.NetworkPolicy
	KubePolicies    []networkingv1.NetworkPolicy
	GlobalSets      []calicov3.GlobalNetworkSet
	Sets            []calicov3.NetworkSet
	// Unread are other objects that could decide and were not read, a sentence each. No one of UnreadLast can allow what a
	// known policy denies: baseline policies, and sets, unless a rule asks for one. Aside are known to decide nothing.
	Unread, UnreadLast, Aside []string
}

// ThatWasRead limits a sentence about all network sets, if something was not read.
func (c *Cluster) ThatWasRead() string {
	return map[bool]string{true: " that was read"}[len(c.UnreadLast) > 0]
}

type Packet struct {
	From netip.Addr
	To   *corev1.Pod
	// Egress turns the packet around: it is from To, the local pod, to From, the remote address.
	Egress bool
	// Protocol is TCP, UDP or SCTP. Port 0 means any: the verdict says what depends on it.
	Protocol string
	Port     uint16
}

type Verdict int

const (
	// Allowed by a rule, or because no policy selects the pod.
	Allowed Verdict = iota
	// Denied by a rule, or because policies select the pod and none allows the packet.
	Denied
	// Depends on something unknown; the reasons name it.
	Depends
)

func (v Verdict) String() string { return [...]string{"allowed", "denied", "depends"}[v] }

type Result struct {
	Verdict Verdict
	Why     string
	// InSets are the network sets that contain the packet's source.
	InSets []string
	// Policies are those that select the pod, in order of evaluation, with their outcomes.
	Policies []Judged
	// Missing are the changes that would admit a denied packet, a sentence each.
	Missing []string
	// NeedsSet is set if a rule selects network sets, and none has the remote address; for Depends if that may be so.
	NeedsSet bool
	// OpenToRemotes are rules of the policies that select the pod and admit a set of any remote, a sentence each.
	OpenToRemotes []string
	// NotEvaluated are the omitted rules, a sentence each.
	NotEvaluated []string
}

// Judged is the outcome of a policy that selects the pod.
type Judged struct {
	// Policy is "Kind namespace/name".
	Policy string
	// Outcome is "allows", "denies", "passes", "says nothing", or "may …".
	Outcome string
	// Detail names the rule, or why no rule matches.
	Detail string
}

// tierDefault is the tier of policies that name none, as those of Kubernetes.
const tierDefault = "default"

func (e *explainer) direction() string {
	if e.packet.Egress {
		return "egress"
	}
	return "ingress"
}

func Explain(c *Cluster, p Packet) Result {
	e := &explainer{cluster: c, packet: p, sets: setsWith(c, p.From), unknown: slices.Concat(c.Unread, c.UnreadLast),
		aside: slices.Clone(c.Aside)}
	out := Result{InSets: names(e.sets)}
	policies := e.selecting()
	tiers := e.tiers()
	var dropped []string // by Felix, perhaps
	for _, p := range policies {
		if !slices.ContainsFunc(tiers, func(t tier) bool { return t.name == p.tier }) {
			e.skip("%s is of tier %s, which is not there", p.title, p.tier)
		}
		for i := range p.rules { // all of them, as Felix drops a policy for one selector that it cannot read
			for _, end := range []*calicov3.EntityRule{&p.rules[i].Source, &p.rules[i].Destination} {
				if _, _, err := entity(end, p.namespace); err != nil {
					e.skip("%s: %v", p.title, err)
					dropped = append(dropped, p.title)
				}
			}
		}
	}
	out.Verdict, out.Why = e.walk(tiers, policies, &out)
	if out.Verdict != Allowed {
		out.Missing = e.missing(policies)
	}
	if !p.Egress {
		out.OpenToRemotes = openToRemotes(c, policies)
	}
	if len(e.unknown) > 0 {
		out.Why += ", as far as is known; not evaluated: " + e.unknown[0]
		// A denial stands, unless a policy that may be dropped is why, or something unread may come before it and allow.
		rest := slices.DeleteFunc(policies, func(p policy) bool { return slices.Contains(dropped, p.title) })
		if without, _ := e.walk(tiers, rest, &Result{}); out.Verdict == Allowed || without != Denied ||
			len(c.Unread) > 0 || e.needsSet && len(c.UnreadLast) > 0 {
			out.Verdict = Depends
		}
	}
	out.NotEvaluated = slices.Concat(e.unknown, e.aside)
	out.NeedsSet = e.needsSet || out.Verdict == Depends && len(e.unknown) > 0
	return out
}

type explainer struct {
	cluster *Cluster
	packet  Packet
	sets    []set
	// unknown could decide and were not evaluated; aside are Cluster.Aside, and policies that do not apply to pods.
	unknown, aside []string
	// needsSet is Result.NeedsSet.
	needsSet bool
}

func (e *explainer) skip(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !slices.Contains(e.unknown, line) {
		e.unknown = append(e.unknown, line)
	}
}

// walk evaluates the policies in order, tier by tier.
func (e *explainer) walk(tiers []tier, policies []policy, out *Result) (Verdict, string) {
	var open []string // policies whose outcome depends on something, and their possible outcomes
	opens := map[calicov3.Action]bool{}
	end := func(action calicov3.Action, why string) (Verdict, string) {
		delete(opens, action)
		switch {
		case len(opens) > 0:
			return Depends, open[0]
		case action == calicov3.Allow:
			return Allowed, why
		}
		return Denied, why
	}
	for _, t := range tiers {
		asked, left := false, false
		for _, p := range policies {
			if p.tier != t.name || left {
				continue
			}
			asked = true
			w := e.ask(p)
			judged := Judged{Policy: p.title, Outcome: says(w.action), Detail: w.detail}
			if len(w.open) > 0 {
				judged.Outcome, judged.Detail = "may "+verbs[w.open[0]], w.openDetail
				open = append(open, fmt.Sprintf("%s %s it: %s", p.title, judged.Outcome, judged.Detail))
			}
			for _, action := range w.open {
				opens[action] = true
			}
			out.Policies = append(out.Policies, judged)
			switch w.action {
			case calicov3.Allow, calicov3.Deny:
				return end(w.action, fmt.Sprintf("%s %s it: %s", p.title, says(w.action), w.detail))
			case calicov3.Pass:
				left = true
			}
		}
		if asked && !left && t.action != calicov3.Pass {
			return end(calicov3.Deny,
				fmt.Sprintf("policies of tier %s select the pod, and none of them allows the packet", t.name))
		}
	}
	if len(out.Policies) == 0 {
		return Allowed, "no policy selects the pod for " + e.direction()
	}
	return end(calicov3.Allow, "the policies that select the pod pass it on, and after the last tier pods are open")
}

var verbs = map[calicov3.Action]string{calicov3.Allow: "allow", calicov3.Deny: "deny", calicov3.Pass: "pass"}

var outcomes = map[calicov3.Action]string{calicov3.Allow: "allows", calicov3.Deny: "denies", calicov3.Pass: "passes"}

// saysNothing is the outcome of a policy that selects the pod and has no rule for the packet.
const saysNothing = "says nothing"

func says(action calicov3.Action) string { return cmp.Or(outcomes[action], saysNothing) }

type tier struct {
	name   string
	order  float64
	action calicov3.Action
}

// tiers sorts them by order of evaluation: https://docs.tigera.io/calico/latest/reference/resources/tier
func (e *explainer) tiers() []tier {
	out := []tier{{tierDefault, 1_000_000, calicov3.Deny}} // which are fixed
	for _, t := range e.cluster.Tiers {
		if t.Name != tierDefault {
			out = append(out, tier{t.Name, orderOf(t.Spec.Order), ptr.Deref(t.Spec.DefaultAction, calicov3.Deny)})
		}
	}
	slices.SortFunc(out, func(a, b tier) int {
		return cmp.Or(cmp.Compare(a.order, b.order), strings.Compare(a.name, b.name))
	})
	return out
}

// orderOf puts what has no order last.
func orderOf(order *float64) float64 { return ptr.Deref(order, math.Inf(1)) }

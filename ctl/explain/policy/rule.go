package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	corev1 "k8s.io/api/core/v1"
)

// match is whether a rule matches: yes, no, or depending on something.
type match struct {
	no   string
	open string
	by   string
}

type word struct {
	// action of the first rule that certainly matches; empty for none.
	action calicov3.Action
	detail string
	// open are the actions of earlier rules that may match; openDetail describes the first of them.
	open       []calicov3.Action
	openDetail string
}

func (e *explainer) ask(p policy) word {
	var w word
	var no []string
	for i, r := range p.rules {
		m := e.match(p, i, &p.rules[i])
		switch {
		case r.Action == calicov3.Log:
		case m.no != "":
			no = append(no, fmt.Sprintf("rule %d: %s", i+1, m.no))
		case m.open != "":
			w.open = append(w.open, r.Action)
			if w.openDetail == "" {
				w.openDetail = fmt.Sprintf("%s rule %d, depending on %s", e.direction(), i+1, m.open)
			}
		default:
			w.action, w.detail = r.Action, fmt.Sprintf("%s rule %d", e.direction(), i+1)
			if m.by != "" {
				w.detail += ", by " + m.by
			}
			return w
		}
	}
	w.detail = "it has no " + e.direction() + " rule"
	if len(no) > 0 {
		w.detail = strings.Join(no, "; ")
	}
	return w
}

func (e *explainer) match(p policy, index int, r *calicov3.Rule) match {
	var m match
	family := 6
	if e.packet.From.Is4() {
		family = 4
	}
	switch {
	case p.foreign[index]:
		return match{no: "it names pods or namespaces, and means those of this cluster only"}
	case r.IPVersion != nil && *r.IPVersion != family:
		return match{no: fmt.Sprintf("it is for IPv%d", *r.IPVersion)}
	case r.Protocol != nil && !sameProtocol(*r.Protocol, e.packet.Protocol):
		return match{no: "it is for " + r.Protocol.String()}
	case r.NotProtocol != nil && sameProtocol(*r.NotProtocol, e.packet.Protocol):
		return match{no: "it is not for " + r.NotProtocol.String()}
	case r.ICMP != nil:
		return match{no: "it is for ICMP"}
	}
	remote, local := e.ends(r)
	needed := e.needsSet
	no, by := e.source(p, remote)
	if r.Action == calicov3.Deny {
		e.needsSet = needed // the rule does not admit a packet from a set
	}
	if m.by = by; no != "" {
		return match{no: no}
	}
	if no = e.destination(p, local); no != "" {
		return match{no: no}
	}
	if s := remote.Services; s != nil { // a mirror, which has the endpoints of remotes, can be meant
		m.open = fmt.Sprintf("the endpoints of Service %s/%s", s.Namespace, s.Name)
	}
	if len(r.Source.Ports) > 0 || len(r.Source.NotPorts) > 0 {
		m.open = "the port that the packet comes from"
	}
	if r.HTTP != nil {
		m.open = "what HTTP asks for"
	}
	no, open := e.ports(&r.Destination)
	if no != "" {
		return match{no: no}
	}
	if m.open == "" {
		m.open = open
	}
	return m
}

// ends are a rule's conditions for the remote end of the packet and for the local pod.
func (e *explainer) ends(r *calicov3.Rule) (remote, local *calicov3.EntityRule) {
	if e.packet.Egress {
		return &r.Destination, &r.Source
	}
	return &r.Source, &r.Destination
}

// source returns why the packet's source does not match a rule, or the nets or the set by which it does.
func (e *explainer) source(p policy, r *calicov3.EntityRule) (no, by string) {
	from := e.packet.From
	if len(r.Nets) > 0 {
		if !holds(r.Nets, from) {
			return fmt.Sprintf("%s is not in %s", from, strings.Join(r.Nets, ", ")), ""
		}
		by = "nets " + strings.Join(r.Nets, ", ")
	}
	if holds(r.NotNets, from) {
		return fmt.Sprintf("it excepts %s", strings.Join(r.NotNets, ", ")), ""
	}
	of, not, err := entity(r, p.namespace)
	if err != nil {
		return err.Error(), ""
	}
	if !of.empty() {
		i := slices.IndexFunc(e.sets, func(s set) bool { return of.matches(s.labels) })
		if i < 0 {
			return e.whyNoSet(p, r), ""
		}
		by = e.sets[i].name
	}
	for _, s := range e.sets {
		if r.NotSelector != "" && not.matches(s.labels) {
			return fmt.Sprintf("it excepts %s, which is in %s", r.NotSelector, s.name), ""
		}
	}
	return "", by
}

// whyNoSet returns why a rule selects no set that contains the source.
func (e *explainer) whyNoSet(p policy, r *calicov3.EntityRule) string {
	what := r.Selector
	if r.NamespaceSelector != "" {
		what = strings.TrimSpace(what + " in namespaces " + r.NamespaceSelector)
	}
	if len(e.sets) == 0 {
		e.needsSet = true
		return fmt.Sprintf("it selects %s, and no network set%s holds %s", what, e.cluster.ThatWasRead(), e.packet.From)
	}
	if s, ok := e.hidden(p, r); ok {
		return fmt.Sprintf("it selects %s in namespace %s only, and %s is in no namespace", what, p.namespace, s.name)
	}
	return fmt.Sprintf("it selects %s, and %s has other labels", what, strings.Join(names(e.sets), " and "))
}

// hidden returns the set that a rule would select if it were not limited to its own namespace: the most frequent
// mistake.
func (e *explainer) hidden(p policy, r *calicov3.EntityRule) (set, bool) {
	if p.namespace == "" || r.NamespaceSelector != "" || r.Selector == "" {
		return set{}, false
	}
	var x expression
	if x.and(r.Selector, "") != nil {
		return set{}, false
	}
	i := slices.IndexFunc(e.sets, func(s set) bool { return s.global && x.matches(s.labels) })
	if i < 0 {
		return set{}, false
	}
	return e.sets[i], true
}

func names(sets []set) []string {
	var out []string
	for _, s := range sets {
		out = append(out, s.name)
	}
	return out
}

// destination returns why the pod does not match a rule's destination.
func (e *explainer) destination(p policy, r *calicov3.EntityRule) string {
	if r.Services != nil {
		return fmt.Sprintf("it is for the endpoints of Service %s/%s", r.Services.Namespace, r.Services.Name)
	}
	of, not, err := entity(r, p.namespace)
	switch {
	case err != nil:
		return err.Error()
	case r.NotSelector != "" && not.matches(e.podLabels()):
		return "it excepts the pod (destination.notSelector)"
	case !of.matches(e.podLabels()):
		return "it does not mean the pod (destination)"
	}
	for _, ip := range e.packet.To.Status.PodIPs {
		at, err := netip.ParseAddr(ip.IP)
		if at = at.Unmap(); err != nil || at.Is4() != e.packet.From.Is4() {
			continue
		}
		if len(r.Nets) > 0 && !holds(r.Nets, at) {
			return "it does not mean the pod's address (destination.nets)"
		}
		if holds(r.NotNets, at) {
			return "it excepts the pod's address (destination.notNets)"
		}
	}
	return ""
}

// ports returns why the port does not match a rule, or on which ports it depends.
func (e *explainer) ports(r *calicov3.EntityRule) (no, open string) {
	if len(r.Ports) == 0 && len(r.NotPorts) == 0 {
		return "", ""
	}
	if e.packet.Port == 0 {
		if len(r.Ports) == 1 && r.Ports[0].PortName == "" && r.Ports[0].MinPort == 0 && r.Ports[0].MaxPort == 65535 &&
			len(r.NotPorts) == 0 {
			return "", "" // all there are
		}
		numbered := func(p numorstring.Port) bool { return p.PortName == "" }
		if e.packet.Egress && len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, numbered) {
			return fmt.Sprintf("it is for port %s", portList(r)), "" // which no remote pod has
		}
		return "", "the port: " + portList(r)
	}
	if len(r.Ports) > 0 && !e.hasPort(r.Ports) {
		return fmt.Sprintf("it is for port %s", portList(r)), ""
	}
	if e.hasPort(r.NotPorts) {
		return fmt.Sprintf("it is not for port %d", e.packet.Port), ""
	}
	return "", ""
}

func portList(r *calicov3.EntityRule) string {
	var out []string
	for _, p := range r.Ports {
		out = append(out, p.String())
	}
	for _, p := range r.NotPorts {
		out = append(out, "not "+p.String())
	}
	return strings.Join(out, ", ")
}

func (e *explainer) hasPort(ports []numorstring.Port) bool {
	return slices.ContainsFunc(ports, func(p numorstring.Port) bool {
		if p.PortName == "" {
			return p.MinPort <= e.packet.Port && e.packet.Port <= p.MaxPort
		}
		// Felix knows the named ports of this cluster's pods alone, init containers' included.
		spec := e.packet.To.Spec
		return !e.packet.Egress && slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers),
			func(c corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(named corev1.ContainerPort) bool {
					return named.Name == p.PortName && named.ContainerPort == int32(e.packet.Port) &&
						string(cmp.Or(named.Protocol, corev1.ProtocolTCP)) == e.packet.Protocol
				})
			})
	})
}

// sameProtocol compares protocols by name, and by number for those that have one.
func sameProtocol(p numorstring.Protocol, name string) bool {
	numbers := map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}
	if p.Type == numorstring.NumOrStringNum {
		return p.NumVal == numbers[name]
	}
	return strings.EqualFold(p.StrVal, name)
}

package sim

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The model: what a broker should hold and write, computed a second time from the rules of the design, without the
// packages that compute it in the product.

// The versions of one source's object that a destination may hold. Each has one text for each state.
type (
	service struct {
		headless, notReady, mirror, global bool
		ports                              string
	}
	slice struct {
		service, family string
		ports           string
		endpoints       []string
	}
	member struct {
		uid, set string
		ips      []string // sorted
	}
	node struct {
		cidrs        []string
		key, address string // empty when it has none
	}
)

func (s service) String() string {
	return fmt.Sprintf("headless=%t notReady=%t mirror=%t global=%t %s", s.headless, s.notReady, s.mirror,
		s.global, s.ports)
}

func (s slice) String() string {
	return fmt.Sprintf("of %s %s %s %v", s.service, s.family, s.ports, s.endpoints)
}

func (m member) String() string { return fmt.Sprintf("%s in %s %v", m.uid, m.set, m.ips) }

func (n node) String() string { return fmt.Sprintf("%v %s at %s", n.cidrs, n.key, n.address) }

// view is what a destination may hold of one source.
type view struct {
	source   string
	services map[ref]service
	slices   map[ref]slice
	members  map[ref]member
	nodes    map[ref]node
}

func newView(source string) *view {
	return &view{source, map[ref]service{}, map[ref]slice{}, map[ref]member{}, map[ref]node{}}
}

// lines returns what the view holds, for comparison.
func (v *view) lines() []string {
	var out []string
	for r, s := range v.services {
		out = append(out, fmt.Sprintf("service %s %s", r, s))
	}
	for r, s := range v.slices {
		out = append(out, fmt.Sprintf("slice %s %s", r, s))
	}
	for r, m := range v.members {
		out = append(out, fmt.Sprintf("pod %s %s", r, m))
	}
	for r, n := range v.nodes {
		out = append(out, fmt.Sprintf("node %s %s", r, n))
	}
	return out
}

// truth returns what dest should hold of the source now.
func (s *source) truth(d *dest) *view {
	v := newView(s.name)
	for r, o := range s.objects[kindNode] {
		v.nodes[r] = s.wantNode(s.unclaimed(r, o.(*corev1.Node)), d)
	}
	for r, o := range s.objects[kindService] {
		if w, ok := s.wantService(o.(*corev1.Service), d); ok {
			v.services[r] = w
		}
	}
	for r, o := range s.objects[kindSlice] {
		if w, ok := s.wantSlice(o.(*discoveryv1.EndpointSlice)); ok {
			if _, offered := v.services[ref{r.namespace, w.service}]; offered {
				v.slices[r] = w
			}
		}
	}
	for r, o := range s.objects[kindPod] {
		if w, ok := s.wantMember(o.(*corev1.Pod), d); ok {
			v.members[r] = w
		}
	}
	return v
}

// exports reports whether dest receives an object now, admissible or not.
func (s *source) exports(d *dest, kind int, r ref) bool {
	var ok bool
	switch o := s.objects[kind][r].(type) {
	case *corev1.Node:
		ok = true
	case *corev1.Service:
		_, ok = s.wantService(o, d)
	case *discoveryv1.EndpointSlice:
		var w slice
		if w, ok = s.wantSlice(o); ok {
			ok = s.exports(d, kindService, ref{r.namespace, w.service})
		}
	case *corev1.Pod:
		_, ok = s.wantMember(o, d)
	}
	return ok
}

// owns reports whether an address is one of the source's pods; a comparison of texts, as the addresses here are simple.
func (s *source) owns(ip string) bool {
	return strings.HasPrefix(ip, s.subnet()+".") || strings.HasPrefix(ip, fmt.Sprintf("fd00:%d::", 20+s.index))
}

func (s *source) wantNode(o *corev1.Node, d *dest) node {
	var n node
	for _, cidr := range o.Spec.PodCIDRs {
		if p := netip.MustParsePrefix(cidr); s.owns(p.Addr().String()) && p.Bits() >= 16 {
			n.cidrs = append(n.cidrs, cidr)
		}
	}
	key, address := o.Annotations[naming.PubKeyAnnotation(d.name)], o.Annotations[naming.EndpointAnnotation(d.name)]
	if key != "" && strings.HasPrefix(address, fmt.Sprintf("172.18.%d.", 20+s.index)) {
		raw, _ := base64.StdEncoding.DecodeString(key)
		n.key, n.address = hex.EncodeToString(raw), address
	}
	return n
}

func (s *source) wantService(o *corev1.Service, d *dest) (service, bool) {
	w := service{
		headless: o.Spec.ClusterIP == "None",
		notReady: o.Spec.PublishNotReadyAddresses,
		mirror:   o.Labels["mirror.semaphore.uw.io/mirror-service"] == "true",
		global:   o.Labels["mirror.semaphore.uw.io/global-service"] == "true",
	}
	for _, p := range o.Spec.Ports {
		w.ports += fmt.Sprintf("%s/%s/%d", p.Name, p.Protocol, p.Port)
	}
	offered := (w.mirror || w.global) && o.Labels["mirrored-svc"] != "true" && o.Spec.Type != "ExternalName"
	return w, offered && s.allowed(o, d)
}

func (s *source) wantSlice(o *discoveryv1.EndpointSlice) (slice, bool) {
	w := slice{service: o.Labels["kubernetes.io/service-name"], family: string(o.AddressType)}
	for _, p := range o.Ports {
		w.ports += fmt.Sprintf("%s/%s/%d", *p.Name, *p.Protocol, *p.Port)
	}
	for _, e := range o.Endpoints {
		if s.owns(e.Addresses[0]) {
			hostname := ""
			if e.Hostname != nil {
				hostname = *e.Hostname
			}
			w.endpoints = append(w.endpoints, fmt.Sprintf("%s ready=%t %s", e.Addresses[0], *e.Conditions.Ready, hostname))
		}
	}
	return w, w.service != ""
}

func (s *source) wantMember(o *corev1.Pod, d *dest) (member, bool) {
	w := member{uid: string(o.UID), set: o.Labels["semaphore.uw.systems/name"]}
	for _, ip := range o.Status.PodIPs {
		if s.owns(ip.IP) {
			w.ips = append(w.ips, ip.IP)
		}
	}
	slices.Sort(w.ips)
	in := w.set != "" && !o.Spec.HostNetwork && o.Status.Phase != "Succeeded" && o.Status.Phase != "Failed" &&
		len(o.Status.PodIPs) > 0 && s.allowed(o, d)
	return w, in
}

// allowed reports whether the producer exports an object to a destination. An invalid value exports it to none.
func (s *source) allowed(o metav1.Object, d *dest) bool {
	value, ok := o.GetAnnotations()["semaphore.uw.io/export-to"]
	if !ok {
		return true
	}
	names := strings.Split(value, ",")
	return slices.Contains(names, d.name) && !slices.Contains(names, "Not a name")
}

// unclaimed returns a node without the pod CIDRs that overlap those of an older node.
func (s *source) unclaimed(r ref, o *corev1.Node) *corev1.Node {
	out := o.DeepCopy()
	earlier := func(other metav1.Object) bool {
		at, since := other.GetCreationTimestamp(), o.CreationTimestamp
		return at.Before(&since) || at.Equal(&since) && other.GetUID() < o.UID
	}
	out.Spec.PodCIDRs = slices.DeleteFunc(out.Spec.PodCIDRs, func(cidr string) bool {
		for other, o := range s.objects[kindNode] {
			for _, theirs := range o.(*corev1.Node).Spec.PodCIDRs {
				if other != r && earlier(o) && netip.MustParsePrefix(theirs).Overlaps(netip.MustParsePrefix(cidr)) {
					return true
				}
			}
		}
		return false
	})
	return out
}

// describe is an object's state as a short text, for the trace.
type describe struct{ metav1.Object }

func (d describe) String() string {
	switch o := d.Object.(type) {
	case nil:
		return "gone"
	case *corev1.Node:
		return fmt.Sprintf("%v %v", o.Spec.PodCIDRs, o.Annotations)
	case *corev1.Service:
		return fmt.Sprintf("%v %v %s %s %d", o.Labels, o.Annotations, o.Spec.Type, o.Spec.ClusterIP, o.Spec.Ports[0].Port)
	case *discoveryv1.EndpointSlice:
		var ips []string
		for _, e := range o.Endpoints {
			ips = append(ips, e.Addresses...)
		}
		return fmt.Sprintf("of %q %v port %d", o.Labels["kubernetes.io/service-name"], ips, *o.Ports[0].Port)
	case *corev1.Pod:
		return fmt.Sprintf("%s %s %v %v %v host=%t", o.UID, o.Status.Phase, o.Labels, o.Annotations, o.Status.PodIPs,
			o.Spec.HostNetwork)
	}
	return fmt.Sprintf("%T", d.Object)
}

// viewOf returns what a replica holds.
func viewOf(source string, r *replica.Replica) *view {
	v := newView(source)
	for _, kind := range semaphorev1.Kinds {
		for key, o := range r.All(kind) {
			at := ref{key.Namespace, key.Name}
			switch kind {
			case semaphorev1.Kind_KIND_NODE:
				v.nodes[at] = heldNode(o.GetNode())
			case semaphorev1.Kind_KIND_SERVICE:
				v.services[at] = heldService(o.GetService())
			case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
				v.slices[at] = heldSlice(o.GetEndpointSlice())
			case semaphorev1.Kind_KIND_SET_MEMBER:
				v.members[at] = heldMember(o.GetSetMember())
			}
		}
	}
	return v
}

// held returns the text of an object in a replica.
func held(o *semaphorev1.Object) string {
	switch {
	case o.GetNode() != nil:
		return heldNode(o.GetNode()).String()
	case o.GetService() != nil:
		return heldService(o.GetService()).String()
	case o.GetEndpointSlice() != nil:
		return heldSlice(o.GetEndpointSlice()).String()
	case o.GetSetMember() != nil:
		return heldMember(o.GetSetMember()).String()
	}
	return ""
}

func heldNode(n *semaphorev1.Node) node {
	out := node{cidrs: n.GetPodCidrs()}
	if w := n.GetWireguard(); w != nil {
		out.key, out.address = hex.EncodeToString(w.GetPublicKey()), w.GetAddress()
	}
	return out
}

func heldService(s *semaphorev1.Service) service {
	out := service{headless: s.GetHeadless(), notReady: s.GetPublishNotReadyAddresses(), mirror: s.GetMirror(),
		global: s.GetGlobal()}
	for _, p := range s.GetPorts() {
		out.ports += fmt.Sprintf("%s/%s/%d", p.GetName(), p.GetProtocol(), p.GetPort())
	}
	return out
}

func heldSlice(s *semaphorev1.EndpointSlice) slice {
	out := slice{service: s.GetService(), family: s.GetAddressType()}
	for _, p := range s.GetPorts() {
		out.ports += fmt.Sprintf("%s/%s/%d", p.GetName(), p.GetProtocol(), p.GetPort())
	}
	for _, e := range s.GetEndpoints() {
		out.endpoints = append(out.endpoints, fmt.Sprintf("%s ready=%t %s", strings.Join(e.GetAddresses(), ","), e.GetReady(),
			e.GetHostname()))
	}
	return out
}

func heldMember(m *semaphorev1.SetMember) member {
	return member{uid: m.GetPodUid(), set: m.GetSetName(), ips: slices.Sorted(slices.Values(m.GetIps()))}
}

// from names an object of a source.
type from struct {
	source string
	ref
}

func (f from) compareByCluster(o from) int {
	return cmp.Or(cmp.Compare(f.source, o.source), cmp.Compare(f.namespace, o.namespace), cmp.Compare(f.name, o.name))
}

// wanted is what should exist in the destination: the text of each object by its name, and of each endpoint in slices,
// by the Service and the source.
type wanted struct {
	services, sets map[string]string
	endpoints      map[string]map[string]bool
}

// within names the part of a source in a Service.
func within(service, source string) string { return service + " of " + source }

// want computes it from the views, in the order of the remotes.
func want(views []*view) wanted {
	w := wanted{map[string]string{}, map[string]string{}, map[string]map[string]bool{}}
	claims := map[string][]from{}
	for _, v := range views {
		for r, s := range v.services {
			if name := fmt.Sprintf("%s-%s-73736d-%s", prefixOf(v.source), r.namespace, r.name); s.mirror && len(name) <= 63 {
				claims[name] = append(claims[name], from{v.source, r})
			}
			if name := fmt.Sprintf("gl-%s-73736d-%s", r.namespace, r.name); s.global && len(name) <= 63 {
				claims[name] = append(claims[name], from{"", r})
			}
		}
	}
	for name, all := range claims {
		first := slices.MinFunc(all, from.compareByCluster)
		// A global service has every cluster that offers one; the first of them decides its fields.
		decided := false
		for _, v := range views {
			s, there := v.services[first.ref]
			if !there || first.source != "" && first.source != v.source || first.source == "" && !s.global {
				continue
			}
			if !decided {
				decided = true
				w.services[name] = fmt.Sprintf("%s/%s headless=%t notReady=%t %s", first.source, first.ref, s.headless,
					s.notReady, s.ports)
			}
			w.endpoints[within(name, v.source)] = v.endpoints(first.ref, strings.Contains(w.services[name], "headless=true"))
		}
	}
	for set, ips := range sets(views) {
		w.sets[set.object] = fmt.Sprintf("%s/%s %v", set.source, set.ref, slices.Sorted(maps.Keys(ips)))
	}
	return w
}

// endpoints returns those of a service, each once: if several slices have one, or one has it twice, the ready one
// counts.
func (v *view) endpoints(of ref, headless bool) map[string]bool {
	best := map[string]string{}
	for _, r := range slices.SortedFunc(maps.Keys(v.slices), func(a, b ref) int { return cmp.Compare(a.name, b.name) }) {
		s := v.slices[r]
		if r.namespace != of.namespace || s.service != of.name {
			continue
		}
		for _, e := range s.endpoints {
			address, rest, _ := strings.Cut(e, " ")
			at := s.family + " " + s.ports + " " + address
			if was, there := best[at]; !there || strings.HasPrefix(was, "ready=false") && strings.HasPrefix(rest, "ready=true") {
				best[at] = rest
			}
		}
	}
	out := map[string]bool{}
	for at, rest := range best {
		if !headless {
			rest = rest[:strings.LastIndex(rest, " ")+1] // only the names of a headless service's pods are for others
		}
		out[fmt.Sprintf("%s %s", at, rest)] = true
	}
	return out
}

// named is a policy set and the name of its object.
type named struct {
	from
	object string
}

// sets returns the policy sets with their addresses.
func sets(views []*view) map[named]map[string]bool {
	ips := map[from]map[string]bool{}
	for _, v := range views {
		for r, m := range v.members {
			set := from{v.source, ref{r.namespace, m.set}}
			for _, ip := range m.ips {
				if ips[set] == nil {
					ips[set] = map[string]bool{}
				}
				ips[set][ip] = true
			}
		}
	}
	claims := map[string][]from{}
	for set := range ips {
		plain := fmt.Sprintf("%s-%s-%s", set.source, set.namespace, set.name)
		for _, v := range views {
			// A name that begins like the sets of c2-a belongs to c2-a, even if a set of c2 would have it.
			if len(v.source) > len(set.source) && strings.HasPrefix(plain+"-", v.source+"-") {
				plain = naming.SetApart(set.source, set.namespace, set.name)
			}
		}
		claims[plain] = append(claims[plain], set)
	}
	out := map[named]map[string]bool{}
	for plain, all := range claims {
		first := slices.MinFunc(all, func(a, b from) int {
			return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name), cmp.Compare(a.source, b.source))
		})
		for _, set := range all {
			name := plain
			if set != first {
				name = naming.SetWithSuffix(set.source, set.namespace, set.name)
			}
			out[named{set, name}] = ips[set]
		}
	}
	return out
}

// peers returns the peers of the devices of a destination's nodes, by source and node, in the order of the
// configuration. The owner of a key, by key, keeps it as long as it can be a peer, and the owner of a pod CIDR, by
// source, node and CIDR, as long as it claims it; holds is updated.
func peers(views []*view, holds map[string]string) map[string]string {
	out := map[string]string{}
	type candidate struct{ key, peer, text string }
	var all []candidate
	held := maps.Clone(holds)
	clear(holds)
	for _, v := range views {
		type claim struct {
			node   ref
			prefix netip.Prefix
		}
		var kept []claim
		order := slices.SortedFunc(maps.Keys(v.nodes), func(a, b ref) int { return cmp.Compare(a.name, b.name) })
		for _, before := range []bool{true, false} {
			for _, r := range order {
				for _, cidr := range v.nodes[r].cidrs {
					p := netip.MustParsePrefix(cidr)
					_, had := held[keptCIDR(v.source, r.name, cidr)]
					if v.nodes[r].key == "" || had != before ||
						slices.ContainsFunc(kept, func(c claim) bool { return c.node != r && c.prefix.Overlaps(p) }) {
						continue
					}
					kept = append(kept, claim{r, p})
					holds[keptCIDR(v.source, r.name, cidr)] = "kept"
				}
			}
		}
		for _, r := range order {
			n := v.nodes[r]
			if n.key == "" {
				continue
			}
			var allowed []string
			for _, cidr := range n.cidrs {
				p := netip.MustParsePrefix(cidr)
				if slices.ContainsFunc(kept, func(c claim) bool { return c.node != r && c.prefix.Overlaps(p) }) {
					continue
				}
				allowed = append(allowed, cidr)
			}
			if len(allowed) > 0 {
				all = append(all, candidate{n.key, v.source + "/" + r.name, fmt.Sprintf("%s at %s %v", n.key, n.address, allowed)})
			}
		}
	}
	for _, again := range []bool{true, false} {
		for _, c := range all {
			if _, taken := holds[c.key]; !taken && (!again || held[c.key] == c.peer) {
				holds[c.key] = c.peer
				out[c.peer] = c.text
			}
		}
	}
	return out
}

// keptCIDR is the key of a node's pod CIDR in holds. No public key has this form.
func keptCIDR(source, node, cidr string) string { return source + "/" + node + " keeps " + cidr }

// Package endpoints computes Endpoints (core/v1) from the slices of a Service, for tools that do not read
// EndpointSlices, as Kubernetes' Endpoints controller computes them from pods. No other package names the types of that
// deprecated API.
//
// It is pure, and knows nothing of remotes, plans and apiservers.
//
// It may import no other package of the broker.
package endpoints

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// The types of the deprecated API. They are written only if an operator asks for them.
type (
	//lint:ignore SA1019 tools that read no EndpointSlices are what this is for
	Endpoints = corev1.Endpoints
	//lint:ignore SA1019 as above
	Subset  = corev1.EndpointSubset
	Address = corev1.EndpointAddress
	Port    = corev1.EndpointPort
)

// maxAddresses is the most that Kubernetes writes into one object. The annotation OverCapacity, with the value
// Truncated, marks an object with more.
const (
	maxAddresses = 1000
	OverCapacity = corev1.EndpointsOverCapacity
	Truncated    = "truncated"
)

// SkipMirror is the label that keeps Kubernetes from mirroring Endpoints to EndpointSlices.
const SkipMirror = discoveryv1.LabelSkipMirror

// Of returns the subsets of a Service from its EndpointSlices, for one family: Endpoints have one. An endpoint that is
// not ready is listed as such, a terminating one is left out. Above maxAddresses, addresses that are not ready are left
// out first.
func Of(all []*discoveryv1.EndpointSlice, family discoveryv1.AddressType) (subsets []Subset, truncated bool) {
	type group struct {
		ports     []Port
		position  map[string]int
		addresses []Address
		ready     []bool
	}
	groups := map[string]*group{}
	var order []string
	for _, s := range all {
		if s.AddressType != family {
			continue
		}
		ports := portsOf(s.Ports)
		id := fmt.Sprint(names(ports))
		g := groups[id]
		if g == nil {
			g = &group{ports: ports, position: map[string]int{}}
			groups[id] = g
			order = append(order, id)
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ready := ptr.Deref(e.Conditions.Ready, true)
			if len(e.Addresses) == 0 || !ready && ptr.Deref(e.Conditions.Terminating, false) {
				continue
			}
			at, known := g.position[e.Addresses[0]]
			if !known {
				g.position[e.Addresses[0]] = len(g.addresses)
				g.addresses = append(g.addresses, Address{IP: e.Addresses[0], Hostname: ptr.Deref(e.Hostname, "")})
				g.ready = append(g.ready, ready)
			} else if ready && !g.ready[at] {
				g.addresses[at], g.ready[at] = Address{IP: e.Addresses[0], Hostname: ptr.Deref(e.Hostname, "")}, true
			}
		}
	}
	slices.Sort(order)
	for _, id := range order {
		g := groups[id]
		out := Subset{Ports: g.ports}
		for i, a := range g.addresses {
			if g.ready[i] {
				out.Addresses = append(out.Addresses, a)
			} else {
				out.NotReadyAddresses = append(out.NotReadyAddresses, a)
			}
		}
		if len(g.addresses) == 0 {
			continue
		}
		byIP := func(a, b Address) int { return cmp.Compare(a.IP, b.IP) }
		slices.SortFunc(out.Addresses, byIP)
		slices.SortFunc(out.NotReadyAddresses, byIP)
		subsets = append(subsets, out)
	}
	return truncate(subsets)
}

// portsOf returns the ports of a slice. A port without a number means all ports, which Endpoints cannot express.
func portsOf(all []discoveryv1.EndpointPort) (out []Port) {
	for _, p := range all {
		if p.Port != nil {
			out = append(out, Port{Name: ptr.Deref(p.Name, ""), Port: *p.Port,
				Protocol: ptr.Deref(p.Protocol, corev1.ProtocolTCP), AppProtocol: p.AppProtocol})
		}
	}
	slices.SortFunc(out, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// names returns a key for a list of ports.
func names(ports []Port) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s %s %05d %q", p.Name, p.Protocol, p.Port, ptr.Deref(p.AppProtocol, "")))
	}
	return strings.Join(out, ",")
}

// truncate keeps maxAddresses as Kubernetes does: ready addresses before others, and of each subset the same share.
func truncate(subsets []Subset) (out []Subset, truncated bool) {
	ready, notReady := 0, 0
	for _, s := range subsets {
		ready, notReady = ready+len(s.Addresses), notReady+len(s.NotReadyAddresses)
	}
	if ready+notReady <= maxAddresses {
		return subsets, false
	}
	room, of := maxAddresses-ready, notReady
	if ready > maxAddresses {
		room, of = maxAddresses, ready
	}
	left := room
	for _, s := range subsets {
		cut := &s.NotReadyAddresses
		if ready > maxAddresses {
			s.NotReadyAddresses, cut = nil, &s.Addresses
		}
		take := min(int(math.Ceil(float64(len(*cut))*float64(room)/float64(of))), left)
		*cut = (*cut)[:take:take]
		left -= take
		if take == 0 {
			*cut = nil
		}
		if len(s.Addresses)+len(s.NotReadyAddresses) > 0 {
			out = append(out, s)
		}
	}
	return out, true
}

// RemovesReadyAddress reports whether an address that is ready in one object is not ready in another.
func RemovesReadyAddress(have, want *Endpoints) bool {
	stays := map[string]bool{}
	for _, s := range want.Subsets {
		for _, a := range s.Addresses {
			stays[a.IP] = true
		}
	}
	return slices.ContainsFunc(have.Subsets, func(s Subset) bool {
		return slices.ContainsFunc(s.Addresses, func(a Address) bool { return !stays[a.IP] })
	})
}

package replica

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Endpoints are what a cluster exports for one service: each endpoint once, in whatever exported slice it is.
type Endpoints struct {
	// endpoints are the effective ones. Each is in at least one exported slice; others are the duplicates in further
	// slices, best first.
	endpoints map[EndpointKey]exportedEndpoint
	others    map[EndpointKey][]exportedEndpoint
	groups    map[PortGroup]int
}

func NewEndpoints() Endpoints {
	return Endpoints{endpoints: map[EndpointKey]exportedEndpoint{}, groups: map[PortGroup]int{}}
}

func (s *Endpoints) Len() int { return len(s.endpoints) }

// EndpointKey identifies an endpoint of a service: its address, and what it shares with the endpoints of its group.
type EndpointKey struct {
	PortGroup
	Address string
}

// Only returns the key of an endpoint without the ports that a filter omits; ok is false if none is left.
func (k EndpointKey) Only(ports Ports) (_ EndpointKey, ok bool) {
	k.PortGroup, ok = ports.of(k.PortGroup)
	return k, ok
}

// Keys iterates over the keys of all endpoints, each with the ports that a filter leaves.
func (s *Endpoints) Keys(ports Ports) iter.Seq[EndpointKey] {
	return func(yield func(EndpointKey) bool) {
		for k := range s.endpoints {
			if k, ok := k.Only(ports); ok && !yield(k) {
				return
			}
		}
	}
}

// Get returns the endpoint of a key, which has the ports that a filter leaves; nil for none.
func (s *Endpoints) Get(k EndpointKey, ports Ports) *semaphorev1.Endpoint {
	if ports == nil {
		return s.endpoints[k].endpoint
	}
	best, ok := exportedEndpoint{}, false
	for g := range s.groups { // groups that differ in omitted fields are one here
		if is, left := ports.of(g); !left || is != k.PortGroup {
			continue
		}
		if e, there := s.endpoints[EndpointKey{g, k.Address}]; there && (!ok || better(e, best)) {
			best, ok = e, true
		}
	}
	return best.endpoint
}

// PortName matches a port of a Service with a port of its endpoints.
type PortName struct{ Name, Protocol string }

// Ports are those that a filter leaves; nil for all.
type Ports map[PortName]bool

func (p Ports) Equal(o Ports) bool { return (p == nil) == (o == nil) && maps.Equal(p, o) }

// of returns a group without the omitted ports; ok is false if it had ports, and has none.
func (p Ports) of(g PortGroup) (_ PortGroup, ok bool) {
	if p == nil {
		return g, true
	}
	var kept [][portFields]string
	for fields := range g.ports {
		if p[PortName{fields[0], fields[1]}] {
			kept = append(kept, fields)
		}
	}
	return groupOf(string(g.Family()), kept), len(kept) > 0
}

// exportedEndpoint is an endpoint as one exported slice describes it.
type exportedEndpoint struct {
	slice    string
	endpoint *semaphorev1.Endpoint
}

// PortGroup is what all endpoints of a slice share: the address family and the ports, sorted.
type PortGroup struct{ text unique.Handle[string] }

const portFields = 4

// separator occurs in no port name.
const separator = "\x00"

func groupOf(family string, ports [][portFields]string) PortGroup {
	slices.SortFunc(ports, func(a, b [portFields]string) int { return slices.Compare(a[:], b[:]) })
	all := []string{family}
	for _, p := range ports {
		all = append(all, p[:]...)
	}
	return PortGroup{unique.Make(strings.Join(all, separator))}
}

func groupOfExported(s *semaphorev1.EndpointSlice) PortGroup {
	ports := make([][portFields]string, 0, len(s.GetPorts()))
	for _, p := range s.GetPorts() {
		ports = append(ports, [...]string{p.GetName(), p.GetProtocol(), strconv.Itoa(int(p.GetPort())), p.GetAppProtocol()})
	}
	return groupOf(s.GetAddressType(), ports)
}

func GroupOfSlice(s *discoveryv1.EndpointSlice) PortGroup {
	ports := make([][portFields]string, 0, len(s.Ports))
	for _, p := range s.Ports {
		ports = append(ports, [...]string{ptr.Deref(p.Name, ""), string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)),
			strconv.Itoa(int(ptr.Deref(p.Port, 0))), ptr.Deref(p.AppProtocol, "")})
	}
	return groupOf(string(s.AddressType), ports)
}

func (g PortGroup) Compare(o PortGroup) int { return strings.Compare(g.text.Value(), o.text.Value()) }

func (g PortGroup) Family() discoveryv1.AddressType {
	family, _, _ := strings.Cut(g.text.Value(), separator)
	return discoveryv1.AddressType(family)
}

// ports iterates over the fields of each port: name, protocol, number and application protocol.
func (g PortGroup) ports(yield func([portFields]string) bool) {
	_, rest, more := strings.Cut(g.text.Value(), separator)
	for more {
		var fields [portFields]string
		for i := range fields {
			fields[i], rest, more = strings.Cut(rest, separator)
		}
		if !yield(fields) {
			return
		}
	}
}

func (g PortGroup) EndpointPorts() (out []discoveryv1.EndpointPort) {
	for fields := range g.ports {
		number, _ := strconv.ParseInt(fields[2], 10, 32) // groupOf wrote it
		out = append(out, discoveryv1.EndpointPort{
			Name:        ptr.To(fields[0]),
			Protocol:    ptr.To(corev1.Protocol(fields[1])),
			Port:        ptr.To(int32(number)),
			AppProtocol: appProtocol(fields[3]),
		})
	}
	return out
}

// Serves reports whether endpoints of the group serve all of the ports, which are numbered from 0.
func (g PortGroup) Serves(all map[PortName]int) bool {
	if len(all) == 0 {
		return true
	}
	seen := make([]bool, len(all))
	n := 0
	for fields := range g.ports {
		if i, wanted := all[PortName{fields[0], fields[1]}]; wanted && !seen[i] {
			seen[i] = true
			if n++; n == len(all) {
				return true
			}
		}
	}
	return false
}

// IsReady follows the API: an endpoint without the condition is ready.
func IsReady(e *semaphorev1.Endpoint) bool { return e.Ready == nil || *e.Ready }

// better orders two descriptions of one endpoint. Two pods share an address only while one terminates and the other
// already has its address. A ready one comes first, then one that does not terminate.
func better(a, b exportedEndpoint) bool {
	rank := func(e *semaphorev1.Endpoint) int {
		switch {
		case IsReady(e) && !e.GetTerminating():
			return 0
		case IsReady(e):
			return 1
		case !e.GetTerminating():
			return 2
		case e.GetServing():
			return 3
		}
		return 4
	}
	if ra, rb := rank(a.endpoint), rank(b.endpoint); ra != rb {
		return ra < rb
	}
	return a.slice < b.slice
}

// uniqueEndpoints returns the endpoints of a slice without duplicates, in order. As in kube-proxy, the first address
// identifies an endpoint.
func uniqueEndpoints(s *semaphorev1.EndpointSlice) (order []string, of map[string]*semaphorev1.Endpoint) {
	of = make(map[string]*semaphorev1.Endpoint, len(s.GetEndpoints()))
	for _, e := range s.GetEndpoints() {
		if len(e.GetAddresses()) == 0 {
			continue
		}
		address := e.GetAddresses()[0]
		was, twice := of[address]
		if !twice {
			order = append(order, address)
		}
		if !twice || better(exportedEndpoint{"", e}, exportedEndpoint{"", was}) {
			of[address] = e
		}
	}
	return order, of
}

// Replace replaces what one slice exports and calls changed for each endpoint that this may affect.
func (s *Endpoints) Replace(slice string, old, now *semaphorev1.EndpointSlice, changed func(EndpointKey)) {
	var group PortGroup
	var order []string
	var endpoints map[string]*semaphorev1.Endpoint
	if now != nil {
		group = groupOfExported(now)
		order, endpoints = uniqueEndpoints(now)
	}
	if old != nil {
		was := groupOfExported(old)
		for _, e := range old.GetEndpoints() {
			if len(e.GetAddresses()) == 0 {
				continue
			}
			if k := (EndpointKey{was, e.GetAddresses()[0]}); was != group || endpoints[k.Address] == nil {
				s.removeEndpoint(k, slice)
				changed(k)
			}
		}
	}
	for _, address := range order {
		k, st := EndpointKey{group, address}, exportedEndpoint{slice, endpoints[address]}
		was, ok := s.endpoints[k]
		if !ok || was.slice == slice && len(s.others[k]) == 0 {
			s.put(k, st)
		} else { // several slices have it
			s.rank(k, append(s.othersThan(k, slice), st))
		}
		changed(k)
	}
}

func (s *Endpoints) removeEndpoint(k EndpointKey, slice string) {
	if rest := s.othersThan(k, slice); len(rest) > 0 {
		s.rank(k, rest)
		return
	}
	if _, there := s.endpoints[k]; there {
		if s.groups[k.PortGroup]--; s.groups[k.PortGroup] == 0 {
			delete(s.groups, k.PortGroup)
		}
	}
	delete(s.endpoints, k)
	delete(s.others, k)
}

func (s *Endpoints) put(k EndpointKey, e exportedEndpoint) {
	if _, there := s.endpoints[k]; !there {
		s.groups[k.PortGroup]++
	}
	s.endpoints[k] = e
}

func (s *Endpoints) othersThan(k EndpointKey, slice string) []exportedEndpoint {
	var rest []exportedEndpoint
	if first, ok := s.endpoints[k]; ok && first.slice != slice {
		rest = append(rest, first)
	}
	for _, o := range s.others[k] {
		if o.slice != slice {
			rest = append(rest, o)
		}
	}
	return rest
}

// rank sorts what all slices export for one endpoint, best first.
func (s *Endpoints) rank(k EndpointKey, all []exportedEndpoint) {
	slices.SortFunc(all, func(a, b exportedEndpoint) int {
		if better(a, b) {
			return -1
		}
		return 1
	})
	s.put(k, all[0])
	if len(all) == 1 {
		delete(s.others, k)
		return
	}
	if s.others == nil {
		s.others = map[EndpointKey][]exportedEndpoint{}
	}
	s.others[k] = all[1:]
}

func appProtocol(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

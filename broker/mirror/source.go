package mirror

import (
	"slices"
	"strconv"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// source is what a cluster exports for one service.
type source struct {
	ref
	// service is nil while only its slices are known.
	service *semaphorev1.Service
	// endpoints are the effective endpoints. Each is in at least one exported slice; others are the duplicates in
	// further slices, best first.
	endpoints map[key]exportedEndpoint
	others    map[key][]exportedEndpoint
	// groups counts the endpoints by group.
	groups map[group]int
	// users are the targets that use the endpoints.
	users []*clusterEndpoints
}

// key identifies an endpoint within a source: its address, and what it shares with the endpoints of its group.
type key struct {
	group
	address string
}

// exportedEndpoint is an endpoint as one exported slice describes it.
type exportedEndpoint struct {
	slice    string
	endpoint *semaphorev1.Endpoint
}

// group is what all endpoints of a slice share: the address family and the ports, sorted.
type group struct{ text unique.Handle[string] }

const portFields = 4

// separator occurs in no port name.
const separator = "\x00"

func groupOf(family string, ports [][portFields]string) group {
	slices.SortFunc(ports, func(a, b [portFields]string) int { return slices.Compare(a[:], b[:]) })
	all := []string{family}
	for _, p := range ports {
		all = append(all, p[:]...)
	}
	return group{unique.Make(strings.Join(all, separator))}
}

func groupOfExported(s *semaphorev1.EndpointSlice) group {
	ports := make([][portFields]string, 0, len(s.GetPorts()))
	for _, p := range s.GetPorts() {
		ports = append(ports, [...]string{p.GetName(), p.GetProtocol(), strconv.Itoa(int(p.GetPort())), p.GetAppProtocol()})
	}
	return groupOf(s.GetAddressType(), ports)
}

func groupOfExisting(s *discoveryv1.EndpointSlice) group {
	ports := make([][portFields]string, 0, len(s.Ports))
	for _, p := range s.Ports {
		ports = append(ports, [...]string{ptr.Deref(p.Name, ""), string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)),
			strconv.Itoa(int(ptr.Deref(p.Port, 0))), ptr.Deref(p.AppProtocol, "")})
	}
	return groupOf(string(s.AddressType), ports)
}

func (g group) family() discoveryv1.AddressType {
	family, _, _ := strings.Cut(g.text.Value(), separator)
	return discoveryv1.AddressType(family)
}

func (g group) ports() []discoveryv1.EndpointPort {
	fields := strings.Split(g.text.Value(), separator)[1:]
	var out []discoveryv1.EndpointPort
	for ; len(fields) >= portFields; fields = fields[portFields:] {
		number, _ := strconv.ParseInt(fields[2], 10, 32) // groupOf wrote it
		out = append(out, discoveryv1.EndpointPort{
			Name:        ptr.To(fields[0]),
			Protocol:    ptr.To(corev1.Protocol(fields[1])),
			Port:        ptr.To(int32(number)),
			AppProtocol: optional(fields[3]),
		})
	}
	return out
}

// portName matches a port of a Service with a port of its endpoints.
type portName struct{ name, protocol string }

// serves reports whether endpoints of the group serve all of the ports, which are numbered from 0.
func (g group) serves(all map[portName]int) bool {
	if len(all) == 0 {
		return true
	}
	seen := make([]bool, len(all))
	n := 0
	_, rest, _ := strings.Cut(g.text.Value(), separator)
	for rest != "" || n == 0 {
		var name, protocol string
		name, rest, _ = strings.Cut(rest, separator)
		protocol, rest, _ = strings.Cut(rest, separator)
		_, rest, _ = strings.Cut(rest, separator)
		var more bool
		_, rest, more = strings.Cut(rest, separator)
		if i, wanted := all[portName{name, protocol}]; wanted && !seen[i] {
			seen[i] = true
			if n++; n == len(all) {
				return true
			}
		}
		if !more {
			break
		}
	}
	return false
}

// isReady follows the API: an endpoint without the condition is ready.
func isReady(e *semaphorev1.Endpoint) bool { return e.Ready == nil || *e.Ready }

// better orders two descriptions of one endpoint. Two pods share an address only while one terminates and the other
// already has its address. A ready one comes first, then one that does not terminate.
func better(a, b exportedEndpoint) bool {
	rank := func(e *semaphorev1.Endpoint) int {
		switch {
		case isReady(e) && !e.GetTerminating():
			return 0
		case isReady(e):
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

// replaceSlice replaces what one slice exports and calls changed for each endpoint that this may affect.
func (s *source) replaceSlice(slice string, old, now *semaphorev1.EndpointSlice, changed func(key)) {
	var group group
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
			if k := (key{was, e.GetAddresses()[0]}); was != group || endpoints[k.address] == nil {
				s.removeEndpoint(k, slice)
				changed(k)
			}
		}
	}
	for _, address := range order {
		k, st := key{group, address}, exportedEndpoint{slice, endpoints[address]}
		was, ok := s.endpoints[k]
		if !ok || was.slice == slice && len(s.others[k]) == 0 {
			s.put(k, st)
		} else { // several slices have it
			s.rank(k, append(s.othersThan(k, slice), st))
		}
		changed(k)
	}
}

// removeEndpoint removes what a slice exports for an endpoint.
func (s *source) removeEndpoint(k key, slice string) {
	if rest := s.othersThan(k, slice); len(rest) > 0 {
		s.rank(k, rest)
		return
	}
	if _, there := s.endpoints[k]; there {
		if s.groups[k.group]--; s.groups[k.group] == 0 {
			delete(s.groups, k.group)
		}
	}
	delete(s.endpoints, k)
	delete(s.others, k)
}

// put sets what is effective for an endpoint.
func (s *source) put(k key, e exportedEndpoint) {
	if _, there := s.endpoints[k]; !there {
		s.groups[k.group]++
	}
	s.endpoints[k] = e
}

// othersThan returns what all slices but one export for an endpoint.
func (s *source) othersThan(k key, slice string) []exportedEndpoint {
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
func (s *source) rank(k key, all []exportedEndpoint) {
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
		s.others = map[key][]exportedEndpoint{}
	}
	s.others[k] = all[1:]
}

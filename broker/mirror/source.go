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

// source is what a cluster says of one of its services.
type source struct {
	ref
	// service is nil while only its slices are known.
	service *semaphorev1.Service
	// endpoints are those that count, each of which is in one slice at least. others are what further slices say of the
	// same ones, in the order in which they would count.
	endpoints map[key]statement
	others    map[key][]statement
	// shares are where the endpoints are wanted.
	shares []*share
}

// key names an endpoint: by its address, beside others that are reached at the same ports.
type key struct {
	group
	address string
}

// statement is what one slice says of an endpoint.
type statement struct {
	slice    string
	endpoint *semaphorev1.Endpoint
}

// group is what all endpoints of a slice have in common: an address family, and ports in one order.
type group struct{ text unique.Handle[string] }

const portFields = 4

// separator is in no name of a port.
const separator = "\x00"

func groupOf(family string, ports [][portFields]string) group {
	slices.SortFunc(ports, func(a, b [portFields]string) int { return slices.Compare(a[:], b[:]) })
	all := []string{family}
	for _, p := range ports {
		all = append(all, p[:]...)
	}
	return group{unique.Make(strings.Join(all, separator))}
}

func groupTold(s *semaphorev1.EndpointSlice) group {
	ports := make([][portFields]string, 0, len(s.GetPorts()))
	for _, p := range s.GetPorts() {
		ports = append(ports, [...]string{p.GetName(), p.GetProtocol(), strconv.Itoa(int(p.GetPort())), p.GetAppProtocol()})
	}
	return groupOf(s.GetAddressType(), ports)
}

func groupStanding(s *discoveryv1.EndpointSlice) group {
	ports := make([][portFields]string, 0, len(s.Ports))
	for _, p := range s.Ports {
		ports = append(ports, [...]string{ptr.Deref(p.Name, ""), string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), strconv.Itoa(int(ptr.Deref(p.Port, 0))), ptr.Deref(p.AppProtocol, "")})
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
		number, _ := strconv.ParseInt(fields[2], 10, 32) // it was written by groupOf
		out = append(out, discoveryv1.EndpointPort{
			Name:        ptr.To(fields[0]),
			Protocol:    ptr.To(corev1.Protocol(fields[1])),
			Port:        ptr.To(int32(number)),
			AppProtocol: optional(fields[3]),
		})
	}
	return out
}

// portName is by what ports of a Service and of its endpoints are known to belong together.
type portName struct{ name, protocol string }

// serves says whether endpoints of the group are there for all of these ports, each of which has a number of its own from 0.
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

// isReady follows the API: an endpoint of which that is not said is ready.
func isReady(e *semaphorev1.Endpoint) bool { return e.Ready == nil || *e.Ready }

// better orders two statements of one endpoint. Two pods have one address only while the one ends and the address is
// the other's already: the one that is ready counts, else the one that does not end.
func better(a, b statement) bool {
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

// said are the endpoints of a slice, each once, in its order. The address that counts is the first, as it does for
// kube-proxy.
func said(s *semaphorev1.EndpointSlice) (order []string, of map[string]*semaphorev1.Endpoint) {
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
		if !twice || better(statement{"", e}, statement{"", was}) {
			of[address] = e
		}
	}
	return order, of
}

// say replaces what one slice says, and tells of each endpoint for which that can make a difference.
func (s *source) say(slice string, old, now *semaphorev1.EndpointSlice, tell func(key)) {
	var group group
	var order []string
	var endpoints map[string]*semaphorev1.Endpoint
	if now != nil {
		group = groupTold(now)
		order, endpoints = said(now)
	}
	if old != nil {
		was := groupTold(old)
		for _, e := range old.GetEndpoints() {
			if len(e.GetAddresses()) == 0 {
				continue
			}
			if k := (key{was, e.GetAddresses()[0]}); was != group || endpoints[k.address] == nil {
				s.unsay(k, slice)
				tell(k)
			}
		}
	}
	for _, address := range order {
		k, st := key{group, address}, statement{slice, endpoints[address]}
		was, ok := s.endpoints[k]
		if !ok || was.slice == slice && len(s.others[k]) == 0 {
			s.endpoints[k] = st
		} else { // several slices have it
			s.settle(k, append(s.without(k, slice), st))
		}
		tell(k)
	}
}

// unsay takes back what a slice says of an endpoint.
func (s *source) unsay(k key, slice string) {
	if rest := s.without(k, slice); len(rest) > 0 {
		s.settle(k, rest)
		return
	}
	delete(s.endpoints, k)
	delete(s.others, k)
}

// without is what all slices but one say of an endpoint.
func (s *source) without(k key, slice string) []statement {
	var rest []statement
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

// settle puts what all slices say of one endpoint into order.
func (s *source) settle(k key, all []statement) {
	slices.SortFunc(all, func(a, b statement) int {
		if better(a, b) {
			return -1
		}
		return 1
	})
	s.endpoints[k] = all[0]
	if len(all) == 1 {
		delete(s.others, k)
		return
	}
	if s.others == nil {
		s.others = map[key][]statement{}
	}
	s.others[k] = all[1:]
}

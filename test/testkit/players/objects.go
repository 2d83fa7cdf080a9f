package players

import (
	"bytes"
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// AllKinds are the kinds of which an exporter sends snapshots, in the order in which it does.
var AllKinds = []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SERVICE,
	semaphorev1.Kind_KIND_ENDPOINT_SLICE, semaphorev1.Kind_KIND_SET_MEMBER}

// Node is a node whose key and endpoint follow from a number; 0 for one without.
func Node(name string, key byte, cidrs ...string) *semaphorev1.Object {
	n := &semaphorev1.Node{PodCidrs: cidrs}
	if key != 0 {
		n.Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: bytes.Repeat([]byte{key + 8}, 32),
			Address: fmt.Sprintf("172.18.2.%d:51820", key)}
	}
	return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
		Spec: &semaphorev1.Object_Node{Node: n}}
}

// Service is a mirrored Service with TCP ports, each named after its number.
func Service(ns, name string, ports ...int32) *semaphorev1.Object {
	s := &semaphorev1.Service{Mirror: true}
	for _, p := range ports {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprint("p", p), Protocol: "TCP", Port: p})
	}
	return ServiceOf(ns, name, s)
}

func ServiceOf(ns, name string, s *semaphorev1.Service) *semaphorev1.Object {
	return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: ns, Name: name},
		Spec: &semaphorev1.Object_Service{Service: s}}
}

// Slice is an EndpointSlice of a Service for its port 80.
func Slice(ns, name, service string, addresses ...string) *semaphorev1.Object {
	s := &semaphorev1.EndpointSlice{Service: service, AddressType: "IPv4",
		Ports: []*semaphorev1.Port{{Name: "p80", Protocol: "TCP", Port: 8080}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: []string{a}})
	}
	return SliceOf(ns, name, s)
}

func SliceOf(ns, name string, s *semaphorev1.EndpointSlice) *semaphorev1.Object {
	return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: ns,
		Name: name}, Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}}
}

// Endpoints is the spec of a slice for the port web: "10.2.0.1 10.2.0.2?" has a second endpoint that is not ready. One
// that ends has a tilde, and the addresses of one endpoint have a plus between them.
func Endpoints(service, addresses string) *semaphorev1.EndpointSlice {
	s := &semaphorev1.EndpointSlice{Service: service, AddressType: "IPv4",
		Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 8080}}}
	for _, text := range strings.Fields(addresses) {
		address := strings.TrimRight(text, "?~")
		s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: strings.Split(address, "+"),
			Ready: ptr.To(address == text), Serving: ptr.To(!strings.HasSuffix(text, "?")),
			Terminating: ptr.To(strings.HasSuffix(text, "~"))})
	}
	return s
}

// Web adds a port web to a Service.
func Web(s *semaphorev1.Service) *semaphorev1.Service {
	s.Ports = append(s.Ports, &semaphorev1.Port{Name: "web", Protocol: "TCP", Port: 80})
	return s
}

func Member(ns, pod, uid, set string, ips ...string) *semaphorev1.Object {
	return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: ns,
		Name: pod},
		Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: uid, SetName: set, Ips: ips}}}
}

// Members are pods of the set shop/web with one address each, in a /16 prefix such as 10.2.
func Members(prefix string, n int) (all []*semaphorev1.Object) {
	for i := range n {
		all = append(all, Member("shop", fmt.Sprint("m", i), fmt.Sprint("u", i), "web",
			fmt.Sprintf("%s.%d.%d", prefix, i/250, i%250)))
	}
	return all
}

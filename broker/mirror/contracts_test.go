package mirror

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// reader is a program that reads EndpointSlices: what it does with an endpoint of these conditions. docs/contracts.md
// has the same readers, with the version and the file that the rule was read in.
type reader struct {
	name string
	// traffic reports whether new connections go to the endpoint, if the Service has others that are ready or if it has
	// none.
	traffic func(c discoveryv1.EndpointConditions, others bool) bool
	// keepsUDP reports whether a UDP flow stays on the endpoint.
	keepsUDP func(c discoveryv1.EndpointConditions) bool
}

func missingIs(missing bool, b *bool) bool { return ptr.Deref(b, missing) }

// readyOnly is the rule of readers that read only whether an endpoint is ready.
func readyOnly(c discoveryv1.EndpointConditions, _ bool) bool { return missingIs(true, c.Ready) }

// readyOrEnding is the rule of kube-proxy and those that follow it: ready endpoints, and if there are none those that
// serve while they terminate.
func readyOrEnding(c discoveryv1.EndpointConditions, others bool) bool {
	return missingIs(true, c.Ready) || !others && missingIs(true, c.Serving) && missingIs(false, c.Terminating)
}

var readers = []reader{
	// Kubernetes 1.36, pkg/proxy/endpointslicecache.go, topology.go and conntrack/cleanup.go: all three modes.
	{"kube-proxy", readyOrEnding, func(c discoveryv1.EndpointConditions) bool { return missingIs(true, c.Serving) }},
	// Felix 3.28.5, felix/bpf/proxy/syncer.go: only ready endpoints are backends; those that are ready or terminate keep
	// their flows.
	{"calico-ebpf", readyOnly, func(c discoveryv1.EndpointConditions) bool {
		return missingIs(true, c.Ready) || missingIs(false, c.Terminating)
	}},
	// Cilium 1.20.2, pkg/k8s/endpoints.go (ParseEndpointConditionsV1), pkg/loadbalancer/reflectors/conversions.go. Flows
	// stay on every endpoint, whatever its conditions are.
	{"cilium", readyOrEnding, nil},
	// CoreDNS 1.11 to 1.14, plugin/kubernetes/object/endpoint.go.
	{"coredns", readyOnly, nil},
	// Traefik 3.7.13, pkg/provider/kubernetes/ingress/kubernetes.go and crd/kubernetes_http.go: it does not read ready.
	{"traefik-3.7", func(c discoveryv1.EndpointConditions, _ bool) bool { return missingIs(true, c.Serving) }, nil},
	// Traefik from 3.3, pkg/provider/kubernetes/k8s/endpoint.go (EndpointServing).
	{"traefik", func(c discoveryv1.EndpointConditions, _ bool) bool {
		return missingIs(false, c.Ready) || missingIs(false, c.Serving)
	}, nil},
	// Envoy Gateway 1.3 and later, internal/gatewayapi/route.go: a draining member gets no new requests.
	{"envoy-gateway", func(c discoveryv1.EndpointConditions, _ bool) bool {
		if c.Serving != nil && c.Terminating != nil {
			draining := *c.Terminating || !*c.Serving
			return !draining
		}
		return missingIs(true, c.Ready)
	}, nil},
	// ingress-nginx 1.12 and earlier, internal/ingress/controller/endpointslices.go: it has no word for a missing ready.
	{"ingress-nginx", func(c discoveryv1.EndpointConditions, _ bool) bool { return *c.Ready }, nil},
	// Istio 1.31, pilot/pkg/serviceregistry/kube/controller/endpointslice.go (endpointHealthStatus): healthy, or draining
	// with persistent sessions.
	{"istio", func(c discoveryv1.EndpointConditions, _ bool) bool {
		return missingIs(true, c.Ready) || missingIs(true, c.Serving) && missingIs(true, c.Terminating)
	}, nil},
	// kube-router 2.5, pkg/controllers/proxy/network_services_controller.go.
	{"kube-router", func(c discoveryv1.EndpointConditions, others bool) bool {
		return missingIs(false, c.Ready) || !others && missingIs(false, c.Serving) && missingIs(false, c.Terminating)
	}, nil},
}

// sources are all combinations of conditions that the API allows.
func sources() (all []*semaphorev1.Endpoint) {
	some := []*bool{nil, ptr.To(false), ptr.To(true)}
	for _, ready := range some {
		for _, serving := range some {
			for _, terminating := range some {
				all = append(all, &semaphorev1.Endpoint{Addresses: []string{fmt.Sprint("10.2.0.", len(all)+1)}, Ready: ready,
					Serving: serving, Terminating: terminating})
			}
		}
	}
	return all
}

// contracted returns the endpoints of the mirror of a Service with all sources.
func contracted(t *testing.T) (*cluster, func() []discoveryv1.Endpoint) {
	t.Helper()
	p := blank(t)
	s := endpoints("echo", "")
	s.Endpoints = sources()
	p.apply("c2", svc("shop", "echo", mirrored()), slc("shop", "a", s))
	return p, func() []discoveryv1.Endpoint { return p.Slices[echo+"-c2-1"].Endpoints }
}

// No reader sends anything to an endpoint that is not in use, whatever its source says, and with or without others.
func TestNoReaderUsesAnEndpointThatIsNotInUse(t *testing.T) {
	p, written := contracted(t)
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), p.Now))
	for i, e := range written() {
		for _, r := range readers {
			if r.traffic(e.Conditions, true) || r.traffic(e.Conditions, false) {
				t.Errorf("%s sends traffic to an endpoint with %s, of a source with %v", r.name, conditions(e.Conditions),
					sources()[i])
			}
			// For Calico's eBPF proxy one that terminates at its source keeps its flows until it is gone.
			ending := r.name == "calico-ebpf" && sources()[i].GetTerminating()
			if r.keepsUDP != nil && r.keepsUDP(e.Conditions) && !ending {
				t.Errorf("%s leaves UDP flows on an endpoint with %s, of a source with %v", r.name, conditions(e.Conditions),
					sources()[i])
			}
		}
	}
}

// All readers take an endpoint in use for what it is at its source: a ready one gets traffic and keeps its flows, and
// one that is not ready gets none while there are others.
func TestAllReadersAgreeOnAnEndpointInUse(t *testing.T) {
	_, written := contracted(t)
	for i, e := range written() {
		source := sources()[i]
		for _, r := range readers {
			got := r.traffic(e.Conditions, true)
			// An endpoint that is ready although it terminates (publishNotReadyAddresses) is draining for Envoy Gateway.
			draining := r.name == "envoy-gateway" && source.GetTerminating()
			// These keep sessions on one that ends.
			ending := r.name == "traefik" || r.name == "traefik-3.7" || r.name == "istio"
			if want := replica.IsReady(source); got != want && !draining && !(ending && source.GetTerminating()) {
				t.Errorf("%s: %t for an endpoint with %s, of a source with %v", r.name, got, conditions(e.Conditions), source)
			}
			if r.keepsUDP != nil && replica.IsReady(source) && !r.keepsUDP(e.Conditions) {
				t.Errorf("%s takes UDP flows from a ready endpoint, of a source with %v", r.name, source)
			}
		}
	}
}

// A broker that begins while nothing is heard knows from the slices alone which endpoints are ready at their source,
// and what it puts back into use is as it was.
func TestUnusedEndpointsAreRemembered(t *testing.T) {
	p, written := contracted(t)
	before := written()
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), p.Now))
	stands := p.Slices[echo+"-c2-1"]
	p.Slices = map[string]*discoveryv1.EndpointSlice{stands.Name: stands}
	n := p.restarted() // without drains
	for i, e := range n.Slices[stands.Name].Endpoints {
		if got, want := *e.Conditions.Ready, *before[i].Conditions.Ready; got != want {
			t.Errorf("ready=%t after a restart, was %t, of a source with %v", got, want, sources()[i])
		}
	}
}

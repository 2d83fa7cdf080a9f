// Package mirrored makes the Services and EndpointSlices that the broker of c1 writes for another cluster, for tests
// that show them to the programs that read them.
package mirrored

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// The Service's port, and that of its endpoints: Protocol is of both.
const (
	Port       = 80
	TargetPort = 8080
)

// Own is the endpoint of c1 itself, which is ready, and ClusterIP the address of the Service.
const (
	Own       = "10.1.0.1"
	ClusterIP = "10.101.0.9"
)

// Endpoint is an endpoint of c2.
type Endpoint struct {
	Address string
	// Ready and Terminating are what it is in c2. With both, its Service has publishNotReadyAddresses.
	Ready, Terminating bool
	// Conditions are those in c2, for messages: a missing one is nil.
	Conditions string
}

// Service is a Service as the broker writes it.
type Service struct {
	// Name says why c2's endpoints are in use or not.
	Name    string
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
	// InUse means that the Service uses c2's endpoints, and Own that it has the endpoint of c1, ready.
	InUse, Own bool
	// Endpoints are c2's that it has, with all combinations of conditions that the API allows.
	Endpoints []Endpoint
}

var now = time.Unix(1_900_000_000, 0)

// state is what a broker knows, and what it makes of c2's endpoints.
type state struct {
	name   string
	global bool
	set    func(p *mirror.Plan)
	// settings are the global Service's, and inUse what follows for c2's endpoints.
	settings *semaphorev1.GlobalSettings
	inUse    bool
}

func drained(p *mirror.Plan) {
	p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), now)
}

func unreached(p *mirror.Plan) {
	set, _, _ := new(choice.Gate).Update([]choice.Peer{{Node: "n", AllowedIPs: []string{"10.2.99.0/24"}}}, nil, now)
	p.SetReach("c2", set, now)
}

func gone(p *mirror.Plan) { p.SetGone("c2", true, now) }

func nothing(*mirror.Plan) {}

var states = []state{
	{name: "a mirror", set: nothing, inUse: true},
	{name: "a mirror of a cluster that is drained", set: drained},
	{name: "a mirror of a cluster to which no tunnel leads", set: unreached},
	{name: "a global Service", global: true, set: nothing, inUse: true},
	{name: "a global Service, c2 is drained", global: true, set: drained},
	{name: "a global Service, no tunnel leads to c2", global: true, set: unreached},
	{name: "a global Service, c2 is gone", global: true, set: gone},
	{name: "a global Service, c1 is preferred", global: true, set: nothing,
		settings: &semaphorev1.GlobalSettings{LocalFirst: true}},
}

// Services are a mirror and a global Service in each state that there is, with a port of this protocol.
func Services(t testing.TB, protocol corev1.Protocol) (all []Service) {
	t.Helper()
	for _, s := range states {
		all = append(all, s.write(t, protocol, nil))
	}
	return all
}

// Labelled are a mirror and a global Service whose sources have these labels. The broker copies what it may by default.
func Labelled(t testing.TB, labels map[string]string) (all []Service) {
	t.Helper()
	for _, s := range states {
		if s.inUse {
			all = append(all, s.write(t, corev1.ProtocolTCP, labels))
		}
	}
	return all
}

func (st state) write(t testing.TB, protocol corev1.Protocol, labels map[string]string) Service {
	t.Helper()
	p := plan(t)
	offered := service(protocol)
	offered.Mirror, offered.Global, offered.GlobalSettings = !st.global, st.global, st.settings
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		offered.Labels = append(offered.Labels, &semaphorev1.Label{Key: key, Value: labels[key]})
	}
	theirs, endpoints := sources()
	ours := []*semaphorev1.Endpoint{{Addresses: []string{Own}, Ready: ptr.To(true)}}
	offer(p, "c2", offered, protocol, theirs)
	out := Service{Name: st.name, InUse: st.inUse, Own: st.global, Endpoints: endpoints}
	if st.global {
		offer(p, "c1", offered, protocol, ours)
	}
	st.set(p)
	out.Service, out.Slices = settled(t, p)
	return out
}

func service(protocol corev1.Protocol) *semaphorev1.Service {
	return &semaphorev1.Service{Ports: []*semaphorev1.Port{{Name: "web", Protocol: string(protocol), Port: Port}}}
}

// settled are the only Service and its slices, after all of it was written and nothing changes by time any more.
func settled(t testing.TB, p *mirror.Plan) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	t.Helper()
	names, _ := p.Names()
	if len(names) != 1 {
		t.Fatalf("the broker writes the Services %q", names)
	}
	made, _ := p.Service(names[0])
	service := made.DeepCopy()
	service.Spec.ClusterIP, service.Spec.ClusterIPs = ClusterIP, []string{ClusterIP}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	p.ObserveService(service.Name, service, now)
	written(p)
	for next := p.Next(); !next.IsZero(); next = p.Next() {
		p.Due(next) // a cluster that is ready is used alone after a while
	}
	return service, written(p)
}

// written are the slices after they were all written, in the order of their names.
func written(p *mirror.Plan) (all []*discoveryv1.EndpointSlice) {
	_, names := p.Names()
	for _, name := range slices.Sorted(slices.Values(names)) {
		slice, _ := p.Slice(name)
		all = append(all, slice.DeepCopy())
		p.ObserveSlice(name, slice, now)
	}
	return all
}

func plan(t testing.TB) *mirror.Plan {
	t.Helper()
	cfg := testkit.Value(described.Broker([]byte(`
cluster: c1
features: [services]
localSubnets: [10.1.0.0/16]
mirrorNamespace: semaphore
globalServices: {podSubnets: [10.1.0.0/16], ownNames: true}
remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]
`)))(t)
	p := mirror.New(cfg)
	p.Begin(now)
	p.Complete("c1", now)
	p.Complete("c2", now)
	return p
}

func offer(p *mirror.Plan, cluster string, s *semaphorev1.Service, protocol corev1.Protocol,
	endpoints []*semaphorev1.Endpoint) {
	slice := &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4", Endpoints: endpoints,
		Ports: []*semaphorev1.Port{{Name: "web", Protocol: string(protocol), Port: TargetPort}}}
	change := func(kind semaphorev1.Kind, name string, o *semaphorev1.Object) replica.Change {
		return replica.Change{Key: replica.Key{Kind: kind, Namespace: "shop", Name: name}, New: o}
	}
	p.Apply(cluster, []replica.Change{
		change(semaphorev1.Kind_KIND_SERVICE, "echo", &semaphorev1.Object{Spec: &semaphorev1.Object_Service{Service: s}}),
		change(semaphorev1.Kind_KIND_ENDPOINT_SLICE, "echo-1",
			&semaphorev1.Object{Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: slice}}),
	}, now)
}

// sources are c2's endpoints.
func sources() (all []*semaphorev1.Endpoint, endpoints []Endpoint) {
	some := []*bool{nil, ptr.To(false), ptr.To(true)}
	word := func(b *bool) string {
		if b == nil {
			return "nil"
		}
		return fmt.Sprint(*b)
	}
	address := netip.MustParseAddr("10.2.0.0")
	for i := range 27 {
		ready, serving, terminating := some[i/9], some[i/3%3], some[i%3]
		address = address.Next()
		all = append(all, &semaphorev1.Endpoint{Addresses: []string{address.String()}, Ready: ready, Serving: serving,
			Terminating: terminating})
		endpoints = append(endpoints, Endpoint{Address: address.String(), Ready: ptr.Deref(ready, true),
			Terminating: ptr.Deref(terminating, false), Conditions: fmt.Sprintf("ready %s, serving %s, terminating %s",
				word(ready), word(serving), word(terminating))})
	}
	return all, endpoints
}

// Ready are the addresses of the Service that are ready and in use, sorted.
func (s Service) Ready() (addresses []string) {
	if s.Own {
		addresses = append(addresses, Own)
	}
	for _, e := range s.Endpoints {
		if s.InUse && e.Ready {
			addresses = append(addresses, e.Address)
		}
	}
	slices.Sort(addresses)
	return addresses
}

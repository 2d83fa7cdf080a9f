package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const echo = "c2-shop-73736d-echo"

func port(name, protocol string, number int32) *semaphorev1.Port {
	return &semaphorev1.Port{Name: name, Protocol: protocol, Port: number}
}

func conditions(c discoveryv1.EndpointConditions) string {
	text := func(b *bool) string {
		if b == nil {
			return "-"
		}
		return fmt.Sprint(*b)
	}
	return text(c.Ready) + " " + text(c.Serving) + " " + text(c.Terminating)
}

// Every shape that the API allows, and what comes of it: a line each for a slice, and one for each endpoint in it.
func TestShapes(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	at := func(addresses ...string) *semaphorev1.Endpoint { return &semaphorev1.Endpoint{Addresses: addresses} }
	is := func(ready, serving, terminating *bool, address string) *semaphorev1.Endpoint {
		return &semaphorev1.Endpoint{Addresses: []string{address}, Ready: ready, Serving: serving, Terminating: terminating}
	}
	web := []*semaphorev1.Port{port("web", "TCP", 8080)}
	for name, test := range map[string]struct {
		headless bool
		slices   []*semaphorev1.EndpointSlice
		want     []string
	}{
		"none": {},
		"a slice without ports": {headless: true,
			slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}}},
			want:   []string{"IPv4 []", "10.2.0.1 true true false"}},
		"a slice without endpoints": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web}}},
		"an endpoint without addresses": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{at(), at("10.2.0.1")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false"}},
		"conditions": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{
				is(nil, nil, nil, "10.2.0.1"), is(yes, nil, nil, "10.2.0.2"), is(no, nil, nil, "10.2.0.3"),
				is(yes, yes, no, "10.2.0.4"), is(no, no, no, "10.2.0.5"),
				is(no, yes, yes, "10.2.0.6"), is(no, no, yes, "10.2.0.7"), is(yes, no, no, "10.2.0.8"),
				is(yes, yes, yes, "10.2.0.9")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false", "10.2.0.2 true true false",
				"10.2.0.3 false false false",
				"10.2.0.4 true true false", "10.2.0.5 false false false",
				"10.2.0.6 false true true", "10.2.0.7 false false true", "10.2.0.8 true true false", "10.2.0.9 true true true"}},
		"what would say that it is not used here": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{is(no, yes, no, "10.2.0.1")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 false false false"}},
		"several addresses of one endpoint": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{at("10.2.0.2", "10.2.0.1")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.2+10.2.0.1 true true false"}},
		"a port without a name, one number with two protocols": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4",
			Ports:     []*semaphorev1.Port{port("dns", "UDP", 53), port("", "TCP", 53)},
			Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}}},
			want: []string{"IPv4 [/TCP/53 dns/UDP/53]", "10.2.0.1 true true false"}},
		"appProtocol": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4",
			Ports:     []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 80, AppProtocol: "kubernetes.io/h2c"}},
			Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}}},
			want: []string{"IPv4 [web/TCP/80(kubernetes.io/h2c)]", "10.2.0.1 true true false"}},
		"two families": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}},
			{AddressType: "IPv6", Ports: web, Endpoints: []*semaphorev1.Endpoint{at("fd02::1")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false", "IPv6 [web/TCP/8080]", "fd02::1 true true false"}},
		"one name, two numbers, as in a rollout that changes the port": {slices: []*semaphorev1.EndpointSlice{
			{AddressType: "IPv4", Ports: web, Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}},
			{AddressType: "IPv4", Ports: []*semaphorev1.Port{port("web", "TCP", 9090)},
				Endpoints: []*semaphorev1.Endpoint{at("10.2.0.2")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false", "IPv4 [web/TCP/9090]",
				"10.2.0.2 true true false"}},
		"one address, ports in two slices": {slices: []*semaphorev1.EndpointSlice{
			{AddressType: "IPv4", Ports: web, Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}},
			{AddressType: "IPv4", Ports: []*semaphorev1.Port{port("metrics", "TCP", 9090)},
				Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}}},
			want: []string{"IPv4 [metrics/TCP/9090]", "10.2.0.1 true true false", "IPv4 [web/TCP/8080]",
				"10.2.0.1 true true false"}},
		"ports in another order": {slices: []*semaphorev1.EndpointSlice{
			{AddressType: "IPv4", Ports: []*semaphorev1.Port{port("a", "TCP", 1), port("b", "TCP", 2)},
				Endpoints: []*semaphorev1.Endpoint{at("10.2.0.1")}},
			{AddressType: "IPv4", Ports: []*semaphorev1.Port{port("b", "TCP", 2), port("a", "TCP", 1)},
				Endpoints: []*semaphorev1.Endpoint{at("10.2.0.2")}}},
			want: []string{"IPv4 [a/TCP/1 b/TCP/2]", "10.2.0.1 true true false", "10.2.0.2 true true false"}},
		"one endpoint twice: the one that is ready": {slices: []*semaphorev1.EndpointSlice{
			{AddressType: "IPv4", Ports: web, Endpoints: []*semaphorev1.Endpoint{is(no, yes, yes, "10.2.0.1"),
				is(yes, yes, no, "10.2.0.1"), is(no, no, no, "10.2.0.2")}},
			{AddressType: "IPv4", Ports: web, Endpoints: []*semaphorev1.Endpoint{is(yes, yes, no, "10.2.0.2")}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false", "10.2.0.2 true true false"}},
		"hostnames of a headless service": {headless: true,
			slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web, Endpoints: []*semaphorev1.Endpoint{
				{Addresses: []string{"10.2.0.1"}, Hostname: "echo-0", Zone: "z"}, {Addresses: []string{"10.2.0.2"}}}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false echo-0", "10.2.0.2 true true false"}},
		"hostnames of another service": {slices: []*semaphorev1.EndpointSlice{{AddressType: "IPv4", Ports: web,
			Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{"10.2.0.1"}, Hostname: "echo-0"}}}},
			want: []string{"IPv4 [web/TCP/8080]", "10.2.0.1 true true false"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := blank(t)
			s := mirrored()
			s.Headless = test.headless
			p.apply("c2", svc("shop", "echo", s))
			for i, slice := range test.slices {
				slice.Service = "echo"
				p.apply("c2", slc("shop", fmt.Sprint("s", i), slice))
			}
			var got []string
			for _, name := range sorted(p.Slices) {
				s := p.Slices[name]
				var ports []string
				for _, p := range s.Ports {
					text := fmt.Sprintf("%s/%s/%d", *p.Name, *p.Protocol, *p.Port)
					if p.AppProtocol != nil {
						text += "(" + *p.AppProtocol + ")"
					}
					ports = append(ports, text)
				}
				block := fmt.Sprintf("%s %v", s.AddressType, ports)
				for _, e := range s.Endpoints {
					block += "\n" + strings.TrimSpace(strings.Join(e.Addresses,
						"+")+" "+conditions(e.Conditions)+" "+ptr.Deref(e.Hostname, ""))
				}
				got = append(got, block)
			}
			slices.Sort(got)
			if d := diff(strings.Join(test.want, "\n"), strings.Join(got, "\n")); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAnEndpointStaysInItsSlice(t *testing.T) {
	p := blank(t, "slices: {maxEndpoints: 2}")
	p.heard("c2")
	p.apply("c2", svc("shop", "echo", mirrored()),
		slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3 10.2.0.4 10.2.0.5")))
	p.Is("split", echo, "c2-1: 10.2.0.1 10.2.0.2; c2-2: 10.2.0.3 10.2.0.4; c2-3: 10.2.0.5")
	p.Wrote()
	wrote := func(what string, want ...string) {
		t.Helper()
		if got := p.Wrote(); !slices.Equal(got, want) {
			t.Errorf("%s: wrote %v, not %v", what, got, want)
		}
	}
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3? 10.2.0.4 10.2.0.5")))
	p.Is("one endpoint is not ready any more", echo, "c2-1: 10.2.0.1 10.2.0.2; c2-2: 10.2.0.3? 10.2.0.4; c2-3: 10.2.0.5")
	wrote("one endpoint", echo+"-c2-2")
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.5 10.2.0.4 10.2.0.3? 10.2.0.2 10.2.0.1")))
	wrote("another order")
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.9 10.2.0.4 10.2.0.5")))
	p.Is("one pod in place of another", echo, "c2-1: 10.2.0.1 10.2.0.2; c2-2: 10.2.0.4 10.2.0.9; c2-3: 10.2.0.5")
	wrote("one pod in place of another", echo+"-c2-2")
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.2 10.2.0.9 10.2.0.4 10.2.0.5")),
		slc("shop", "b", endpoints("echo", "10.2.0.1")))
	wrote("the source moves an endpoint to another slice")
	p.apply("c2", slc("shop", "b", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.9 10.2.0.4 10.2.0.5")),
		slc("shop", "a", nil))
	wrote("and puts all into one")
	p.apply("c2", slc("shop", "b", endpoints("echo", "10.2.0.4 10.2.0.5")))
	p.Is("a slice that is empty goes", echo, "c2-2: 10.2.0.4; c2-3: 10.2.0.5")
	wrote("three endpoints", echo+"-c2-1", echo+"-c2-2")
	p.apply("c2", slc("shop", "b", endpoints("echo", "10.2.0.4 10.2.0.5 10.2.0.6 10.2.0.7 10.2.0.8")))
	p.Is("where there is room first", echo, "c2-1: 10.2.0.8; c2-2: 10.2.0.4 10.2.0.6; c2-3: 10.2.0.5 10.2.0.7")
}

// A broker that is started again finds every endpoint where it is, whatever the slices are called and however full they
// are.
func TestExistingSlicesKeepTheirEndpoints(t *testing.T) {
	p := blank(t, "slices: {maxEndpoints: 3}")
	p.apply("c2", svc("shop", "echo", mirrored()),
		slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3 10.2.0.4")))
	// With a name without a number, and with places that are not those of a first start.
	swap := p.Slices[echo+"-c2-2"]
	swap.Name, swap.Endpoints[0].Addresses = echo+"-bffb91c3ac", []string{"10.2.0.2"}
	first := p.Slices[echo+"-c2-1"]
	first.Endpoints[1].Addresses = []string{"10.2.0.4"}
	p.Slices = map[string]*discoveryv1.EndpointSlice{swap.Name: swap, first.Name: first}
	offered := slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3 10.2.0.4"))
	n := p.restarted("slices: {maxEndpoints: 3}")
	n.Is("nothing was heard", echo, "bffb91c3ac: 10.2.0.2; c2-1: 10.2.0.1 10.2.0.4 10.2.0.3")
	n.apply("c2", svc("shop", "echo", mirrored()), offered)
	n.heard("c2")
	n.writes("a restart")
	n = p.restarted("slices: {maxEndpoints: 2}")
	n.apply("c2", svc("shop", "echo", mirrored()), offered)
	n.heard("c2")
	n.Is("a lower limit", echo, "bffb91c3ac: 10.2.0.2 10.2.0.3; c2-1: 10.2.0.1 10.2.0.4")
}

// The written endpoints of a cluster are its offer, until it is complete: they stay, and can become unused and used
// again.
func TestExistingSlicesCountUntilTheClusterIsComplete(t *testing.T) {
	p := blank(t)
	s := mirrored()
	s.Headless = true
	p.apply("c2", svc("shop", "echo", s), slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2? 10.2.0.3~")))
	n := p.restarted()
	n.Is("a restart", echo, "c2-1: 10.2.0.1 10.2.0.2? 10.2.0.3~")
	n.writes("a restart")
	n.follow(n.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2", Namespace: "shop",
		Service: "echo"}}), n.Now))
	n.Is("a drain, and c2 is silent", echo, "c2-1: 10.2.0.1- 10.2.0.2? 10.2.0.3~")
	n = n.restarted()
	n.Is("another restart, and no drains any more", echo, "c2-1: 10.2.0.1 10.2.0.2? 10.2.0.3~")
	if s := n.Slices[echo+"-c2-1"]; s.Labels[corev1.IsHeadlessService] != "" ||
		!slices.Contains(sorted(s.Labels), corev1.IsHeadlessService) {
		t.Errorf("labels %v", s.Labels)
	}
	n.apply("c2", svc("shop", "echo", s))
	n.Is("the service is heard, its slices are not", echo, "c2-1: 10.2.0.1 10.2.0.2? 10.2.0.3~")
	n.apply("c2", slc("shop", "b", endpoints("echo", "10.2.0.2 10.2.0.4")))
	n.Is("some endpoints are heard", echo, "c2-1: 10.2.0.1 10.2.0.2 10.2.0.3~ 10.2.0.4")
	n.heard("c2")
	n.Is("all are heard", echo, "c2-1: 10.2.0.2 10.2.0.4")
	// An earlier broker's last write, which comes about only now.
	late := n.Slices[echo+"-c2-1"].DeepCopy()
	late.Name = echo + "-c2-7"
	late.Endpoints[0].Addresses = []string{"10.2.0.9"}
	n.Slices[late.Name] = late
	n.follow(n.ObserveSlice(late.Name, late, n.Now))
	n.follow(Touches{Slices: []Touched{{Name: late.Name}}})
	n.Is("a late write", echo, "c2-1: 10.2.0.2 10.2.0.4")
}

// A person's change of a slice is not taken for the cluster's offer, where it cannot be.
func TestManualChangesToSlicesAreNotRemembered(t *testing.T) {
	p := blank(t)
	p.apply("c2", svc("shop", "echo", mirrored()), slc("shop", "a", endpoints("echo", "10.2.0.1")))
	good := p.Slices[echo+"-c2-1"]
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"an address of another cluster": func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Addresses = []string{"10.4.0.1"}
		},
		"no address":             func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil },
		"a cluster that is none": func(s *discoveryv1.EndpointSlice) { s.Labels[naming.LabelSourceCluster] = "c9" },
		"no service": func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels,
				discoveryv1.LabelServiceName)
		},
	} {
		s := good.DeepCopy()
		edit(s)
		p.Slices = map[string]*discoveryv1.EndpointSlice{s.Name: s}
		n := p.restarted()
		if _, wanted := n.Slice(s.Name); wanted {
			t.Errorf("%s: the slice is wanted", name)
		}
	}
}

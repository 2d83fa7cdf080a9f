package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var observed = time.Unix(1_800_000_000, 0)

func plan() *Plan {
	return New([]config.Remote{{Name: "c2", ServicePrefix: "c2"}, {Name: "c2-a", ServicePrefix: "c2-a"}, {Name: "c3", ServicePrefix: "three"}}, "semaphore")
}

func change(kind semaphorev1.Kind, ns, name string, o *semaphorev1.Object) replica.Change {
	return replica.Change{Key: replica.Key{Kind: kind, Namespace: ns, Name: name}, New: o, ObservedAt: observed}
}

func svc(ns, name string, s *semaphorev1.Service) replica.Change {
	if s == nil {
		return change(semaphorev1.Kind_KIND_SERVICE, ns, name, nil)
	}
	return change(semaphorev1.Kind_KIND_SERVICE, ns, name, &semaphorev1.Object{Spec: &semaphorev1.Object_Service{Service: s}})
}

func slc(ns, name string, s *semaphorev1.EndpointSlice) replica.Change {
	if s == nil {
		return change(semaphorev1.Kind_KIND_ENDPOINT_SLICE, ns, name, nil)
	}
	return change(semaphorev1.Kind_KIND_ENDPOINT_SLICE, ns, name, &semaphorev1.Object{Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}})
}

func names(all []Touched) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// diff shows where got differs from want, as the JSON-like text of go-cmp.
func diff[T any](want, got T) string { return cmp.Diff(want, got) }

func TestService(t *testing.T) {
	web := &semaphorev1.ServicePort{Name: "web", Protocol: "TCP", Port: 80, AppProtocol: "kubernetes.io/h2c"}
	dns := &semaphorev1.ServicePort{Name: "dns", Protocol: "UDP", Port: 53}
	sctp := &semaphorev1.ServicePort{Name: "s", Protocol: "SCTP", Port: 9}
	for _, c := range []struct {
		name     string
		in       *semaphorev1.Service
		headless bool
		ports    []string
		ready    bool
	}{
		{"ClusterIP", &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.ServicePort{web, dns, sctp}}, false,
			[]string{"web TCP 80 80 kubernetes.io/h2c", "dns UDP 53 53 ", "s SCTP 9 9 "}, false},
		{"headless", &semaphorev1.Service{Mirror: true, Headless: true, PublishNotReadyAddresses: true, Ports: []*semaphorev1.ServicePort{dns}}, true, []string{"dns UDP 53 53 "}, true},
		{"headless without ports", &semaphorev1.Service{Mirror: true, Headless: true}, true, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan()
			touches := p.Apply("c3", []replica.Change{svc("shop", "echo", c.in)})
			if !slices.Equal(touches.Services, []Touched{{"three-shop-73736d-echo", "c3", observed}}) {
				t.Errorf("touches %v", touches)
			}
			s, ok := p.Service("three-shop-73736d-echo")
			if !ok {
				t.Fatal("no mirror")
			}
			if (s.Spec.ClusterIP == "None") != c.headless || s.Spec.PublishNotReadyAddresses != c.ready || s.Spec.Type != "ClusterIP" || len(s.Spec.Selector) > 0 {
				t.Errorf("spec %+v", s.Spec)
			}
			var ports []string
			for _, p := range s.Spec.Ports {
				ports = append(ports, fmt.Sprint(p.Name, " ", p.Protocol, " ", p.Port, " ", p.TargetPort.String(), " ", ptr.Deref(p.AppProtocol, "")))
			}
			if d := diff(c.ports, ports); d != "" {
				t.Error(d)
			}
			if d := diff(map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c3", "mirrored-svc": "true", "mirror-svc-prefix-sync": "three"}, s.Labels); d != "" {
				t.Error(d)
			}
			if d := diff(map[string]string{"semaphore.uw.io/source-namespace": "shop", "semaphore.uw.io/source-name": "echo"}, s.Annotations); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSlice(t *testing.T) {
	source := &semaphorev1.EndpointSlice{
		Service: "echo", AddressType: "IPv4",
		Ports: []*semaphorev1.EndpointPort{{Name: "web", Protocol: "TCP", Port: 8080}},
		Endpoints: []*semaphorev1.Endpoint{
			{Addresses: []string{"10.2.1.5"}, Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false), Hostname: "echo-0", Zone: "eu-1a"},
			{Addresses: []string{"10.2.1.6"}, Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)},
			{Addresses: []string{"10.2.1.7"}},
		},
	}
	for _, headless := range []bool{false, true} {
		t.Run(fmt.Sprint("headless ", headless), func(t *testing.T) {
			p := plan()
			// A slice that comes before its service waits for it.
			first := p.Apply("c2", []replica.Change{slc("shop", "echo-x7", source)})
			name := naming.MirrorSlice("c2-shop-73736d-echo", "shop", "echo-x7")
			if got := names(first.Slices); !slices.Equal(got, []string{name}) {
				t.Errorf("touched %v", got)
			}
			if _, ok := p.Slice(name); ok {
				t.Error("a slice without its service")
			}
			second := p.Apply("c2", []replica.Change{svc("shop", "echo", &semaphorev1.Service{Mirror: true, Headless: headless})})
			if got := names(second.Slices); !slices.Equal(got, []string{name}) {
				t.Errorf("touched %v", got)
			}
			s, ok := p.Slice(name)
			if !ok {
				t.Fatal("no slice")
			}
			labels := map[string]string{
				"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c2", "mirrored-svc": "true", "mirror-svc-prefix-sync": "c2",
				"kubernetes.io/service-name": "c2-shop-73736d-echo", "endpointslice.kubernetes.io/managed-by": "semaphore-broker",
			}
			var hostname *string
			if headless {
				labels["service.kubernetes.io/headless"] = ""
				hostname = ptr.To("echo-0")
			}
			if d := diff(labels, s.Labels); d != "" {
				t.Error(d)
			}
			want := []discoveryv1.Endpoint{
				{Addresses: []string{"10.2.1.5"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}, Hostname: hostname},
				{Addresses: []string{"10.2.1.6"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}},
				{Addresses: []string{"10.2.1.7"}},
			}
			if d := diff(want, s.Endpoints); d != "" {
				t.Error(d)
			}
			if d := diff([]discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}}, s.Ports); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWhatIsNotOffered(t *testing.T) {
	p := plan()
	p.Apply("c2", []replica.Change{
		svc("shop", "global", &semaphorev1.Service{Global: true}),
		svc("shop", "gone", &semaphorev1.Service{Mirror: true}), slc("shop", "gone-1", &semaphorev1.EndpointSlice{Service: "gone", AddressType: "IPv4"}),
		svc("shop", "moved", &semaphorev1.Service{Mirror: true}), slc("shop", "moved-1", &semaphorev1.EndpointSlice{Service: "moved", AddressType: "IPv4"}),
		svc("shop", "other", &semaphorev1.Service{Mirror: true}),
	})
	if _, ok := p.Service("c2-shop-73736d-global"); ok {
		t.Error("a mirror of a service that asked for none")
	}
	t.Run("deleted", func(t *testing.T) {
		touches := p.Apply("c2", []replica.Change{svc("shop", "gone", nil)})
		slice := naming.MirrorSlice("c2-shop-73736d-gone", "shop", "gone-1")
		if !slices.Equal(names(touches.Slices), []string{slice}) || !slices.Equal(names(touches.Services), []string{"c2-shop-73736d-gone"}) {
			t.Errorf("touches %v", touches)
		}
		if _, ok := p.Service("c2-shop-73736d-gone"); ok {
			t.Error("the mirror is still wanted")
		}
		if _, ok := p.Slice(slice); ok {
			t.Error("the slice is still wanted")
		}
	})
	t.Run("slice passes to another service", func(t *testing.T) {
		touches := p.Apply("c2", []replica.Change{slc("shop", "moved-1", &semaphorev1.EndpointSlice{Service: "other", AddressType: "IPv4"})})
		before, after := naming.MirrorSlice("c2-shop-73736d-moved", "shop", "moved-1"), naming.MirrorSlice("c2-shop-73736d-other", "shop", "moved-1")
		want := []string{before, after}
		slices.Sort(want)
		if got := names(touches.Slices); !slices.Equal(got, want) {
			t.Errorf("touched %v, want %v", got, want)
		}
		if _, ok := p.Slice(before); ok {
			t.Error("still under its old service")
		}
		if _, ok := p.Slice(after); !ok {
			t.Error("not under its new service")
		}
	})
	t.Run("no longer offered", func(t *testing.T) {
		p.Apply("c2", []replica.Change{svc("shop", "other", &semaphorev1.Service{})})
		if _, ok := p.Service("c2-shop-73736d-other"); ok {
			t.Error("the mirror is still wanted")
		}
	})
}

func TestBigSliceIsSplit(t *testing.T) {
	p := plan()
	big := &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4"}
	for i := range 250 {
		big.Endpoints = append(big.Endpoints, &semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.1.%d", i)}})
	}
	p.Apply("c2", []replica.Change{svc("shop", "echo", &semaphorev1.Service{Mirror: true}), slc("shop", "e", big)})
	first := naming.MirrorSlice("c2-shop-73736d-echo", "shop", "e")
	var sizes []int
	seen := map[string]bool{}
	for _, name := range []string{first, first + "-1", first + "-2"} {
		s, ok := p.Slice(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		sizes = append(sizes, len(s.Endpoints))
		for _, e := range s.Endpoints {
			seen[e.Addresses[0]] = true
		}
	}
	if !slices.Equal(sizes, []int{100, 100, 50}) || len(seen) != 250 {
		t.Errorf("sizes %v, %d different addresses", sizes, len(seen))
	}
	small := &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4", Endpoints: big.Endpoints[:100]}
	touches := p.Apply("c2", []replica.Change{slc("shop", "e", small)})
	if got := names(touches.Slices); !slices.Equal(got, []string{first, first + "-1", first + "-2"}) {
		t.Errorf("touched %v", got)
	}
	if _, ok := p.Slice(first + "-1"); ok {
		t.Error("the second part is still wanted")
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	p := plan()
	long := strings.Repeat("n", 50)
	p.Apply("c2", []replica.Change{svc("shop", long, &semaphorev1.Service{Mirror: true})})
	if _, ok := p.Service("c2-shop-73736d-" + long); ok {
		t.Error("a mirror whose name the API does not take")
	}
	if all := p.Problems(); len(all) != 1 || all[0].Name != long || !strings.Contains(all[0].Reason, "65 characters") {
		t.Errorf("problems %v", all)
	}
	p.Apply("c2", []replica.Change{svc("shop", long, nil)})
	if all := p.Problems(); len(all) != 0 {
		t.Errorf("problems %v", all)
	}
}

func TestNameThatTwoClaim(t *testing.T) {
	const name = "c2-a-shop-73736d-echo"
	inA := svc("a-shop", "echo", &semaphorev1.Service{Mirror: true})
	inB := svc("shop", "echo", &semaphorev1.Service{Mirror: true, Headless: true})
	sliceA := slc("a-shop", "e", &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4"})
	sliceB := slc("shop", "e", &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4"})
	nameA, nameB := naming.MirrorSlice(name, "a-shop", "e"), naming.MirrorSlice(name, "shop", "e")
	for _, order := range []string{"c2 first", "c2-a first"} {
		t.Run(order, func(t *testing.T) {
			p := plan()
			if order == "c2 first" {
				p.Apply("c2", []replica.Change{inA, sliceA})
				p.Apply("c2-a", []replica.Change{inB, sliceB})
			} else {
				p.Apply("c2-a", []replica.Change{inB, sliceB})
				touches := p.Apply("c2", []replica.Change{sliceA, inA})
				if !slices.Contains(names(touches.Slices), nameB) {
					t.Errorf("the loser's slice was not touched: %v", touches.Slices)
				}
			}
			s, ok := p.Service(name)
			if !ok || s.Labels[naming.LabelSourceCluster] != "c2" || s.Spec.ClusterIP == "None" {
				t.Errorf("mirror %v", s)
			}
			_, okA := p.Slice(nameA)
			_, okB := p.Slice(nameB)
			if !okA || okB {
				t.Errorf("slices %v %v", okA, okB)
			}
			if all := p.Problems(); len(all) != 1 || all[0].Cluster != "c2-a" {
				t.Errorf("problems %v", all)
			}
			touches := p.Apply("c2", []replica.Change{svc("a-shop", "echo", nil)})
			if !slices.Contains(names(touches.Slices), nameB) {
				t.Errorf("the winner's slice was not touched: %v", touches.Slices)
			}
			if s, ok := p.Service(name); !ok || s.Labels[naming.LabelSourceCluster] != "c2-a" {
				t.Errorf("mirror %v", s)
			}
			if _, ok := p.Slice(nameB); !ok {
				t.Error("no slice of the one that has the name now")
			}
		})
	}
}

// Whatever the changes, an observer that looks only at touched names sees what a plan made
// of the final state alone wants.
func TestTouchesAreEnough(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	clusters, namespaces, svcNames := []string{"c2", "c2-a"}, []string{"shop", "a-shop"}, []string{"echo", "web"}
	for range 300 {
		p := plan()
		services, slicesSeen := map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}
		type id struct {
			cluster string
			key     replica.Key
		}
		final := map[id]replica.Change{}
		for range 30 {
			cluster, ns, name := clusters[rng.IntN(2)], namespaces[rng.IntN(2)], svcNames[rng.IntN(2)]
			var c replica.Change
			switch rng.IntN(4) {
			case 0:
				c = svc(ns, name, nil)
			case 1:
				c = svc(ns, name, &semaphorev1.Service{Mirror: rng.IntN(4) > 0, Headless: rng.IntN(2) == 0})
			case 2:
				c = slc(ns, "s-"+name, nil)
			default:
				n := []int{0, 1, 150}[rng.IntN(3)]
				c = slc(ns, "s-"+name, &semaphorev1.EndpointSlice{Service: svcNames[rng.IntN(2)], AddressType: "IPv4", Endpoints: slices.Repeat([]*semaphorev1.Endpoint{{Addresses: []string{"10.2.0.1"}}}, n)})
			}
			final[id{cluster, c.Key}] = c
			touches := p.Apply(cluster, []replica.Change{c})
			for _, touched := range touches.Services {
				delete(services, touched.Name)
				if s, ok := p.Service(touched.Name); ok {
					services[touched.Name] = s
				}
			}
			for _, touched := range touches.Slices {
				delete(slicesSeen, touched.Name)
				if s, ok := p.Slice(touched.Name); ok {
					slicesSeen[touched.Name] = s
				}
			}
		}
		fresh := plan()
		for id, c := range final {
			fresh.Apply(id.cluster, []replica.Change{c})
		}
		allServices, allSlices := fresh.Names()
		wantServices, wantSlices := map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}
		for _, name := range allServices {
			wantServices[name], _ = fresh.Service(name)
		}
		for _, name := range allSlices {
			if s, ok := fresh.Slice(name); ok {
				wantSlices[name] = s
			}
		}
		if d := diff(wantServices, services) + diff(wantSlices, slicesSeen); d != "" {
			t.Fatal(d)
		}
	}
}

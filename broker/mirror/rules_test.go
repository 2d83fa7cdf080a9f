package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

var onlyLabels = []string{"app.kubernetes.io/managed-by", "endpointslice.kubernetes.io/managed-by",
	"kubernetes.io/service-name", "mirror-svc-prefix-sync",
	"mirrored-svc", "semaphore.uw.io/source-cluster", "service.kubernetes.io/headless"}

var onlyAnnotations = []string{"semaphore.uw.io/source-name", "semaphore.uw.io/source-namespace"}

// rest checks what a mirror says of itself, and takes it away, so that only what the source gave is left.
func rest(t *testing.T, m *metav1.ObjectMeta) {
	t.Helper()
	for key, value := range m.Labels {
		if !slices.Contains(onlyLabels, key) || value == "theirs" {
			t.Errorf("label %s=%s", key, value)
		}
	}
	if got := slices.Sorted(maps.Keys(m.Annotations)); !slices.Equal(got, onlyAnnotations) {
		t.Errorf("annotations %v", got)
	}
	m.Name, m.Namespace, m.Labels, m.Annotations = "", "", nil, nil
}

// reservedLabels are what a remote says that wants to have more of its mirror than is on the list.
func reservedLabels() (all []*semaphorev1.Label) {
	for _, key := range []string{
		"app.kubernetes.io/managed-by", "endpointslice.kubernetes.io/managed-by", "global-svc", "kubernetes.io/service-name",
		"managed-by",
		"mirror-svc-prefix-sync", "mirror.semaphore.uw.io/mirror-service", "mirrored-svc", "node.k8s.io/x",
		"semaphore.uw.io/source-cluster",
		"semaphore.uw.systems/name", "service.kubernetes.io/service-proxy-name", "team", "topology.kubernetes.io/zone",
	} {
		all = append(all, &semaphorev1.Label{Key: key, Value: "theirs"})
	}
	return all
}

// R15: of a Service only ports, IP families, the headless flag, publishNotReadyAddresses and labels that the operator
// lists are copied. The wire has no more: a field that is added to it fails here until it has been thought of.
func TestR15AMirrorHasNothingElseOfItsSource(t *testing.T) {
	for message, known := range map[string]struct{ have, want int }{
		"Service":     {(&semaphorev1.Service{}).ProtoReflect().Descriptor().Fields().Len(), 12},
		"ServicePort": {(&semaphorev1.Port{}).ProtoReflect().Descriptor().Fields().Len(), 4},
	} {
		if known.have != known.want {
			t.Errorf("%s has %d fields, and %d are known here", message, known.have, known.want)
		}
	}
	p := blank(t)
	p.apply("c3", svc("shop", "echo", &semaphorev1.Service{
		Mirror: true, Global: true, Headless: true, PublishNotReadyAddresses: true,
		Ports:  []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 80, AppProtocol: "http"}},
		Labels: reservedLabels(),
	}))
	s, ok := p.Service("three-shop-73736d-echo")
	if !ok {
		t.Fatal("no mirror")
	}
	rest(t, &s.ObjectMeta)
	want := &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyPreferDualStack), PublishNotReadyAddresses: true,
		Ports: []corev1.ServicePort{s.Spec.Ports[0]},
	}}
	if d := diff(want, s); d != "" {
		t.Error(d)
	}
	if port := s.Spec.Ports[0]; port.NodePort != 0 || port.Name != "web" || port.Port != 80 {
		t.Errorf("port %+v", port)
	}
}

// R16: an endpoint names no node, pod or zone: those of the source would be taken for local ones.
func TestR16AnEndpointNamesNothingOfThisCluster(t *testing.T) {
	if n := (&semaphorev1.Endpoint{}).ProtoReflect().Descriptor().Fields().Len(); n != 6 {
		t.Errorf("Endpoint has %d fields, and 6 are known here", n)
	}
	p := blank(t)
	p.apply("c3",
		svc("shop", "echo", &semaphorev1.Service{Mirror: true, Headless: true}),
		slc("shop", "echo-x7", &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv4",
			Endpoints: []*semaphorev1.Endpoint{
				{Addresses: []string{"10.3.1.5"}, Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false),
					Hostname: "n1", Zone: "zone-of-ours"},
			}}),
	)
	_, all := p.Names()
	if len(all) != 1 {
		t.Fatalf("slices %v", all)
	}
	s, _ := p.Slice(all[0])
	rest(t, &s.ObjectMeta)
	want := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{
		Addresses: []string{"10.3.1.5"}, Hostname: ptr.To("n1"),
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
	}}}
	if d := diff(want, s); d != "" {
		t.Error(d)
	}
}

// R18: two Services whose mirrors would have one name never share it; who has it is decided by their names alone, and
// the other is reported. Two remotes cannot have mirrors of one name: the configuration refuses the prefixes.
func TestR18ANameBelongsToOneSource(t *testing.T) {
	const name = "c2-shop-73736d-a-73736d-b"
	sources := [][2]string{{"shop", "a-73736d-b"}, {"shop-73736d-a", "b"}}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		p := blank(t)
		p.heard("c2")
		for _, i := range order {
			ns, service := sources[i][0], sources[i][1]
			p.apply("c2", svc(ns, service, mirrored()), slc(ns, service+"-1", endpoints(service, fmt.Sprint("10.2.0.", i+1))))
		}
		s, ok := p.Service(name)
		if !ok || s.Annotations["semaphore.uw.io/source-namespace"] != "shop" ||
			s.Annotations["semaphore.uw.io/source-name"] != "a-73736d-b" {
			t.Errorf("%v: mirror %v", order, s)
		}
		var addresses []string
		for _, s := range p.Slices {
			for _, e := range s.Endpoints {
				addresses = append(addresses, s.Labels["kubernetes.io/service-name"]+" "+e.Addresses[0])
			}
		}
		if fmt.Sprint(addresses) != fmt.Sprint([]string{name + " 10.2.0.1"}) {
			t.Errorf("%v: endpoints %v", order, addresses)
		}
		if all := p.reported(); len(all) != 1 || all[0].Cluster != "c2" ||
			!strings.HasSuffix(all[0].Object, "shop-73736d-a/b") {
			t.Errorf("%v: problems %v", order, all)
		}
	}
	_, err := described.Broker([]byte(`
cluster: c1
features: [services]
localSubnets: [10.1.0.0/16]
remotes:
- {name: c2-a, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12]}
- {name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}
`))
	if err == nil || !strings.Contains(err.Error(), "their mirrors could have the same names") {
		t.Errorf("remotes whose mirrors could have one name: %v", err)
	}
}

package catalog

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const setLabel = naming.DefaultLabelDomain + "/name"

var (
	mirrorLabels = map[string]string{"mirror.semaphore.uw.io/mirror-service": "true"}
	globalLabels = map[string]string{"mirror.semaphore.uw.io/global-service": "true"}
	bothLabels   = with(mirrorLabels, "mirror.semaphore.uw.io/global-service", "true")
)

func with(labels map[string]string, pairs ...string) map[string]string {
	out := maps.Clone(labels)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// newCatalog is that of c1 with the defaults of the configuration and brokers in c2 and c3.
func newCatalog(t *testing.T) *Catalog {
	t.Helper()
	return withRules(t, func(r *Rules) {
		r.Clusters = []string{"c2", "c3"}
		// what is reserved is not exported
		r.ServiceLabels = config.LabelKeys{"app.kubernetes.io/*", "team", "mirrored-svc", "semaphore.uw.io/*"}
	})
}

// content is what a catalog exports, by key in words.
func content(c *Catalog) map[string]*semaphorev1.Object {
	out := map[string]*semaphorev1.Object{}
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		out[e.Key.String()] = e.Value.Object
	}
	return out
}

func exports(t *testing.T, c *Catalog, want ...string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(content(c)))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("exported are %q, not %q", got, want)
	}
}

func publicKey(b byte) string {
	return base64.StdEncoding.EncodeToString(slices.Repeat([]byte{b}, 32))
}

func newNode(name string, cidrs []string, annotations map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.NodeSpec{PodCIDRs: cidrs},
	}
}

func end(cluster string, key, endpoint string) map[string]string {
	return map[string]string{naming.PubKeyAnnotation(cluster): key, naming.EndpointAnnotation(cluster): endpoint}
}

func newService(name string, labels map[string]string, edit ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10",
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

func newSlice(name, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: with(mirrorLabels, discoveryv1.LabelServiceName, service)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func newPod(name, set string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid of " + name),
			Labels: map[string]string{setLabel: set}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.1", PodIPs: []corev1.PodIP{{IP: "10.1.1.1"}}},
	}
	for _, e := range edit {
		e(p)
	}
	return p
}

func TestNodes(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		cidr        string // spec.podCIDR
		cidrs       []string
		annotations map[string]string
		// end is what c2 receives, with publicKey(2); nil for none. want are the pod CIDRs, as cidrs if nil.
		end     *semaphorev1.WireGuardEndpoint
		want    []string
		problem string
	}{
		"one that has published no end yet": {cidrs: []string{"10.1.1.0/24"}},
		"both families, written in other ways than the canonical one": {cidrs: []string{"10.1.1.7/24", "2001:DB8:0::/64"},
			annotations: end("c2", publicKey(2), "192.0.2.1:51820"), want: []string{"10.1.1.0/24", "2001:db8::/64"},
			end: &semaphorev1.WireGuardEndpoint{Address: "192.0.2.1:51820"}},
		"an end on IPv6": {annotations: end("c2", publicKey(2), "[2001:db8::1]:51820"),
			end: &semaphorev1.WireGuardEndpoint{Address: "[2001:db8::1]:51820"}},
		"a key without an endpoint": {annotations: map[string]string{naming.PubKeyAnnotation("c2"): publicKey(2)}},
		"a key that is none": {cidrs: []string{"10.1.1.0/24"}, annotations: end("c2", "abc", "192.0.2.1:51820"),
			problem: `node n1 for c2: annotation c2.wireguard.semaphore.uw.io/pubKey: "abc" is not a WireGuard public key`},
		"a key that is too short": {
			annotations: end("c2", base64.StdEncoding.EncodeToString([]byte("short")), "192.0.2.1:51820"),
			problem:     "is not a WireGuard public key (32 bytes in base64)"},
		"an endpoint with a name": {annotations: end("c2", publicKey(2), "n1.example.org:51820"),
			problem: `annotation c2.wireguard.semaphore.uw.io/endpoint: "n1.example.org:51820" is not an IP:port`},
		"candidates, of which one is none": {annotations: with(end("c2", publicKey(2), "192.0.2.1:51820"),
			naming.CandidatesAnnotation("c2"), "n1.example.org:1,192.0.2.1:51820,nonsense"),
			end: &semaphorev1.WireGuardEndpoint{Address: "192.0.2.1:51820",
				Candidates: []string{"n1.example.org:1", "192.0.2.1:51820"}},
			problem: `annotation c2.wireguard.semaphore.uw.io/candidates: "nonsense" is not an IP:port or name:port`},
		"one candidate is an endpoint": {annotations: map[string]string{naming.PubKeyAnnotation("c2"): publicKey(2),
			naming.CandidatesAnnotation("c2"): "192.0.2.1:51820"},
			end: &semaphorev1.WireGuardEndpoint{Address: "192.0.2.1:51820"}},
		"a node that calls": {annotations: map[string]string{naming.PubKeyAnnotation("c2"): publicKey(2),
			naming.CandidatesAnnotation("c2"): "none"}, end: &semaphorev1.WireGuardEndpoint{Calls: true}},
		"an endpoint without a port": {annotations: end("c2", publicKey(2), "192.0.2.1:0"), problem: "is not an IP:port"},
		"a pod CIDR that is none": {cidrs: []string{"10.1.1.0/24", "nonsense"}, want: []string{"10.1.1.0/24"},
			annotations: end("c2", publicKey(2), "192.0.2.1:1"),
			end:         &semaphorev1.WireGuardEndpoint{Address: "192.0.2.1:1"}, problem: "spec.podCIDRs"},
		"only spec.podCIDR": {cidr: "10.1.1.0/24", want: []string{"10.1.1.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(t)
			node := newNode("n1", test.cidrs, test.annotations)
			node.Spec.PodCIDR = test.cidr
			c.PutNode(node, now)
			exports(t, c, "node n1 for c2", "node n1 for c3")
			want := &semaphorev1.Node{PodCidrs: test.cidrs, Wireguard: test.end}
			if test.want != nil {
				want.PodCidrs = test.want
			}
			if test.end != nil {
				test.end.PublicKey = slices.Repeat([]byte{2}, 32)
			}
			if d := cmp.Diff(want, content(c)["node n1 for c2"].GetNode(), protocmp.Transform()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if end := content(c)["node n1 for c3"].GetNode().GetWireguard(); end != nil {
				t.Errorf("c3 is sent c2's end of the tunnel: %v", end)
			}
			problems := strings.Join(finding.Texts(c.Findings()), "\n")
			if test.problem == "" && problems != "" || !strings.Contains(problems, test.problem) {
				t.Errorf("problems are %q, not %q", problems, test.problem)
			}
			c.DeleteNode("n1", now)
			exports(t, c)
			if p := finding.Texts(c.Findings()); len(p) != 0 {
				t.Errorf("the node is gone, and its problems are not: %q", p)
			}
		})
	}
}

func annotated(annotations map[string]string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = annotations }
}

func TestServices(t *testing.T) {
	now := time.Now()
	grpc := "grpc"
	var manyLabels []string
	var firstLabels []*semaphorev1.Label
	for i := range config.MaxServiceLabels + 2 {
		manyLabels = append(manyLabels, fmt.Sprintf("app.kubernetes.io/l%02d", i), "v")
		if i < config.MaxServiceLabels {
			firstLabels = append(firstLabels, &semaphorev1.Label{Key: manyLabels[2*i], Value: "v"})
		}
	}
	for name, test := range map[string]struct {
		service *corev1.Service
		want    *semaphorev1.Service // nil for not exported; with the port of newService if it has none
		problem string
	}{
		"no label":               {service: newService("echo", nil)},
		"for mirrors":            {service: newService("echo", mirrorLabels), want: &semaphorev1.Service{Mirror: true}},
		"for the global service": {service: newService("echo", globalLabels), want: &semaphorev1.Service{Global: true}},
		"for both": {service: newService("echo", bothLabels),
			want: &semaphorev1.Service{Mirror: true, Global: true}},
		"the label with another value": {service: newService("echo",
			map[string]string{"mirror.semaphore.uw.io/mirror-service": "false"})},
		"headless, several ports": {
			service: newService("echo", mirrorLabels, func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, true
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
					{Name: "api", Protocol: corev1.ProtocolTCP, Port: 443, AppProtocol: &grpc},
				}
			}),
			want: &semaphorev1.Service{Mirror: true, Headless: true, PublishNotReadyAddresses: true, Ports: []*semaphorev1.Port{
				{Name: "dns", Protocol: "UDP", Port: 53}, {Name: "api", Protocol: "TCP", Port: 443, AppProtocol: "grpc"},
			}},
		},
		"affinity and distribution": {
			service: newService("echo", mirrorLabels, func(s *corev1.Service) {
				s.Spec.SessionAffinity, s.Spec.TrafficDistribution = corev1.ServiceAffinityClientIP, ptr("PreferSameZone")
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(60))},
				}
			}),
			want: &semaphorev1.Service{Mirror: true, ClientIpAffinitySeconds: 60, TrafficDistribution: "PreferSameZone"},
		},
		"one family": {
			service: newService("echo", mirrorLabels,
				func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }),
			want: &semaphorev1.Service{Mirror: true, IpFamilies: []string{"IPv6"}},
		},
		"affinity without a time": {
			service: newService("echo", mirrorLabels,
				func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }),
			want: &semaphorev1.Service{Mirror: true, ClientIpAffinitySeconds: 10800},
		},
		"labels": {
			service: newService("echo", with(mirrorLabels, "app.kubernetes.io/name", "echo", "app.kubernetes.io/managed-by",
				"Helm", "team", "shop",
				"topology.kubernetes.io/zone", "a", "mirrored-svc", "", "service.kubernetes.io/headless", "",
				"semaphore.uw.io/source-cluster", "c3", "tier", "web")),
			want: &semaphorev1.Service{Mirror: true,
				Labels: []*semaphorev1.Label{{Key: "app.kubernetes.io/name", Value: "echo"}, {Key: "team", Value: "shop"}}},
		},
		"too many labels": {
			service: newService("echo", with(mirrorLabels, manyLabels...)),
			want: &semaphorev1.Service{Mirror: true,
				Labels: firstLabels},
			problem: "2 of its labels are not exported: the limit is 32",
		},
		"a distribution of the future": {
			service: newService("echo", mirrorLabels,
				func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr("PreferMoon") }),
			want:    &semaphorev1.Service{Mirror: true},
			problem: `spec.trafficDistribution "PreferMoon" is not known`,
		},
		"settings of the global service": {
			service: newService("echo", with(globalLabels, naming.LabelRouting, "local-first"), annotated(map[string]string{
				naming.AnnotationPreferClusters: "c2, c3", naming.AnnotationMinReady: "2", naming.AnnotationWhenGone: "withdraw"})),
			want: &semaphorev1.Service{Global: true,
				GlobalSettings: &semaphorev1.GlobalSettings{Prefer: []string{"c2", "c3"}, MinReady: 2,
					WhenGone: semaphorev1.WhenGone_WHEN_GONE_WITHDRAW, LocalFirst: true}},
		},
		"settings of a global service that it is not": {
			service: newService("echo", mirrorLabels, annotated(map[string]string{naming.AnnotationMinReady: "many"})),
			want:    &semaphorev1.Service{Mirror: true},
		},
		"clusters that are none": {
			service: newService("echo", globalLabels,
				annotated(map[string]string{naming.AnnotationPreferClusters: "c2,C3", naming.AnnotationMinReady: "2"})),
			want: &semaphorev1.Service{Global: true,
				GlobalSettings: &semaphorev1.GlobalSettings{MinReady: 2, Unreadable: []string{"prefer-clusters"}}},
			problem: `annotation semaphore.uw.io/prefer-clusters: "c2,C3" is ignored`,
		},
		"a cluster twice": {
			service: newService("echo", globalLabels, annotated(map[string]string{naming.AnnotationPreferClusters: "c2,c2"})),
			want: &semaphorev1.Service{Global: true,
				GlobalSettings: &semaphorev1.GlobalSettings{Unreadable: []string{"prefer-clusters"}}},
			problem: `"c2,c2" is ignored`,
		},
		"no number": {
			service: newService("echo", globalLabels, annotated(map[string]string{naming.AnnotationMinReady: "0"})),
			want: &semaphorev1.Service{Global: true,
				GlobalSettings: &semaphorev1.GlobalSettings{Unreadable: []string{"min-ready"}}},
			problem: `annotation semaphore.uw.io/min-ready: "0" is ignored: use a number of ready endpoints from 1 to ` +
				`1000000, or a share of all such as 50%`,
		},
		"no way to be gone, and no routing": {
			service: newService("echo", with(globalLabels, naming.LabelRouting, "far-first"),
				annotated(map[string]string{naming.AnnotationWhenGone: "panic"})),
			want: &semaphorev1.Service{Global: true,
				GlobalSettings: &semaphorev1.GlobalSettings{Unreadable: []string{"when-gone"}}},
			problem: `annotation semaphore.uw.io/when-gone: "panic" is ignored: use keep, demote or withdraw; label ` +
				`mirror.semaphore.uw.io/global-service-routing-strategy: "far-first" is ignored`,
		},
		"ExternalName": {
			service: newService("echo", mirrorLabels, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
			problem: "service shop/echo: spec.type ExternalName has no endpoints to offer",
		},
		"a mirror of ours": {service: newService("echo",
			with(mirrorLabels, naming.LabelManagedBy, naming.ManagedByBroker))},
		"a mirror of the original's":         {service: newService("echo", with(mirrorLabels, naming.LabelMirrored, "true"))},
		"a global service of the original's": {service: newService("echo", with(globalLabels, naming.LabelGlobal, "true"))},
		"managed by something else's": {service: newService("echo", with(mirrorLabels, naming.LabelManagedBy, "Helm")),
			want: &semaphorev1.Service{Mirror: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(t)
			c.PutService(test.service, now)
			if test.want != nil && test.want.Ports == nil {
				test.want.Ports = []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 80}}
			}
			if d := cmp.Diff(test.want, content(c)["service shop/echo"].GetService(), protocmp.Transform()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			problems := strings.Join(finding.Texts(c.Findings()), "\n")
			if test.problem == "" && problems != "" || !strings.Contains(problems, test.problem) {
				t.Errorf("problems are %q, not %q", problems, test.problem)
			}
			c.DeleteService("shop", "echo", now)
			exports(t, c)
			if p := finding.Texts(c.Findings()); len(p) != 0 {
				t.Errorf("the service is gone, and its problems are not: %q", p)
			}
		})
	}
}

func TestSliceContent(t *testing.T) {
	yes, no := true, false
	name, udp, port := "dns", corev1.ProtocolUDP, int32(5353)
	hostname, zone, node := "echo-0", "z1", "n1"
	s := newSlice("echo-x", "echo")
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &udp, Port: &port}, {}}
	s.Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{"10.1.1.1"}, Hostname: &hostname, Zone: &zone, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &no, Terminating: &yes},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: "echo-0"},
	}}
	c := newCatalog(t)
	c.PutService(newService("echo", mirrorLabels), time.Now())
	c.PutSlice(s, time.Now())
	want := &semaphorev1.EndpointSlice{
		Service: "echo", AddressType: "IPv4",
		// one without a number is for nobody who forwards to it
		Ports: []*semaphorev1.Port{{Name: "dns", Protocol: "UDP", Port: 5353}},
		Endpoints: []*semaphorev1.Endpoint{{
			Addresses: []string{"10.1.1.1"}, Ready: &no, Terminating: &yes, Hostname: "echo-0", Zone: "z1",
		}},
	}
	if d := cmp.Diff(want, content(c)["endpointslice shop/echo-x"].GetEndpointSlice(), protocmp.Transform()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestSlicesThatAreNotExported(t *testing.T) {
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"of no Service": func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) },
		"of names":      func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
		"of a mirror": func(s *discoveryv1.EndpointSlice) {
			s.Labels[naming.LabelManagedBy] = naming.ManagedByBroker
		},
		"of a mirror the original's": func(s *discoveryv1.EndpointSlice) { s.Labels[naming.LabelMirrored] = "true" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(t)
			c.PutService(newService("echo", mirrorLabels), time.Now())
			c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), time.Now())
			s := newSlice("echo-1", "echo", "10.1.1.1")
			edit(s)
			c.PutSlice(s, time.Now())
			exports(t, c, "service shop/echo")
		})
	}
}

func TestPods(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		edit func(*corev1.Pod)
		want []string // IPs; nil for not exported
	}{
		"running":         {func(*corev1.Pod) {}, []string{"10.1.1.1"}},
		"pending with IP": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, []string{"10.1.1.1"}},
		"both families": {func(p *corev1.Pod) {
			p.Status.PodIPs = []corev1.PodIP{{IP: "2001:db8::1"}, {IP: "10.1.1.1"}}
		}, []string{"10.1.1.1", "2001:db8::1"}},
		"only status.podIP": {func(p *corev1.Pod) { p.Status.PodIPs = nil }, []string{"10.1.1.1"}},
		"being deleted, running": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} },
			[]string{"10.1.1.1"}},
		"unknown":                 {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, []string{"10.1.1.1"}},
		"succeeded":               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil},
		"failed":                  {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil},
		"no IP yet":               {func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }, nil},
		"on the host's network":   {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil},
		"the set's name is empty": {func(p *corev1.Pod) { p.Labels[setLabel] = "" }, nil},
		"another domain's label": {func(p *corev1.Pod) {
			p.Labels = map[string]string{naming.PolicyLabelDomain + "/name": "front"}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCatalog(t)
			c.PutPod(newPod("web-0", "front"), now) // what it was before
			c.PutPod(newPod("web-0", "front", test.edit), now)
			member := content(c)["setmember shop/web-0"].GetSetMember()
			if test.want == nil {
				exports(t, c)
				return
			}
			want := &semaphorev1.SetMember{PodUid: "uid of web-0", SetName: "front", Ips: test.want}
			if d := cmp.Diff(want, member, protocmp.Transform()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			c.DeletePod("shop", "web-0", now)
			exports(t, c)
		})
	}
}

// Of several domains the first counts that a pod has a label of; that another names another set is reported.
func TestPodsOfSeveralDomains(t *testing.T) {
	c := withRules(t, func(r *Rules) { r.LabelDomains = []string{naming.DefaultLabelDomain, naming.PolicyLabelDomain} })
	const first, second = naming.DefaultLabelDomain + "/name", naming.PolicyLabelDomain + "/name"
	for name, k := range map[string]struct {
		labels   map[string]string
		set      string
		problems int
	}{
		"first":     {map[string]string{first: "a"}, "a", 0},
		"second":    {map[string]string{second: "b"}, "b", 0},
		"both":      {map[string]string{first: "a", second: "a"}, "a", 0},
		"different": {map[string]string{first: "a", second: "b"}, "a", 1},
		"none":      {nil, "", 0},
	} {
		c.PutPod(newPod("web", "", func(p *corev1.Pod) { p.Labels = k.labels }), time.Now())
		e, _ := c.journal.Get(podKey("shop", "web"))
		if got := e.Object.GetSetMember().GetSetName(); got != k.set ||
			c.CountProblems()[finding.SetLabelsContradict] != k.problems {
			t.Errorf("%s: set %q, problems %q", name, got, finding.Texts(c.Findings()))
		}
		c.DeletePod("shop", "web", time.Now())
		if len(finding.Texts(c.Findings())) > 0 {
			t.Errorf("%s: %q of a pod that has gone", name, finding.Texts(c.Findings()))
		}
	}
}

// TestNothingForWhatIsNotExported: a revision is what costs something on the wire.
func TestNothingForWhatIsNotExported(t *testing.T) {
	now := time.Now()
	c := newCatalog(t)
	node := newNode("n1", []string{"10.1.1.0/24"}, end("c2", publicKey(2), "192.0.2.1:51820"))
	service, slice, pod := newService("echo", mirrorLabels), newSlice("echo-1", "echo", "10.1.1.1"),
		newPod("web-0", "front")
	put := func() (revisions uint64) {
		head := c.Journal().Head()
		c.PutNode(node, now)
		c.PutService(service, now)
		c.PutSlice(slice, now)
		c.PutPod(pod, now)
		return c.Journal().Head() - head
	}
	put()
	n := "n1"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Time{Time: now}}}
	node.Annotations["unrelated"] = "change"
	node.ResourceVersion = "2"
	service.Labels = with(service.Labels, "unrelated", "change")
	service.Spec.ClusterIP = "10.96.0.11"
	service.Spec.Ports[0].NodePort = 30_000
	slice.Endpoints[0].NodeName = &n
	slice.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": now.String()}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}}
	pod.Labels["unrelated"] = "change"
	if got := put(); got != 0 {
		t.Errorf("what is exported is the same, and there are %d new revisions", got)
	}
	// Only c3 receives c3's end of the tunnel.
	maps.Copy(node.Annotations, end("c3", publicKey(3), "192.0.2.1:51821"))
	head := c.Journal().Head()
	if got := put(); got != 1 {
		t.Errorf("a change for c3 made %d revisions, not 1", got)
	}
	changes, _, _ := c.Journal().Since(head, 10)
	for _, e := range changes {
		if e.Value.To != For("c3") {
			t.Errorf("%s is for the wrong cluster", e.Key)
		}
	}
}

// event is one step in the life of one object.
type event struct {
	object string
	apply  func(*Catalog)
}

// TestRandomOrder: whatever the order in which objects of different kinds and names are heard of, and
// whatever they were in between, what is exported at last depends on what they are at last.
func TestRandomOrder(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		lives := map[string][]event{}
		for range 60 {
			e := randomEvent(rnd)
			lives[e.object] = append(lives[e.object], e)
		}
		objects := slices.Sorted(maps.Keys(lives))

		// The newest state of each alone is what should come of it.
		want := newCatalog(t)
		for _, o := range objects {
			lives[o][len(lives[o])-1].apply(want)
		}
		got := newCatalog(t)
		for len(objects) > 0 {
			i := rnd.IntN(len(objects))
			o := objects[i]
			lives[o][0].apply(got)
			if lives[o] = lives[o][1:]; len(lives[o]) == 0 {
				objects = slices.Delete(objects, i, i+1)
			}
		}
		if d := cmp.Diff(content(want), content(got), protocmp.Transform()); d != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, d)
		}
		for _, cluster := range got.clusters {
			if d := cmp.Diff(sees(want, cluster), sees(got, cluster)); d != "" {
				t.Fatalf("seed %d: seen by %s are (-want +got):\n%s", seed, cluster, d)
			}
		}
		if d := cmp.Diff(finding.Texts(want.Findings()), finding.Texts(got.Findings())); d != "" {
			t.Fatalf("seed %d: problems (-want +got):\n%s", seed, d)
		}
		for service, of := range got.slices {
			if len(of) == 0 {
				t.Fatalf("seed %d: memory is kept for %v, which has no slices", seed, service)
			}
		}
	}
}

func randomEvent(rnd *rand.Rand) event {
	now := time.Unix(int64(rnd.IntN(1000)), 0)
	services := []string{"echo", "cart"}
	labels := []map[string]string{nil, mirrorLabels, globalLabels, bothLabels}
	gone := rnd.IntN(4) == 0
	switch rnd.IntN(4) {
	case 0:
		name := fmt.Sprint("n", rnd.IntN(3))
		if gone {
			return event{"node " + name, func(c *Catalog) { c.DeleteNode(name, now) }}
		}
		endpoint := []string{"192.0.2.1:1", "192.0.2.1:2", "nonsense"}[rnd.IntN(3)]
		node := newNode(name, []string{"10.1.1.0/24"},
			end([]string{"c2", "c3"}[rnd.IntN(2)], publicKey(byte(rnd.IntN(3))), endpoint))
		return event{"node " + name, func(c *Catalog) { c.PutNode(node, now) }}
	case 1:
		name := services[rnd.IntN(2)]
		if gone {
			return event{"service " + name, func(c *Catalog) { c.DeleteService("shop", name, now) }}
		}
		service := newService(name, labels[rnd.IntN(4)], func(s *corev1.Service) {
			if rnd.IntN(5) == 0 {
				s.Spec.Type = corev1.ServiceTypeExternalName
			}
			s.Annotations = exportToAnnotation([]string{"c2,c3", "c3", "none", "c9"}[rnd.IntN(4)])
		})
		return event{"service " + name, func(c *Catalog) { c.PutService(service, now) }}
	case 2:
		name := fmt.Sprint("slice-", rnd.IntN(4))
		if gone {
			return event{"slice " + name, func(c *Catalog) { c.DeleteSlice("shop", name, now) }}
		}
		slice := newSlice(name, services[rnd.IntN(2)], fmt.Sprint("10.1.1.", rnd.IntN(3)))
		return event{"slice " + name, func(c *Catalog) { c.PutSlice(slice, now) }}
	default:
		name := fmt.Sprint("pod-", rnd.IntN(3))
		if gone {
			return event{"pod " + name, func(c *Catalog) { c.DeletePod("shop", name, now) }}
		}
		pod := newPod(name, []string{"front", "back", ""}[rnd.IntN(3)], func(p *corev1.Pod) {
			p.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodFailed}[rnd.IntN(2)]
		})
		return event{"pod " + name, func(c *Catalog) { c.PutPod(pod, now) }}
	}
}

func TestKinds(t *testing.T) {
	for _, test := range []struct {
		features config.Features
		want     string
	}{
		{config.Features{config.Encryption}, "node"},
		{config.Features{config.Services}, "service endpointslice"},
		{config.Features{config.Policy}, "setmember"},
		{config.Features{config.Policy, config.Encryption}, "node setmember"},
	} {
		var got []string
		for _, k := range (Rules{Features: test.features}).Kinds() {
			got = append(got, semaphorev1.KindName(k))
		}
		if g := strings.Join(got, " "); g != test.want {
			t.Errorf("%v: kinds %q, not %q", test.features, g, test.want)
		}
	}
}

// TestDeletedObjectsLeaveNothing: the catalog of a cluster in which objects come and go does not grow.
func TestDeletedObjectsLeaveNothing(t *testing.T) {
	c, now := newCatalog(t), time.Now()
	c.PutNode(newNode("n1", []string{"10.1.1.0/24"}, nil), now)
	c.PutService(newService("echo", bothLabels), now)
	c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), now)
	c.PutSlice(newSlice("other-1", "other", "10.1.1.3"), now)
	c.PutPod(newPod("web-0", "front"), now)
	if len(c.serviceOf) != 2 || len(c.slices) != 2 || len(c.nodes) != 1 || len(c.offers) != 1 {
		t.Fatalf("%d slices of %d services, %d nodes, %d offers", len(c.serviceOf), len(c.slices), len(c.nodes),
			len(c.offers))
	}
	c.DeleteSlice("shop", "echo-1", now)
	c.DeleteSlice("shop", "other-1", now)
	c.DeleteService("shop", "echo", now)
	c.DeletePod("shop", "web-0", now)
	c.DeleteNode("n1", now)
	for what, n := range map[string]int{"slices": len(c.serviceOf), "services with slices": len(c.slices),
		"nodes": len(c.nodes), "offers": len(c.offers), "problems": len(c.problems), "locations": len(c.locations.byNode),
		"exports": len(content(c))} {
		if n > 0 {
			t.Errorf("%d %s, and all is deleted", n, what)
		}
	}
}

// TestADeletedObjectIsItsKey: the journal remembers thousands of deletions, which need their audience and no object.
func TestADeletedObjectIsItsKey(t *testing.T) {
	c := newCatalog(t)
	c.PutPod(newPod("web-0", "front"), time.Now())
	c.DeletePod("shop", "web-0", time.Now())
	e, there := c.Journal().Last(podKey("shop", "web-0"))
	if !there || !e.Deleted || e.Value.Object != nil || ChangeFor(e, "c2", 1) != Delete {
		t.Errorf("there %t: %+v", there, e)
	}
}

package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// derivedEcho is the derived Service of the tests.
const derivedEcho = "mcs-shop-73736d-echo"

func exported(edit ...func(*semaphorev1.Service)) *semaphorev1.Service {
	s := &semaphorev1.Service{MultiCluster: &semaphorev1.MultiClusterExport{}}
	for _, do := range edit {
		do(s)
	}
	if len(s.GetPorts()) == 0 && !s.GetHeadless() {
		s = web(s)
	}
	return s
}

func onPort(name, protocol string, number int32) func(*semaphorev1.Service) {
	return func(s *semaphorev1.Service) {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: name, Protocol: protocol, Port: number})
	}
}

// ported are endpoints with ports such as "http 8080", in TCP.
func ported(addresses string, ports ...string) *semaphorev1.EndpointSlice {
	s := endpoints("echo", addresses)
	s.Ports = nil
	for _, text := range ports {
		p := &semaphorev1.Port{Protocol: "TCP"}
		fmt.Sscan(text, &p.Name, &p.Port)
		s.Ports = append(s.Ports, p)
	}
	return s
}

func export(s *semaphorev1.Service, slice *semaphorev1.EndpointSlice) []replica.Change {
	return []replica.Change{svc("shop", "echo", s), slc("shop", "echo-1", slice)}
}

// order is the annotation of the derived Service.
func (c *cluster) order() string {
	if s := c.Services[derivedEcho]; s != nil {
		return s.Annotations[naming.AnnotationExportingClusters]
	}
	return "no Service"
}

// portsOf are the ports of the derived Service, and of each slice of it.
func (c *cluster) portsOf() string {
	var all []string
	if s := c.Services[derivedEcho]; s != nil {
		for _, p := range s.Spec.Ports {
			all = append(all, fmt.Sprintf("%s %d", p.Name, p.Port))
		}
	}
	out := "[" + strings.Join(all, ", ") + "]"
	for _, name := range sorted(c.Slices) {
		s := c.Slices[name]
		if s.Labels[discoveryv1.LabelServiceName] != derivedEcho {
			continue
		}
		all = nil
		for _, p := range s.Ports {
			all = append(all, fmt.Sprintf("%s %d", *p.Name, *p.Port))
		}
		out += " " + s.Labels[naming.LabelSourceCluster] + "[" + strings.Join(all, ", ") + "]"
	}
	return out
}

// TestImport: the derived Service has the endpoints of all clusters that export it, the own one too, and goes with the
// last export.
func TestImport(t *testing.T) {
	p := importing(t)
	p.apply("c2", export(exported(), endpoints("echo", "10.2.0.1"))...)
	p.Is("one cluster", derivedEcho, "c2-1: 10.2.0.1")
	p.apply("c1", export(exported(), endpoints("echo", "10.1.0.1"))...)
	p.apply("c3", export(web(&semaphorev1.Service{Mirror: true}), endpoints("echo", "10.4.0.1"))...)
	p.Is("two clusters; the third exports a mirror alone", derivedEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1")
	if s := p.Services[derivedEcho]; s.Labels[naming.LabelImported] != "true" || s.Labels[naming.LabelGlobal] != "" ||
		s.Labels[naming.LabelSourceCluster] != "" || p.order() != "c2,c1" {
		t.Errorf("the Service has %v, %v", s.Labels, s.Annotations)
	}
	p.apply("c2", svc("shop", "echo", nil), slc("shop", "echo-1", nil))
	p.Is("the first exports it no more", derivedEcho, "c1-1: 10.1.0.1")
	p.apply("c1", svc("shop", "echo", web(&semaphorev1.Service{Global: true})))
	if p.Is("nobody", derivedEcho, ""); p.Services[derivedEcho] != nil {
		t.Error("the Service is there, and nobody exports it")
	}
	off, none := Plans(configured(t, "c1"))
	off.Begin(p.Now)
	off.Apply("c2", export(exported(), endpoints("echo", "10.2.0.1")), p.Now)
	if services, slices := off.Names(); none != nil || len(services)+len(slices) > 0 {
		t.Errorf("the API is off, and there are %v, %v, %v", none, services, slices)
	}
}

// TestImportPorts: the ports are the union; of two that collide those of the earlier cluster count, and the endpoints
// of a cluster have the ports that its own Service exposes with that number (upstream tests 9, 10, 19 and 20).
func TestImportPorts(t *testing.T) {
	for _, test := range []struct {
		name           string
		first, second  *semaphorev1.Service
		firstEndpoints *semaphorev1.EndpointSlice
		endpoints      *semaphorev1.EndpointSlice
		want           string
	}{
		{"the same", exported(onPort("http", "TCP", 80)), exported(onPort("http", "TCP", 80)),
			ported("10.2.0.1", "http 8080"),
			ported("10.4.0.1", "http 9090"), "[http 80] c2[http 8080] c3[http 9090]"},
		{"union", exported(onPort("a", "TCP", 80)), exported(onPort("b", "TCP", 81)), ported("10.2.0.1", "a 8080"),
			ported("10.4.0.1", "b 8081"), "[a 80, b 81] c2[a 8080] c3[b 8081]"},
		{"one name, two numbers", exported(onPort("a", "TCP", 80)), exported(onPort("a", "TCP", 81)),
			ported("10.2.0.1", "a 8080"),
			ported("10.4.0.1", "a 8081"), "[a 80] c2[a 8080]"},
		{"one name, two numbers, and another", exported(onPort("a", "TCP", 80)),
			exported(onPort("a", "TCP", 81), onPort("b", "TCP", 82)), ported("10.2.0.1", "a 8080"),
			ported("10.4.0.1", "a 8081", "b 8082"), "[a 80, b 82] c2[a 8080] c3[b 8082]"},
		{"two names, one number", exported(onPort("a", "TCP", 80)), exported(onPort("b", "TCP", 80)),
			ported("10.2.0.1", "a 8080"),
			ported("10.4.0.1", "b 8080"), "[a 80] c2[a 8080]"},
		{"one name, two protocols", exported(onPort("a", "TCP", 80)), exported(onPort("a", "UDP", 80)),
			ported("10.2.0.1", "a 8080"), ported("10.4.0.1", "a 8080"), "[a 80] c2[a 8080]"},
		{"no name, and one", exported(onPort("", "TCP", 80)), exported(onPort("b", "TCP", 81)), ported("10.2.0.1", " 8080"),
			ported("10.4.0.1", "b 8081"), "[ 80] c2[ 8080]"},
		{"a name, and none", exported(onPort("b", "TCP", 81)), exported(onPort("", "TCP", 80)), ported("10.2.0.1", "b 8081"),
			ported("10.4.0.1", " 8080"), "[b 81] c2[b 8081]"},
	} {
		for _, p := range []*semaphorev1.EndpointSlice{test.firstEndpoints, test.endpoints} {
			if p.Ports[0].GetPort() == 0 { // Sscan takes no empty name
				p.Ports[0].Name, p.Ports[0].Port = "", 8080
			}
		}
		if test.name == "one name, two protocols" {
			test.endpoints.Ports[0].Protocol = "UDP"
		}
		p := importing(t)
		p.apply("c2", export(test.first, test.firstEndpoints)...)
		p.apply("c3", export(test.second, test.endpoints)...)
		if got := p.portsOf(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		// A restart writes nothing.
		p.Wrote()
		n := p.restarted(enabled)
		n.apply("c3", export(test.second, test.endpoints)...)
		n.heard("c3", "c1", "c2-a")
		n.apply("c2", export(test.first, test.firstEndpoints)...)
		n.heard("c2")
		if wrote := n.Wrote(); len(wrote) > 0 || n.portsOf() != test.want {
			t.Errorf("%s: a restart wrote %q: %s", test.name, wrote, n.portsOf())
		}
		// The first leaves: the second decides, with all its endpoints.
		n.apply("c2", svc("shop", "echo", nil), slc("shop", "echo-1", nil))
		if n.order() != "c3" || !strings.Contains(n.portsOf(), " c3[") {
			t.Errorf("%s: without the first: %s, %s", test.name, n.order(), n.portsOf())
		}
	}
}

// TestImportEndpointInTwoGroups: two exported slices that differ only in a port that is left out hold one endpoint; it
// stays while one of them has it.
func TestImportEndpointInTwoGroups(t *testing.T) {
	p := importing(t)
	p.apply("c2", export(exported(onPort("a", "TCP", 80)), ported("10.2.0.1", "a 8080"))...)
	p.apply("c3", svc("shop", "echo", exported(onPort("a", "TCP", 81), onPort("b", "TCP", 82))),
		slc("shop", "echo-1", ported("10.4.0.1", "a 1", "b 8082")),
		slc("shop", "echo-2", ported("10.4.0.1?", "a 2", "b 8082")))
	p.Is("both", derivedEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	p.apply("c3", slc("shop", "echo-1", nil))
	p.Is("one is left", derivedEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1?")
	p.apply("c3", slc("shop", "echo-2", nil))
	p.Is("none is left", derivedEcho, "c2-1: 10.2.0.1")
}

// permutations calls do with each order of the clusters.
func permutations(all []string, do func([]string)) {
	var next func(head, tail []string)
	next = func(head, tail []string) {
		if len(tail) == 0 {
			do(head)
			return
		}
		for i := range tail {
			rest := append(slices.Clone(tail[:i]), tail[i+1:]...)
			next(append(slices.Clone(head), tail[i]), rest)
		}
	}
	next(nil, all)
}

// TestImportPrecedence: the cluster that was first observed decides as long as it exports: for each order of arrival,
// and after a restart for each order in which the clusters are heard again, with one of them silent. Of several at
// once, mcs.precedence decides, then the name. Neither the own cluster nor a time has precedence (R31).
func TestImportPrecedence(t *testing.T) {
	all := []string{"c1", "c2", "c3"}
	address := map[string]string{"c1": "10.1.0.1", "c2": "10.2.0.1", "c3": "10.4.0.1"}
	exports := func(p *cluster, cluster string) {
		s := exported()
		s.ClientIpAffinitySeconds = int32(cluster[1] - '0')
		p.apply(cluster, export(s, endpoints("echo", address[cluster]))...)
	}
	permutations(all, func(arrival []string) {
		permutations(all, func(again []string) {
			for _, silent := range append([]string{""}, all...) {
				p := importing(t)
				for _, cluster := range arrival {
					exports(p, cluster)
				}
				want := strings.Join(arrival, ",")
				seconds := *p.Services[derivedEcho].Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
				if p.order() != want || seconds != int32(arrival[0][1]-'0') {
					t.Fatalf("arrival %v: the order is %s, the first has %d", arrival, p.order(), seconds)
				}
				p.Wrote()
				n := p.restarted(enabled)
				for _, cluster := range again {
					if cluster != silent {
						exports(n, cluster)
						n.heard(cluster)
					}
				}
				if wrote := n.Wrote(); len(wrote) > 0 || n.order() != want {
					t.Fatalf("arrival %v, heard again %v without %q: wrote %q, the order is %s", arrival, again, silent, wrote,
						n.order())
				}
				// The next one decides once the first exports nothing; who comes back is the last.
				for _, cluster := range all {
					exports(n, cluster)
				}
				n.heardAll()
				n.apply(arrival[0], svc("shop", "echo", nil))
				exports(n, arrival[0])
				if got, want := n.order(), arrival[1]+","+arrival[2]+","+arrival[0]; got != want {
					t.Fatalf("arrival %v, after the first left and came back: %s, want %s", arrival, got, want)
				}
			}
		})
	})
	// The first leaves and comes back while the other one is silent, which has exported all the time.
	p := importing(t)
	exports(p, "c1")
	exports(p, "c2")
	p = p.restarted(enabled)
	exports(p, "c1")
	p.heard("c1", "c2-a", "c3")
	p.apply("c1", svc("shop", "echo", nil))
	exports(p, "c1")
	exports(p, "c2")
	p.heard("c2")
	if got := p.order(); got != "c2,c1" {
		t.Errorf("after the first left and came back while the other one was silent: %s", got)
	}
	for precedence, want := range map[string]string{"": "c1,c2,c3", ", precedence: [c3, c1]": "c3,c1,c2"} {
		permutations(all, func(arrival []string) {
			p := before(t, "c1", "mcs: {enabled: true"+precedence+"}") // it does not know yet what is there
			for _, cluster := range arrival {
				exports(p, cluster)
			}
			p.follow(p.Begin(p.Now))
			if p.order() != want {
				t.Errorf("at once, as %v: the order is %s, want %s", arrival, p.order(), want)
			}
		})
	}
}

// TestImportConflicts: each field that differs is a reason of the condition, with who decides and how many disagree.
func TestImportConflicts(t *testing.T) {
	multi := func(edit func(*semaphorev1.MultiClusterExport)) func(*semaphorev1.Service) {
		return func(s *semaphorev1.Service) { edit(s.MultiCluster) }
	}
	families := func(all ...string) func(*semaphorev1.Service) {
		return func(s *semaphorev1.Service) { s.IpFamilies = all }
	}
	for _, test := range []struct {
		name          string
		first, second *semaphorev1.Service
		reasons       string
		field         string
	}{
		{"none", exported(), exported(), "", ""},
		{"ports", exported(), exported(onPort("b", "TCP", 81)), "PortConflict", "ports (1 of 2)"},
		{"type", exported(), exported(func(s *semaphorev1.Service) { s.Headless = true }, onPort("web", "TCP", 80)),
			"TypeConflict", "type (1 of 2)"},
		{"affinity", exported(), exported(func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = 10 }),
			"SessionAffinityConflict", "sessionAffinity (1 of 2)"},
		{"timeout", exported(func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = 20 }),
			exported(func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = 10 }), "SessionAffinityConfigConflict", ""},
		{"labels", exported(), exported(multi(func(m *semaphorev1.MultiClusterExport) {
			m.Labels = []*semaphorev1.Label{{Key: "a", Value: "b"}}
		})), "LabelsConflict", ""},
		{"annotations", exported(), exported(multi(func(m *semaphorev1.MultiClusterExport) {
			m.Annotations = []*semaphorev1.Annotation{{Key: "a", Value: "b"}}
		})), "AnnotationsConflict", ""},
		{"internalTrafficPolicy", exported(multi(func(m *semaphorev1.MultiClusterExport) {
			m.InternalTrafficPolicy = "Cluster"
		})), exported(multi(func(m *semaphorev1.MultiClusterExport) { m.InternalTrafficPolicy = "Local" })),
			"InternalTrafficPolicyConflict", ""},
		{"internalTrafficPolicy by default", exported(multi(func(m *semaphorev1.MultiClusterExport) {
			m.InternalTrafficPolicy = "Cluster"
		})), exported(), "", ""},
		{"trafficDistribution", exported(), exported(func(s *semaphorev1.Service) { s.TrafficDistribution = "PreferClose" }),
			"TrafficDistributionConflict", ""},
		{"families apart", exported(families("IPv4")), exported(families("IPv6")), "IPFamilyConflict", "ipFamilies (1 of 2)"},
		{"families overlap", exported(families("IPv4", "IPv6")), exported(families("IPv4")), "", ""},
		{"two", exported(), exported(onPort("b", "TCP", 81), func(s *semaphorev1.Service) { s.Headless = true }),
			"PortConflict,TypeConflict", "ports (1 of 2), type (1 of 2)"},
	} {
		// The own cluster receives whether it decides or not, other clusters receive nothing of it.
		for _, order := range [][]string{{"c1", "c2"}, {"c2", "c1"}} {
			p := importing(t)
			p.apply(order[0], svc("shop", "echo", test.first))
			p.apply(order[1], svc("shop", "echo", test.second))
			var reasons, messages []string
			for _, o := range p.outcomes("c1") {
				reasons = append(reasons, o.Conflicts...)
				if o.Code != string(finding.ExportsConflict) || o.Reason != "" {
					t.Errorf("%s: the outcome is %+v", test.name, o)
				}
				messages = append(messages, o.Conflict)
			}
			text := strings.Join(messages, "")
			if strings.Join(reasons, ",") != test.reasons || !strings.Contains(text, test.field) ||
				test.reasons != "" && !strings.Contains(text, "cluster "+order[0]+" decides") {
				t.Errorf("%s: %q, %q; want %s, %s", test.name, reasons, text, test.reasons, test.field)
			}
			if other := p.outcomes("c2"); len(other) > 0 {
				t.Errorf("%s: another cluster receives %+v", test.name, other)
			}
		}
	}
}

// TestServiceImport: what a ServiceImport has.
func TestServiceImport(t *testing.T) {
	p := importing(t)
	s := exported(func(s *semaphorev1.Service) {
		s.ClientIpAffinitySeconds, s.TrafficDistribution = 10, "PreferClose"
		s.MultiCluster = &semaphorev1.MultiClusterExport{InternalTrafficPolicy: "Local",
			Labels:      []*semaphorev1.Label{{Key: "team", Value: "a"}},
			Annotations: []*semaphorev1.Annotation{{Key: "note", Value: "b"}}}
	})
	p.apply("c2", svc("shop", "echo", s))
	p.apply("c1", svc("shop", "echo", exported()))
	is := func(what string, exists, wanted bool) {
		t.Helper()
		if i, w := p.Import("shop/echo"); (i != nil) != exists || w != wanted {
			t.Errorf("%s: it is %v, wanted %t", what, i, w)
		}
	}
	is("namespaces are not known", false, true)
	if touched, _ := p.SetNamespaces([]string{"other"}); !slices.Equal(touched, []string{"shop/echo"}) {
		t.Errorf("touched are %q", touched)
	}
	is("there is no namespace", false, false)
	if touched, _ := p.SetNamespace("shop", true); !slices.Equal(touched, []string{"shop/echo"}) {
		t.Errorf("touched are %q", touched)
	}
	if touched, slices := p.SetNamespace("shop", true); len(touched)+len(slices) > 0 {
		t.Errorf("touched without a change are %q and %q", touched, slices)
	}
	service := p.Services[derivedEcho].DeepCopy()
	delete(p.Services, derivedEcho)
	p.observe(derivedEcho)
	is("there is no Service", false, true)
	service.Spec.ClusterIPs, service.Spec.IPFamilies = []string{"10.96.0.9", "fd00::9"}, []corev1.IPFamily{"IPv4", "IPv6"}
	p.Services[derivedEcho] = service
	if _, touches := p.observe(derivedEcho); !slices.Equal(names(touches.Imports), []string{"shop/echo"}) {
		t.Errorf("touched are %v", touches)
	}
	i, _ := p.Import("shop/echo")
	if i == nil {
		t.Fatal("there is no import")
	}
	if got, want := fmt.Sprintln(i.Spec.Type, i.Spec.IPs, i.Spec.IPFamilies, i.Spec.SessionAffinity,
		*i.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, *i.Spec.InternalTrafficPolicy, *i.Spec.TrafficDistribution,
		len(i.Spec.Ports), i.Spec.Ports[0].Name, i.Spec.Ports[0].Protocol, i.Spec.Ports[0].Port),
		"ClusterSetIP [10.96.0.9 fd00::9] [IPv4 IPv6] ClientIP 10 Local PreferClose 1 web TCP 80\n"; got != want {
		t.Errorf("the spec is %s, wanted %s", got, want)
	}
	if i.Labels["team"] != "a" || i.Annotations["note"] != "b" ||
		i.Labels[naming.LabelManagedBy] != naming.ManagedByBroker ||
		i.Annotations[naming.AnnotationCopiedLabels] != "team" ||
		i.Annotations[naming.AnnotationCopiedAnnotations] != "note" {
		t.Errorf("the metadata is %v, %v", i.Labels, i.Annotations)
	}
	if len(i.Status.Clusters) != 2 || i.Status.Clusters[0].Cluster != "c2" ||
		i.Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("the status is %+v", i.Status)
	}
	// Nobody exports it: the import goes with the Service.
	touches := p.apply("c2", svc("shop", "echo", nil))
	touches.Imports = append(touches.Imports, p.apply("c1", svc("shop", "echo", nil)).Imports...)
	if !slices.Contains(names(touches.Imports), "shop/echo") {
		t.Errorf("touched are %v", touches)
	}
	is("nobody exports it", false, false)
	if p.Services[derivedEcho] != nil {
		t.Error("the Service is there")
	}
	// A headless one has no IPs, and a type conflict does not change that of the first.
	p.apply("c3", svc("shop", "echo", exported(func(s *semaphorev1.Service) { s.Headless = true },
		onPort("web", "TCP", 80))))
	p.apply("c1", svc("shop", "echo", exported()))
	if i, _ := p.Import("shop/echo"); i == nil || i.Spec.Type != "Headless" || len(i.Spec.IPs) > 0 {
		t.Errorf("the import is %+v", i)
	}
	if s := p.Services[derivedEcho]; s.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the Service is %+v", s.Spec)
	}
}

// TestImportIPFamilyNotSupported: an import is not ready where the cluster has no IP family of the exports.
func TestImportIPFamilyNotSupported(t *testing.T) {
	for _, c := range []struct {
		exported []string
		here     []corev1.IPFamily
		want     string
	}{
		{[]string{"IPv6"}, []corev1.IPFamily{"IPv4"}, "False IPFamilyNotSupported"},
		{[]string{"IPv4", "IPv6"}, []corev1.IPFamily{"IPv6"}, "True Ready"},
		{nil, []corev1.IPFamily{"IPv4"}, "True Ready"}, // of an exporter that does not send them
	} {
		ready := blank(t, enabled).ready(derivedEcho, c.exported, c.here)
		if got := string(ready.Status) + " " + ready.Reason; ready.Type != "Ready" || got != c.want {
			t.Errorf("%v in a cluster with %v: %s %s, wanted %s", c.exported, c.here, ready.Type, got, c.want)
		}
	}
}

// TestHeadlessImportOfAFamily: of a headless import, whose Service the apiserver gives any family, those of the
// cluster's subnets count.
func TestHeadlessImportOfAFamily(t *testing.T) {
	for _, c := range []struct {
		exported, given []string
		want            string
	}{
		{[]string{"IPv6"}, []string{"IPv6"}, "[] False the exports have IPv6, and this cluster has [IPv4]"},
		{[]string{"IPv4", "IPv6"}, []string{"IPv6", "IPv4"}, "[IPv4] True Service semaphore/" + derivedEcho + " leads to it"},
	} {
		p := importing(t)
		p.SetNamespaces([]string{"shop"})
		p.apply("c2", svc("shop", "echo", exported(func(s *semaphorev1.Service) {
			s.Headless, s.IpFamilies = true, c.exported
		})))
		given := p.Services[derivedEcho].DeepCopy()
		given.Spec.IPFamilies = nil
		for _, family := range c.given {
			given.Spec.IPFamilies = append(given.Spec.IPFamilies, corev1.IPFamily(family))
		}
		p.ImportPlan.ObserveService(derivedEcho, given, p.Now)
		i, _ := p.Import("shop/echo")
		ready := i.Status.Conditions[0]
		if got := fmt.Sprint(i.Spec.IPFamilies, " ", ready.Status, " ", ready.Message); got != c.want {
			t.Errorf("%v: %s, wanted %s", c.exported, got, c.want)
		}
	}
}

// TestASilentClusterKeepsItsPart: a broker that begins while one of the clusters is silent changes neither the IP
// families nor the order of the ports, whether or not the silent one reports its families.
func TestASilentClusterKeepsItsPart(t *testing.T) {
	of := func(families ...string) func(*semaphorev1.Service) {
		return func(s *semaphorev1.Service) { s.IpFamilies = families }
	}
	both := []corev1.IPFamily{"IPv4", "IPv6"}
	for name, c := range map[string]struct {
		decides, silent func(*semaphorev1.Service)
		existing        []corev1.IPFamily
	}{
		"it has one family":              {of("IPv4", "IPv6"), of("IPv4"), []corev1.IPFamily{"IPv4"}},
		"it does not report its":         {of("IPv4"), of(), both},
		"it has both, as who decides":    {of("IPv4", "IPv6"), of("IPv4", "IPv6"), both},
		"it has one, as the one decides": {of("IPv6"), of("IPv6"), []corev1.IPFamily{"IPv6"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := importing(t)
			decides := export(exported(c.decides, onPort("a", "TCP", 80)), endpoints("echo", "10.2.0.1"))
			last := export(exported(c.decides, onPort("c", "TCP", 82)), endpoints("echo", "10.1.0.1"))
			p.apply("c2", decides...)
			p.apply("c3", export(exported(c.silent, onPort("b", "TCP", 81)), endpoints("echo", "10.4.0.1"))...)
			p.apply("c1", last...)
			p.Services[derivedEcho].Spec.IPFamilies = c.existing // as an apiserver assigns them
			p.observe(derivedEcho)
			want := p.Services[derivedEcho].DeepCopy()
			p = p.restarted(enabled)
			p.apply("c2", decides...)
			p.apply("c1", last...)
			p.heard("c1", "c2", "c2-a", "c9")
			got, _ := p.Service(derivedEcho)
			if !slices.Equal(got.Spec.Ports, want.Spec.Ports) {
				t.Errorf("the ports are %v; they were %v", got.Spec.Ports, want.Spec.Ports)
			}
			if *got.Spec.IPFamilyPolicy != *want.Spec.IPFamilyPolicy {
				t.Errorf("the families are %s; they were %s", *got.Spec.IPFamilyPolicy, *want.Spec.IPFamilyPolicy)
			}
			p.apply("c3", svc("shop", "echo", nil), slc("shop", "echo-1", nil))
			p.heard("c3")
			if got := p.portsOf(); strings.Contains(got, "81") {
				t.Errorf("c3 withdrew its export, and the ports are %s", got)
			}
		})
	}
}

// TestImportFollowsTheFamiliesOfItsService: a headless Service has other families without another ClusterIP.
func TestImportFollowsTheFamiliesOfItsService(t *testing.T) {
	p := importing(t)
	p.apply("c2", export(exported(func(s *semaphorev1.Service) { s.Headless = true }), endpoints("echo", "10.2.0.1"))...)
	p.Services[derivedEcho].Spec.IPFamilies = []corev1.IPFamily{"IPv4"}
	p.observe(derivedEcho)
	p.Services[derivedEcho] = p.Services[derivedEcho].DeepCopy()
	p.Services[derivedEcho].Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv6"}
	if _, touches := p.observe(derivedEcho); !slices.Equal(names(touches.Imports), []string{"shop/echo"}) {
		t.Errorf("the Service has another family, and what is touched is %v", touches.Imports)
	}
}

// TestNamespacesThatChangeAtFirst: a namespace that comes or goes before all are known is as its last event says.
func TestNamespacesThatChangeAtFirst(t *testing.T) {
	p := blank(t, enabled)
	p.SetNamespace("gone", true)
	p.SetNamespace("gone", false)
	p.SetNamespace("shop", true)
	p.KnowNamespaces()
	for namespace, want := range map[string]bool{"gone": false, "shop": true} {
		p.apply("c2", svc(namespace, "echo", exported()))
		if _, wanted := p.Import(namespace + "/echo"); wanted != want {
			t.Errorf("an import into %s is wanted: %t", namespace, wanted)
		}
	}
}

// TestR29NothingIsImportedIntoDeniedNamespaces: an export into a denied namespace, such as kube-system/kube-dns, makes
// no Service and no import; its exporter receives the outcome, and it is counted.
func TestR29NothingIsImportedIntoDeniedNamespaces(t *testing.T) {
	for _, namespace := range []string{"kube-system", "kube-public", "calico-system", "tigera-operator", "semaphore"} {
		p := blank(t, enabled)
		p.SetNamespaces([]string{namespace})
		p.apply("c2", svc(namespace, "kube-dns", exported()),
			slc(namespace, "kube-dns-1", endpoints("kube-dns", "10.2.0.1")))
		p.heardAll()
		if len(p.Services)+len(p.Slices) > 0 || len(p.Imports()) > 0 {
			t.Errorf("%s: there are %v, %v", namespace, sorted(p.Services), p.Imports())
		}
		out := p.outcomes("c2")
		if len(out) != 1 || out[0].Code != string(finding.NamespaceDenied) {
			t.Errorf("%s: its exporter receives %+v", namespace, out)
		}
		if n := len(p.Problems().Of("c2")); n != 1 {
			t.Errorf("%s: %d problems", namespace, n)
		}
		p.apply("c2", svc(namespace, "kube-dns", nil))
		if n := len(p.Problems().Of("c2")); n != 0 {
			t.Errorf("%s: %d problems of an export that no longer exists", namespace, n)
		}
	}
}

// TestImportOfALongName: an export does not fail for the length of its name.
func TestImportOfALongName(t *testing.T) {
	p := importing(t)
	name := strings.Repeat("n", 60)
	p.apply("c2", svc("shop", name, exported()))
	service := DerivedService("shop/" + name)
	if p.Services[service] == nil || len(service) > 63 || !strings.Contains(service, "-73736d-") {
		t.Errorf("the Services are %q, not %s", sorted(p.Services), service)
	}
	if got := p.Imports(); !slices.Equal(got, []string{"shop/" + name}) {
		t.Errorf("the imports are %q", got)
	}
}

// TestImportSlices: each slice of a derived Service exists once more in the namespace of its ServiceImport, as long as
// it exists itself and mcs.endpointSlices says so, with the labels of KEP-1645 and without that of kube-proxy (upstream
// test 27).
func TestImportSlices(t *testing.T) {
	const name = "shop/mcs-shop-73736d-echo-c2-1"
	for mode, want := range map[string][2]bool{"": {true, true}, "all": {true, true}, "headless": {false, true},
		"none": {false, false}} {
		settings := enabled
		if mode != "" {
			settings = "mcs: {enabled: true, endpointSlices: " + mode + "}"
		}
		for i, headless := range []bool{false, true} {
			p := blank(t, settings)
			p.SetNamespaces([]string{"shop"})
			touches := p.apply("c2", export(exported(func(s *semaphorev1.Service) {
				s.Headless, s.Ports = headless, []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 80}}
			}), endpoints("echo", "10.2.0.1 10.2.0.2?"))...)
			if got := names(touches.Slices); !slices.Equal(got, []string{name}) {
				t.Errorf("%s, headless %t: touched are %q", mode, headless, got)
			}
			// The cluster is not heard whole: what is known of it exists.
			s, wanted := p.ImportSlice(name)
			if (s != nil) != want[i] || wanted != want[i] || (len(p.ImportSlices()) > 0) != want[i] {
				t.Errorf("%s, headless %t: it is %v, wanted %t", mode, headless, s, wanted)
			}
			p.Services[derivedEcho], _ = p.Service(derivedEcho)
			p.observe(derivedEcho)
			present := "Absent"
			if want[i] {
				present = "Present"
			}
			if imported, _ := p.Import("shop/echo"); imported == nil || string(imported.Status.EndpointSliceObjects) != present {
				t.Errorf("%s, headless %t: the import is %v", mode, headless, imported)
			}
		}
	}

	p := blank(t, enabled)
	p.apply("c2", export(exported(), endpoints("echo", "10.2.0.1"))...)
	if s, wanted := p.ImportSlice(name); s != nil || !wanted {
		t.Errorf("while the namespaces are not known it is %v, wanted %t", s, wanted)
	}
	if _, touched := p.SetNamespaces([]string{"shop"}); !slices.Equal(touched, []string{name}) {
		t.Errorf("touched are %q", touched)
	}
	s, _ := p.ImportSlice(name)
	if s == nil || s.Namespace != "shop" || s.Labels[discoveryv1.LabelServiceName] != "" ||
		s.Labels["multicluster.kubernetes.io/service-name"] != "echo" ||
		s.Labels["multicluster.kubernetes.io/source-cluster"] != "c2" ||
		s.Labels[discoveryv1.LabelManagedBy] != "semaphore-broker" || s.Labels[naming.LabelSourceCluster] != "c2" {
		t.Fatalf("the slice is %+v", s)
	}
	if _, is := s.Labels[corev1.IsHeadlessService]; !is || len(s.Endpoints) != 1 || *s.Ports[0].Port != 8080 {
		t.Errorf("the slice is %+v", s)
	}
	if _, touched := p.SetNamespace("shop", false); !slices.Equal(touched, []string{name}) {
		t.Errorf("touched are %q", touched)
	}
	if s, wanted := p.ImportSlice(name); s != nil || wanted {
		t.Errorf("without the namespace it is %v, wanted %t", s, wanted)
	}
	p.SetNamespace("shop", true)
	// Another broker has heard nobody: it stays, with the slice of the derived Service.
	p = p.restarted(enabled)
	p.SetNamespaces([]string{"shop"})
	if s, _ := p.ImportSlice(name); s == nil || len(s.Endpoints) != 1 {
		t.Errorf("after a restart it is %v", s)
	}
	p.apply("c2", export(exported(), endpoints("echo", "10.2.0.1"))...)
	p.heardAll()
	touches := p.apply("c2", svc("shop", "echo", nil), slc("shop", "echo-1", nil))
	if got := names(touches.Slices); !slices.Contains(got, name) {
		t.Errorf("touched are %q", got)
	}
	if s, wanted := p.ImportSlice(name); s != nil || wanted {
		t.Errorf("nobody exports it, and it is %v, wanted %t", s, wanted)
	}
	// A mirror and a global service have none.
	p.apply("c2", svc("shop", "other", web(&semaphorev1.Service{Mirror: true, Global: true})),
		slc("shop", "other-1", endpoints("other", "10.2.0.7")))
	if got := p.ImportSlices(); len(got) > 0 {
		t.Errorf("there are %q", got)
	}
}

// Nothing that the broker writes for another cluster has a label or an annotation by which a deployment tool,
// Kubernetes or semaphore finds its own: not a mirror, a global Service, a derived Service, its ServiceImport, nor
// their slices.
func TestNoWriterCopiesReservedKeys(t *testing.T) {
	keys := []string{naming.LabelInstance, "kubectl.kubernetes.io/last-applied-configuration",
		"applyset.kubernetes.io/part-of", "config.kubernetes.io/origin", "service.kubernetes.io/service-proxy-name",
		"app.kubernetes.io/name"} // the last is not reserved
	for _, domain := range naming.ToolDomains {
		keys = append(keys, "x."+domain+"/y")
	}
	slices.Sort(keys)
	p := importing(t)
	s := exported(func(s *semaphorev1.Service) {
		s.Mirror, s.Global = true, true
		for _, key := range keys {
			s.Labels = append(s.Labels, &semaphorev1.Label{Key: key, Value: "theirs"})
			s.MultiCluster.Labels = append(s.MultiCluster.Labels, &semaphorev1.Label{Key: key, Value: "theirs"})
			s.MultiCluster.Annotations = append(s.MultiCluster.Annotations,
				&semaphorev1.Annotation{Key: key, Value: "theirs"})
		}
	})
	p.apply("c2", export(s, endpoints("echo", "10.2.0.1"))...)
	p.SetNamespaces([]string{"shop"})
	written := map[string]metav1.Object{}
	for name, s := range p.Services {
		written["Service "+name] = s
	}
	for name, s := range p.Slices {
		written["EndpointSlice "+name] = s
	}
	for _, name := range p.ImportSlices() {
		s, _ := p.ImportSlice(name)
		written["EndpointSlice "+name] = s
	}
	i, _ := p.Import("shop/echo")
	if i == nil {
		t.Fatal("there is no ServiceImport")
	}
	written["ServiceImport shop/echo"] = i
	if len(written) < 8 {
		t.Errorf("only %v", sorted(written))
	}
	copies := 0
	for what, o := range written {
		for _, from := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
			for key, value := range from {
				switch {
				case value != "theirs":
				case naming.Reserved(key):
					t.Errorf("%s has %s of its source", what, key)
				default:
					copies++
				}
			}
		}
	}
	if copies != 5 { // labels of three Services and of the import, and the import's annotation
		t.Errorf("%d copies of a label that is not reserved", copies)
	}
}

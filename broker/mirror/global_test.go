package mirror

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const glEcho = "gl-shop-73736d-echo"

// offering is a global service echo with endpoints.
func offering(s *semaphorev1.Service, addresses string) []replica.Change {
	return []replica.Change{svc("shop", "echo", s), slc("shop", "a", endpoints("echo", addresses))}
}

func settled(g *semaphorev1.GlobalSettings) *semaphorev1.Service {
	s := global()
	s.GlobalSettings = g
	return s
}

func TestGlobalService(t *testing.T) {
	p := known(t, taken)
	p.apply("c3", offering(global(), "10.4.0.1")...)
	p.Is("one cluster", glEcho, "c3-1: 10.4.0.1")
	p.apply("c1", offering(global(), "10.1.0.1 10.1.0.2")...)
	p.Is("the own one too", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c3-1: 10.4.0.1")
	s := p.Services[glEcho]
	if d := diff(map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker",
		"semaphore.uw.io/source-cluster": "", "global-svc": "true"}, s.Labels); d != "" {
		t.Error(d)
	}
	if d := diff(map[string]string{"semaphore.uw.io/source-namespace": "shop", "semaphore.uw.io/source-name": "echo",
		"global-svc-clusters":             "c1,c3",
		"semaphore.uw.io/prefer-clusters": "", "semaphore.uw.io/min-ready": "1", "semaphore.uw.io/when-gone": "demote",
		"semaphore.uw.io/gone-clusters": ""}, s.Annotations); d != "" {
		t.Error(d)
	}
	if d := diff(map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker",
		"semaphore.uw.io/source-cluster": "c3", "global-svc": "true",
		"kubernetes.io/service-name": glEcho, "endpointslice.kubernetes.io/managed-by": "semaphore-broker"},
		p.Slices[glEcho+"-c3-1"].Labels); d != "" {
		t.Error(d)
	}
	if p.Services["c1-shop-73736d-echo"] != nil {
		t.Error("a mirror of an own service")
	}
	p.apply("c3", svc("shop", "echo", web(&semaphorev1.Service{Mirror: true})))
	p.Is("one that is not global any more", glEcho, "c1-1: 10.1.0.1 10.1.0.2")
	p.Is("but has a mirror", "three-shop-73736d-echo", "c3-1: 10.4.0.1")
	if got := p.Services[glEcho].Annotations[naming.AnnotationGlobalClusters]; got != "c1" {
		t.Errorf("clusters %q", got)
	}
	p.apply("c1", svc("shop", "echo", nil))
	if p.Services[glEcho] != nil {
		t.Error("nobody offers it, and it is there")
	}
	p.Is("nobody", glEcho, "")
}

// R19: the first cluster of the configuration that offers a global service decides what it is, whichever was heard
// first; and what others say otherwise is reported.
func TestR19TheFirstClusterDecides(t *testing.T) {
	ours := &semaphorev1.Service{Global: true, Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 80}}}
	theirs := &semaphorev1.Service{Global: true, Headless: true, PublishNotReadyAddresses: true,
		ClientIpAffinitySeconds: 60, TrafficDistribution: "PreferClose",
		Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 8080},
			{Name: "x", Protocol: "UDP", Port: 9, AppProtocol: "h"}},
		GlobalSettings: &semaphorev1.GlobalSettings{Prefer: []string{"c3"}, MinReady: 7,
			WhenGone: semaphorev1.WhenGone_WHEN_GONE_KEEP, LocalFirst: true}}
	for _, order := range [][]string{{"c1", "c2", "c3"}, {"c3", "c2", "c1"}, {"c2", "c3", "c1"}} {
		p := known(t, taken)
		for _, cluster := range order {
			p.apply(cluster, offering(map[string]*semaphorev1.Service{"c1": ours, "c2": theirs, "c3": ours}[cluster],
				map[string]string{"c1": "10.1.0.1", "c2": "10.2.0.1", "c3": "10.4.0.1"}[cluster])...)
		}
		s := p.Services[glEcho]
		if len(s.Spec.Ports) != 1 || s.Spec.Ports[0].Port != 80 || s.Spec.ClusterIP != "" ||
			s.Spec.SessionAffinity != "None" || s.Spec.TrafficDistribution != nil || s.Spec.PublishNotReadyAddresses {
			t.Errorf("%v: %+v", order, s.Spec)
		}
		if got := s.Annotations[naming.AnnotationMinReady]; got != "1" {
			t.Errorf("%v: min-ready %s", order, got)
		}
		p.Is(fmt.Sprint(order), glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1; c3-1: 10.4.0.1")
		all := p.reported()
		want := "service shop/echo of cluster c2 has in the global service gl-shop-73736d-echo what c1 says of it: its own " +
			"are ports web 8080/TCP, x 9/UDP (h), not web 80/TCP; headless true, not false; " +
			"publishNotReadyAddresses true, not false; session affinity ClientIP (60 s), not None; trafficDistribution " +
			"PreferClose, not none; " +
			"prefer-clusters c3, not none; min-ready 7, not 1; when-gone keep, not demote; local-first true, not false"
		if len(all) != 1 || all[0].Text != want || all[0].Code != finding.SettingsDiffer {
			t.Errorf("%v: problems %v", order, all)
		}
		p.apply("c1", svc("shop", "echo", nil))
		if s := p.Services[glEcho]; s.Spec.ClusterIP != "None" || s.Spec.SessionAffinity != "ClientIP" ||
			s.Annotations[naming.AnnotationPreferClusters] != "c1,c3" {
			t.Errorf("%v: c2 decides now, and it is %+v, %v", order, s.Spec, s.Annotations)
		}
		if all := p.reported(); len(all) != 1 || all[0].Cluster != "c3" {
			t.Errorf("%v: problems %v", order, all)
		}
	}
}

// An endpoint that is not there for all ports of the service does not count for the others.
func TestEndpointsOfOtherPorts(t *testing.T) {
	p := blank(t, taken)
	p.apply("c1", svc("shop", "echo", settled(&semaphorev1.GlobalSettings{Prefer: []string{"c2"}})),
		slc("shop", "a", endpoints("echo", "10.1.0.1")))
	other := endpoints("echo", "10.2.0.1")
	other.Ports[0].Name = "http"
	p.apply("c2", svc("shop", "echo", global()), slc("shop", "a", other))
	p.later(time.Hour)
	p.Is("another name", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1")
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1")))
	p.later(time.Hour)
	p.Is("the same", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1")
}

// ofIPv6 is a slice of echo with an address of IPv6.
func ofIPv6(address string) *semaphorev1.EndpointSlice {
	return &semaphorev1.EndpointSlice{Service: "echo", AddressType: "IPv6", Ports: endpoints("echo", "").Ports,
		Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{address}}}}
}

// An endpoint of a family that the Service does not have does not count for the others, and is reported: no client
// reaches it. The families are those that the cluster has given the Service, and of a headless one its own.
func TestEndpointsOfOtherFamilies(t *testing.T) {
	const ruled = "globalServices: {podSubnets: [10.1.0.0/16], rules: [{prefer: [c2, c1]}]}"
	of := func(s *semaphorev1.Service, families ...string) *semaphorev1.Service {
		s.IpFamilies = families
		return s
	}
	headless := func(s *semaphorev1.Service) *semaphorev1.Service {
		s.Headless = true
		return s
	}
	derived := func(families ...string) *semaphorev1.Service {
		return of(web(&semaphorev1.Service{MultiCluster: &semaphorev1.MultiClusterExport{}}), families...)
	}
	for name, c := range map[string]struct {
		service             string
		own, theirs         *semaphorev1.Service
		given               []corev1.IPFamily
		used, differs, more string
	}{
		"of the Service": {glEcho, of(global(), "IPv4", "IPv6"), of(global(), "IPv6"), nil, "c1-1: 10.1.0.1-; c2-1: fd02::1",
			"", ruled},
		"which the Service that decides lacks": {glEcho, of(global(), "IPv4"), of(global(), "IPv6"), nil,
			"c1-1: 10.1.0.1; c2-1: fd02::1", "IP families IPv6, not IPv4", ruled},
		"which the cluster lacks": {glEcho, of(global(), "IPv4", "IPv6"), of(global(), "IPv6"), []corev1.IPFamily{"IPv4"},
			"c1-1: 10.1.0.1; c2-1: fd02::1", "IP families IPv6, not IPv4", ruled},
		"which the cluster lacks, headless": {glEcho, headless(of(global(), "IPv4", "IPv6")),
			headless(of(global(), "IPv6")), []corev1.IPFamily{"IPv4", "IPv6"}, "c1-1: 10.1.0.1; c2-1: fd02::1",
			"IP families IPv6, not IPv4", ruled},
		"which ServiceExports have in common, and the cluster lacks, headless": {"mcs-shop-73736d-echo",
			headless(derived("IPv4", "IPv6")), headless(derived("IPv6")), []corev1.IPFamily{"IPv6"},
			"c1-1: 10.1.0.1; c2-1: fd02::1", "", ruled + "\nmcs: {enabled: true}"},
		"which ServiceExports lack": {"mcs-shop-73736d-echo", derived("IPv4"), derived("IPv6"), nil,
			"c1-1: 10.1.0.1; c2-1: fd02::1", "ipFamilies (1 of 2)", ruled + "\nmcs: {enabled: true}"},
	} {
		t.Run(name, func(t *testing.T) {
			p := known(t, c.more)
			p.apply("c1", offering(c.own, "10.1.0.1")...)
			p.apply("c2", svc("shop", "echo", c.theirs), slc("shop", "six", ofIPv6("fd02::1")))
			p.later(time.Hour)
			if c.given != nil {
				s := p.Services[c.service].DeepCopy()
				s.Spec.IPFamilies, p.Services[c.service] = c.given, s
				p.follow(p.ObserveService(c.service, s, p.Now))
			}
			p.Is(name, c.service, c.used)
			all := p.reported()
			if c.differs == "" && len(all) > 0 ||
				c.differs != "" && (len(all) != 1 || !strings.Contains(all[0].Text, c.differs)) {
				t.Errorf("problems %v", all)
			}
			p.Wrote()
			n := before(t, c.more)
			n.Take(p.Cluster)
			n.apply("c2", svc("shop", "echo", c.theirs), slc("shop", "six", ofIPv6("fd02::1")))
			n.follow(n.Begin(n.Now))
			n.heard("c2")
			n.writes("a broker begins while the cluster that decides is silent")
		})
	}
}

// Pods with an address of each family count once.
func TestPodsOfTwoFamilies(t *testing.T) {
	p := blank(t, taken)
	p.apply("c1", append(offering(settled(&semaphorev1.GlobalSettings{LocalFirst: true, MinReady: 2}), "10.1.0.1"),
		slc("shop", "six", ofIPv6("fd01::1")))...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.later(time.Hour)
	p.Is("one pod is not two", glEcho, "c1-1: 10.1.0.1; c1-2: fd01::1; c2-1: 10.2.0.1")
}

// An endpoint that ends and is ready nevertheless, as with publishNotReadyAddresses, is unused like all others.
func TestTerminatingReadyEndpointsCanBeUnused(t *testing.T) {
	p := blank(t)
	s := endpoints("echo", "10.2.0.1")
	s.Endpoints[0].Terminating = ptr.To(true)
	p.apply("c2", svc("shop", "echo", mirrored()), slc("shop", "a", s))
	p.Is("as the source says", echo, "c2-1: 10.2.0.1~")
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), p.Now))
	p.Is("drained", echo, "c2-1: 10.2.0.1-")
}

func TestNamesOfGlobalServices(t *testing.T) {
	p := blank(t)
	p.heard("c2", "c2-a", "c3")
	// Two global services under one name.
	p.apply("c2", svc("a", "b-73736d-c", global()), svc("a-73736d-b", "c", global()))
	if s := p.Services["gl-a-73736d-b-73736d-c"]; s == nil || s.Annotations[naming.AnnotationSourceNamespace] != "a" {
		t.Errorf("services %v", sorted(p.Services))
	}
	if all := p.reported(); len(all) != 1 || !strings.Contains(all[0].Text, "is in no global service: that would "+
		"be named gl-a-73736d-b-73736d-c, which is that of the global service of a/b-73736d-c") ||
		!strings.HasPrefix(all[0].Object, "a-73736d-b/") || all[0].Cluster != "c2" {
		t.Errorf("problems %v", all)
	}
	// It concerns each cluster that exports the one that lost.
	p.apply("c3", svc("a-73736d-b", "c", global()))
	if all := p.reported(); len(all) != 2 || all[0].Cluster == all[1].Cluster {
		t.Errorf("problems %v", all)
	}
}

func TestPreference(t *testing.T) {
	p := known(t, taken)
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{LocalFirst: true, MinReady: 2}), "10.1.0.1 10.1.0.2")...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.Is("local first", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1-")
	p.Wrote()
	p.apply("c1", slc("shop", "a", endpoints("echo", "10.1.0.1 10.1.0.2?")))
	p.Is("one is not enough", glEcho, "c1-1: 10.1.0.1 10.1.0.2?; c2-1: 10.2.0.1")
	p.writes("one is not enough", glEcho+"-c1-1", glEcho+"-c2-1")
	p.apply("c1", slc("shop", "a", endpoints("echo", "10.1.0.1 10.1.0.2")))
	p.Is("enough again, for now", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1")
	if next := p.Next(); !next.Equal(p.Now.Add(30 * time.Second)) {
		t.Errorf("due %v", next)
	}
	p.later(29 * time.Second)
	p.Is("enough for a while", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1")
	p.Now = p.Now.Add(time.Second)
	if next := p.Next(); next.IsZero() || next.After(p.Now) {
		t.Error("it is not due")
	}
	p.follow(p.Due(p.Now))
	p.Is("enough for long", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1-")
	if next := p.Next(); !next.IsZero() {
		t.Errorf("due %v", next)
	}
}

// The operator's rule counts before what the service says of itself.
func TestTheOperatorsRuleComesFirst(t *testing.T) {
	p := blank(t, `globalServices:
  podSubnets: [10.1.0.0/16]
  localZones: [z1]
  rules:
  - {namespaces: [shop], prefer: [c3, c2], minReady: 2, whenGone: withdraw}`)
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{LocalFirst: true}), "10.1.0.1")...)
	p.apply("c3", offering(global(), "10.4.0.1")...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.Is("first and second together are two", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	p.later(time.Hour)
	p.Is("after a while", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	if s := p.Services[glEcho]; s.Annotations[naming.AnnotationPreferClusters] != "c3,c2" ||
		s.Annotations[corev1.AnnotationTopologyMode] != "" {
		t.Errorf("annotations %v", s.Annotations)
	}
	p.follow(p.SetGone("c3", true, p.Now))
	p.Is("c3 is gone", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1; c3-1: 10.4.0.1-")
	if all := p.reported(); len(all) > 0 {
		t.Errorf("settings that nothing uses are reported to differ: %v", all)
	}
}

func TestHints(t *testing.T) {
	p := known(t, "globalServices: {podSubnets: [10.1.0.0/16], localZones: [z1, z2]}")
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{LocalFirst: true}), "10.1.0.1")...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.Is("all are in use", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1")
	hints := func() string {
		var out []string
		for _, name := range sorted(p.Slices) {
			for _, e := range p.Slices[name].Endpoints {
				zones := "none"
				if e.Hints != nil {
					zones = fmt.Sprint(e.Hints.ForZones)
				}
				out = append(out, zones)
			}
		}
		return strings.Join(out, " ") + " " + p.Services[glEcho].Annotations[corev1.AnnotationTopologyMode]
	}
	if got := hints(); got != "[{z1} {z2}] [{remote}] Auto" {
		t.Errorf("hints %s", got)
	}
	n := p.restarted("globalServices: {podSubnets: [10.1.0.0/16], localZones: [z1, z2]}")
	n.apply("c2", offering(global(), "10.2.0.1")...)
	n.writes("a restart")
	p.apply("c1", svc("shop", "echo", global()))
	if got := hints(); got != "none none " {
		t.Errorf("hints %s", got)
	}
}

func TestGone(t *testing.T) {
	for when, want := range map[string]string{
		"keep":     "c1-1: 10.1.0.1; c2-1: 10.2.0.1",
		"":         "c1-1: 10.1.0.1; c2-1: 10.2.0.1-",
		"demote":   "c1-1: 10.1.0.1; c2-1: 10.2.0.1-",
		"withdraw": "c1-1: 10.1.0.1; c2-1: 10.2.0.1-",
	} {
		p := known(t, taken)
		p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{WhenGone: semaphorev1.WhenGoneOf(when)}), "10.1.0.1")...)
		both := global()
		both.Mirror = true
		p.apply("c2", offering(both, "10.2.0.1")...)
		p.follow(p.SetGone("c2", true, p.Now))
		p.Is(when, glEcho, want)
		p.Is(when+", the mirror", echo, "c2-1: 10.2.0.1")
		p.apply("c1", slc("shop", "a", nil))
		p.Is(when+", and no other has any", glEcho,
			map[string]string{"withdraw": "c2-1: 10.2.0.1-"}[when]+strings.Repeat("c2-1: 10.2.0.1",
				map[string]int{"withdraw": 0, "keep": 1, "demote": 1, "": 1}[when]))
		p.follow(p.SetGone("c2", false, p.Now))
		p.Is(when+", and back", glEcho, "c2-1: 10.2.0.1")
		p.follow(p.SetGone("c1", true, p.Now))
		if p.gone["c1"] {
			t.Error("the own cluster is gone")
		}
	}
}

func TestDrains(t *testing.T) {
	p := known(t, taken)
	both := global()
	both.Mirror = true
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{Prefer: []string{"c2"}, MinReady: 2}), "10.1.0.1")...)
	p.apply("c2", svc("shop", "echo", both), slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3~")))
	p.later(time.Hour)
	p.Is("no drains", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1 10.2.0.2 10.2.0.3~")
	p.Wrote()
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2", Node: "n1"},
		Prefixes: prefixes("10.2.0.2/31")}), p.Now))
	p.Is("a node: what is left is not enough", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1 10.2.0.2- 10.2.0.3~")
	p.Is("a node, of the mirror too", echo, "c2-1: 10.2.0.1 10.2.0.2- 10.2.0.3~")
	p.writes("a node", echo+"-c2-1", glEcho+"-c1-1", glEcho+"-c2-1")
	p.apply("c2", slc("shop", "b", endpoints("echo", "10.2.0.9")))
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2")))
	p.Is("it comes, continues, and is drained still", echo, "c2-1: 10.2.0.1 10.2.0.2- 10.2.0.9")
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Namespace: "shop", Service: "echo"}}), p.Now))
	p.Is("the service of all clusters", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1- 10.2.0.2- 10.2.0.9-")
	p.follow(p.SetDrains(choice.Drains{}, p.Now))
	p.Is("none", echo, "c2-1: 10.2.0.1 10.2.0.2 10.2.0.9")
}

// A broker that is started while the cluster that decides is silent changes nothing of a global service, and follows
// the others nevertheless.
func TestAGlobalServiceWhoseDecidingClusterIsSilent(t *testing.T) {
	p := known(t, taken)
	decides := settled(&semaphorev1.GlobalSettings{Prefer: []string{"c1", "c2"}, MinReady: 2})
	decides.Headless, decides.ClientIpAffinitySeconds = true, 60
	p.apply("c1", offering(decides, "10.1.0.1 10.1.0.2")...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.Is("before", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1-")
	p = p.restarted(taken)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.heard("c2", "c2-a", "c3")
	p.writes("a restart")
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2")))
	p.Is("another endpoint", glEcho, "c1-1: 10.1.0.1 10.1.0.2; c2-1: 10.2.0.1- 10.2.0.2-")
	p.writes("another endpoint", glEcho+"-c2-1")
	p.apply("c2", svc("shop", "echo", nil), slc("shop", "a", nil))
	if p.Services[glEcho] == nil {
		t.Error("the service has gone, though c1 may offer it")
	}
	p.Is("c2 has none", glEcho, "c1-1: 10.1.0.1 10.1.0.2")
	p.heard("c1")
	if p.Services[glEcho] != nil || len(p.Slices) > 0 {
		t.Error("c1 offers nothing, and it is there")
	}
}

// When all of them are known and the one that is preferred is dead, a broker that was started since can still do
// without it.
func TestFailoverAfterARestart(t *testing.T) {
	p := known(t, taken)
	p.apply("c2", offering(settled(&semaphorev1.GlobalSettings{Prefer: []string{"c2"}}), "10.2.0.1")...)
	p.apply("c3", offering(global(), "10.4.0.1")...)
	p.later(time.Hour)
	p.Is("before", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1-")
	p = p.restarted(taken)
	p.apply("c3", offering(global(), "10.4.0.1")...)
	p.heard("c1", "c2-a", "c3")
	p.writes("a restart")
	p.follow(p.SetGone("c2", true, p.Now))
	p.Is("c2 is gone", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1")
	p = p.restarted(taken)
	p.follow(p.SetGone("c2", true, p.Now))
	p.Is("and after another restart", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1")
	p.follow(p.SetGone("c2", false, p.Now))
	p.Is("and back", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
}

// One that two clusters have is kept of both: who asks for the name gets the addresses of both.
func TestHostnamesOfTwoClusters(t *testing.T) {
	for _, isHeadless := range []bool{true, false} {
		testHostnames(t, isHeadless)
	}
}

func testHostnames(t *testing.T, isHeadless bool) {
	t.Helper()
	p := blank(t, taken)
	named := func(address, hostname string) *semaphorev1.EndpointSlice {
		s := endpoints("echo", address)
		s.Endpoints[0].Hostname = hostname
		return s
	}
	headless := &semaphorev1.Service{Global: true, Headless: isHeadless}
	p.apply("c1", svc("shop", "echo", headless), slc("shop", "a", named("10.1.0.1", "echo-0")))
	p.apply("c2", svc("shop", "echo", headless), slc("shop", "a", named("10.2.0.1", "echo-1")))
	if all := p.reported(); len(all) > 0 {
		t.Errorf("problems %v", all)
	}
	p.apply("c2", slc("shop", "a", named("10.2.0.1", "echo-0")))
	if !isHeadless { // no name of a pod leads to it
		if all := p.reported(); len(all) > 0 {
			t.Errorf("of one that is not headless: %v", all)
		}
		return
	}
	for _, name := range []string{glEcho + "-c1-1", glEcho + "-c2-1"} {
		if e := p.Slices[name].Endpoints[0]; ptr.Deref(e.Hostname, "") != "echo-0" {
			t.Errorf("%s: %v", name, e)
		}
	}
	if all := p.reported(); len(all) != 1 || all[0].Cluster != "c2" ||
		!strings.Contains(all[0].Text, "hostname echo-0") {
		t.Errorf("problems %v", all)
	}
}

func TestViews(t *testing.T) {
	p := blank(t, taken)
	p.apply("c2", offering(mirrored(), "10.2.0.1 10.2.0.2?")...)
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{Prefer: []string{"c1"}}), "10.1.0.1")...)
	p.apply("c3", offering(settled(&semaphorev1.GlobalSettings{MinReady: 2}), "10.4.0.1")...)
	p.later(time.Hour)
	p = p.restarted(taken)
	p.apply("c1", offering(settled(&semaphorev1.GlobalSettings{Prefer: []string{"c1"}}), "10.1.0.1")...)
	p.follow(p.SetGone("c3", true, p.Now))
	p.follow(p.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), p.Now))
	want := []string{
		echo + " of shop/echo; c2: 2 endpoints in 1 slices, 1 ready, 2 drained, 2 remembered, in use true, gone false",
		glEcho + " of shop/echo, global: prefer [c1], min-ready 1, when-gone demote" +
			"; c1: 1 endpoints in 1 slices, 1 ready, 0 drained, 0 remembered, in use true, gone false" +
			"; c3: 1 endpoints in 1 slices, 1 ready, 0 drained, 1 remembered, in use false, gone true",
	}
	var got []string
	for _, v := range p.Views(p.Targets()) {
		text := fmt.Sprintf("%s of %s", v.Service, v.Of)
		if s := v.Settings(); v.Global {
			text += fmt.Sprintf(", global: prefer %v, min-ready %d, when-gone %s", s.Prefer, s.MinReady, s.WhenGone)
		}
		for _, c := range v.Clusters {
			endpoints, ready, drained, h := 0, 0, 0, v.perCluster[c.Cluster]
			for e := range c.Endpoints {
				if endpoints++; e.Ready {
					ready++
				}
				if e.Drained {
					drained++
				}
			}
			text += fmt.Sprintf("; %s: %d endpoints in %d slices, %d ready, %d drained, %d remembered, in use %v, gone %v",
				c.Cluster, endpoints, len(h.all()), ready, drained, len(h.keys(func(m *member) bool { return m.unconfirmed })),
				c.InUse, c.Gone)
		}
		got = append(got, text)
	}
	if d := diff(want, got); d != "" {
		t.Error(d)
	}
}

// Who takes part is the operator's word, where there is one: a remote cannot put itself into a service by offering one
// of its name.
func TestOnlyTheOperatorsClustersTakePart(t *testing.T) {
	p := blank(
		t,
		"globalServices: {podSubnets: [10.1.0.0/16], rules: [{namespaces: [shop], names: [echo], clusters: [c1, c2]}]}",
	)
	p.heard("c1", "c2", "c2-a", "c3")
	p.apply("c3", offering(global(), "10.4.0.1")...)
	if p.Services[glEcho] != nil {
		t.Error("a service of one that takes no part")
	}
	p.apply("c2", offering(global(), "10.2.0.1")...)
	p.Is("of those that do", glEcho, "c2-1: 10.2.0.1")
	if problems := p.reported(); len(problems) > 0 {
		t.Errorf("what the operator wants is no problem: %v", problems)
	}
	other := offering(global(), "10.4.0.2")
	other[0].Key.Name, other[1] = "web", slc("shop", "b", endpoints("web", "10.4.0.2"))
	p.apply("c3", other...)
	p.Is("other services are not meant", "gl-shop-73736d-web", "c3-1: 10.4.0.2")
}

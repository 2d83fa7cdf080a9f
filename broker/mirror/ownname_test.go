package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// ownNames has own names lead to other clusters.
const ownNames = "globalServices: {podSubnets: [10.1.0.0/16], ownNames: true}"

// asking is a global service whose own name is to lead to other clusters.
func asking(use string, g *semaphorev1.GlobalSettings) *semaphorev1.Service {
	s := settled(g)
	s.OwnName = &semaphorev1.OwnName{Use: use, Uid: "u1"}
	return s
}

// own are the slices under the own name of shop/echo: "c2-1: 10.2.0.1 10.2.0.2-", a minus for one that is not ready.
func (c *cluster) own() string {
	var all []string
	c.EachOwn(func(namespace, name string) {
		var addresses []string
		for _, e := range c.OwnSlice(name).Endpoints {
			text := e.Addresses[0]
			if !ptr.Deref(e.Conditions.Ready, true) {
				text += "-"
			}
			addresses = append(addresses, text)
		}
		all = append(all, strings.TrimPrefix(name, glEcho+"-")+": "+strings.Join(addresses, " "))
	})
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func (c *cluster) isOwn(when, want string) {
	c.TB.Helper()
	if got := c.own(); got != want {
		c.TB.Errorf("%s: the own name leads to %q, not %q", when, got, want)
	}
}

// later has time pass.
func (c *cluster) later(d time.Duration) {
	c.Now = c.Now.Add(d)
	c.follow(c.Due(c.Now))
}

func TestOwnNameFailsOver(t *testing.T) {
	c := known(t, ownNames)
	c.apply("c1", offering(asking("failover", nil), "10.1.0.1")...)
	c.apply("c2", offering(global(), "10.2.0.1 10.2.0.2?")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.isOwn("the own cluster suffices", "")
	touches := c.apply("c1", slc("shop", "a", endpoints("echo", "10.1.0.1?")))
	c.isOwn("no own endpoint is ready", "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	if len(touches.Lent) != 1 || fmt.Sprint(touches.Lent[0].Clusters) != "[c2 c3]" || touches.Lent[0].UID != "u1" ||
		touches.Lent[0].Ready != 0 || touches.Lent[0].All != 1 {
		t.Errorf("changes: %+v", touches.Lent)
	}
	s := c.OwnSlice(glEcho + "-c2-1")
	want := map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c2",
		"kubernetes.io/service-name": "echo", "endpointslice.kubernetes.io/managed-by": "semaphore-broker",
		"semaphore.uw.io/own-name": "failover"}
	if d := diff(want, s.Labels); d != "" || s.Namespace != "shop" {
		t.Errorf("in %s: %s", s.Namespace, d)
	}
	if o := s.OwnerReferences; len(o) != 1 || o[0].Kind != "Service" || o[0].Name != "echo" || o[0].UID != "u1" {
		t.Errorf("owners %+v", o)
	}
	if got := c.Services[glEcho].Annotations[naming.AnnotationOwnName]; got != "failover" {
		t.Errorf("the global service has own-name %q", got)
	}
	c.apply("c1", slc("shop", "a", endpoints("echo", "10.1.0.1")))
	c.isOwn("it is ready again", "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	c.later(29 * time.Second)
	c.isOwn("for 29 s", "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	c.later(time.Second)
	c.isOwn("for 30 s", "")
	c.apply("c1", slc("shop", "a", endpoints("echo", "")))
	c.isOwn("the own one is scaled to zero", "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	c.apply("c1", svc("shop", "echo", global()))
	c.isOwn("it does not ask any more", "")
	if _, noted := c.Services[glEcho].Annotations[naming.AnnotationOwnName]; noted {
		t.Error("the global service has own-name still")
	}
}

// A broker that starts while its own exporter is silent takes from the Service where the own name leads. So the Service
// says that as soon as it changes, even while the cluster that decides about it is silent, or no cluster is known to
// export it.
func TestOwnNameIsNotedWithoutWhoDecides(t *testing.T) {
	for _, exported := range []bool{true, false} {
		c := known(t, ownNames)
		c.apply("c1", offering(asking("all", nil), "10.1.0.1")...)
		c.apply("c2", offering(global(), "10.2.0.1")...)
		c.isOwn("it asks", "c2-1: 10.2.0.1")
		c = c.restartedAwaiting(ownNames)
		c.isOwn("after a restart", "c2-1: 10.2.0.1")
		if exported {
			c.apply("c3", offering(global(), "")...)
		}
		c.heard("c1") // which has no such Service any more
		c.isOwn("the own Service is gone", "")
		c = c.restartedAwaiting(ownNames)
		c.isOwn(fmt.Sprintf("after another restart, exported by a cluster that is heard: %t", exported), "")
	}
}

// Every case begins with an own endpoint that is not ready, and two other clusters with one each.
func TestOwnName(t *testing.T) {
	const both = "c2-1: 10.2.0.1; c3-1: 10.4.0.1"
	prefer := func(clusters ...string) *semaphorev1.GlobalSettings {
		return &semaphorev1.GlobalSettings{Prefer: clusters}
	}
	six, otherPort := asking("failover", nil), asking("failover", nil)
	six.IpFamilies, otherPort.Ports[0].Name = []string{"IPv6"}, "other"
	for name, c := range map[string]struct {
		own       *semaphorev1.Service
		endpoints string
		config    string
		theirs    *semaphorev1.Service
		want      string
		problem   string
	}{
		"failover":                            {own: asking("failover", nil), want: both},
		"all, with a ready endpoint":          {own: asking("all", nil), endpoints: "10.1.0.1", want: both},
		"failover, with a ready endpoint":     {own: asking("failover", nil), endpoints: "10.1.0.1"},
		"without the annotation":              {own: global()},
		"a remote asks, and the own does not": {own: global(), theirs: asking("all", nil)},
		"a value that nobody knows":           {own: asking("", nil)},
		"an order of others":                  {own: asking("failover", prefer("c3", "c2")), want: "c3-1: 10.4.0.1"},
		"an order with another one before": {own: asking("failover", prefer("c2", "c1")), want: "c2-1: 10.2.0.1",
			problem: "prefers c2 to this one"},
		"all, with an order with another one before": {own: asking("all", prefer("c2", "c1")), endpoints: "10.1.0.1",
			problem: "prefers c2 to this one"},
		"off": {own: asking("failover", nil), config: taken, problem: "globalServices.ownNames of the broker is off"},
		"two are enough": {own: asking("failover", &semaphorev1.GlobalSettings{MinReady: 2}), endpoints: "10.1.0.1",
			want: both},
		"half is enough, and a third is ready": {own: asking("failover", &semaphorev1.GlobalSettings{MinReadyPercent: 50}),
			endpoints: "10.1.0.1 10.1.0.2? 10.1.0.3?", want: both},
		"half is enough, and half is ready": {own: asking("failover", &semaphorev1.GlobalSettings{MinReadyPercent: 50}),
			endpoints: "10.1.0.1 10.1.0.2?"},
		"IPv6 alone":   {own: six},
		"another port": {own: otherPort},
	} {
		t.Run(name, func(t *testing.T) {
			if c.config == "" {
				c.config = ownNames
			}
			if c.endpoints == "" {
				c.endpoints = "10.1.0.1?"
			}
			if c.theirs == nil {
				c.theirs = global()
			}
			p := known(t, c.config)
			p.apply("c2", offering(c.theirs, "10.2.0.1")...)
			p.apply("c3", offering(global(), "10.4.0.1")...)
			p.apply("c1", offering(c.own, c.endpoints)...)
			p.isOwn(name, c.want)
			var problems []string
			for _, problem := range p.reported() {
				if problem.Code == finding.OwnName {
					problems = append(problems, problem.Text)
				}
			}
			if c.problem == "" && len(problems) > 0 || c.problem != "" && (len(problems) != 1 ||
				!strings.Contains(problems[0], c.problem)) {
				t.Errorf("problems %q", problems)
			}
		})
	}
}

// A misspelled value changes nothing: neither at once nor for a broker that begins, nor does it for min-ready.
func TestAMisspelledOwnNameChangesNothing(t *testing.T) {
	c := known(t, ownNames)
	two := &semaphorev1.GlobalSettings{MinReady: 2}
	c.apply("c1", offering(asking("failover", two), "10.1.0.1")...)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.isOwn("one of two", "c2-1: 10.2.0.1")
	bad := asking("", &semaphorev1.GlobalSettings{Unreadable: []string{"min-ready"}})
	c.apply("c1", svc("shop", "echo", bad))
	c.isOwn("misspelled", "c2-1: 10.2.0.1")
	c.later(time.Hour)
	c.isOwn("misspelled for an hour", "c2-1: 10.2.0.1")

	n := c.restarted(ownNames)
	n.isOwn("a broker begins", "c2-1: 10.2.0.1")
	n.apply("c1", offering(bad, "10.1.0.1")...)
	n.heard("c1")
	n.isOwn("it has heard the own cluster", "c2-1: 10.2.0.1")
	n.apply("c1", svc("shop", "echo", asking("all", two)))
	n.isOwn("another valid one", "c2-1: 10.2.0.1")
	if got := n.OwnSlice(glEcho + "-c2-1").Labels[naming.LabelOwnName]; got != "all" {
		t.Errorf("the slice says %q", got)
	}
}

// An endpoint that is not in use is absent: an endpoint that a drain covers, and a cluster that is gone while another
// is there.
func TestOwnNameHasOnlyWhatIsInUse(t *testing.T) {
	c := known(t, ownNames)
	c.apply("c1", offering(asking("failover", nil), "10.1.0.1?")...)
	c.apply("c2", offering(global(), "10.2.0.1 10.2.0.2")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.follow(c.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2", Node: "n1"},
		Prefixes: testkit.Prefixes("10.2.0.2/32")}), c.Now))
	c.isOwn("one is drained", "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
	c.follow(c.SetGone("c2", true, c.Now))
	c.isOwn("c2 is gone", "c3-1: 10.4.0.1")
	c.apply("c3", slc("shop", "a", endpoints("echo", "10.4.0.1?")))
	c.isOwn("and nothing else is ready", "c2-1: 10.2.0.1")
}

// A cluster is said to lend what is under the own name: none whose endpoints are all drained or not ready, or of other
// ports or another family.
func TestOwnNameSaysWhoLends(t *testing.T) {
	drains := func(c *cluster, all ...choice.Drain) Touches {
		touches := c.SetDrains(choice.NewDrains(all...), c.Now)
		c.follow(touches)
		return touches
	}
	service := slc("shop", "a", endpoints("echo", "10.2.0.1"))
	others := endpoints("echo", "10.2.0.1")
	others.Ports[0].Name = "other"
	for name, c := range map[string]struct{ keep, lend func(*cluster) Touches }{
		"drained": {
			func(c *cluster) Touches { return drains(c, choice.Drain{Target: choice.Target{Cluster: "c2"}}) },
			func(c *cluster) Touches { return drains(c) }},
		"not ready": {
			func(c *cluster) Touches { return c.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1?"))) },
			func(c *cluster) Touches { return c.apply("c2", service) }},
		"of other ports": {
			func(c *cluster) Touches { return c.apply("c2", slc("shop", "a", others)) },
			func(c *cluster) Touches { return c.apply("c2", service) }},
		"of another family": {
			func(c *cluster) Touches { return c.apply("c2", slc("shop", "a", ofIPv6("fd02::1"))) },
			func(c *cluster) Touches { return c.apply("c2", service) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := known(t, ownNames)
			own := asking("failover", nil)
			own.IpFamilies = []string{"IPv4"}
			p.apply("c1", offering(own, "10.1.0.1")...)
			p.apply("c2", offering(global(), "10.2.0.1")...)
			p.apply("c3", offering(global(), "10.4.0.1?")...)
			c.keep(p)
			says := func(when string, lent []choice.Lent, changes int, want string) {
				t.Helper()
				got := p.Views([]string{glEcho})[0].Own().Clusters
				if fmt.Sprint(got) != want || len(lent) != changes ||
					changes > 0 && fmt.Sprint(lent[0].Clusters) != want {
					t.Errorf("%s: lent by %v, with the changes %+v, not %s", when, got, lent, want)
				}
			}
			says("no endpoint is ready", p.apply("c1", slc("shop", "a", endpoints("echo", "10.1.0.1?"))).Lent, 0, "[]")
			p.isOwn("no endpoint is ready", "")
			says("c2 lends", c.lend(p).Lent, 1, "[c2]")
			p.isOwn("c2 lends", "c2-1: 10.2.0.1")
			says("c2 does not lend any more", c.keep(p).Lent, 1, "[]")
			p.isOwn("c2 does not lend any more", "")
		})
	}
}

// When no cluster serves any more, the last one that did is remembered: the own cluster's recovery is a change, too,
// once, and only if it suffices.
func TestOwnNameRecoversFromATotalOutage(t *testing.T) {
	p := known(t, ownNames)
	p.apply("c1", offering(asking("failover", &semaphorev1.GlobalSettings{MinReady: 2}), "10.1.0.1 10.1.0.2")...)
	p.apply("c2", offering(global(), "10.2.0.1")...)
	ready := func(cluster, addresses string) []choice.Lent {
		lent := p.apply(cluster, slc("shop", "a", endpoints("echo", addresses))).Lent
		p.later(time.Hour)
		return lent
	}
	says := func(when string, lent []choice.Lent, want, text string) {
		t.Helper()
		got := ""
		for _, l := range lent {
			got += fmt.Sprint(l.Before, l.Clusters, l.Fails())
		}
		if own := p.Views([]string{glEcho})[0].Own().String(); got != want || !strings.Contains(own, text) {
			t.Errorf("%s: %q, %s; want %q, %s", when, got, own, want, text)
		}
	}
	says("the own cluster fails", ready("c1", "10.1.0.1 10.1.0.2?"), "[] [c2] false", "served by this cluster and c2")
	says("c2 fails, too", ready("c2", "10.2.0.1?"), "[c2] [] true", "served by this cluster: 1 of 2")
	says("the own one altogether", ready("c1", "10.1.0.1? 10.1.0.2?"), "", "served by no cluster: 0 of 2")
	says("one is back, and two are enough", ready("c1", "10.1.0.1 10.1.0.2?"), "", "served by this cluster: 1 of 2")
	says("both are back", ready("c1", "10.1.0.1 10.1.0.2"), "[c2] [] false", "served by this cluster: 2 of 2")
	says("they fail again", ready("c1", "10.1.0.1? 10.1.0.2?"), "", "served by no cluster: 0 of 2")
	says("they are back again", ready("c1", "10.1.0.1 10.1.0.2"), "", "served by this cluster: 2 of 2")
	says("c2 is back", ready("c2", "10.2.0.1"), "", "served by this cluster: 2 of 2")
}

func TestOwnNameOfAServiceWithoutPorts(t *testing.T) {
	bare := func(s *semaphorev1.Service) *semaphorev1.Service {
		s.Headless, s.Ports = true, nil
		return s
	}
	without := func(addresses string) *semaphorev1.EndpointSlice {
		s := endpoints("echo", addresses)
		s.Ports = nil
		return s
	}
	c := known(t, ownNames)
	c.apply("c1", svc("shop", "echo", bare(asking("failover", nil))), slc("shop", "a", without("10.1.0.1?")))
	c.apply("c2", svc("shop", "echo", bare(global())), slc("shop", "a", without("10.2.0.1")))
	c.isOwn("no own endpoint is ready", "c2-1: 10.2.0.1")
}

// Hostnames of a headless Service join, and one of the own cluster is no other's, also before it is heard.
func TestOwnNameOfAHeadlessService(t *testing.T) {
	named := func(addresses string, hostnames ...string) *semaphorev1.EndpointSlice {
		s := endpoints("echo", addresses)
		for i, name := range hostnames {
			s.Endpoints[i].Hostname = name
		}
		return s
	}
	headless := func(s *semaphorev1.Service) *semaphorev1.Service {
		s.Headless = true
		return s
	}
	c := known(t, ownNames)
	c.apply("c1", svc("shop", "echo", headless(asking("all", nil))), slc("shop", "a", named("10.1.0.1", "web-0")))
	c.apply("c2", svc("shop", "echo", headless(global())), slc("shop", "a", named("10.2.0.1 10.2.0.2", "web-0", "web-1")))
	hostnames := func(c *cluster) (all []string) {
		s := c.OwnSlice(glEcho + "-c2-1")
		if _, labelled := s.Labels["service.kubernetes.io/headless"]; !labelled {
			t.Error("no label of a headless Service")
		}
		for _, e := range s.Endpoints {
			all = append(all, ptr.Deref(e.Hostname, "none"))
		}
		return all
	}
	if got := fmt.Sprint(hostnames(c)); got != "[none web-1]" {
		t.Errorf("hostnames %s", got)
	}
	if got := fmt.Sprint(hostnames(c.restarted(ownNames))); got != "[none web-1]" {
		t.Errorf("hostnames of a broker that begins %s", got)
	}
	n := c.restarted(ownNames)
	n.apply("c1", svc("shop", "echo", headless(asking("all", nil))), slc("shop", "a", named("10.1.0.1", "web-0")))
	touched := n.apply("c1", slc("shop", "a", named("10.1.0.1", "web-1"))).Slices
	if got := fmt.Sprint(hostnames(n)); got != "[web-0 none]" ||
		!slices.ContainsFunc(touched, func(t Touched) bool { return t.Name == glEcho+"-c2-1" }) {
		t.Errorf("before c2 is heard, hostnames %s, and %v are written", got, touched)
	}
	c.apply("c1", slc("shop", "a", named("10.1.0.1", "web-9")))
	if got := fmt.Sprint(hostnames(c)); got != "[web-0 web-1]" {
		t.Errorf("hostnames when the own one goes %s", got)
	}
	// A cluster before it that is not used takes none.
	c.apply("c3", svc("shop", "echo", headless(global())), slc("shop", "a", named("10.4.0.1", "web-0")))
	c.follow(c.SetDrains(choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}}), c.Now))
	if got := ptr.Deref(c.OwnSlice(glEcho + "-c3-1").Endpoints[0].Hostname, "none"); got != "web-0" {
		t.Errorf("of a cluster behind one that is drained, hostname %s", got)
	}
}

// The Service says what its ports speak.
func TestOwnNameHasThePortsOfTheService(t *testing.T) {
	c := known(t, ownNames)
	s := asking("all", nil)
	s.Ports[0].AppProtocol = "kubernetes.io/h2c"
	c.apply("c1", offering(s, "10.1.0.1")...)
	theirs := endpoints("echo", "10.2.0.1")
	theirs.Ports[0].AppProtocol, theirs.Ports[0].Port = "http", 8888
	theirs.Ports = append(theirs.Ports, &semaphorev1.Port{Name: "admin", Protocol: "TCP", Port: 9})
	c.apply("c2", svc("shop", "echo", global()), slc("shop", "a", theirs))
	want := []discoveryv1.EndpointPort{{Name: ptr.To(s.Ports[0].Name), Protocol: ptr.To(corev1.ProtocolTCP),
		Port: ptr.To(int32(8888)), AppProtocol: ptr.To("kubernetes.io/h2c")}}
	if d := diff(want, c.OwnSlice(glEcho+"-c2-1").Ports); d != "" {
		t.Error(d)
	}
}

package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/written"
)

var began = time.Unix(1_900_000_000, 0)

// configured is the configuration of c1 with more of it, such as "slices: {maxEndpoints: 3}".
func configured(t testing.TB, more ...string) *config.Broker {
	t.Helper()
	cfg := testkit.Value(described.Broker([]byte(`
cluster: c1
features: [services]
localSubnets: [10.1.0.0/16]
mirrorNamespace: semaphore
remotes:
- {name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}
- {name: c2-a, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12], servicePrefix: other}
- {name: c3, podSubnets: [10.4.0.0/16], nodeSubnets: [172.16.0.0/12], servicePrefix: three}
` + strings.Join(more, "\n"))))(t)
	cfg.Remotes[1].ServicePrefix = "c2-a" // which a configuration file may not say beside c2: the plan holds without that
	return cfg
}

// taken has the own exporter taken.
const taken = "globalServices: {podSubnets: [10.1.0.0/16]}"

// cluster is the plan of a broker, and what is in its cluster.
type cluster struct {
	*Plan
	*written.Cluster
}

// blank is a broker that has begun in a cluster where nothing is.
func blank(t testing.TB, more ...string) *cluster {
	c := before(t, more...)
	c.follow(c.Begin(c.Now))
	return c
}

// known is a broker that has begun in a cluster where nothing is, and has heard all clusters whole.
func known(t testing.TB, more ...string) *cluster {
	c := blank(t, more...)
	c.heard("c1", "c2", "c2-a", "c3")
	return c
}

// before is a broker that does not know what is in its cluster.
func before(t testing.TB, more ...string) *cluster {
	p := New(configured(t, more...))
	return &cluster{p, written.New(t, began, p, func() []string { return p.clusters },
		func(name string, s *corev1.Service, now time.Time) written.Names {
			return named(p.ObserveService(name, s, now))
		},
		func(name string, s *discoveryv1.EndpointSlice, now time.Time) written.Names {
			return named(p.ObserveSlice(name, s, now))
		})}
}

func named(t Touches) written.Names {
	return written.Names{Services: names(t.Services), Slices: names(t.Slices)}
}

// restarted is another broker in the same cluster, which has heard nothing yet.
func (c *cluster) restarted(more ...string) *cluster {
	n := before(c.TB, more...)
	n.Take(c.Cluster)
	n.follow(n.Begin(n.Now))
	return n
}

func (c *cluster) apply(cluster string, changes ...replica.Change) Touches {
	touches := c.Apply(cluster, changes, c.Now)
	c.follow(touches)
	return touches
}

// heard says that clusters have been heard whole.
func (c *cluster) heard(clusters ...string) {
	for _, name := range clusters {
		c.follow(c.Complete(name, c.Now))
	}
}

// reported are the problems of all clusters.
func (c *cluster) reported() []problem.Problem { return problemsIn(c.Problems()) }

func problemsIn(s *problem.Set) (all []problem.Problem) {
	for _, name := range sorted(historic) {
		all = append(all, s.Of(name)...)
	}
	return all
}

// follow writes what was touched.
func (c *cluster) follow(touches Touches) { c.Write(named(touches)) }

// writes checks what has been written since the last call.
func (c *cluster) writes(when string, want ...string) {
	c.TB.Helper()
	if got := c.Wrote(); !slices.Equal(got, want) {
		c.TB.Errorf("%s: wrote %v, want %v", when, got, want)
	}
}

// endpoints have the marks of text.
var endpoints, web, svc, slc = players.Endpoints, players.Web, written.Service, written.Slice

func mirrored() *semaphorev1.Service { return web(&semaphorev1.Service{Mirror: true}) }

func global() *semaphorev1.Service { return web(&semaphorev1.Service{Global: true}) }

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
	web := &semaphorev1.Port{Name: "web", Protocol: "TCP", Port: 80, AppProtocol: "kubernetes.io/h2c"}
	dns := &semaphorev1.Port{Name: "dns", Protocol: "UDP", Port: 53}
	dnsTCP := &semaphorev1.Port{Name: "dns-tcp", Protocol: "TCP", Port: 53}
	sctp := &semaphorev1.Port{Name: "s", Protocol: "SCTP", Port: 9}
	for _, c := range []struct {
		name     string
		in       *semaphorev1.Service
		headless bool
		ports    []string
		ready    bool
		affinity int32
		families string
		traffic  string
	}{
		{name: "ClusterIP", in: &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{web, dns, sctp}},
			ports: []string{"web TCP 80 80 kubernetes.io/h2c", "dns UDP 53 53 ", "s SCTP 9 9 "}},
		{name: "one number, two protocols", in: &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{dns, dnsTCP}},
			ports: []string{"dns UDP 53 53 ", "dns-tcp TCP 53 53 "}},
		{name: "a port without a name",
			in:    &semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{{Protocol: "TCP", Port: 80}}},
			ports: []string{" TCP 80 80 "}},
		{name: "headless", in: &semaphorev1.Service{Mirror: true, Headless: true, PublishNotReadyAddresses: true,
			Ports: []*semaphorev1.Port{dns}},
			headless: true, ports: []string{"dns UDP 53 53 "}, ready: true},
		{name: "headless without ports", in: &semaphorev1.Service{Mirror: true, Headless: true}, headless: true},
		{name: "session affinity", in: &semaphorev1.Service{Mirror: true, ClientIpAffinitySeconds: 60,
			Ports: []*semaphorev1.Port{dns}},
			ports: []string{"dns UDP 53 53 "}, affinity: 60},
		{name: "traffic distribution", in: &semaphorev1.Service{Mirror: true, TrafficDistribution: "PreferSameZone",
			Ports: []*semaphorev1.Port{dns}},
			ports: []string{"dns UDP 53 53 "}, traffic: "PreferSameZone"},
		{name: "IPv6 alone", in: &semaphorev1.Service{Mirror: true, IpFamilies: []string{"IPv6"},
			Ports: []*semaphorev1.Port{dns}},
			ports: []string{"dns UDP 53 53 "}, families: "SingleStack [IPv6]"},
		{name: "both families", in: &semaphorev1.Service{Mirror: true, IpFamilies: []string{"IPv6", "IPv4"},
			Ports: []*semaphorev1.Port{dns}},
			ports: []string{"dns UDP 53 53 "}, families: "PreferDualStack []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := blank(t)
			touches := p.apply("c3", svc("shop", "echo", c.in))
			if !slices.Equal(touches.Services,
				[]Touched{{Name: "three-shop-73736d-echo", Cluster: "c3", ObservedAt: written.Observed}}) {
				t.Errorf("touches %v", touches)
			}
			s, ok := p.Service("three-shop-73736d-echo")
			if !ok {
				t.Fatal("no mirror")
			}
			if (s.Spec.ClusterIP == "None") != c.headless || s.Spec.PublishNotReadyAddresses != c.ready ||
				s.Spec.Type != "ClusterIP" || len(s.Spec.Selector) > 0 {
				t.Errorf("spec %+v", s.Spec)
			}
			if affinity := s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP; affinity != (c.affinity > 0) || affinity &&
				*s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != c.affinity {
				t.Errorf("session affinity %s, %v", s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig)
			}
			if c.families == "" {
				c.families = "PreferDualStack []"
			}
			if got := fmt.Sprint(*s.Spec.IPFamilyPolicy, " ", s.Spec.IPFamilies); got != c.families {
				t.Errorf("families %s", got)
			}
			if got := ptr.Deref(s.Spec.TrafficDistribution, ""); got != c.traffic {
				t.Errorf("trafficDistribution %q", got)
			}
			var ports []string
			for _, p := range s.Spec.Ports {
				ports = append(ports, fmt.Sprint(p.Name, " ", p.Protocol, " ", p.Port, " ", p.TargetPort.String(), " ",
					ptr.Deref(p.AppProtocol, "")))
			}
			if d := diff(c.ports, ports); d != "" {
				t.Error(d)
			}
			if d := diff(map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker",
				"semaphore.uw.io/source-cluster": "c3", "mirrored-svc": "true", "mirror-svc-prefix-sync": "three"},
				s.Labels); d != "" {
				t.Error(d)
			}
			if d := diff(map[string]string{"semaphore.uw.io/source-namespace": "shop", "semaphore.uw.io/source-name": "echo"},
				s.Annotations); d != "" {
				t.Error(d)
			}
		})
	}
}

// A slice that comes before its service waits for it. TestShapes has what is in one.
func TestSlice(t *testing.T) {
	for _, headless := range []bool{false, true} {
		t.Run(fmt.Sprint("headless ", headless), func(t *testing.T) {
			p := blank(t)
			if first := p.apply("c2", slc("shop", "echo-x7", endpoints("echo", "10.2.1.5"))); len(first.Slices) > 0 {
				t.Errorf("a slice without its service: %v", first)
			}
			name := "c2-shop-73736d-echo-c2-1"
			second := p.apply("c2", svc("shop", "echo", &semaphorev1.Service{Mirror: true, Headless: headless}))
			if got := names(second.Slices); !slices.Equal(got, []string{name}) {
				t.Errorf("touched %v", got)
			}
			s, ok := p.Slice(name)
			if !ok {
				t.Fatal("no slice")
			}
			labels := map[string]string{
				"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c2", "mirrored-svc": "true",
				"mirror-svc-prefix-sync":     "c2",
				"kubernetes.io/service-name": "c2-shop-73736d-echo", "endpointslice.kubernetes.io/managed-by": "semaphore-broker",
			}
			if headless {
				labels["service.kubernetes.io/headless"] = ""
			}
			if d := diff(labels, s.Labels); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestInvalidNamesAreReported(t *testing.T) {
	p := blank(t)
	long := strings.Repeat("n", 50)
	both := mirrored()
	both.Global = true
	p.apply("c2", svc("shop", long, both))
	if len(p.Services) > 0 {
		t.Error("a name that the API does not take")
	}
	all := p.reported()
	if len(all) != 2 || all[0].Object != "shop/"+long ||
		!strings.Contains(all[0].Text, "in no global service: that would be named gl-shop-73736d-"+long+", 65 characters") ||
		!strings.Contains(all[1].Text, "is not mirrored") || all[1].Cluster != "c2" {
		t.Errorf("problems %v", all)
	}
	p.apply("c2", svc("shop", long, nil))
	if all := p.reported(); len(all) != 0 {
		t.Errorf("problems %v", all)
	}
}

func TestANameOfTwoSources(t *testing.T) {
	const name = "c2-a-shop-73736d-echo"
	inA, sliceA := svc("a-shop", "echo", mirrored()), slc("a-shop", "e", endpoints("echo", "10.2.0.1"))
	inB, sliceB := svc("shop", "echo", mirrored()), slc("shop", "e", endpoints("echo", "10.3.0.1"))
	for _, order := range []string{"c2 first", "c2-a first"} {
		t.Run(order, func(t *testing.T) {
			p := blank(t)
			p.heard("c2", "c2-a")
			if order == "c2 first" {
				p.apply("c2", inA, sliceA)
				p.apply("c2-a", inB, sliceB)
			} else {
				p.apply("c2-a", inB, sliceB)
				p.apply("c2", sliceA, inA)
			}
			if s := p.Services[name]; s == nil || s.Labels[naming.LabelSourceCluster] != "c2" {
				t.Errorf("mirror %v", s)
			}
			p.Is("both", name, "c2-1: 10.2.0.1")
			if all := p.reported(); len(all) != 1 || all[0].Cluster != "c2-a" {
				t.Errorf("problems %v", all)
			}
			// Another broker, that hears of the one who does not have the name first.
			n := before(t)
			n.Services, n.Slices = maps.Clone(p.Services), maps.Clone(p.Slices)
			n.apply("c2-a", inB, sliceB)
			n.ObserveService(name, n.Services[name], n.Now)
			for _, slice := range sorted(n.Slices) {
				n.ObserveSlice(slice, n.Slices[slice], n.Now)
			}
			n.follow(n.Begin(n.Now))
			n.heard("c2-a")
			n.writes("c2 has not been heard")
			n.heard("c2")
			n.Is("c2 offers nothing any more", name, "c2-a-1: 10.3.0.1")

			p.apply("c2", svc("a-shop", "echo", nil))
			if s := p.Services[name]; s == nil || s.Labels[naming.LabelSourceCluster] != "c2-a" {
				t.Errorf("mirror %v", s)
			}
			p.Is("one of them", name, "c2-a-1: 10.3.0.1")
		})
	}
}

var prefixes = testkit.Prefixes

// A mirror has the labels of its source that the operator allows, and no other.
func TestAllowedLabels(t *testing.T) {
	p := blank(t)
	p.apply("c3", svc("shop", "echo",
		&semaphorev1.Service{Mirror: true, Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 80}},
			Labels: []*semaphorev1.Label{{Key: "app.kubernetes.io/name", Value: "echo"}, {Key: "team", Value: "shop"}}}))
	s, ok := p.Service("three-shop-73736d-echo")
	if !ok {
		t.Fatal("no mirror")
	}
	if s.Labels["app.kubernetes.io/name"] != "echo" || s.Labels["team"] != "" ||
		s.Annotations[naming.AnnotationCopiedLabels] != "app.kubernetes.io/name" {
		t.Errorf("labels %v, of the source are %q", s.Labels, s.Annotations[naming.AnnotationCopiedLabels])
	}
}

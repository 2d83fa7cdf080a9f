package services

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/written"
)

// enabled has the API on.
const enabled = "mcs: {enabled: true}"

// subnets of the clusters' pods.
var subnets = map[string]string{"c1": "10.1.0.0/16", "c2": "10.2.0.0/16", "c2-a": "10.3.0.0/16", "c3": "10.4.0.0/16",
	"c9": "10.9.0.0/16"}

// configured is the configuration of one of the clusters, which takes its own exporter, with c1 to c3 as the others.
func configured(t testing.TB, own string, more ...string) *config.Broker {
	t.Helper()
	text := "cluster: " + own + "\nfeatures: [services]\nlocalSubnets: [" + subnets[own] + "]\n" +
		"globalServices: {podSubnets: [" + subnets[own] + "]}\nmirrorNamespace: semaphore\nremotes:\n"
	for _, name := range []string{"c1", "c2", "c2-a", "c3"} {
		if name != own {
			text += "- {name: " + name + ", podSubnets: [" + subnets[name] + "], nodeSubnets: [172.16.0.0/12], " +
				"servicePrefix: p" + strings.ReplaceAll(name[1:], "-", "") + "}\n"
		}
	}
	return testkit.Value(described.Broker([]byte(text + strings.Join(more, "\n"))))(t)
}

type servicePlan = mirror.Plan

// cluster is the plans of a broker, and what is in its cluster.
type cluster struct {
	*servicePlan
	*ImportPlan
	*written.Cluster
	own string
}

// blank is the broker of c1 that has begun in a cluster where nothing is.
func blank(t testing.TB, more ...string) *cluster {
	c := before(t, "c1", more...)
	c.follow(c.Begin(c.Now))
	return c
}

// importing is blank with the imports of ServiceExports, and has heard all clusters whole.
func importing(t testing.TB) *cluster {
	c := blank(t, enabled)
	c.heardAll()
	return c
}

// before is a broker that does not know what is in its cluster.
func before(t testing.TB, own string, more ...string) *cluster {
	return with(t, configured(t, own, more...))
}

// alone is the broker of c1 that has begun in a cluster where nothing is, whose mirrors have the names of their
// clusters as prefixes. globals says of it what globalServices has.
func alone(t testing.TB, globals string) *cluster {
	cfg := testkit.Value(described.Broker([]byte(`
cluster: c1
features: [services]
localSubnets: [10.1.0.0/16]
mirrorNamespace: semaphore
globalServices: {` + globals + `}
remotes:
- {name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}
- {name: c2-a, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12], servicePrefix: other}
- {name: c3, podSubnets: [10.4.0.0/16], nodeSubnets: [172.16.0.0/12], servicePrefix: three}
`)))(t)
	cfg.Remotes[1].ServicePrefix = "c2-a" // which a configuration file may not say beside c2: the plan holds without that
	c := with(t, cfg)
	c.follow(c.Begin(c.Now))
	return c
}

// with is a broker with a configuration that does not know what is in its cluster.
func with(t testing.TB, cfg *config.Broker) *cluster {
	own := cfg.Cluster
	c := &cluster{own: own}
	c.servicePlan, c.ImportPlan = Plans(cfg)
	c.Cluster = written.New(t, time.Unix(1_900_000_000, 0), c.servicePlan,
		func() []string { return []string{own, "c1", "c2", "c2-a", "c3"} },
		func(name string, s *corev1.Service, now time.Time) written.Names {
			if c.ImportPlan != nil {
				c.ImportPlan.ObserveService(name, s, now)
			}
			return c.touched(c.servicePlan.ObserveService(name, s, now))
		},
		func(name string, s *discoveryv1.EndpointSlice, now time.Time) written.Names {
			return c.touched(c.ObserveSlice(name, s, now))
		})
	return c
}

// touched says to the plan of imports what was touched.
func (c *cluster) touched(t mirror.Touches) written.Names {
	if c.ImportPlan != nil {
		c.Touched(t)
	}
	return written.Names{Services: names(t.Services), Slices: names(t.Slices)}
}

// restarted is another broker in the same cluster, which has heard nothing yet.
func (c *cluster) restarted(more ...string) *cluster {
	n := before(c.TB, c.own, more...)
	n.Take(c.Cluster)
	n.follow(n.Begin(n.Now))
	return n
}

// observe passes on what exists of a Service.
func (c *cluster) observe(name string) (mirror.Touches, Touches) {
	return c.servicePlan.ObserveService(name, c.Services[name], c.Now),
		c.ImportPlan.ObserveService(name, c.Services[name], c.Now)
}

// outcomes are those of a cluster's services.
func (c *cluster) outcomes(cluster string) []*semaphorev1.Outcome {
	return c.ImportPlan.Outcomes(cluster, outcomes(c.servicePlan, cluster, nil))
}

// engine answers what is asked of the plan.
func (c *cluster) engine() *Engine { return &Engine{plan: c.servicePlan} }

func (c *cluster) apply(cluster string, changes ...replica.Change) (out Touches) {
	touches := c.Apply(cluster, changes, c.Now)
	if c.ImportPlan != nil {
		out = c.Touched(touches)
	}
	c.follow(touches)
	return out
}

// heard says that clusters have been heard whole.
func (c *cluster) heard(clusters ...string) {
	for _, name := range clusters {
		c.follow(c.Complete(name, c.Now))
	}
}

// heardAll says that of all clusters.
func (c *cluster) heardAll() { c.heard(sorted(subnets)...) }

// follow writes what was touched.
func (c *cluster) follow(touches mirror.Touches) { c.Write(c.touched(touches)) }

// endpoints have the marks of text.
var endpoints, web, svc, slc = players.Endpoints, players.Web, written.Service, written.Slice

const glEcho = "gl-shop-73736d-echo"

func global() *semaphorev1.Service { return web(&semaphorev1.Service{Global: true}) }

func settled(g *semaphorev1.GlobalSettings) *semaphorev1.Service {
	s := global()
	s.GlobalSettings = g
	return s
}

func offering(s *semaphorev1.Service, addresses string) []replica.Change {
	return []replica.Change{svc("shop", "echo", s), slc("shop", "a", endpoints("echo", addresses))}
}

func names(all []mirror.Touched) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

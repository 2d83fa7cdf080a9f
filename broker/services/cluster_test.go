package services

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
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
	cfg := testkit.Value(described.Broker([]byte(text + strings.Join(more, "\n"))))(t)
	return cfg
}

type servicePlan = mirror.Plan

// cluster is the plans of a broker, and what is in its cluster.
type cluster struct {
	*servicePlan
	*ImportPlan
	t        testing.TB
	own      string
	now      time.Time
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	// writes are the names written since it was last asked.
	writes []string
}

// blank is the broker of c1 that has begun in a cluster where nothing is.
func blank(t testing.TB, more ...string) *cluster {
	c := before(t, "c1", more...)
	c.follow(c.Begin(c.now))
	return c
}

// before is a broker that does not know what is in its cluster.
func before(t testing.TB, own string, more ...string) *cluster {
	c := &cluster{t: t, own: own, now: time.Unix(1_900_000_000, 0), services: map[string]*corev1.Service{},
		slices: map[string]*discoveryv1.EndpointSlice{}}
	c.servicePlan, c.ImportPlan = Plans(configured(t, own, more...))
	return c
}

// restarted is another broker in the same cluster, which has heard nothing yet.
func (c *cluster) restarted(more ...string) *cluster {
	n := before(c.t, c.own, more...)
	n.now, n.services, n.slices = c.now, c.services, c.slices
	for _, name := range sorted(n.services) {
		n.observe(name)
	}
	for _, name := range sorted(n.slices) {
		n.ObserveSlice(name, n.slices[name], n.now)
	}
	n.follow(n.Begin(n.now))
	return n
}

// observe passes on what exists of a Service.
func (c *cluster) observe(name string) (mirror.Touches, Touches) {
	return c.servicePlan.ObserveService(name, c.services[name], c.now),
		c.ImportPlan.ObserveService(name, c.services[name], c.now)
}

// outcomes are those of a cluster's services.
func (c *cluster) outcomes(cluster string) []mirror.Outcome {
	return c.ImportPlan.Outcomes(cluster, c.servicePlan.Outcomes(cluster, nil))
}

func (c *cluster) apply(cluster string, changes ...replica.Change) Touches {
	touches := c.Apply(cluster, changes, c.now)
	out := c.Touched(touches)
	c.follow(touches)
	return out
}

// heard says that clusters have been heard whole.
func (c *cluster) heard(clusters ...string) {
	for _, name := range clusters {
		c.follow(c.Complete(name, c.now))
	}
}

// heardAll says that of all clusters.
func (c *cluster) heardAll() { c.heard(sorted(subnets)...) }

// follow writes what was touched, as the loops do: what is not wanted goes once its cluster is known whole.
func (c *cluster) follow(touches mirror.Touches) {
	for len(touches.Services)+len(touches.Slices) > 0 {
		c.Touched(touches)
		var next mirror.Touches
		add := func(more mirror.Touches) {
			next.Services, next.Slices = append(next.Services, more.Services...), append(next.Slices, more.Slices...)
		}
		for _, t := range touches.Services {
			add(c.writeService(t.Name))
		}
		for _, t := range touches.Slices {
			add(c.writeSlice(t.Name))
		}
		touches = next
	}
}

func (c *cluster) writeService(name string) (none mirror.Touches) {
	want, wanted := c.Service(name)
	have := c.services[name]
	if have != nil && want != nil && len(want.Spec.IPFamilies) == 0 {
		want.Spec.IPFamilies = have.Spec.IPFamilies // an apiserver keeps them
	}
	switch {
	case !c.Begun(), wanted && want == nil, !wanted && (have == nil || c.HasUnconfirmedEndpoints(name)),
		!wanted && !c.mayGo(have.Labels[naming.LabelSourceCluster]):
		return none
	case !wanted:
		delete(c.services, name)
	case have != nil && cmp.Equal(have, want):
		return none
	default:
		c.services[name] = want
	}
	c.writes = append(c.writes, name)
	touches, _ := c.observe(name)
	return touches
}

// mayGo reports whether it is known what a cluster does not offer; of all clusters, where it is none.
func (c *cluster) mayGo(cluster string) bool {
	if cluster != "" {
		return c.IsComplete(cluster)
	}
	all := []string{c.own, "c1", "c2", "c2-a", "c3"}
	return !slices.ContainsFunc(all, func(one string) bool { return !c.IsComplete(one) })
}

func (c *cluster) writeSlice(name string) (none mirror.Touches) {
	want, _, wanted := c.Slice(name)
	have := c.slices[name]
	if have == nil {
		c.ForgetEnded(name)
	}
	switch {
	case !c.Begun(), !wanted && (have == nil || !c.endedOf(name, have.Labels[naming.LabelSourceCluster]) &&
		!c.IsComplete(have.Labels[naming.LabelSourceCluster])):
		return none
	case !wanted:
		delete(c.slices, name)
	case have != nil && cmp.Equal(have, want):
		return none
	default:
		c.slices[name] = want
	}
	c.writes = append(c.writes, name)
	return c.ObserveSlice(name, c.slices[name], c.now)
}

func (c *cluster) endedOf(slice, cluster string) bool {
	of, ended := c.Ended(slice)
	return ended && of == cluster
}

// wrote are the names written since it was last asked, sorted.
func (c *cluster) wrote() []string {
	out := slices.Compact(slices.Sorted(slices.Values(c.writes)))
	c.writes = nil
	return out
}

// is compares what exists of a Service: its slices, and for each of them the addresses. One that is not ready has a
// question mark.
func (c *cluster) is(what, service, want string) {
	c.t.Helper()
	var lines []string
	for _, name := range sorted(c.slices) {
		s := c.slices[name]
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		line := strings.TrimPrefix(name, service+"-") + ":"
		for _, e := range s.Endpoints {
			line += " " + strings.Join(e.Addresses, "+")
			if !ptr.Deref(e.Conditions.Ready, true) {
				line += "?"
			}
		}
		lines = append(lines, line)
	}
	if got := strings.Join(lines, "; "); got != want {
		c.t.Errorf("%s: %s has\n%s\nnot\n%s", what, service, got, want)
	}
}

// endpoints have the mark of is.
var endpoints, web = players.Endpoints, players.Web

// change is that of an object; without a spec it is gone.
func change(o *semaphorev1.Object, gone bool) replica.Change {
	c := replica.Change{Key: replica.KeyOf(o.Key), New: o}
	if gone {
		c.New = nil
	}
	return c
}

func svc(ns, name string, s *semaphorev1.Service) replica.Change {
	return change(players.ServiceOf(ns, name, s), s == nil)
}

func slc(ns, name string, s *semaphorev1.EndpointSlice) replica.Change {
	return change(players.SliceOf(ns, name, s), s == nil)
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

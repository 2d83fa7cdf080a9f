// Package written keeps what a plan of Services and EndpointSlices has written, as the loops of broker/apply do, for
// the tests of plans.
//
// Its input are the decisions of a plan, and the names of what was touched; it returns what exists then, as objects and
// as text. It imports no plan, so that the tests inside of one can use it.
package written

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

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// Observed is when the changes of Service and Slice were seen in their cluster.
var Observed = time.Unix(1_800_000_000, 0)

// Service is the change of a Service; nil for one that is gone.
func Service(ns, name string, s *semaphorev1.Service) replica.Change {
	return change(players.ServiceOf(ns, name, s), s == nil)
}

// Slice is the change of an EndpointSlice; nil for one that is gone.
func Slice(ns, name string, s *semaphorev1.EndpointSlice) replica.Change {
	return change(players.SliceOf(ns, name, s), s == nil)
}

func change(o *semaphorev1.Object, gone bool) replica.Change {
	c := replica.Change{Key: replica.KeyOf(o.Key), New: o, ObservedAt: Observed}
	if gone {
		c.New = nil
	}
	return c
}

// Decides is what a plan says of what may be written.
type Decides interface {
	Service(name string) (s *corev1.Service, wanted bool)
	Retained(name string) *corev1.Service
	Slice(name string) (s *discoveryv1.EndpointSlice, wanted bool)
	Begun() bool
	IsComplete(cluster string) bool
	Ended(slice string) (cluster string, ended bool)
	ForgetEnded(slice string)
}

type Names struct{ Services, Slices []string }

// Cluster is what exists in the cluster of a plan.
type Cluster struct {
	TB       testing.TB
	Now      time.Time
	Services map[string]*corev1.Service
	Slices   map[string]*discoveryv1.EndpointSlice

	decides Decides
	// clusters returns those that the plan hears.
	clusters   func() []string
	sawService func(name string, s *corev1.Service, now time.Time) Names
	sawSlice   func(name string, s *discoveryv1.EndpointSlice, now time.Time) Names
	writes     []string
}

// New is a cluster where nothing is, whose plan hears clusters. Two functions report to the plan what exists, and
// return what that touches.
func New(tb testing.TB, now time.Time, plan Decides, clusters func() []string,
	sawService func(name string, s *corev1.Service, now time.Time) Names,
	sawSlice func(name string, s *discoveryv1.EndpointSlice, now time.Time) Names) *Cluster {
	return &Cluster{TB: tb, Now: now, Services: map[string]*corev1.Service{},
		Slices: map[string]*discoveryv1.EndpointSlice{}, decides: plan, clusters: clusters, sawService: sawService,
		sawSlice: sawSlice}
}

// Take shows the plan all that another broker has written in the same cluster.
func (c *Cluster) Take(from *Cluster) {
	c.Now, c.Services, c.Slices = from.Now, from.Services, from.Slices
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		c.sawService(name, c.Services[name], c.Now)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Slices)) {
		c.sawSlice(name, c.Slices[name], c.Now)
	}
}

// Write writes what was touched, as the loops do: what is not wanted goes once its cluster is known whole.
func (c *Cluster) Write(touched Names) {
	for len(touched.Services)+len(touched.Slices) > 0 {
		var next Names
		add := func(more Names) {
			next = Names{append(next.Services, more.Services...), append(next.Slices, more.Slices...)}
		}
		for _, name := range touched.Services {
			add(c.writeService(name))
		}
		for _, name := range touched.Slices {
			add(c.writeSlice(name))
		}
		touched = next
	}
}

// WriteAll looks at all that exists, as the loops do when a snapshot is complete.
func (c *Cluster) WriteAll() {
	c.Write(Names{Services: slices.Sorted(maps.Keys(c.Services))})
	c.Write(Names{Slices: slices.Sorted(maps.Keys(c.Slices))})
}

func (c *Cluster) writeService(name string) Names {
	want, wanted := c.decides.Service(name)
	have := c.Services[name]
	if have != nil && !wanted && !c.mayGo(have.Labels[naming.LabelSourceCluster]) {
		want = c.decides.Retained(name)
		wanted = want != nil
	}
	if have != nil && want != nil && len(want.Spec.IPFamilies) == 0 {
		want.Spec.IPFamilies = have.Spec.IPFamilies // an apiserver keeps them
	}
	switch {
	case !c.decides.Begun():
		return Names{}
	case wanted && want == nil, !wanted && have == nil:
		return Names{}
	case have != nil && !c.mayGo(have.Labels[naming.LabelSourceCluster]) &&
		(!wanted || want.Labels[naming.LabelSourceCluster] != have.Labels[naming.LabelSourceCluster]):
		return Names{}
	case !wanted:
		delete(c.Services, name)
	case have != nil && cmp.Equal(have, want):
		return Names{}
	default:
		c.Services[name] = want
	}
	c.writes = append(c.writes, name)
	return c.sawService(name, c.Services[name], c.Now)
}

// mayGo reports whether it is known what a cluster does not offer; of all clusters, where it is none.
func (c *Cluster) mayGo(cluster string) bool {
	if cluster != "" {
		return c.decides.IsComplete(cluster)
	}
	return !slices.ContainsFunc(c.clusters(), func(one string) bool { return !c.decides.IsComplete(one) })
}

func (c *Cluster) writeSlice(name string) Names {
	want, wanted := c.decides.Slice(name)
	have := c.Slices[name]
	if have == nil {
		c.decides.ForgetEnded(name)
	}
	switch {
	case !c.decides.Begun():
		return Names{}
	case !wanted && (have == nil || !c.gone(name, have.Labels[naming.LabelSourceCluster])):
		return Names{}
	case !wanted:
		delete(c.Slices, name)
	case have != nil && cmp.Equal(have, want):
		return Names{}
	default:
		c.Slices[name] = want
	}
	c.writes = append(c.writes, name)
	return c.sawSlice(name, c.Slices[name], c.Now)
}

// gone reports whether all that a slice of a cluster held is known to be gone.
func (c *Cluster) gone(slice, cluster string) bool {
	of, ended := c.decides.Ended(slice)
	return ended && of == cluster || c.decides.IsComplete(cluster)
}

// Wrote are the names written since it was last asked, sorted.
func (c *Cluster) Wrote() []string {
	out := slices.Compact(slices.Sorted(slices.Values(c.writes)))
	c.writes = nil
	return out
}

// Text is what exists of a Service: its slices, and for each of them the addresses. One that is not ready has a
// question mark, one that is unused a minus, and one that ends a tilde.
func (c *Cluster) Text(service string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(c.Slices)) {
		s := c.Slices[name]
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		line := strings.TrimPrefix(name, service+"-") + ":"
		unused := choice.UnusedIn(s)
		for _, e := range s.Endpoints {
			line += " " + strings.Join(e.Addresses, "+")
			switch {
			case unused[e.Addresses[0]]:
				line += "-"
			case ptr.Deref(e.Conditions.Terminating, false):
				line += "~"
			case !ptr.Deref(e.Conditions.Ready, true):
				line += "?"
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// Is compares the text of a Service.
func (c *Cluster) Is(what, service, want string) {
	c.TB.Helper()
	if got := c.Text(service); got != want {
		c.TB.Errorf("%s: %s has\n%s\nnot\n%s", what, service, got, want)
	}
}

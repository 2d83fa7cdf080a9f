package mirror

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// history is a cluster to which anything happens, and what the clusters say now.
type history struct {
	*cluster
	rng  *rand.Rand
	more string
	// said is the newest of each object, by cluster and key.
	said   map[string]map[replica.Key]replica.Change
	goners map[string]bool
	drains choice.Drains
}

var historic = map[string]string{"c1": "10.1.0.", "c2": "10.2.0.", "c2-a": "10.3.0.", "c3": "10.4.0."}

func newHistory(t *testing.T, seed uint64) *history {
	rng := rand.New(rand.NewPCG(seed, 7))
	// Without hysteresis what is in use follows from the state alone.
	more := fmt.Sprintf("slices: {maxEndpoints: %d}\nglobalServices: {podSubnets: [10.1.0.0/16], settle: 0s%s}",
		1+rng.IntN(4),
		[]string{"", ", localZones: [z]",
			", rules: [{names: [web], prefer: [c3, c1], minReady: 2, whenGone: withdraw}]"}[rng.IntN(3)])
	h := &history{cluster: before(t, more), rng: rng, more: more, said: map[string]map[replica.Key]replica.Change{},
		goners: map[string]bool{}}
	if rng.IntN(2) == 0 {
		h.follow(h.Begin(h.Now))
	}
	for name := range historic {
		h.said[name] = map[replica.Key]replica.Change{}
	}
	return h
}

func pick[T any](h *history, all ...T) T { return all[h.rng.IntN(len(all))] }

func (h *history) randomService() *semaphorev1.Service {
	if h.rng.IntN(4) == 0 {
		return nil
	}
	s := &semaphorev1.Service{Mirror: h.rng.IntN(2) == 0, Global: h.rng.IntN(3) > 0, Headless: h.rng.IntN(4) == 0}
	s.Ports = []*semaphorev1.Port{{Name: pick(h, "web", "web", "api"), Protocol: "TCP", Port: 80}}
	if h.rng.IntN(2) == 0 {
		s.GlobalSettings = &semaphorev1.GlobalSettings{Prefer: pick(h, nil, []string{"c2"}, []string{"c3", "c1"}),
			MinReady: h.rng.Int32N(4), WhenGone: pick(h, semaphorev1.WhenGone_WHEN_GONE_UNSPECIFIED,
				semaphorev1.WhenGone_WHEN_GONE_KEEP, semaphorev1.WhenGone_WHEN_GONE_WITHDRAW), LocalFirst: h.rng.IntN(2) == 0}
	}
	return s
}

func (h *history) randomSlice(cluster string) *semaphorev1.EndpointSlice {
	if h.rng.IntN(5) == 0 {
		return nil
	}
	s := &semaphorev1.EndpointSlice{Service: pick(h, "echo", "web"), AddressType: "IPv4"}
	if h.rng.IntN(5) > 0 {
		s.Ports = []*semaphorev1.Port{port(pick(h, "web", "web", "api"), "TCP", pick[int32](h, 8080, 8080, 9090))}
	}
	for range h.rng.IntN(7) {
		e := &semaphorev1.Endpoint{Addresses: []string{fmt.Sprint(historic[cluster], h.rng.IntN(9))}}
		e.Ready, e.Serving, e.Terminating = pick(h, nil, ptr.To(true), ptr.To(false)),
			pick(h, nil, ptr.To(true), ptr.To(false)), pick(h, nil, ptr.To(true), ptr.To(false))
		if h.rng.IntN(2) == 0 {
			e.Hostname = pick(h, "p0", "p1")
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// randomRemotes are the remotes in any order, some with other prefixes: those of others, too.
func (h *history) randomRemotes() []config.Remote {
	all := slices.Clone(configured(h.TB, h.more).Remotes)
	h.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		if h.rng.IntN(3) == 0 {
			all[i].ServicePrefix = pick(h, "c2", "four", "three")
		}
	}
	return all
}

// step has something happen.
func (h *history) step() {
	cluster := pick(h, slices.Sorted(maps.Keys(historic))...)
	switch h.rng.IntN(13) {
	case 0:
		h.goners[cluster] = !h.goners[cluster] && cluster != "c1"
		h.follow(h.SetGone(cluster, h.goners[cluster], h.Now))
		return
	case 1:
		h.drains = pick(h, choice.Drains{}, choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: cluster}}),
			choice.NewDrains(choice.Drain{Target: choice.Target{Namespace: "shop", Service: "echo"}},
				choice.Drain{Target: choice.Target{Cluster: cluster, Node: "n"}, Prefixes: prefixes(historic[cluster] + "0/30")}))
		h.follow(h.SetDrains(h.drains, h.Now))
		return
	case 2:
		if h.Begun() { // which has heard enough of it, as what it says is not forgotten any more
			h.heard(cluster)
		}
		return
	case 3:
		h.Now = h.Now.Add(time.Second)
		h.follow(h.Due(h.Now))
		return
	case 4:
		if !h.Begun() {
			h.follow(h.Begin(h.Now))
		}
		return
	case 5:
		h.follow(h.Follow(h.randomRemotes(), h.Now))
		return
	}
	var changes []replica.Change
	for range 1 + h.rng.IntN(3) {
		ns := pick(h, "shop", "shop", "a-shop")
		c := slc(ns, pick(h, "s1", "s2", "s3"), h.randomSlice(cluster))
		if h.rng.IntN(3) == 0 {
			c = svc(ns, pick(h, "echo", "web"), h.randomService())
		}
		h.said[cluster][c.Key] = c
		changes = append(changes, c)
	}
	h.apply(cluster, changes...)
}

// again is another plan that receives the newest of everything, in any order.
func (h *history) tell(c *cluster) {
	for cluster, objects := range h.said {
		all := slices.Collect(maps.Values(objects))
		slices.SortFunc(all, func(a, b replica.Change) int { return strings.Compare(fmt.Sprint(a.Key), fmt.Sprint(b.Key)) })
		h.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		c.apply(cluster, all...)
	}
	for cluster := range h.said {
		if h.goners[cluster] {
			c.follow(c.SetGone(cluster, true, c.Now))
		}
	}
	c.follow(c.SetDrains(h.drains, c.Now))
}

// contents is what exists, up to the slices that endpoints are in; and what is wrong with the slices.
func (h *history) contents(c *cluster) (out []string, wrong []string) {
	for name, s := range c.Services {
		out = append(out, fmt.Sprint(name, " ", s.Labels, s.Annotations, s.Spec.String()))
	}
	seen := map[string]bool{}
	for name, s := range c.Slices {
		if n := len(s.Endpoints); n == 0 || n > c.max {
			wrong = append(wrong, fmt.Sprintf("%s has %d endpoints", name, n))
		}
		unused, annotations := choice.UnusedIn(s), maps.Clone(s.Annotations)
		delete(annotations, naming.AnnotationUnusedEndpoints)
		for _, e := range s.Endpoints {
			at := fmt.Sprint(s.Labels, s.Ports, s.AddressType, e.Addresses)
			if seen[at] {
				wrong = append(wrong, fmt.Sprintf("%s is in two places, %s is one", at, name))
			}
			seen[at] = true
			hints := ""
			if e.Hints != nil {
				hints = fmt.Sprint(e.Hints.ForZones)
			}
			out = append(out, fmt.Sprint(s.Labels, annotations, s.AddressType, ports(s), e.Addresses, conditions(e.Conditions),
				unused[e.Addresses[0]], ptr.Deref(e.Hostname, ""), hints))
		}
	}
	slices.Sort(out)
	return out, wrong
}

func ports(s *discoveryv1.EndpointSlice) (out []string) {
	for _, p := range s.Ports {
		out = append(out, fmt.Sprintf("%s/%d", *p.Name, *p.Port))
	}
	return out
}

// Whatever happens: what stands is what a plan that hears only how it ended wants, up to the slices that endpoints are
// in; each is in one slice, and none is too full; and a broker that is started again writes nothing.
func TestHistoryDoesNotMatter(t *testing.T) {
	n := uint64(300)
	if testing.Short() {
		n = 60
	}
	for seed := range n {
		h := newHistory(t, seed)
		for range 60 {
			h.step()
			if _, wrong := h.contents(h.cluster); len(wrong) > 0 {
				t.Fatalf("seed %d: %v", seed, wrong)
			}
		}
		h.follow(h.Begin(h.Now))
		h.follow(h.Follow(configured(t, h.more).Remotes, h.Now))
		h.heard("c1", "c2", "c2-a", "c3")
		h.WriteAll()
		now, _ := h.contents(h.cluster)

		fresh := before(t, h.more)
		fresh.Now = h.Now
		h.tell(fresh)
		fresh.follow(fresh.Begin(fresh.Now))
		fresh.heard("c1", "c2", "c2-a", "c3")
		if want, _ := h.contents(fresh); !slices.Equal(want, now) {
			t.Fatalf("seed %d: with its history and without:\n%s", seed, cmp.Diff(want, now))
		}

		for _, heardFirst := range []bool{false, true} {
			again := before(t, h.more)
			again.Now, again.Services, again.Slices = h.Now, maps.Clone(h.Services), maps.Clone(h.Slices)
			if heardFirst {
				h.tell(again)
			}
			for name, s := range again.Services {
				again.ObserveService(name, s, again.Now)
			}
			for name, s := range again.Slices {
				again.ObserveSlice(name, s, again.Now)
			}
			if !heardFirst {
				// The removal of unknown clusters is applied before the endpoints are.
				again.follow(again.SetDrains(h.drains, again.Now))
				for cluster, gone := range h.goners {
					again.follow(again.SetGone(cluster, gone, again.Now))
				}
			}
			again.follow(again.Begin(again.Now))
			if got := again.Wrote(); len(got) > 0 {
				t.Fatalf("seed %d: a restart writes %v before it has heard anything (%v):\n%s", seed, got, heardFirst,
					cmp.Diff(h.Slices, again.Slices)+cmp.Diff(h.Services, again.Services))
			}
			h.tell(again)
			again.heard("c1", "c2", "c2-a", "c3")
			again.WriteAll()
			if got := again.Wrote(); len(got) > 0 {
				t.Fatalf("seed %d: a restart writes %v when it has heard everything (%v)", seed, got, heardFirst)
			}
		}

		// All ends, and nothing is left.
		for cluster, objects := range h.said {
			for key := range objects {
				h.apply(cluster, replica.Change{Key: key})
			}
		}
		if len(h.Services)+len(h.Slices) > 0 {
			t.Fatalf("seed %d: all has gone, and there is %v %v", seed, sorted(h.Services), sorted(h.Slices))
		}
		if left := len(h.sources) + len(h.exportedSlices) + len(h.targets) + len(h.Plan.slices) + len(h.dirty) +
			len(h.reported()) + len(slices.Collect(h.tooLong.Names)); left > 0 {
			t.Fatalf("seed %d: all has gone, and %d things are remembered: %v", seed, left,
				[]any{h.sources, h.exportedSlices, h.targets, sorted(h.Plan.slices), h.dirty, h.reported(),
					h.tooLong})
		}
	}
}

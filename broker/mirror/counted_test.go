package mirror

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/semaphore/broker/problem"
)

// TestCountersEqualARecount: what is counted as endpoints come and go (those that are ready for all ports, hostnames,
// problems) is what counting again gives.
func TestCountersEqualARecount(t *testing.T) {
	n := uint64(200)
	if testing.Short() {
		n = 40
	}
	for seed := range n {
		h := newHistory(t, seed)
		for step := range 60 {
			h.step()
			h.recount(t, fmt.Sprintf("seed %d, step %d", seed, step))
		}
	}
}

func (h *history) recount(t *testing.T, when string) {
	t.Helper()
	names := map[string]bool{}
	for name := range h.claims.Names {
		names[name] = true
	}
	for name := range h.tooLong.Names {
		names[name] = true
	}
	for name, target := range h.targets {
		names[name] = true
		for cluster, share := range target.perCluster {
			target.updateServed()
			want := [2]int{}
			for g, b := range share.groups {
				for _, s := range b.slices {
					for i := range s.members {
						if m := &s.members[i]; m.ready() && !m.drained && g.Serves(target.served) {
							want[b.family]++
						}
					}
				}
			}
			if share.families != want {
				t.Fatalf("%s: of %s %v endpoints in %s are ready, not %v", when, cluster, share.families, name, want)
			}
		}
		want := namesakes(target)
		for _, cluster := range h.clusters {
			if got := target.hostnames.Of(cluster); !maps.Equal(got, want[cluster]) {
				t.Fatalf("%s: hostnames that are there twice in %s of %s: %v, not %v", when, name, cluster, got, want[cluster])
			}
		}
	}
	for name := range h.Plan.slices {
		if _, ended := h.Ended(name); ended {
			t.Fatalf("%s: slice %s is to be deleted and to be there", when, name)
		}
	}
	var want []problem.Problem
	for name := range names {
		want = append(want, h.problemsOf(name)...)
	}
	var set problem.Set
	set.Replace("", want)
	if got, want := h.reported(), problemsIn(&set); !slices.Equal(got, want) {
		t.Fatalf("%s: %s", when, cmp.Diff(want, got))
	}
}

// namesakes are the hostnames that a cluster has and one before it has too.
func namesakes(t *target) map[string]map[string]bool {
	first := map[string]string{}
	out := map[string]map[string]bool{}
	for _, cluster := range t.plan.clusters {
		h := t.perCluster[cluster]
		if h == nil {
			continue
		}
		for _, s := range h.all() {
			for i := range s.members {
				hostname := s.members[i].hostname()
				if other, there := first[hostname]; hostname != "" && there && other != cluster {
					if out[cluster] == nil {
						out[cluster] = map[string]bool{}
					}
					out[cluster][hostname] = true
				} else if hostname != "" {
					first[hostname] = cluster
				}
			}
		}
	}
	return out
}

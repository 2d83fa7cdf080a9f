package guard

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

var prefixes = testkit.Prefixes

func TestRules(t *testing.T) {
	for name, c := range map[string]struct {
		remotes remotes
		want    []string
	}{
		"none": {remotes{}, []string{"loopback pass"}},
		"one, of both families": {
			remotes{"c2": {Subnets: prefixes("10.2.0.0/16", "fd00:2::/48")}},
			[]string{
				"loopback pass", "c2 fd00:2::/48 pass", "c2 fd00:2::/48 drop",
				"c2 10.2.0.0/16 pass", "c2 10.2.0.0/16 drop",
			},
		},
		"a subnet inside another's comes first": {
			remotes{"c2": {Subnets: prefixes("10.2.0.0/16")},
				"c3": {Subnets: prefixes("10.2.7.0/24")}},
			[]string{
				"loopback pass", "c3 10.2.7.0/24 pass", "c3 10.2.7.0/24 drop",
				"c2 10.2.0.0/16 pass", "c2 10.2.0.0/16 drop",
			},
		},
		"an interface that is someone else's is passed by nothing": {
			remotes{"c2": {Subnets: prefixes("10.2.0.0/16"), Closed: true}},
			[]string{"loopback pass", "c2 10.2.0.0/16 drop"},
		},
		"a permissive remote is counted": {
			remotes{"c2": {Subnets: prefixes("10.2.0.0/16"), Permissive: true}},
			[]string{"loopback pass", "c2 10.2.0.0/16 pass", "c2 10.2.0.0/16 count"},
		},
		"a subnet of two passes both devices": {
			remotes{"c2": {Subnets: prefixes("10.2.0.0/16")},
				"c3": {Subnets: prefixes("10.2.0.0/16")}},
			[]string{
				"loopback pass", "c2 10.2.0.0/16 pass", "c3 10.2.0.0/16 pass",
				"c3 10.2.0.0/16 drop",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := commentsOf(c.remotes.rules())
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			samePrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(c.remotes, parseComments(got), samePrefix); diff != "" {
				t.Errorf("an agent that starts remembers (-want +got):\n%s", diff)
			}
		})
	}
}

func commentsOf(rules []rule) (comments []string) {
	for _, r := range rules {
		comments = append(comments, r.comment())
	}
	return comments
}

func TestRemember(t *testing.T) {
	if got := parseComments([]string{"", "somebody's own", "c2 10.2.0.0/16 log",
		"c2 10.2.0.0 pass"}); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestOutermost: subnets that overlap have one element of a map, which ends before the address behind it.
func TestOutermost(t *testing.T) {
	all := remotes{"c2": {Subnets: prefixes("10.2.0.0/16", "fd00:2:0:7::/64", "255.0.0.0/8")},
		"c3": {Subnets: prefixes("10.2.7.0/24", "10.3.0.0/16", "fd00:2::/48", "fd00:2:8::/45", "ffff::/16")},
		"c4": {Subnets: prefixes("10.2.0.0/16", "10.16.0.0/12")}}
	outermost := all.outermost()
	want := prefixes("10.2.0.0/16", "10.3.0.0/16", "10.16.0.0/12", "255.0.0.0/8", "fd00:2::/48", "fd00:2:8::/45",
		"ffff::/16")
	if !slices.Equal(outermost, want) {
		t.Errorf("outermost: %v", outermost)
	}
	for inner, outer := range map[string]string{"10.2.7.0/24": "10.2.0.0/16", "10.3.0.0/16": "10.3.0.0/16",
		"fd00:2:0:7::/64": "fd00:2::/48"} {
		if got := around(outermost, netip.MustParsePrefix(inner)); got.String() != outer {
			t.Errorf("around %s: %s", inner, got)
		}
	}
	for i, end := range []string{"10.3.0.0", "10.4.0.0", "10.32.0.0", "invalid IP", "fd00:2:1::", "fd00:2:10::",
		"invalid IP"} {
		if got := after(outermost[i]); got.String() != end {
			t.Errorf("after %s: %s", outermost[i], got)
		}
	}
}

// TestAdopt: a remote that was set or removed before the rules of an earlier Guard could be read is not replaced by
// them.
func TestAdopt(t *testing.T) {
	g := New(true, kernel.RoutingTable{})
	g.remotes["c2"], g.removed["c3"] = Remote{Closed: true}, true
	g.adopt(remotes{"c2": {}, "c3": {}, "c4": {}})
	if got := slices.Sorted(maps.Keys(g.remotes)); !slices.Equal(got, []string{"c2", "c4"}) || !g.remotes["c2"].Closed ||
		!g.loaded {
		t.Errorf("guards %v, %+v", got, g.remotes)
	}
}

package choice

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const settle = 30 * time.Second

// offers are such as "c1:2 c2:0 c3:1!", ! for gone.
func offers(text string) []Offer {
	var out []Offer
	for _, field := range strings.Fields(text) {
		var o Offer
		field, o.Gone = strings.CutSuffix(field, "!")
		name, ready, _ := strings.Cut(field, ":")
		o.Cluster = name
		fmt.Sscan(ready, &o.Ready)
		out = append(out, o)
	}
	return out
}

func show(inUse map[string]bool) string {
	var names []string
	for name, in := range inUse {
		if in {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A chooser that has just begun goes by the numbers.
func TestByTheNumbers(t *testing.T) {
	first := func(minReady int, clusters ...string) Settings {
		return Settings{Prefer: clusters, MinReady: minReady, WhenGone: config.Demote}
	}
	for _, c := range []struct {
		name     string
		settings Settings
		offers   string
		want     string
	}{
		{"nobody", first(1, "c1"), "", ""},
		{"without preference all are used", first(1), "c1:3 c2:1 c3:0", "c1 c2 c3"},
		{"the first suffices", first(1, "c1"), "c1:1 c2:5", "c1"},
		{"the first has none", first(1, "c1"), "c1:0 c2:5", "c1 c2"},
		{"the first does not offer it", first(1, "c1"), "c2:5 c3:1", "c2 c3"},
		{"together they suffice", first(3, "c1", "c2"), "c1:2 c2:1 c3:9", "c1 c2"},
		{"together they do not", first(4, "c1", "c2"), "c1:2 c2:1 c3:9", "c1 c2 c3"},
		{"nor do all", first(40, "c1", "c2"), "c1:2 c2:1 c3:9", "c1 c2 c3"},
		{"in order, whatever the names", first(1, "c3", "c2"), "c1:5 c2:5 c3:5", "c3"},
		{"those that are not named share a place", first(1, "c1"), "c1:0 c2:1 c3:1", "c1 c2 c3"},
		{"0 is 1", Settings{Prefer: []string{"c1"}}, "c1:0 c2:1", "c1 c2"},
		{"named twice counts as the first", first(1, "c2", "c1", "c2"), "c1:1 c2:1", "c2"},
		{"none is ready", first(1, "c1"), "c1:0 c2:0", "c1 c2"},

		{"gone, and others have some", first(1), "c1:1 c2:5!", "c1"},
		{"gone, and others have too few", first(3), "c1:1 c2:5!", "c1"},
		{"gone, and others have none", first(1), "c1:0 c2:5!", "c1 c2"},
		{"gone, and there are no others", first(1), "c2:5!", "c2"},
		{"all are gone", first(1, "c1"), "c1:5! c2:5!", "c1 c2"},
		{"the preferred is gone", first(1, "c2"), "c1:1 c2:5! c3:1", "c1 c3"},
		{"demoted where nothing is said", Settings{}, "c1:1 c2:5!", "c1"},
		{"kept", Settings{WhenGone: config.Keep}, "c1:1 c2:5!", "c1 c2"},
		{"kept, and preferred", Settings{Prefer: []string{"c2"}, WhenGone: config.Keep}, "c1:1 c2:5!", "c2"},
		{"withdrawn", Settings{WhenGone: config.Withdraw}, "c1:1 c2:5!", "c1"},
		{"withdrawn, and others have none", Settings{WhenGone: config.Withdraw}, "c1:0 c2:5!", "c1"},
	} {
		got, again := NewChooser(settle).InUse("s", c.settings, offers(c.offers), noon)
		if show(got) != c.want || again != 0 {
			t.Errorf("%s: %q is in use, again after %s; want %q", c.name, show(got), again, c.want)
		}
	}
}

// step is what is offered at a time, and what is used then.
type step struct {
	at     time.Duration
	offers string
	want   string
	again  time.Duration
}

func TestInTime(t *testing.T) {
	s := time.Second
	local := Settings{Prefer: []string{"c1"}, MinReady: 1, WhenGone: config.Demote}
	for name, c := range map[string]struct {
		settings Settings
		steps    []step
	}{
		"in at once, out after a while": {local, []step{
			{0, "c1:1 c2:1", "c1", 0},
			{1 * s, "c1:0 c2:1", "c1 c2", 0},
			{2 * s, "c1:1 c2:1", "c1 c2", 30 * s},
			{12 * s, "c1:1 c2:1", "c1 c2", 20 * s},
			{32 * s, "c1:1 c2:1", "c1", 0},
		}},
		"needed again meanwhile": {local, []step{
			{0, "c1:0 c2:1", "c1 c2", 0},
			{1 * s, "c1:1 c2:1", "c1 c2", 30 * s},
			{30 * s, "c1:0 c2:1", "c1 c2", 0},
			{31 * s, "c1:1 c2:1", "c1 c2", 30 * s},
			{60 * s, "c1:1 c2:1", "c1 c2", 1 * s},
			{61 * s, "c1:1 c2:1", "c1", 0},
		}},
		"a cluster that joins a place that is being left does not come in": {local, []step{
			{0, "c1:0 c2:1", "c1 c2", 0},
			{1 * s, "c1:1 c2:1", "c1 c2", 30 * s},
			{2 * s, "c1:1 c2:1 c3:1", "c1 c2", 29 * s},
		}},
		"gone at once, back at once": {local, []step{
			{0, "c1:0 c2:1 c3:1", "c1 c2 c3", 0},
			{1 * s, "c1:0 c2:1! c3:1", "c1 c3", 0},
			{2 * s, "c1:0 c2:1 c3:1", "c1 c2 c3", 0},
		}},
		"one that is gone is used no longer than until another is ready": {local, []step{
			{0, "c1:0 c2:1", "c1 c2", 0},
			{1 * s, "c1:0 c2:1!", "c1 c2", 0},
			{2 * s, "c1:1 c2:1!", "c1", 0},
		}},
		"the preferred comes back": {Settings{Prefer: []string{"c2", "c1"}, MinReady: 1, WhenGone: config.Demote}, []step{
			{0, "c1:1 c2:1!", "c1", 0},
			{5 * s, "c1:1 c2:1", "c1 c2", 30 * s},
			{35 * s, "c1:1 c2:1", "c2", 0},
		}},
		"another order": {local, []step{
			{0, "c2:1 c3:1", "c2 c3", 0},
			{1 * s, "c1:1 c2:1 c3:1", "c1 c2 c3", 30 * s},
			{11 * s, "c1:1 c3:1", "c1 c3", 20 * s},
			{12 * s, "c1:1 c2:1 c3:1", "c1 c3", 19 * s}, // what went and came is as new
		}},
	} {
		t.Run(name, func(t *testing.T) {
			chooser := NewChooser(settle)
			for _, step := range c.steps {
				got, again := chooser.InUse("s", c.settings, offers(step.offers), noon.Add(step.at))
				if show(got) != step.want || again != step.again {
					t.Errorf("at %s, %s: %q is in use, again after %s; want %q, %s", step.at, step.offers, show(got), again, step.want,
						step.again)
				}
			}
			chooser.InUse("s", c.settings, offers("c1:0 c2:1"), noon)
			chooser.Forget("s")
			if got, _ := chooser.InUse("s", c.settings, offers("c1:1 c2:1!"), noon); c.settings.Prefer[0] == "c1" &&
				show(got) != "c1" {
				t.Errorf("forgotten, and %q is in use", show(got))
			}
			chooser.Forget("s")
			if len(chooser.services) != 0 {
				t.Errorf("remembered: %v", chooser.services)
			}
		})
	}
}

// scene is a service as it changes at random.
type scene struct {
	*rand.Rand
	settings Settings
	offers   []Offer
}

func newScene(seed uint64) *scene {
	s := &scene{Rand: rand.New(rand.NewPCG(seed, 5))}
	clusters := []string{"c1", "c2", "c3", "c4"}
	s.Shuffle(len(clusters), func(i, j int) { clusters[i], clusters[j] = clusters[j], clusters[i] })
	s.settings = Settings{
		Prefer: clusters[:s.IntN(4)], MinReady: 1 + s.IntN(4), WhenGone: []config.WhenGone{config.Keep, config.Demote,
			config.Withdraw}[s.IntN(3)],
	}
	for _, cluster := range clusters[s.IntN(2):] {
		s.offers = append(s.offers, Offer{Cluster: cluster, Ready: s.IntN(4)})
	}
	return s
}

// Something ready that may be used is used; what is needed is in use, and nothing else but what was needed within
// settle; and a chooser that begins again uses nothing that the old one does not.
func TestInvariants(t *testing.T) {
	for seed := range uint64(800) {
		s := newScene(seed)
		chooser, now := NewChooser(settle), noon
		lastNeeded := map[string]time.Time{}
		for range 60 {
			now = now.Add(time.Duration(s.IntN(20)) * time.Second)
			if i := s.IntN(len(s.offers)); s.IntN(4) == 0 {
				s.offers[i].Gone = !s.offers[i].Gone
			} else {
				s.offers[i].Ready = s.IntN(4)
			}
			got, again := chooser.InUse("s", s.settings, s.offers, now)
			anew, _ := NewChooser(settle).InUse("s", s.settings, s.offers, now)
			where := fmt.Sprintf("seed %d: %+v of %+v: %q", seed, s.settings, s.offers, show(got))
			ready, used := 0, 0
			for _, o := range s.offers {
				if o.Gone && s.settings.WhenGone == config.Withdraw {
					if got[o.Cluster] {
						t.Fatalf("%s: %s is withdrawn", where, o.Cluster)
					}
					continue
				}
				ready += o.Ready
				if got[o.Cluster] {
					used += o.Ready
				}
				if anew[o.Cluster] {
					lastNeeded[o.Cluster] = now
				}
				if anew[o.Cluster] && !got[o.Cluster] {
					t.Fatalf("%s: %s is needed", where, o.Cluster)
				}
				if got[o.Cluster] && !anew[o.Cluster] && (lastNeeded[o.Cluster].IsZero() || again == 0) {
					t.Fatalf("%s: %s is not needed, was not, or stays permanently", where, o.Cluster)
				}
			}
			if ready > 0 && used == 0 {
				t.Fatalf("%s: nothing that is ready", where)
			}
			// When it said that it changes by itself, it does; and not before.
			if again > 0 {
				later := now.Add(again - 1)
				if then, _ := chooser.InUse("s", s.settings, s.offers, later); !maps.Equal(then, got) {
					t.Fatalf("%s: before its time it is %q", where, show(then))
				}
				if then, _ := chooser.InUse("s", s.settings, s.offers, now.Add(again)); maps.Equal(then, got) {
					t.Fatalf("%s: after %s it is the same", where, again)
				}
				now = now.Add(again)
			}
		}
	}
}

// Endpoints that become ready and not faster than settle change what is in use once: by what comes in.
func TestNoFlapping(t *testing.T) {
	for seed := range uint64(800) {
		s := newScene(seed)
		chooser, now := NewChooser(settle), noon
		low, high := slices.Clone(s.offers), slices.Clone(s.offers)
		for i := range low {
			if s.IntN(2) == 0 {
				low[i].Ready = 0
			}
		}
		var last map[string]bool
		changes := 0
		for range 100 {
			for _, offers := range [][]Offer{high, low} {
				now = now.Add(time.Duration(s.IntN(int(settle/2))) - 1)
				got, _ := chooser.InUse("s", s.settings, offers, now)
				if last != nil && !maps.Equal(got, last) {
					changes++
				}
				last = got
			}
		}
		if changes > 1 {
			t.Fatalf("seed %d: %+v between %+v and %+v: %d changes", seed, s.settings, high, low, changes)
		}
	}
}

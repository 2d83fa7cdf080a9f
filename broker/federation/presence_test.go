package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const after = 30 * time.Second

func TestDecide(t *testing.T) {
	heard := func(agents, talking int, unanswered ...int) Signals {
		return Signals{noon, agents, talking, slices.Max(append(unanswered, 0))}
	}
	unheard := func(agents, talking int, unanswered ...int) Signals {
		return Signals{time.Time{}, agents, talking, slices.Max(append(unanswered, 0))}
	}
	for _, c := range []struct {
		name   string
		was    Verdict
		is     Signals
		silent time.Duration
		want   Verdict
	}{
		{"all is well", Here, heard(3, 3), 0, Here},
		{"the stream is silent", Here, heard(3, 1), time.Hour, Here},
		{"the tunnels are silent", Here, heard(3, 0, 3), after - 1, Here},
		{"both are", Here, heard(3, 0, 3), after, Gone},
		{"the tunnels are idle, and nobody tried", Here, heard(3, 0), 24 * time.Hour, Here},
		{"one of three tried in vain", Here, heard(3, 0, 1), 24 * time.Hour, Here},
		{"two of three tried in vain", Here, heard(3, 0, 2), after, Gone},
		{"half tried in vain", Here, heard(4, 0, 2), 24 * time.Hour, Here},
		{"all but one tried in vain, and that one was answered", Here, heard(3, 1, 2), 24 * time.Hour, Here},
		{"the stream is back", Gone, heard(3, 0), 0, Here},
		{"a tunnel is back", Gone, heard(3, 1, 2), time.Hour, Here},
		{"nothing is back, and the agents went too", Gone, heard(0, 0), time.Hour, Gone},
		{"there are no agents", Here, heard(0, 0), time.Hour, Here},
		{"just started", Unknown, unheard(0, 0), 0, Unknown},
		{"just started, and there are agents", Unknown, unheard(3, 0, 3), after - 1, Unknown},
		{"just started, and one agent talks", Unknown, unheard(3, 1), 0, Here},
		{"just started, and it is heard", Unknown, heard(0, 0), 0, Here},
		{"never heard, and agents say so too", Unknown, unheard(3, 0, 3), after, Gone},
		{"never heard, and the agents have yet to try", Unknown, unheard(3, 0), after, Unknown},
		{"never heard, and the agents have yet to come", Unknown, unheard(0, 0), after + agentsGrace - 1, Unknown},
		{"never heard, and no agents come", Unknown, unheard(0, 0), after + agentsGrace, Here},
		{"no agents came until late", Here, unheard(1, 0, 1), after + agentsGrace + 1, Gone},
	} {
		if got := decide(c.was, c.is, c.silent, after); got != c.want {
			t.Errorf("%s: %v; want %v", c.name, got, c.want)
		}
	}
}

// One signal that comes and goes, in whatever way, moves nothing while the other is there; and a cluster that is gone
// has neither.
func TestOneSignalAloneChangesNothing(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 6))
		streams := seed%2 == 0 // the one that is steady
		f := newFixture("c2")
		s := Signals{LastHeard: noon, Agents: 3, Talking: 3}
		for range 300 {
			f.now = f.now.Add(pollInterval)
			if streams {
				s.LastHeard, s.Agents = f.now.Add(-time.Duration(r.IntN(int(after)))), r.IntN(4)
				s.Talking = r.IntN(s.Agents + 1)
			} else {
				s.Talking = 1 + r.IntN(3)
				if r.IntN(20) == 0 {
					s.LastHeard = f.now
				}
			}
			f.evaluate(f.now, map[string]Signals{"c2": s})
		}
		if got := strings.Join(f.reported, "; "); got != "c2 false" {
			t.Fatalf("seed %d: %s", seed, got)
		}
	}
}

type fixture struct {
	*Presence
	now              time.Time
	reported, warned []string
	probed           []string
	// full says that no warning is accepted.
	full bool
}

func newFixture(clusters ...string) *fixture {
	f := &fixture{now: noon}
	f.Presence = NewPresence(PresenceOptions{
		Clusters: clusters, SilentAfter: after, Probe: func(clusters []string) { f.probed = clusters },
		Unknown:  func(...string) {},
		OnChange: func(cluster string, gone bool) { f.reported = append(f.reported, fmt.Sprint(cluster, " ", gone)) },
		Warn: func(reason finding.Code, note string) bool {
			if !f.full {
				f.warned = append(f.warned, string(reason)+": "+note)
			}
			return !f.full
		},
		Recorder: debug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.DiscardHandler),
	})
	return f
}

// run looks every second until a time.
func (f *fixture) run(to time.Duration, signals map[string]Signals) {
	for end := noon.Add(to); f.now.Before(end); {
		f.now = f.now.Add(pollInterval)
		f.evaluate(f.now, signals)
	}
}

func (f *fixture) gone(t *testing.T) string {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(f)
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "semaphore_broker_cluster_gone" {
		t.Fatal(families, err)
	}
	var out []string
	for _, m := range families[0].GetMetric() {
		out = append(out, fmt.Sprint(m.GetLabel()[0].GetValue(), " ", m.GetGauge().GetValue()))
	}
	return strings.Join(out, "; ")
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q; want %q", what, got, want)
	}
}

// TestWarningsWithoutRoom: a warning that is not accepted is repeated until it is, unless a newer one of its cluster
// replaces it.
func TestWarningsWithoutRoom(t *testing.T) {
	f := newFixture("c2", "c3")
	here := func(c2, c3 int) map[string]Signals {
		return map[string]Signals{"c2": {noon, 3, c2, 3 - c2}, "c3": {noon, 3, c3, 3 - c3}}
	}
	f.run(time.Second, here(3, 3))
	f.full = true
	f.run(2*after, here(0, 0))
	f.run(2*after+time.Minute, here(0, 3))
	f.full = false
	f.run(2*after+time.Minute+2*time.Second, here(0, 3))
	if len(f.warned) != 2 || !strings.HasPrefix(f.warned[0], "ClusterGone: cluster c2 is gone") ||
		!strings.HasPrefix(f.warned[1], "ClusterBack: cluster c3 is back") {
		t.Errorf("warned %q", f.warned)
	}
}

func TestGoneAndBack(t *testing.T) {
	f := newFixture("c2", "c3")
	s := func(heard2 time.Duration, talking2 int) map[string]Signals {
		return map[string]Signals{"c2": {noon.Add(heard2), 3, talking2, 3 - talking2}, "c3": {f.now, 3, 3, 0}}
	}
	f.run(time.Second, s(0, 3))
	f.run(100*time.Second, s(0, 3)) // the stream alone
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 false; c3 false")
	equal(t, "metric", f.gone(t), "c2 0; c3 0")
	f.run(101*time.Second, s(0, 0))
	equal(t, "reported", strings.Join(f.reported[2:], "; "), "c2 true")
	equal(t, "metric", f.gone(t), "c2 1; c3 0")
	if p := finding.Texts(f.Findings()); len(p) != 1 ||
		!strings.HasPrefix(p[0], "cluster c2 is gone since 2026-01-02T12:01:41Z: ") ||
		!strings.Contains(p[0], "none of the 3 nodes that report has a session with its nodes, and 3 of them tried in vain") {
		t.Errorf("%q", p)
	}
	f.run(200*time.Second, s(0, 0))
	f.run(201*time.Second, s(200*time.Second, 0))
	f.run(220*time.Second, s(200*time.Second, 0))
	equal(t, "reported", strings.Join(f.reported[3:], "; "), "c2 false")
	equal(t, "metric", f.gone(t), "c2 0; c3 0")
	if len(finding.Texts(f.Findings())) != 0 || len(f.warned) != 2 ||
		!strings.HasPrefix(f.warned[1], "ClusterBack: cluster c2 is back since ") ||
		!strings.Contains(f.warned[1], ": its exporter sent a message at ") {
		t.Errorf("%q, %q", finding.Texts(f.Findings()), f.warned)
	}
}

// A process that was stopped has heard no cluster, and reports none as gone before it has listened again.
func TestAStoppedProcessReportsNoClusterGone(t *testing.T) {
	f := newFixture("c2")
	s := map[string]Signals{"c2": {noon, 3, 0, 3}}
	f.run(10*time.Second, s)
	f.now = f.now.Add(time.Hour)
	f.evaluate(f.now, s)
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 false")
	for range 29 {
		f.now = f.now.Add(pollInterval)
		f.evaluate(f.now, s)
	}
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 false")
	f.now = f.now.Add(pollInterval)
	f.evaluate(f.now, s)
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 false; c2 true")
}

// A broker that has just started says nothing of a cluster before that had the time to be heard.
func TestStart(t *testing.T) {
	f := newFixture("c2")
	f.run(30*time.Second, map[string]Signals{"c2": {time.Time{}, 3, 0, 3}})
	equal(t, "reported", strings.Join(f.reported, "; "), "")
	f.run(31*time.Second, map[string]Signals{"c2": {time.Time{}, 3, 0, 3}})
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 true")
	if p := finding.Texts(f.Findings()); len(p) != 1 ||
		!strings.Contains(p[0], "its exporter has sent nothing since this broker started at 2026-01-02T12:00:01Z") {
		t.Errorf("%q", p)
	}
}

// Tunnels that nobody uses say nothing: agents are to try, from when the exporter is late until it is heard, and a
// cluster whose nodes answer is here however long its exporter is silent.
func TestIdleTunnelsAreProbed(t *testing.T) {
	f := newFixture("c2", "c3")
	s := func(answers bool) map[string]Signals {
		c2 := Signals{LastHeard: noon, Agents: 3}
		if answers {
			c2.Talking = 1
		}
		return map[string]Signals{"c2": c2, "c3": {f.now, 3, 0, 0}}
	}
	for ; f.now.Before(noon.Add(24 * time.Hour)); f.now = f.now.Add(pollInterval) {
		f.probed = nil
		// One tunnel is used for some time, and idle for longer.
		f.evaluate(f.now, s(f.now.Sub(noon)%time.Hour < 3*time.Minute))
		if silent := f.now.Sub(noon); (silent >= probeAfter) != slices.Equal(f.probed, []string{"c2"}) {
			t.Fatalf("after %s of silence, agents are to probe %v", silent, f.probed)
		}
	}
	equal(t, "reported", strings.Join(f.reported, "; "), "c2 false; c3 false")
	f.probed = nil
	f.evaluate(f.now, map[string]Signals{"c2": {f.now, 3, 0, 0}, "c3": {f.now, 3, 0, 0}})
	if f.probed != nil {
		t.Errorf("%v is to be probed, which is heard", f.probed)
	}
}

// TestAgentsAreAskedAboutTheLate: what agents report is read only of the clusters whose exporter is late, and it
// decides there.
func TestAgentsAreAskedAboutTheLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), map[string]int{}
		f := newFixture("c2", "c3")
		f.options.Heard = func() map[string]time.Time { return map[string]time.Time{"c2": time.Now(), "c3": began} }
		f.options.Tunnels = func(clusters []string) map[string]Signals {
			asked[strings.Join(clusters, ", ")]++
			return map[string]Signals{"c3": {Agents: 3, Unanswered: 3}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), after+pollInterval/2)
		defer cancel()
		if err := f.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		if polls := int((after-probeAfter)/pollInterval) + 1; len(asked) != 1 || asked["c3"] != polls {
			t.Errorf("asked %v, want c3 at %d polls", asked, polls)
		}
		equal(t, "reported", strings.Join(f.reported, "; "), "c2 false; c3 false; c3 true")
	})
}

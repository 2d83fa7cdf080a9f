package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Failure is what a seed found.
type Failure struct {
	Seed uint64
	Step int
	// Invariant is the name of the broken invariant; see README.md.
	Invariant string
	Problem   string
	// Trace is the last lines of the trace.
	Trace []string
}

func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d, step %d: %s: %s", f.Seed, f.Step, f.Invariant, f.Problem)
}

// Outcome is the result of a run.
type Outcome struct {
	// Steps is the number of steps.
	Steps int
	// Trace is the sum of the trace, if it was recorded: equal for two runs of one seed.
	Trace uint64
	// Failure is nil if nothing was found.
	Failure *Failure
}

// world is one run.
type world struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Time
	step    int
	trace   *trace
	failure *Failure
	ids     int
	// active counts steps other than a heartbeat, its answer, or a check that finds nothing to do.
	active int

	// The seed's decisions for the whole run.
	namespaces      int           // how many of them there are
	hostile         bool          // whether clusters export what they may not
	window          int           // messages that a stream holds
	chunk           int           // changes in a message, of both protocols; 0 for as many as in the product
	lossy           float64       // how often a part of a snapshot is lost
	earlyBeats      bool          // whether exporters send heartbeats before Welcome
	braked          bool          // whether the brake is on
	lag             float64       // how often a first list is an old one
	tombstones      int           // deletions that a catalog remembers
	brake           string        // the broker's configuration of it
	setSizes        []int         // one of them is the most addresses that a broker puts into an object
	settled         time.Duration // for how long nothing happens in the end
	writesFail      float64       // how often
	changes, faults float64       // how often, of the steps

	sources    []*source
	dests      []*dest
	exporters  []*exporter
	conns      []*conn
	agentConns []*agentConn
}

// Run plays one seed. tell, if not nil, receives every line of the trace.
func Run(seed uint64, tell func(string)) Outcome {
	if tell != nil {
		return run(seed, newTrace(tell))
	}
	out := run(seed, nil)
	if out.Failure != nil {
		out = run(seed, newTrace(func(string) {})) // once more, for the trace
	}
	return out
}

func run(seed uint64, t *trace) (out Outcome) {
	w := newWorld(seed, t)
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic", "%v\n%s", p, debug.Stack())
		}
		out = Outcome{Steps: w.step, Failure: w.failure}
		if t != nil {
			out.Trace = t.sum
		}
		if t != nil && w.failure != nil {
			w.failure.Trace = t.tail()
		}
	}()
	w.play()
	return out
}

func newWorld(seed uint64, t *trace) *world {
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 0)),
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), trace: t}
	w.namespaces = 1 + w.rng.IntN(len(namespaces))
	w.hostile = w.chance(0.5)
	w.window = 1 + w.rng.IntN(4)
	w.lag = pick(w, []float64{0, 0.5})
	w.chunk = pick(w, []int{0, 1, 2, 3})
	w.lossy = pick(w, []float64{0, 0, 0, 0.05})
	w.earlyBeats = w.chance(0.5)
	w.tombstones = pick(w, []int{1, 3, 10, 10_000})
	w.brake, w.settled = `{"percent": 100}`, settled
	if w.braked = w.chance(0.25); w.braked {
		w.brake, w.settled = `{"percent": 50, "atLeast": 3, "hold": "20s"}`, settledBraked
	}
	w.setSizes = pick(w, [][]int{{1000}, {1}, {2}, {1, 3}})
	w.changes = pick(w, []float64{0.03, 0.1, 0.25})
	w.faults = pick(w, []float64{0, 0.01, 0.03, 0.08})
	w.writesFail = pick(w, []float64{0, 0, 0.05, 0.2})
	for i, name := range []string{"c2", "c2-a", "c3"}[:1+w.rng.IntN(3)] {
		w.sources = append(w.sources, newSource(w, i, name))
	}
	for _, name := range []string{"d1", "d2"}[:1+w.rng.IntN(2)] {
		w.dests = append(w.dests, newDest(w, name))
	}
	return w
}

func (w *world) clock() time.Time { return w.now }

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

// tracef adds a line to the trace. Without a reader it costs next to nothing.
func (w *world) tracef(format string, args ...any) {
	if w.trace == nil {
		return
	}
	w.trace.add(fmt.Sprintf("%d %s ", w.step, w.now.Format("04:05.000")) + fmt.Sprintf(format, args...))
}

// fail records a failure; the first one counts.
func (w *world) fail(invariant, format string, args ...any) {
	if w.failure == nil {
		problem := fmt.Sprintf(format, args...)
		w.tracef("%s: %s", invariant, problem)
		w.failure = &Failure{Seed: w.seed, Step: w.step, Invariant: invariant, Problem: problem}
	}
}

func (w *world) sourceNames() []string {
	var names []string
	for _, s := range w.sources {
		names = append(names, s.name)
	}
	return names
}

func (w *world) catalogRules() catalog.Rules {
	rules := catalog.Rules{LabelDomains: []string{naming.DefaultLabelDomain}, Mirror: mirrorSelector,
		Global: globalSelector, Tombstones: w.tombstones,
		Features: config.Features{config.Encryption, config.Services, config.Policy}}
	for _, d := range w.dests {
		rules.Clusters = append(rules.Clusters, d.name)
	}
	return rules
}

var mirrorSelector, globalSelector = mustSelect(naming.DefaultMirrorSelector), mustSelect(naming.DefaultGlobalSelector)

func mustSelect(text string) labels.Selector {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// action is one thing that can happen; it reports whether it did.
type action struct {
	weight int
	do     func(*world) bool
}

// work is what continues without an event.
var work = []action{
	{12, (*world).watch},
	{1, (*world).dial},
	{12, (*world).pump},
	{14, (*world).deliverUp},
	{8, (*world).deliverDown},
	{4, (*world).notice},
	{12, (*world).inform},
	{12, (*world).reconcile},
	{12, (*world).land},
	{16, (*world).peering},
}

// events are what happens besides.
var events = []action{
	{14, func(w *world) bool { return pick(w, w.sources).mutate() }},
	{1, func(w *world) bool { return pick(w, w.dests).meddle() }},
	{1, func(w *world) bool { return w.braked && pick(w, w.sources).withdraw() }},
}

// faults end after some time.
var faults = []action{
	{6, (*world).stall},
	{6, (*world).unstall},
	{4, (*world).cut},
	{2, (*world).halfOpen},
	{3, (*world).overlap},
	{3, (*world).hesitate},
	{2, (*world).age},
	{2, (*world).rotate},
	{2, (*world).crashAgent},
	{2, (*world).crashExporter},
	{4, (*world).startExporter},
	{2, (*world).pauseExporter},
	{3, (*world).resumeExporter},
	{1, (*world).splitExporter},
	{2, (*world).deposed},
	{2, (*world).crashBroker},
	{4, (*world).startBroker},
	{2, (*world).pauseBroker},
	{2, (*world).resumeBroker},
	{3, (*world).relist},
	{3, (*world).lateWrite},
	{2, (*world).unreachable},
	{4, (*world).blackout},
	{1, (*world).release},
}

func (w *world) play() {
	for _, s := range w.sources {
		for range 4 + w.rng.IntN(12) {
			s.mutate()
		}
		w.newExporter(s)
	}
	for _, d := range w.dests {
		d.newBroker()
		for i := range 1 + w.rng.IntN(3) {
			d.agents = append(d.agents, newAgent(d, fmt.Sprintf("n%d", i)))
		}
	}
	calm := 60 // steps in which nothing goes wrong and little changes: enough to come to know each other
	for range 200 + w.rng.IntN(400) {
		w.step++
		x := w.rng.Float64()
		changes, faultsNow := w.changes, w.faults
		if calm > 0 {
			calm--
			changes, faultsNow = w.changes/10, 0
		} else if w.chance(0.005) {
			calm = 20 + w.rng.IntN(60)
		}
		switch {
		case x < faultsNow:
			w.one(faults)
		case x < faultsNow+changes:
			w.one(events)
		case x < faultsNow+changes+0.05:
			w.wait()
		default:
			if !w.one(work) {
				w.wait()
			}
		}
		if w.failure != nil {
			return
		}
	}
	w.quiet()
}

// one runs one of the actions, by their weights; false if many tries found none that can run.
func (w *world) one(actions []action) bool {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	for range 12 {
		n := w.rng.IntN(total)
		i := 0
		for ; n >= actions[i].weight; i++ {
			n -= actions[i].weight
		}
		if actions[i].do(w) {
			return true
		}
	}
	return false
}

// any_ calls f for a random element of all for which it can run.
func any_[T any](w *world, all []T, f func(T) bool) bool {
	if len(all) == 0 {
		return false
	}
	from := w.rng.IntN(len(all))
	for i := range all {
		if f(all[(from+i)%len(all)]) {
			return true
		}
	}
	return false
}

func (w *world) watch() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		from := w.rng.IntN(kinds)
		for i := range kinds {
			if x.watch((from+i)%kinds, false) {
				return true
			}
		}
		return false
	})
}

func (w *world) relist() bool {
	if w.chance(0.5) {
		return any_(w, w.brokers(), func(b *broker) bool {
			return !b.paused && any_(w, b.loops, func(l runner) bool { return l.inform(true) })
		})
	}
	return any_(w, w.exporters, func(x *exporter) bool { return x.watch(w.rng.IntN(kinds), true) })
}

func (w *world) links() []*upLink {
	var all []*upLink
	for _, x := range w.exporters {
		all = append(all, x.links...)
	}
	return all
}

func (w *world) brokers() []*broker {
	var all []*broker
	for _, d := range w.dests {
		all = append(all, d.brokers...)
	}
	return all
}

func (w *world) dial() bool        { return any_(w, w.links(), (*upLink).dial) }
func (w *world) pump() bool        { return any_(w, w.links(), (*upLink).pump) }
func (w *world) deliverUp() bool   { return any_(w, w.conns, (*conn).deliverUp) }
func (w *world) deliverDown() bool { return any_(w, w.conns, (*conn).deliverDown) }
func (w *world) notice() bool {
	return any_(w, slices.Clone(w.conns), (*conn).notice) || any_(w, slices.Clone(w.agentConns), (*agentConn).notice)
}

// peering is a step of any of the streams to agents.
func (w *world) peering() bool {
	steps := []func() bool{
		func() bool { return any_(w, w.agents(), (*agent).dial) },
		func() bool { return any_(w, w.agentConns, (*agentConn).pump) },
		func() bool { return any_(w, w.agentConns, (*agentConn).deliverDown) },
		func() bool { return any_(w, w.agentConns, (*agentConn).deliverUp) },
	}
	return any_(w, steps, func(step func() bool) bool { return step() })
}

func (w *world) agents() []*agent {
	var all []*agent
	for _, d := range w.dests {
		all = append(all, d.agents...)
	}
	return all
}

func (w *world) wires() []*wire {
	var all []*wire
	for _, c := range w.conns {
		all = append(all, &c.wire)
	}
	for _, c := range w.agentConns {
		all = append(all, &c.wire)
	}
	return all
}

func (w *world) inform() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		return !b.paused && any_(w, b.loops, func(l runner) bool { return l.inform(false) })
	})
}

func (w *world) reconcile() bool {
	return any_(w, w.brokers(), func(b *broker) bool { return !b.paused && any_(w, b.loops, runner.reconcile) })
}

func (w *world) land() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		b.d.writing = b
		fails := w.chance(w.writesFail)
		return !b.paused && any_(w, b.loops, func(l runner) bool { return l.land(fails && w.chance(0.7), fails) })
	})
}

// wait lets time pass.
func (w *world) wait() bool {
	w.pass(pick(w, []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
		300 * time.Millisecond, time.Second, 3 * time.Second, 12 * time.Second}))
	return true
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.tracef("%s pass", d)
	for _, b := range w.brokers() {
		if !b.paused {
			b.due(w.now)
		}
	}
	for _, l := range w.links() {
		l.tick()
	}
}

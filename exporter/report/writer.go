package report

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/waiting"
)

const (
	pollInterval = time.Second
	// unconfirmedFor is how long a broker must not have answered before that is written: after a new stream, or a
	// change of the Service, the answer usually comes sooner.
	unconfirmedFor = 15 * time.Second
	// writers is the maximal number of writes in flight.
	writers = 4
	// share bounds the time for computing all conditions, or all Events: one part of this many, but at least once in
	// maxWait.
	share, maxWait = 10, 30 * time.Second
	// retryInterval is the wait after maxFailed writes of a pass failed.
	retryInterval = 5 * time.Second
	maxFailed     = 10
)

// ofConditions spaces the writes of one export.
var ofConditions = waiting.Rule{Least: time.Second, Most: time.Minute, Calm: 2 * time.Minute}

type ConditionMetrics struct {
	writes    *prometheus.CounterVec
	unwritten prometheus.Gauge
}

func NewConditionMetrics(reg prometheus.Registerer) *ConditionMetrics {
	m := &ConditionMetrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_exporter_condition_writes_total",
			Help: "Conditions of ServiceExports: written, unchanged (the apiserver had them already) or failed.",
		}, []string{"result"}),
		unwritten: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "semaphore_exporter_conditions_unwritten",
			Help: "ServiceExports whose conditions are to be written.",
		}),
	}
	for _, result := range []string{written, unchanged, failed} {
		m.writes.WithLabelValues(result)
	}
	reg.MustRegister(m.writes, m.unwritten)
	return m
}

const written, unchanged, failed = "written", "unchanged", "failed"

// Conditions writes the conditions of one exporter's ServiceExports.
type Conditions struct {
	own     string
	catalog *catalog.Catalog
	brokers func() map[string]Broker
	exports mcs.Resource[*mcsv1beta1.ServiceExport]
	metrics *ConditionMetrics
	problem *kube.Problem
	seed    maphash.Seed

	states map[key]*state
	// failing is why the last write of an export failed.
	failing map[key]string
	// seen are the versions of exports and verdicts at the last pass.
	seen map[string]uint64
	// notBefore is when the next pass may begin.
	notBefore time.Time
}

// state is the state of the conditions of one ServiceExport. There may be 100,000.
type state struct {
	// current is the meaning of the conditions, unchanged since since; written is the meaning that was written. They
	// are hashes; 0 for none.
	current, written uint64
	since            time.Time
	// writes counts by the time when the pass of a write began.
	writes waiting.Repeats
	said   []said
	// conflict is the own broker's last answer, and ended since when it reports no conflict.
	conflict Conflict
	ended    time.Time
	// silent means that a broker has not answered yet, about any revision.
	silent bool
}

// said is the last answer of a cluster's broker about an object.
type said struct {
	cluster, objection string
	revision           uint64
	// doubted is since when the object has another revision without an answer, or, with ended, since when the broker no
	// longer objects. Zero for neither.
	doubted time.Time
	ended   bool
	// expired means that an answer about an earlier revision no longer counts.
	expired bool
	// asked means that the pass has asked for it.
	asked bool
}

// NewConditions makes a writer for the cluster own; brokers returns the publishers by cluster. Nothing is written
// before Run.
func NewConditions(own string, client *mcs.Client, c *catalog.Catalog, brokers func() map[string]Broker,
	metrics *ConditionMetrics, log *slog.Logger) *Conditions {
	return &Conditions{
		own: own, catalog: c, brokers: brokers, exports: client.Exports(), metrics: metrics,
		problem: kube.NewProblem(log), seed: maphash.MakeSeed(), states: map[key]*state{}, failing: map[key]string{},
	}
}

// Problems returns why conditions are not written, a line each.
func (w *Conditions) Problems() []string { return w.problem.Lines() }

// Run writes conditions until ctx ends, and returns ctx's error.
func (w *Conditions) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			if now.Before(w.notBefore) {
				continue
			}
			if err := w.pass(ctx, now); err != nil {
				return err
			}
		}
	}
}

// due is a ServiceExport whose conditions must be written.
type due struct {
	export catalog.ServiceExport
	state  *state
	want   []metav1.Condition
}

// pass computes the conditions of all exports and writes changes, for a limited time: other conditions may change
// meanwhile. The error is that of ctx.
func (w *Conditions) pass(ctx context.Context, now time.Time) error {
	brokers := w.brokers()
	seen := versions(w.catalog, brokers)
	if maps.Equal(seen, w.seen) && !w.waiting() {
		return nil
	}
	w.seen = seen
	began := time.Now()
	all := w.due(brokers, now)
	pause := min(share*time.Since(began), maxWait)
	w.notBefore = began.Add(pause)
	w.metrics.unwritten.Set(float64(w.unwritten())) // a pass may take long
	if stopped := w.write(ctx, all, now, max(pollInterval, pause)); stopped {
		w.notBefore = time.Now().Add(retryInterval)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.metrics.unwritten.Set(float64(w.unwritten()))
	w.problem.Set(w.failure())
	return nil
}

// unwritten counts the exports whose current conditions are not written, also those that are due later.
func (w *Conditions) unwritten() (n int) {
	for _, s := range w.states {
		if s.written != s.current {
			n++
		}
	}
	return n
}

// failure returns why conditions are not written: the failure of one export, always the same one.
func (w *Conditions) failure() string {
	if len(w.failing) == 0 {
		return ""
	}
	at := slices.MinFunc(slices.Collect(maps.Keys(w.failing)), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return fmt.Sprintf("the conditions of ServiceExport %s/%s are not written (the component features/mcs has the right "+
		"to): %s", at.namespace, at.name, w.failing[at])
}

// due returns the exports whose conditions must be written now, the last changed ones first: an object that a person
// has just changed must not wait for 100,000 others.
func (w *Conditions) due(brokers map[string]Broker, now time.Time) (all []due) {
	there := map[key]bool{}
	for _, x := range w.catalog.ServiceExports() {
		at := key{x.Namespace, x.Name}
		there[at] = true
		s := w.states[at]
		if s == nil {
			s = &state{}
			w.states[at] = s
		}
		s.silent = x.Offer == nil
		own, compared := brokers[w.own], false
		want, known := conditionsOf(x, w.own, own != nil, func(cluster string) (string, bool) {
			return s.verdict(x.Offer, cluster, brokers[cluster], now)
		}, func() Conflict {
			compared = true
			return s.conflicts(x.Offer, own, now)
		})
		s.settle(x.Offer, compared)
		if meaning := w.meaning(x, want); meaning != s.current {
			s.current, s.since = meaning, now
		}
		if s.written == s.current {
			continue
		}
		if now.Before(s.writes.Next(ofConditions)) || !known && s.silent && now.Sub(s.since) < unconfirmedFor {
			continue
		}
		all = append(all, due{x, s, want})
	}
	for at := range w.states {
		if !there[at] {
			delete(w.states, at)
			delete(w.failing, at)
		}
	}
	slices.SortStableFunc(all, func(a, b due) int { return b.state.since.Compare(a.state.since) })
	return all
}

// verdict returns the answer of a cluster's broker about an offer, or its last one.
func (s *state) verdict(o *catalog.Offer, cluster string, broker Broker, now time.Time) (objection string, known bool) {
	i := slices.IndexFunc(s.said, func(d said) bool { return d.cluster == cluster })
	if broker != nil {
		if objection, known = broker.Verdict(o.Key(), o.Revision); known {
			if i < 0 {
				s.said = append(s.said, said{cluster: cluster})
				i = len(s.said) - 1
			}
			return s.said[i].says(objection, o.Revision, now), true
		}
	}
	if i < 0 {
		s.silent = true
		return "", false
	}
	return s.said[i].lasts(o.Revision, now)
}

// says records an answer about a revision. A broker that no longer objects must have done so for unconfirmedFor, unless
// the object has changed: a broker that has just started has not tried its writes.
func (d *said) says(objection string, revision uint64, now time.Time) string {
	d.asked = true
	if objection == "" && d.objection != "" && d.revision == revision {
		if !d.ended {
			d.ended, d.doubted = true, now
		}
		if now.Sub(d.doubted) < unconfirmedFor {
			return d.objection
		}
	}
	*d = said{cluster: d.cluster, objection: objection, revision: revision, asked: true}
	return objection
}

// lasts returns the last answer while there is no new one: about the same revision it counts until the next one; about
// an earlier revision, for unconfirmedFor.
func (d *said) lasts(revision uint64, now time.Time) (objection string, known bool) {
	d.asked = true
	if d.ended {
		d.ended, d.doubted = false, time.Time{}
	}
	switch {
	case d.revision == revision:
	case d.doubted.IsZero():
		d.doubted = now
	case now.Sub(d.doubted) >= unconfirmedFor:
		d.expired = true
	}
	return d.objection, !d.expired
}

// settle discards answers about withdrawn offers, and ends the waits for which the pass did not ask: a later pass
// begins them again. compared means that the pass asked for conflicts.
func (s *state) settle(o *catalog.Offer, compared bool) {
	if o == nil {
		s.said, s.conflict, s.ended = nil, Conflict{}, time.Time{}
		return
	}
	s.said = slices.DeleteFunc(s.said, func(d said) bool { return !d.asked && !slices.Contains(o.To, d.cluster) })
	for i := range s.said {
		d := &s.said[i]
		if !d.asked {
			d.ended, d.doubted = false, time.Time{}
		}
		d.asked = false
	}
	if !compared {
		s.ended = time.Time{}
	}
}

// conflicts returns the own broker's answer about an offer, or its last one. The end of a conflict counts after
// unconfirmedFor: a broker that has just started has not received all exports.
func (s *state) conflicts(o *catalog.Offer, own Broker, now time.Time) Conflict {
	if _, known := own.Verdict(o.Key(), o.Revision); !known {
		s.ended = time.Time{}
		return s.conflict
	}
	reasons, message := own.Conflict(o.Key())
	switch {
	case len(reasons) > 0:
		s.conflict, s.ended = Conflict{reasons, message}, time.Time{}
	case len(s.conflict.Reasons) == 0:
	case s.ended.IsZero():
		s.ended = now
	case now.Sub(s.ended) >= unconfirmedFor:
		s.conflict, s.ended = Conflict{}, time.Time{}
	}
	return s.conflict
}

// meaning is equal for conditions with the same meaning for the same object.
func (w *Conditions) meaning(x catalog.ServiceExport, all []metav1.Condition) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	fmt.Fprintf(&h, "%s %d", x.UID, x.Generation)
	for _, c := range all {
		for _, text := range []string{c.Type, string(c.Status), c.Reason, c.Message} {
			h.WriteString(text)
			h.WriteByte(0)
		}
	}
	return max(h.Sum64(), 1)
}

// waiting reports whether conditions may become due by time alone.
func (w *Conditions) waiting() bool {
	expires := func(d said) bool { return !d.doubted.IsZero() && !d.expired }
	for _, s := range w.states {
		if s.written != s.current || !s.ended.IsZero() || slices.ContainsFunc(s.said, expires) {
			return true
		}
	}
	return false
}

// write writes conditions for a limited time. stopped means that it ended early, because too many writes failed.
func (w *Conditions) write(ctx context.Context, all []due, now time.Time, within time.Duration) (stopped bool) {
	end, failures := time.Now().Add(within), 0
	var mu sync.Mutex
	next := func() (d due, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 || failures >= maxFailed || ctx.Err() != nil || time.Now().After(end) {
			return d, false
		}
		d, all = all[0], all[1:]
		return d, true
	}
	one := func() (more bool) {
		d, more := next()
		if !more {
			return false
		}
		result, err := w.writeOne(ctx, d.export, d.want)
		if ctx.Err() != nil {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if w.wrote(d, now, result, err); err != nil {
			failures++
		}
		return true
	}
	var group sync.WaitGroup
	for range min(writers, len(all)) {
		group.Go(func() {
			for one() {
			}
		})
	}
	group.Wait()
	return failures >= maxFailed
}

func (w *Conditions) wrote(d due, now time.Time, result string, err error) {
	w.metrics.writes.WithLabelValues(result).Inc()
	at, s := key{d.export.Namespace, d.export.Name}, d.state
	if delete(w.failing, at); err != nil {
		w.failing[at] = err.Error()
	}
	if s.written = 0; result != failed { // a failed write may have been executed
		s.written = s.current
	}
	if result == unchanged {
		return
	}
	s.writes.Add(ofConditions, now)
}

// writeOne sets the conditions of a ServiceExport, and keeps those of other types.
func (w *Conditions) writeOne(ctx context.Context, x catalog.ServiceExport, want []metav1.Condition) (result string,
	err error) {
	have, err := w.exports.Get(ctx, x.Namespace, x.Name)
	if apierrors.IsNotFound(err) || err == nil && have.UID != x.UID {
		return unchanged, nil // it was deleted; the catalog will receive a new one
	}
	if err != nil {
		return failed, err
	}
	next := have.DeepCopy()
	changed := false
	for _, c := range want {
		changed = meta.SetStatusCondition(&next.Status.Conditions, c) || changed
	}
	if !slices.ContainsFunc(want, func(c metav1.Condition) bool {
		return c.Type == string(mcsv1beta1.ServiceExportConditionConflict)
	}) && (!valid(x) || slices.ContainsFunc(want, func(c metav1.Condition) bool { return c.Message == unpublished })) {
		changed = meta.RemoveStatusCondition(&next.Status.Conditions,
			string(mcsv1beta1.ServiceExportConditionConflict)) || changed
	}
	if !changed {
		return unchanged, nil
	}
	switch _, err = w.exports.UpdateStatus(ctx, next); {
	case apierrors.IsNotFound(err):
		return unchanged, nil
	case apierrors.IsConflict(err):
		return failed, nil // another writer changed it: the next pass reads it again
	case err != nil:
		return failed, err
	}
	return written, nil
}

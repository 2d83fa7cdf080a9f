package stored

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file stores operators' drains in a ConfigMap: their targets, ends and authors.
//
// It owns that ConfigMap. Inputs are changes by operators, through the broker or kubectl; the output is the set of
// active drains. Package drain decides what a drain covers; the engine of services applies it.

// DrainsName is the name of the ConfigMap with the drains, one under each key of its data.
const DrainsName = "semaphore-drains"

const (
	// drainTries bounds the retries of a change after conflicts.
	drainTries = 5
	// endsEvery is the longest interval between checks whether a drain has ended: an operator may set the clock.
	endsEvery = time.Minute
)

// Drains watches and writes the drains of operators. They are only in a ConfigMap, so that they outlive the broker and
// kubectl can show and change them.
type Drains struct {
	kube      kubernetes.Interface
	namespace string
	changed   func(choice.Drains)
	options   apply.Options
	loop      *reconcile.Loop[string]
	belief    *writes.Belief[*corev1.ConfigMap]
	now       func() time.Time
	// known is closed when the drains are known.
	known chan struct{}

	// changing is locked during a write.
	changing sync.Mutex

	mu sync.Mutex
	// held are the active drains, once published.
	held      choice.Drains
	published bool
	// unread has the reason for each key that cannot be read, and foreign the reason if none is read; failed is why the
	// ConfigMap could not be listed or watched.
	unread          map[string]error
	foreign, failed error
}

// NewDrains returns a Store. It calls changed with the active drains when they are known, and after each change.
func NewDrains(kube kubernetes.Interface, namespace string, changed func(choice.Drains),
	options apply.Options) *Drains {
	d := &Drains{kube: kube, namespace: namespace, changed: changed, options: options, now: time.Now,
		known: make(chan struct{})}
	d.belief = writes.NewBelief[*corev1.ConfigMap]()
	d.loop = reconcile.New(string(writes.Drains), d.reconcile, reconcile.Options{Workers: 1,
		Metrics: options.Metrics.Loops,
		Log:     options.Log})
	return d
}

func (d *Drains) key() string { return d.namespace + "/" + DrainsName }

func (d *Drains) Synced() bool {
	select {
	case <-d.known:
		return true
	default:
		return false
	}
}

// Wait waits until the drains are known and published. Endpoints that are written earlier could put a drained one into
// use. It fails if ctx ends before.
func (d *Drains) Wait(ctx context.Context) error {
	select {
	case <-d.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Held returns the active drains, sorted by what they cover.
func (d *Drains) Held() choice.Drains {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// Findings are what cannot be read or written.
func (d *Drains) Findings() []finding.Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	if d.foreign != nil {
		lines = append(lines, d.foreign.Error())
	}
	switch {
	case d.failed != nil && d.Synced():
		lines = append(lines, fmt.Sprintf("changes of drains by others are not known: ConfigMap %s: %v", d.key(), d.failed))
	case d.failed != nil:
		lines = append(lines, fmt.Sprintf(
			"drains are not known, and until they are no service is written: ConfigMap %s: %v", d.key(), d.failed))
	}
	for _, key := range slices.Sorted(maps.Keys(d.unread)) {
		lines = append(lines, d.unread[key].Error())
	}
	for _, p := range d.loop.Problems() {
		since := p.Since.UTC().Format(time.RFC3339)
		lines = append(lines, fmt.Sprintf("%v (since %s)", p.Err, since))
	}
	return finding.Lines(finding.DrainsFailed, "", lines)
}

// Run watches the ConfigMap until ctx ends, and returns ctx's error.
func (d *Drains) Run(ctx context.Context) error {
	// RBAC allows listing this ConfigMap alone
	var store apply.Store[*corev1.ConfigMap]
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, DrainsName).String()
	return apply.Watch[*corev1.ConfigMap]{
		Kind: writes.Drains, Example: &corev1.ConfigMap{},
		ListWatch: apply.ListWatch(d.kube.CoreV1().ConfigMaps(d.namespace), metav1.ListOptions{FieldSelector: one}),
		Reduce:    func(cm *corev1.ConfigMap) *corev1.ConfigMap { return cm },
		Saw: func(_, cm *corev1.ConfigMap, gone bool) {
			d.belief.Informed(d.key(), cm, gone)
			d.loop.Enqueue(DrainsName)
		},
		Failed: func(err error) {
			d.mu.Lock()
			d.failed = err
			d.mu.Unlock()
		},
	}.Run(ctx, d.options.Informers(), &store, func(ctx context.Context) error {
		d.publish()
		close(d.known)
		d.loop.Enqueue(DrainsName)
		return d.loop.Run(ctx)
	})
}

// reconcile publishes the active drains, and removes those that have ended.
func (d *Drains) reconcile(ctx context.Context, _ string) error {
	confirmed := d.confirm(ctx)
	next := d.publish()
	if left := d.belief.Left(time.Now(), d.key()); left > 0 {
		d.loop.EnqueueAfter(DrainsName, left)
	}
	if !next.IsZero() {
		d.loop.EnqueueAfter(DrainsName, min(next.Sub(d.now()), endsEvery))
	}
	if cm, ok := d.belief.Get(time.Now(), d.key()); !ok || !writes.Ours(cm) || len(d.over(cm.Data)) == 0 {
		return confirmed
	}
	return errors.Join(confirmed, d.write(ctx, "drains that have ended are not removed", func(data map[string]string) {
		for _, key := range d.over(data) {
			delete(data, key)
		}
	}))
}

// confirm reads the ConfigMap if the watch did not report an own write in time: it may fail, and what it reported
// earlier lacks the drain that an operator was promised. Until the read succeeds, the own write counts.
func (d *Drains) confirm(ctx context.Context) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	wrote, expired := d.belief.Expire(time.Now(), d.key())
	if !expired {
		return nil
	}
	cm, err := d.kube.CoreV1().ConfigMaps(d.namespace).Get(ctx, DrainsName, metav1.GetOptions{})
	switch {
	case err == nil:
		d.belief.Wrote(time.Now(), d.key(), cm)
	case apierrors.IsNotFound(err):
		d.belief.Informed(d.key(), wrote, true)
	default:
		d.belief.Wrote(time.Now(), d.key(), wrote)
		return fmt.Errorf("a change of drains is not confirmed: ConfigMap %s: %w", d.key(), err)
	}
	return nil
}

// over returns the keys of drains that have ended.
func (d *Drains) over(data map[string]string) []string {
	var keys []string
	for key, value := range data {
		if is, err := choice.Parse(value); err == nil && is.Ended(d.now()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// publish reads the ConfigMap and publishes the active drains if they changed. next is when the next drain ends; zero
// for none.
func (d *Drains) publish() (next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cm, there := d.belief.Get(time.Now(), d.key()) // with the lock, so that of two calls the later has the newer set
	var all []choice.Drain
	unread := map[string]error{}
	var foreign error
	switch {
	case !there:
	case !writes.Ours(cm):
		foreign = fmt.Errorf("ConfigMap %s lacks the label %s: none of its drains is active", d.key(), writes.Owned)
	default:
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			is, err := choice.Parse(cm.Data[key])
			if err != nil {
				unread[key] = fmt.Errorf("drain %s of ConfigMap %s is not active: %w", key, d.key(), err)
				continue
			}
			all = append(all, is)
		}
	}
	held, next := choice.NewDrains(all...).Active(d.now())
	if foreign != nil && d.foreign == nil {
		d.options.Events.Warn("", finding.DrainUnreadable, foreign.Error())
	}
	for key, err := range unread {
		if was := d.unread[key]; was == nil || was.Error() != err.Error() {
			d.options.Events.Warn("", finding.DrainUnreadable, err.Error())
			d.options.Log.Warn("an entry of the ConfigMap of drains is malformed and ignored", "key", key, "error", err)
		}
	}
	d.foreign, d.unread = foreign, unread
	if d.published && held.Same(d.held) {
		return next
	}
	for _, is := range held.All() {
		if !slices.ContainsFunc(d.held.All(), is.Same) {
			d.options.Recorder.Record(debug.Event{Source: is.Cluster, Object: is.String(), Action: "drain",
				Detail: describeEnd(is)})
			d.options.Log.Info("a drain began", "target", is.String(), "by", is.By, "until", is.Until)
		}
	}
	for _, was := range d.held.All() {
		if !slices.ContainsFunc(held.All(), func(is choice.Drain) bool { return is.Target == was.Target }) {
			d.options.Recorder.Record(debug.Event{Source: was.Cluster, Object: was.String(), Action: "undrain"})
			d.options.Log.Info("a drain ended", "target", was.String())
		}
	}
	d.held, d.published = held, true
	d.changed(held) // with the lock, too
	return next
}

// describeEnd returns when a drain ends, and who began it.
func describeEnd(d choice.Drain) string {
	out := "until undrained"
	if !d.Until.IsZero() {
		out = "until " + d.Until.UTC().Format(time.RFC3339)
	}
	if d.By != "" {
		out += ", by " + d.By
	}
	return out
}

// errDrainsUnknown is the error until the ConfigMap has been read.
var errDrainsUnknown = errors.New("the existing drains are not known yet: try again")

// Add stores a drain, in place of one with the same target under its own key, and waits until it is active here. It
// fails for an invalid drain, before the stored drains are known, and if the ConfigMap cannot be written.
func (d *Drains) Add(ctx context.Context, is choice.Drain) error {
	if err := is.Validate(); err != nil {
		return err
	}
	if !d.Synced() {
		return errDrainsUnknown
	}
	return d.write(ctx, "drain "+is.String(), func(data map[string]string) { data[is.Key()] = is.Text() })
}

// Remove removes all drains of a target, under whatever keys, and returns them. It fails before the stored drains are
// known, and if the ConfigMap cannot be written.
func (d *Drains) Remove(ctx context.Context, target choice.Target) ([]choice.Drain, error) {
	if !d.Synced() {
		return nil, errDrainsUnknown
	}
	var removed []choice.Drain
	err := d.write(ctx, "undrain "+target.String(), func(data map[string]string) {
		removed = nil
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if is, err := choice.Parse(data[key]); err == nil && is.Target == target {
				removed = append(removed, is)
				delete(data, key)
			}
		}
	})
	return removed, err
}

// write changes the data of the ConfigMap, and creates it if it does not exist. After a conflict it reads the ConfigMap
// and calls change again.
func (d *Drains) write(ctx context.Context, what string, change func(data map[string]string)) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	api := d.kube.CoreV1().ConfigMaps(d.namespace)
	have, there := d.belief.Get(time.Now(), d.key())
	var last error
	for range drainTries {
		if there && !writes.Ours(have) {
			return fmt.Errorf("%s: ConfigMap %s lacks the label %s: semaphore did not create it", what, d.key(), writes.Owned)
		}
		want, op := d.empty(), "create"
		if there {
			want, op = have.DeepCopy(), "update"
		}
		was := maps.Clone(want.Data)
		if want.Data == nil {
			want.Data = map[string]string{}
		}
		if change(want.Data); maps.Equal(want.Data, was) {
			return nil
		}
		var out *corev1.ConfigMap
		if there {
			out, last = api.Update(ctx, want, metav1.UpdateOptions{})
		} else {
			out, last = api.Create(ctx, want, metav1.CreateOptions{})
		}
		if last == nil {
			d.options.Metrics.Write(writes.Drains, op, "ok")
			d.belief.Wrote(time.Now(), d.key(), out)
			d.publish()
			d.loop.Enqueue(DrainsName)
			if !writes.Ours(out) || !maps.Equal(out.Data, want.Data) {
				return fmt.Errorf("%s: ConfigMap %s: a mutating webhook or policy changed the write", what, d.key())
			}
			return nil
		}
		if !apierrors.IsConflict(last) && !apierrors.IsAlreadyExists(last) && !(there && apierrors.IsNotFound(last)) {
			d.options.Metrics.Write(writes.Drains, op, "error")
			return fmt.Errorf("%s: ConfigMap %s: %w", what, d.key(), last)
		}
		d.options.Metrics.Write(writes.Drains, op, "conflict")
		d.belief.Forget(d.key())
		var err error
		have, err = api.Get(ctx, DrainsName, metav1.GetOptions{})
		if there = err == nil; err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: ConfigMap %s: %w", what, d.key(), errors.Join(last, err))
		}
	}
	return fmt.Errorf("%s: ConfigMap %s: %w", what, d.key(), last)
}

func (d *Drains) empty() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.namespace, Name: DrainsName, Labels: map[string]string{naming.LabelManagedBy: naming.ManagedByBroker},
	}}
}

var drainsDesc = prometheus.NewDesc("semaphore_broker_drains",
	"Drains by operators. A drain that cannot be read has the state unreadable.",
	[]string{"state"}, nil)

func (d *Drains) Describe(ch chan<- *prometheus.Desc) { ch <- drainsDesc }

func (d *Drains) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	held, unread := len(d.held.All()), len(d.unread)
	d.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(drainsDesc, prometheus.GaugeValue, float64(held), "held")
	ch <- prometheus.MustNewConstMetric(drainsDesc, prometheus.GaugeValue, float64(unread), "unreadable")
}

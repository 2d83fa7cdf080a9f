package apply

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
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// DrainsName is the ConfigMap that drains are kept in, one under each key of its data.
const DrainsName = "semaphore-drains"

const (
	// drainTries is how often a change is tried anew because another was faster.
	drainTries = 5
	// endsEvery is how often it is looked whether a drain's time is over, at least: the clock can be set meanwhile.
	endsEvery = time.Minute
)

// Drains follows and writes the drains of operators. They are in a ConfigMap and nowhere else, so that they outlive the
// broker, and are for kubectl to see and to change too.
type Drains struct {
	kube      kubernetes.Interface
	namespace string
	changed   func(drain.Set)
	options   Options
	loop      *reconcile.Loop[string]
	newest    *newest[*corev1.ConfigMap]
	now       func() time.Time
	// known is closed when the drains are.
	known chan struct{}

	// changing is held by each who writes.
	changing sync.Mutex

	mu sync.Mutex
	// held are the drains that hold, once told.
	held drain.Set
	told bool
	// unread is why keys are not read, and foreign why none is; failed why the ConfigMap could not be listed or watched.
	unread          map[string]error
	foreign, failed error
}

// NewDrains makes it. changed is called with the drains that hold as soon as they are known, and whenever they have changed.
func NewDrains(kube kubernetes.Interface, namespace string, changed func(drain.Set), options Options) *Drains {
	d := &Drains{kube: kube, namespace: namespace, changed: changed, options: options, newest: newNewest[*corev1.ConfigMap](), now: time.Now, known: make(chan struct{})}
	d.loop = reconcile.New("drains", d.reconcile, reconcile.Options{Workers: 1, Metrics: options.Metrics.Loops, Log: options.Log})
	options.Metrics.reg.MustRegister(d)
	return d
}

func (d *Drains) key() string { return d.namespace + "/" + DrainsName }

// Synced says whether the drains are known.
func (d *Drains) Synced() bool {
	select {
	case <-d.known:
		return true
	default:
		return false
	}
}

// Wait waits until the drains are known and told. Who writes endpoints before would put what is drained into use.
func (d *Drains) Wait(ctx context.Context) error {
	select {
	case <-d.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Held are the drains that hold, in the order of what they cover.
func (d *Drains) Held() drain.Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// Problems are what cannot be read or written, a line each.
func (d *Drains) Problems() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	if d.foreign != nil {
		lines = append(lines, d.foreign.Error())
	}
	if d.failed != nil && !d.Synced() {
		lines = append(lines, fmt.Sprintf("drains are not known, and until they are no service is written: ConfigMap %s: %v", d.key(), d.failed))
	}
	for _, key := range slices.Sorted(maps.Keys(d.unread)) {
		lines = append(lines, d.unread[key].Error())
	}
	for _, p := range d.loop.Problems() {
		lines = append(lines, fmt.Sprintf("drains that are over are not removed: %v (since %s)", p.Err, p.Since.UTC().Format(time.RFC3339)))
	}
	return lines
}

// Run follows until ctx ends.
func (d *Drains) Run(ctx context.Context) error {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, DrainsName).String() // RBAC lets this one alone be listed
	informer, err := following[*corev1.ConfigMap]{
		kind: "drains", example: &corev1.ConfigMap{},
		listWatch: listWatch(d.kube.CoreV1().ConfigMaps(d.namespace), metav1.ListOptions{FieldSelector: one}),
		reduce:    func(cm *corev1.ConfigMap) *corev1.ConfigMap { return cm },
		saw: func(_, cm *corev1.ConfigMap, gone bool) {
			d.newest.saw(d.key(), cm, gone)
			d.loop.Enqueue(DrainsName)
		},
		failed: func(err error) {
			d.mu.Lock()
			d.failed = err
			d.mu.Unlock()
		},
	}.informer(d.options)
	if err != nil {
		return err
	}
	d.newest.reset(informer.GetStore())
	ctx, stop := follow(ctx, informer)
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	d.tell()
	close(d.known)
	d.loop.Enqueue(DrainsName)
	return d.loop.Run(ctx)
}

// reconcile tells what holds, and removes what is over.
func (d *Drains) reconcile(ctx context.Context, _ string) error {
	next := d.tell()
	if left, _ := d.newest.believes(d.key()); left > 0 {
		d.loop.EnqueueAfter(DrainsName, left)
	}
	if !next.IsZero() {
		d.loop.EnqueueAfter(DrainsName, min(next.Sub(d.now()), endsEvery))
	}
	if cm, ok := d.newest.get(d.key()); !ok || !ours(cm) || len(d.over(cm.Data)) == 0 {
		return nil
	}
	return d.write(ctx, "remove those that are over", func(data map[string]string) {
		for _, key := range d.over(data) {
			delete(data, key)
		}
	})
}

// over are the keys of drains whose time is over.
func (d *Drains) over(data map[string]string) []string {
	var keys []string
	for key, value := range data {
		if is, err := drain.Parse(value); err == nil && is.Ended(d.now()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// tell reads what is there and tells it where it has changed. next is when the next drain ends; zero for none.
func (d *Drains) tell() (next time.Time) {
	cm, there := d.newest.get(d.key())
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []drain.Drain
	unread := map[string]error{}
	var foreign error
	switch {
	case !there:
	case !ours(cm):
		foreign = fmt.Errorf("ConfigMap %s lacks the label %s=%s: no drain in it holds", d.key(), naming.LabelManagedBy, naming.ManagedByBroker)
	default:
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			is, err := drain.Parse(cm.Data[key])
			if err != nil {
				unread[key] = fmt.Errorf("drain %s of ConfigMap %s does not hold: %w", key, d.key(), err)
				continue
			}
			all = append(all, is)
		}
	}
	held, next := drain.NewSet(all...).At(d.now())
	if foreign != nil && d.foreign == nil {
		d.options.Events.Warn("", "DrainUnreadable", foreign.Error())
	}
	for key, err := range unread {
		if was := d.unread[key]; was == nil || was.Error() != err.Error() {
			d.options.Events.Warn("", "DrainUnreadable", err.Error())
			d.options.Log.Warn("a drain cannot be read", "key", key, "error", err)
		}
	}
	d.foreign, d.unread = foreign, unread
	if d.told && held.Same(d.held) {
		return next
	}
	for _, is := range held.All() {
		if !slices.ContainsFunc(d.held.All(), is.Same) {
			d.options.Recorder.Record(debug.Event{Source: is.Cluster, Object: is.String(), Action: "drain", Detail: lasts(is)})
			d.options.Log.Info("drained", "what", is.String(), "by", is.By, "until", is.Until)
		}
	}
	for _, was := range d.held.All() {
		if !slices.ContainsFunc(held.All(), func(is drain.Drain) bool { return is.Target == was.Target }) {
			d.options.Recorder.Record(debug.Event{Source: was.Cluster, Object: was.String(), Action: "undrain"})
			d.options.Log.Info("drained no more", "what", was.String())
		}
	}
	d.held, d.told = held, true
	// With the lock, so that of two calls the newer comes last.
	d.changed(held)
	return next
}

func lasts(d drain.Drain) string {
	out := "until undrained"
	if !d.Until.IsZero() {
		out = "until " + d.Until.UTC().Format(time.RFC3339)
	}
	if d.By != "" {
		out += ", by " + d.By
	}
	return out
}

// errDrainsUnknown is while the ConfigMap has not been read yet.
var errDrainsUnknown = errors.New("the drains that there are are not known yet: try again")

// Add keeps a drain, in place of one that covers the same under its own key, and returns when it holds here.
func (d *Drains) Add(ctx context.Context, is drain.Drain) error {
	if err := is.Validate(); err != nil {
		return err
	}
	if !d.Synced() {
		return errDrainsUnknown
	}
	return d.write(ctx, "drain "+is.String(), func(data map[string]string) { data[is.Key()] = is.Text() })
}

// Remove lets go of all drains of a target, under whatever keys, and returns which.
func (d *Drains) Remove(ctx context.Context, target drain.Target) ([]drain.Drain, error) {
	if !d.Synced() {
		return nil, errDrainsUnknown
	}
	var removed []drain.Drain
	err := d.write(ctx, "undrain "+target.String(), func(data map[string]string) {
		removed = nil
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if is, err := drain.Parse(data[key]); err == nil && is.Target == target {
				removed = append(removed, is)
				delete(data, key)
			}
		}
	})
	return removed, err
}

// write changes the data of the ConfigMap, which is made where there is none. When somebody else has changed it meanwhile, it
// is read and change is called again.
func (d *Drains) write(ctx context.Context, what string, change func(data map[string]string)) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	api := d.kube.CoreV1().ConfigMaps(d.namespace)
	have, there := d.newest.get(d.key())
	var last error
	for range drainTries {
		if there && !ours(have) {
			return fmt.Errorf("%s: ConfigMap %s lacks the label %s=%s: it is someone else's", what, d.key(), naming.LabelManagedBy, naming.ManagedByBroker)
		}
		var data map[string]string
		want, op, write := d.empty(), "create", func(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
			return api.Create(ctx, cm, metav1.CreateOptions{})
		}
		if there {
			data = have.Data
			want, op, write = have.DeepCopy(), "update", func(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
				return api.Update(ctx, cm, metav1.UpdateOptions{})
			}
		}
		if want.Data == nil {
			want.Data = map[string]string{}
		}
		change(want.Data)
		if maps.Equal(want.Data, data) {
			return nil
		}
		out, err := write(want)
		last = err
		if last == nil {
			d.options.Metrics.write("drains", op, "ok")
			d.newest.wrote(d.key(), out)
			d.tell()
			d.loop.Enqueue(DrainsName)
			return nil
		}
		if !apierrors.IsConflict(last) && !apierrors.IsAlreadyExists(last) && !(there && apierrors.IsNotFound(last)) {
			d.options.Metrics.write("drains", op, "error")
			return fmt.Errorf("%s: ConfigMap %s: %w", what, d.key(), last)
		}
		d.options.Metrics.write("drains", op, "conflict")
		d.newest.forget(d.key())
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
	"Drains that hold: what operators have taken out of use here. Those that cannot be read have the state unreadable.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (d *Drains) Describe(ch chan<- *prometheus.Desc) { ch <- drainsDesc }

// Collect implements prometheus.Collector.
func (d *Drains) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	held, unread := len(d.held.All()), len(d.unread)
	d.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(drainsDesc, prometheus.GaugeValue, float64(held), "held")
	ch <- prometheus.MustNewConstMetric(drainsDesc, prometheus.GaugeValue, float64(unread), "unreadable")
}

package apply

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// afterUnserved is the wait before discovery is asked again for a type: discovery can lag behind.
const afterUnserved = 2 * time.Second

// client writes objects of one type. Update and Delete have the version of the given object as a precondition.
type client[T writes.Object] interface {
	// Get reads the object with the name of the given one.
	Get(ctx context.Context, like T) (T, error)
	Create(context.Context, T) (T, error)
	Update(context.Context, T) (T, error)
	Delete(context.Context, T) error
}

// connection has the functions that reach objects of one type.
type connection[T writes.Object] struct {
	client    client[T]
	listWatch cache.ListerWatcher
	// blocked, if not nil, returns why an object must not be created although its name is free.
	blocked func(context.Context, T) error
	// unserved, if not nil, is called when the cluster no longer serves the type under this group.
	unserved func()
	// adoptAll, if not nil, adopts what exists. It was called before the objects are listed.
	adoptAll func(ctx context.Context)
	// adopt, if not nil, adopts an existing object with the name of a desired one, and returns the object in its new
	// state. ok is false if the object must not be adopted; hint then has the remedy.
	adopt func(ctx context.Context, want T) (object T, ok bool, hint string, err error)
}

type kind[T writes.Object] struct {
	writes.Kind[T]
	// connect returns the connection once the cluster serves the type. It waits for that, or for the end of the
	// context.
	connect func(ctx context.Context) (connection[T], error)
	example T
	// everywhere is set for objects in several namespaces: their names are NAMESPACE/NAME.
	everywhere bool
	// unread gets the objects that another writer made unreadable; nil for Kubernetes' own types, which the apiserver
	// stores as it reads them.
	unread *kube.Unread
}

type Options struct {
	Metrics  *Metrics
	Recorder *debug.Recorder
	Events   *report.Events
	Log      *slog.Logger
	Workers  int
	// Budgets limit the writes of each remote; nil for no limit.
	Budgets *writes.Budgets
}

func (o Options) Informers() InformerOptions {
	return InformerOptions{Errors: o.Metrics.watchErrors, Failing: &o.Metrics.failing, Log: o.Log}
}

// Objects reconciles the objects of one type: it drives a writes.Machine with an informer and a client.
type Objects[T writes.Object] struct {
	kind    kind[T]
	desired writes.Desired[T]
	options Options
	loop    *reconcile.Loop[string]
	store   Store[T]
	machine *writes.Machine[T]
	synced  atomic.Bool

	// connMu is read-locked during a reconciliation, and locked while the connection changes.
	connMu sync.RWMutex
	connection[T]

	// observing is held during a call of Desired.Observed, so that it receives states in their order.
	observing sync.Mutex

	// failing is the last answer of Failing.
	failing struct {
		sync.Mutex
		at      time.Time
		reasons map[string]string
	}
}

func newObjects[T writes.Object](k kind[T], desired writes.Desired[T], options Options) *Objects[T] {
	o := &Objects[T]{kind: k, desired: desired, options: options}
	o.store.KeyOf = o.keyOf
	if k.unread != nil {
		k.unread.Earlier = func(metadata kube.Object) (kube.Object, bool) {
			have, there := o.store.Get(o.nameOf(metadata))
			object, ok := any(have).(kube.Object)
			return object, there && ok
		}
		k.unread.Changed = func(bad *kube.Unreadable) { options.Log.Warn("an object cannot be read", "error", bad) }
	}
	o.machine = writes.New(k.Kind, options.Budgets)
	o.loop = reconcile.New(string(k.Name), o.reconcile, reconcile.Options{
		Workers: options.Workers, Cause: CauseOf, Metrics: options.Metrics.Loops, Log: options.Log,
	}).By(o.machine.SourceOf)
	options.Metrics.count(k.Name, func() int { return len(desired.Names()) },
		func() int { return len(o.store.All()) })
	return o
}

// Mark queues a name because of a change in cluster that was seen there at observedAt (zero if unknown). Of several
// changes the oldest one is measured, because it has waited longest.
func (o *Objects[T]) Mark(name, cluster string, observedAt time.Time) {
	o.machine.Changed(time.Now(), name, writes.Change{Cluster: cluster, ObservedAt: observedAt})
	o.loop.News(name)
}

func (o *Objects[T]) Wake(name string) { o.loop.Enqueue(name) }

// WakeOwned queues all objects that came from cluster: those that are not desired may now be known to be deleted there.
func (o *Objects[T]) WakeOwned(cluster string) {
	names, _ := o.Owned(cluster)
	for _, name := range names {
		o.loop.Enqueue(name)
	}
}

// Observe passes all objects that came from cluster to Desired.Observed again.
func (o *Objects[T]) Observe(cluster string) {
	names, _ := o.Owned(cluster)
	for _, name := range names {
		o.observe(name)
	}
}

// WakeAll queues all objects that exist or are desired.
func (o *Objects[T]) WakeAll() {
	for _, object := range o.store.All() {
		o.loop.Enqueue(o.nameOf(object))
	}
	for _, name := range o.desired.Names() {
		o.loop.Enqueue(name)
	}
}

// Owned returns the names of the broker's objects that came from cluster; ok is false until the list is complete. It
// does not block.
func (o *Objects[T]) Owned(cluster string) (names []string, ok bool) {
	objects, ok := o.store.In(byCluster, cluster)
	for _, object := range objects {
		names = append(names, o.nameOf(object))
	}
	return names, ok && o.Synced()
}

// Synced reports whether the list of existing objects is complete. Before that nothing is written.
func (o *Objects[T]) Synced() bool { return o.synced.Load() }

// Run writes until ctx ends, and returns ctx's error.
func (o *Objects[T]) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.loop.Run(ctx) })
	g.Go(func() error {
		for {
			if err := o.serve(ctx); err != nil {
				return err
			}
			if err := kube.Sleep(ctx, afterUnserved); err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

// serve runs the loop while the cluster serves the type under one group.
func (o *Objects[T]) serve(ctx context.Context) error {
	connection, err := o.kind.connect(ctx)
	if err != nil {
		return err
	}
	ended, unserved := context.WithCancel(ctx)
	defer unserved()
	before := o.store.All()
	o.connMu.Lock()
	o.connection = connection
	o.machine.Reset()
	o.connMu.Unlock()

	err = Watch[T]{
		Kind: o.kind.Name, ListWatch: connection.listWatch, Example: o.kind.example,
		Reduce: writes.Reduce[T], Indexers: clusterIndex,
		Saw: func(_, object T, gone bool) {
			name := o.nameOf(object)
			o.machine.Informed(name, object, gone)
			o.observe(name)
			o.loop.Enqueue(name)
		},
		Unserved: func() {
			if connection.unserved != nil {
				unserved()
			}
		},
	}.Run(ended, o.options.Informers(), &o.store, func(ctx context.Context) error {
		o.begin(before)
		<-ctx.Done()
		return ctx.Err()
	})
	o.synced.Store(false)
	o.connMu.Lock() // wait for running reconciliations
	defer o.connMu.Unlock()
	if ended.Err() != nil && ctx.Err() == nil {
		connection.unserved()
		return nil
	}
	return err
}

// AdoptAll adopts the existing objects that may be adopted now, as at the start.
func (o *Objects[T]) AdoptAll(ctx context.Context) {
	o.connMu.RLock()
	adopt := o.adoptAll
	o.connMu.RUnlock()
	if adopt != nil {
		adopt(ctx)
	}
}

// begin queues all objects that exist, that existed before, and that are desired.
func (o *Objects[T]) begin(before []T) {
	var names []string
	for _, object := range append(o.store.All(), before...) {
		names = append(names, o.nameOf(object))
		o.machine.Listed(o.nameOf(object), object)
	}
	for _, name := range names {
		o.observe(name)
	}
	o.synced.Store(true)
	if o.desired.Synced != nil {
		o.desired.Synced()
	}
	for _, name := range append(names, o.desired.Names()...) {
		o.loop.Enqueue(name)
	}
}

// byCluster is the index of objects by the cluster that they came from: each of many remotes asks for its own.
const byCluster = "cluster"

var clusterIndex = cache.Indexers{byCluster: func(object any) ([]string, error) {
	labelled, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	return []string{labelled.GetLabels()[naming.LabelSourceCluster]}, nil
}}

func (o *Objects[T]) nameOf(object metav1.Object) string {
	if o.kind.everywhere {
		return writes.KeyOf(object)
	}
	return object.GetName()
}

// keyOf returns the store's key of a name. Without everywhere, all objects of a type are in one namespace or in none.
func (o *Objects[T]) keyOf(name string) string {
	if ns := o.kind.example.GetNamespace(); ns != "" {
		return ns + "/" + name
	}
	return name
}

// Newest returns the object under a name, own writes included.
func (o *Objects[T]) Newest(name string) (object T, there bool) {
	return o.machine.Newest(time.Now(), name)
}

func (o *Objects[T]) want(name string) (answer writes.Answer[T], have T, there bool) {
	have, there = o.Newest(name)
	owner := ""
	if there {
		owner = have.GetLabels()[naming.LabelSourceCluster]
	}
	return o.desired.Want(name, owner), have, there
}

func (o *Objects[T]) Wants(name string) bool {
	answer, _, _ := o.want(name)
	return answer.Verdict == writes.Present
}

// Unwritten returns the desired objects that do not exist in the desired state.
func (o *Objects[T]) Unwritten() (all []T) {
	for _, name := range o.desired.Names() {
		answer, have, there := o.want(name)
		if answer.Verdict != writes.Present {
			continue
		}
		if !there || have.GetDeletionTimestamp() != nil || !o.kind.Equal(o.kind.Merge(have, answer.Object), have) {
			all = append(all, answer.Object)
		}
	}
	return all
}

// observe passes the object with a name to Desired.Observed.
func (o *Objects[T]) observe(name string) {
	if o.desired.Observed == nil {
		return
	}
	o.observing.Lock()
	defer o.observing.Unlock()
	object, there := o.Newest(name)
	o.desired.Observed(name, object, there)
}

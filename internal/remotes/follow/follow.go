// Package follow reads and watches RemoteClusters at the own cluster's apiserver, and stores those in effect in a
// ConfigMap, so that they outlive this process and their CustomResourceDefinition.
//
// internal/remotes, which it imports beside api/v1alpha1, internal/config and internal/naming, decides. It writes the
// ConfigMaps and status.
package follow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

const (
	// again is the wait after a failure.
	again = 2 * time.Second
	// unanswered is how long the first list may take, before what an earlier process stored is in effect without it.
	unanswered = 10 * time.Second
	// watchFor is the duration of one watch; a list follows it.
	watchFor = 10 * time.Minute
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// Follower watches RemoteClusters. It is safe for concurrent use.
type Follower struct {
	client dynamic.Interface
	log    *slog.Logger

	mu      sync.Mutex
	tracker *remotes.Tracker
	// kept: an earlier process stored some.
	kept bool
	// known is set once the objects were listed, or could not be while an earlier process had stored some. The stored
	// state alone may lack objects that the configuration has needed since.
	known   bool
	problem string
	// unread are the objects that cannot be read: each keeps its earlier state, and costs no other one.
	unread  kube.Unread
	changed chan struct{}
}

// New returns a follower that knows what an earlier process stored.
func New(client dynamic.Interface, kept remotes.Objects, log *slog.Logger) *Follower {
	f := &Follower{client: client, log: log, tracker: remotes.NewTracker(kept), kept: len(kept) > 0,
		changed: make(chan struct{}, 1)}
	f.unread.Changed = func(bad *kube.Unreadable) { log.Warn("a RemoteCluster cannot be read", "error", bad) }
	return f
}

// Changed has a value when Objects may have changed.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// Objects returns the RemoteClusters. known is false until the apiserver has listed them, or has failed to while an
// earlier process had stored some, which are in effect then.
func (f *Follower) Objects() (objects remotes.Objects, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tracker.Objects(), f.known
}

// Problems returns why the objects cannot be watched, and those that are lost, a line each.
func (f *Follower) Problems() (lines []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem != "" {
		lines = append(lines, f.problem)
	}
	if lost := f.tracker.Problem(); lost != "" {
		lines = append(lines, lost)
	}
	return append(lines, f.unread.Lines()...)
}

// Run watches until ctx ends, whose error it returns: a failed watch begins again.
func (f *Follower) Run(ctx context.Context) error {
	defer time.AfterFunc(unanswered, f.takeKept).Stop()
	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue // the watch ended normally
		}
		f.note(err.Error())
		f.takeKept()
		if err := kube.Sleep(ctx, again); err != nil {
			return err
		}
	}
}

// follow lists, and then watches until the watch ends.
func (f *Follower) follow(ctx context.Context) error {
	definition, err := f.definition(ctx)
	if err != nil {
		return err
	}
	if definition.UID == "" {
		return fmt.Errorf("RemoteClusters are not served; those in effect stay in effect: kubectl apply -f " +
			"deploy/crds/remoteclusters.yaml")
	}
	api := f.client.Resource(v1alpha1.RemoteClusters)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list RemoteClusters: %w", err)
	}
	all := f.listed(list, definition.UID)
	// A definition that was replaced during the list would show here.
	if definition, err = f.definition(ctx); err != nil {
		return err
	}
	f.apply(func(t *remotes.Tracker) { t.Listed(definition, all) })
	f.note("")
	seconds := int64(watchFor / time.Second)
	events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watch RemoteClusters: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		u, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case event.Type == watch.Error:
			return fmt.Errorf("watch RemoteClusters: %w", apierrors.FromObject(event.Object))
		case !ok:
		case event.Type == watch.Added, event.Type == watch.Modified:
			if o, ok := f.object(u, definition.UID); ok {
				f.apply(func(t *remotes.Tracker) { t.Put(o) })
			}
		case event.Type == watch.Deleted:
			now, err := f.definition(ctx)
			if err != nil {
				return err // the next list shows the deletion again
			}
			f.unread.Put(u.GetName(), nil)
			f.apply(func(t *remotes.Tracker) { t.Deleted(u.GetName(), now) })
		}
	}
	return nil
}

func (f *Follower) definition(ctx context.Context) (remotes.Definition, error) {
	d, err := f.client.Resource(definitions).Get(ctx, v1alpha1.CRDName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return remotes.Definition{}, nil
	case err != nil:
		return remotes.Definition{}, fmt.Errorf("CustomResourceDefinition %s: %w", v1alpha1.CRDName, err)
	}
	return remotes.Definition{UID: d.GetUID(), Terminating: d.GetDeletionTimestamp() != nil}, nil
}

// listed returns the objects of a list, with the earlier state of those that cannot be read.
func (f *Follower) listed(list *unstructured.UnstructuredList, definition types.UID) (all []remotes.Object) {
	there := map[string]bool{}
	for i := range list.Items {
		there[list.Items[i].GetName()] = true
		if o, ok := f.object(&list.Items[i], definition); ok {
			all = append(all, o)
		}
	}
	f.unread.Listed(there)
	return all
}

// object converts an object that was listed or watched. ok is false for one that cannot be read and was not known.
func (f *Follower) object(u *unstructured.Unstructured, definition types.UID) (o remotes.Object, ok bool) {
	f.mu.Lock()
	before := f.tracker.Objects()
	f.mu.Unlock()
	o, bad, ok := object(u, definition, before)
	f.unread.Put(u.GetName(), bad)
	return o, ok
}

// object converts an object. One that cannot be read has the state that it had before; ok is false if that is unknown.
func object(u *unstructured.Unstructured, definition types.UID,
	before remotes.Objects) (o remotes.Object, bad *kube.Unreadable, ok bool) {
	was, had := before[u.GetName()]
	had = had && was.UID == u.GetUID()
	data, err := u.MarshalJSON()
	if err != nil {
		bad := &kube.Unreadable{Kind: v1alpha1.Kind, Name: u.GetName(), Field: "the object", Err: err, Whole: true}
		return was, bad, had
	}
	r, bad := kube.ReadObject[*v1alpha1.RemoteCluster](v1alpha1.Kind, data)
	if bad != nil && bad.Whole {
		was.Definition = definition
		return was, bad, had
	}
	o = remotes.Of(r, definition)
	if bad != nil && had && o.ListenPort == 0 { // it is assigned once; the status alone has it
		o.ListenPort = was.ListenPort
	}
	return o, bad, true
}

// takeKept makes what an earlier process stored known, if the apiserver has not listed the objects yet.
func (f *Follower) takeKept() {
	f.mu.Lock()
	changes := f.kept && !f.known
	f.known = f.known || f.kept
	f.mu.Unlock()
	if changes {
		f.signal()
	}
}

func (f *Follower) apply(change func(*remotes.Tracker)) {
	f.mu.Lock()
	change(f.tracker)
	f.known = true
	f.mu.Unlock()
	f.signal()
}

func (f *Follower) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func (f *Follower) note(problem string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if problem != "" && problem != f.problem {
		f.log.Warn("cannot watch RemoteClusters; those in effect stay in effect", "error", problem)
	}
	f.problem = problem
}

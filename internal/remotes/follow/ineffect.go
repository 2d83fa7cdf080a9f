package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

const (
	// look is how often a leader decides again without a change, and settle how long a change waits for further ones:
	// several arrive together if they are applied from a directory.
	look   = time.Second
	settle = 300 * time.Millisecond
)

type Options struct {
	Rest   *rest.Config
	Client kubernetes.Interface
	// Namespace is leaderElection.namespace.
	Namespace string
	// Part is the field manager of the status. PART-remotes is the ConfigMap with the objects in effect.
	Part string
	// SetRoots takes the root certificates of the clusters in effect.
	SetRoots func(map[string]string) error
	Log      *slog.Logger
}

// InEffect are the RemoteClusters in effect of a part. One goroutine decides, and all may read.
type InEffect struct {
	// Follower is nil before Begin.
	*Follower
	Status   *StatusWriter
	client   dynamic.Interface
	store    *Store
	setRoots func(map[string]string) error

	mu sync.Mutex
	// decided is the last decision; nil before the objects are known.
	decided *remotes.Decision
	before  remotes.Objects
	// objects and own are the basis of the decision: a decision about 100 remotes takes tens of milliseconds.
	objects remotes.Objects
	own     *config.Broker
	// roots is the fault of the root certificates.
	roots string
}

// NewInEffect sends no request yet. It fails if o.Rest is invalid, or the namespace of its objects cannot be learnt.
func NewInEffect(o Options) (*InEffect, error) {
	client, err := dynamic.NewForConfig(o.Rest)
	if err != nil {
		return nil, fmt.Errorf("client for RemoteClusters: %w", err)
	}
	namespace, err := kube.Namespace(o.Namespace)
	if err != nil {
		return nil, err
	}
	return &InEffect{client: client, setRoots: o.SetRoots, Status: NewStatusWriter(client, o.Part, o.Log),
		store: NewStore(o.Client, namespace, o.Part+"-remotes", o.Log)}, nil
}

// Begin reads what an earlier process stored. It waits until the apiserver answers, and fails if ctx ends before.
func (e *InEffect) Begin(ctx context.Context) (err error) {
	if e.before, err = e.store.Load(ctx); err != nil {
		return err
	}
	e.Follower = New(e.client, e.before, e.store.log)
	return nil
}

// Wait returns when the objects may have changed, or it is time to look again. It fails if ctx ends before.
func (e *InEffect) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(look):
		return nil
	case <-e.Changed():
		return kube.Sleep(ctx, settle)
	}
}

// Decide returns the decision on the present objects, without their status, nil while they are unknown, and whether it
// is a new one. ports returns the ports that nodes publish for remotes; it may be nil.
func (e *InEffect) Decide(own *config.Broker, ports func(before, objects remotes.Objects) map[string]uint16) (
	d *remotes.Decision, anew bool,
) {
	objects, known := e.Objects()
	if !known {
		return nil, false
	}
	e.mu.Lock()
	before, last := e.before, e.decided
	e.mu.Unlock()
	for name, o := range objects {
		if was, had := before[name]; had && o.Replaces(was) {
			delete(objects, name) // one decision is that the first one was deleted; the next look adds this one as new
			continue
		}
		o.Status = v1alpha1.RemoteClusterStatus{} // it says what was decided and heard: each minute something else
		objects[name] = o
	}
	if last != nil && reflect.DeepEqual(objects, e.objects) && reflect.DeepEqual(own, e.own) {
		return last, false
	}
	var published map[string]uint16
	if ports != nil {
		published = ports(before, objects)
	}
	decision := remotes.Decide(own, before, objects, published)
	roots := ""
	if err := e.setRoots(decision.Bundles()); err != nil {
		roots = err.Error()
	}
	e.objects, e.own = objects, own
	e.mu.Lock()
	defer e.mu.Unlock()
	e.decided, e.before, e.roots = &decision, decision.InEffect, roots
	return &decision, true
}

// Judged returns the objects that Decide last knew, with their present status. It lacks one whose specification has
// changed since, or that was created again: the verdict is not about that one. Only the goroutine that decides may call
// it.
func (e *InEffect) Judged() remotes.Objects {
	objects, _ := e.Objects()
	maps.DeleteFunc(objects, func(name string, o remotes.Object) bool {
		was, ok := e.objects[name]
		return !ok || was.UID != o.UID || was.Generation != o.Generation
	})
	return objects
}

func (e *InEffect) Decided() *remotes.Decision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.decided
}

// Save takes a decision, which may say more than Decide did, and stores it for the next process if it differs from the
// stored one.
func (e *InEffect) Save(ctx context.Context, d *remotes.Decision) {
	e.mu.Lock()
	e.decided, e.before = d, d.InEffect
	e.mu.Unlock()
	_ = e.store.Save(ctx, d.InEffect) // its problem is in the findings
}

// Findings are the faults of the watch of the objects, and of their stored and reported state.
func (e *InEffect) Findings() []finding.Finding {
	e.mu.Lock()
	roots := e.roots
	e.mu.Unlock()
	return slices.Concat(finding.Lines(finding.RemotesUnread, "", e.Problems()),
		finding.Lines(finding.RemotesUnwritten, "", append(e.store.problem.Lines(), e.Status.problems()...)),
		finding.Lines(finding.StoredRestored, "", e.store.config.Reports()),
		finding.Line(finding.TrustBundleUnusable, "", roots))
}

// RefuseLosses returns an error if a part's configuration takes RemoteClusters out of effect that an earlier process of
// the part had in effect: their Services, sets and tunnels would be removed. A part that ends with it is replaced like
// one with an invalid configuration, that is, not at all: its earlier pods continue. It returns nil if it cannot read
// the objects in effect.
func (e *InEffect) RefuseLosses(ctx context.Context, own *config.Broker) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	before, err := e.store.Load(ctx)
	if err != nil || len(before) == 0 {
		return nil //nolint:nilerr // the leader waits for it, and reports it
	}
	objects := before
	if list, err := e.client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{}); err == nil {
		objects = remotes.Objects{}
		for i := range list.Items {
			if o, _, ok := object(&list.Items[i], "", before); ok {
				objects[o.Name] = o
			}
		}
	}
	decision := remotes.Decide(own, before, objects, nil)
	var lost []error
	for _, o := range objects.ByAge() {
		if _, had := before[o.Name]; had && decision.Verdicts[o.Name].InEffect == nil {
			lost = append(lost, fmt.Errorf("RemoteCluster %s: with this configuration it is no longer in effect: %s: "+
				"correct the object or the configuration first, or delete the object", o.Name,
				decision.Verdicts[o.Name].Message))
		}
	}
	return errors.Join(lost...)
}

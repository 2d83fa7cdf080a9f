package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Object is any object of an apiserver.
type Object interface {
	runtime.Object
	metav1.Object
}

// afterUnserved is how long it is waited before the cluster is asked again how it serves a type: discovery can be behind.
const afterUnserved = 2 * time.Second

// A name for which the informer was behind is reconciled again as soon as that tells of it, and after afterConflict at the latest: twice
// as long each time, up to maxAfterConflict.
const (
	afterConflict    = time.Second
	maxAfterConflict = 30 * time.Second
)

// Verdict is what is wanted under a name.
type Verdict int

const (
	// Unknown: leave what is there as it is.
	Unknown Verdict = iota
	// Present: the object is wanted.
	Present
	// Absent: nothing is wanted; what of ours is there is to go.
	Absent
)

// Answer is what is wanted under a name.
type Answer[T Object] struct {
	Verdict Verdict
	// Object is wanted, when Present.
	Object T
	// Again is after how long the answer changes by itself; 0 for not.
	Again time.Duration
}

// Desired is where a loop asks what is wanted. All is called from many goroutines.
type Desired[T Object] struct {
	// Names of all that is wanted.
	Names func() []string
	// Want is what is wanted under a name. owner is the cluster that the object there now came from, empty where there is none of ours.
	Want func(name, owner string) Answer[T]
	// Urgent, if not nil, is whether what is under a name must not stay for longer than it has to.
	Urgent func(name string) bool
	// Synced, if not nil, is called when it has become known what is there.
	Synced func()
	// Observed, if not nil, is told what is under a name whenever that may have changed.
	Observed func(name string, object T, there bool)
}

// client writes objects of one type. Update and Delete happen only if the object is still the version given.
type client[T Object] interface {
	// Get reads the object that has the name of another.
	Get(ctx context.Context, like T) (T, error)
	Create(context.Context, T) (T, error)
	Update(context.Context, T) (T, error)
	Delete(context.Context, T) error
}

// connection is how to reach the objects of one type.
type connection[T Object] struct {
	client    client[T]
	listWatch cache.ListerWatcher
	// blocked, if not nil, says why an object may not be made though nobody has its name.
	blocked func(context.Context, T) error
	// unserved, if not nil, is called when the cluster does not serve the type this way any more.
	unserved func()
	// adopt, if not nil, makes an object that is there ours under the name of one that we want, and returns it as it is
	// then; ok is false where it is not to be taken over, and hint what the operator can do then. errLater says that it is, and that
	// somebody else does it.
	adopt func(ctx context.Context, want T) (object T, ok bool, hint string, err error)
}

// kind is one type of object.
type kind[T Object] struct {
	// name in metrics and messages, such as "service".
	name string
	// connect tells how to reach the type, once the cluster serves it; it waits until then or the context's end.
	connect func(ctx context.Context) (connection[T], error)
	example T
	// everywhere says that the objects are in many namespaces: their names here are NAMESPACE/NAME.
	everywhere bool
	// paced says that writes of an object are kept apart; see pace.
	paced bool
	// urgent, if not nil, is whether what have becomes by want must not wait for longer than it has to.
	urgent func(have, want T) bool
	// merge is have with what is ours in it set as in want. It changes neither.
	merge func(have, want T) T
	// equal says whether two objects are the same to the apiserver.
	equal func(a, b T) bool
	// replace says that have cannot become want by an update.
	replace func(have, want T) bool
}

// Options are what all loops share.
type Options struct {
	Metrics  *Metrics
	Recorder *debug.Recorder
	Events   *Events
	Log      *slog.Logger
	Workers  int
	// Budgets of the remotes for writes; nil for none.
	Budgets *Budgets
}

// Objects keeps the objects of one type as they are wanted.
type Objects[T Object] struct {
	kind    kind[T]
	desired Desired[T]
	options Options
	loop    *reconcile.Loop[string]
	newest  *newest[T]
	pace    *pace // nil where writes are not kept apart
	synced  atomic.Bool

	// using is held by each who reconciles, and by the one who changes how the type is reached.
	using sync.RWMutex
	connection[T]

	// contests are the objects that others change.
	contests *contests

	mu sync.Mutex
	// lost are the UIDs of objects of ours of which the watch told that they have gone: whoever takes our label off one has the
	// watch say so too.
	lost map[string]types.UID
	// marks are what the next write of a name is for.
	marks map[string]mark
	// sources are the clusters that names were last marked for, or else are of: one that has many keeps no other's waiting.
	sources map[string]string
	// conflicts are how many writes of a name in a row met something else than what we saw.
	conflicts map[string]int
	// failing is the cluster of each name that could not be written.
	failing map[string]string
	// unanswered are names whose creation the apiserver did not answer: they may be there, and ours.
	unanswered map[string]bool
	// due are the writes that wait for the budget of a remote.
	due map[string]time.Time
}

// mark is the change that a write carries out.
type mark struct {
	cluster    string
	observedAt time.Time
}

// errLater is why an object is not written that is taken over by and by. The informer tells when it is.
var errLater = errors.New("it is taken over later")

// conflict is an object of someone else under a name that we want, and what can be done.
type conflict struct{ kind, name, hint string }

func (c conflict) Error() string {
	return fmt.Sprintf("there is a %s %s that is not ours: %s", c.kind, c.name, cmp.Or(c.hint, "remove or rename it, or the remote's"))
}

func newObjects[T Object](k kind[T], desired Desired[T], options Options) *Objects[T] {
	o := &Objects[T]{kind: k, desired: desired, options: options, newest: newNewest[T](), contests: newContests(), lost: map[string]types.UID{}, marks: map[string]mark{}, sources: map[string]string{}, conflicts: map[string]int{}, unanswered: map[string]bool{}, due: map[string]time.Time{}, failing: map[string]string{}}
	o.loop = reconcile.New(k.name, o.reconcile, reconcile.Options{
		Workers: options.Workers, Cause: causeOf, Metrics: options.Metrics.Loops, Log: options.Log,
	}).By(o.sourceOf)
	if k.paced {
		o.pace = newPace()
	}
	options.Metrics.count(k.name, func() int { return len(desired.Names()) }, o.present)
	return o
}

// Mark asks for a name to be looked at, because of a change in cluster that was seen there at
// observedAt (zero for unknown). Of several marks the oldest counts: that change has waited longest.
func (o *Objects[T]) Mark(name, cluster string, observedAt time.Time) {
	o.keep(name, mark{cluster, observedAt})
	if o.pace != nil {
		o.pace.change(name, time.Now())
	}
	o.loop.News(name)
}

// Wake asks for a name to be looked at.
func (o *Objects[T]) Wake(name string) { o.loop.Enqueue(name) }

// WakeOwned asks for all objects that came from cluster to be looked at: what is not wanted
// of them may now be known to be gone.
func (o *Objects[T]) WakeOwned(cluster string) {
	names, _ := o.Owned(cluster)
	for _, name := range names {
		o.loop.Enqueue(name)
	}
}

// WakeAll asks for all that is there, and all that is wanted, to be looked at.
func (o *Objects[T]) WakeAll() {
	for _, object := range o.owned() {
		o.loop.Enqueue(o.nameOf(object))
	}
	for _, name := range o.desired.Names() {
		o.loop.Enqueue(name)
	}
}

// Owned are the names of our objects that came from cluster; ok is false while what is there is not known.
func (o *Objects[T]) Owned(cluster string) (names []string, ok bool) {
	for _, object := range o.owned() {
		if object.GetLabels()[naming.LabelSourceCluster] == cluster {
			names = append(names, o.nameOf(object))
		}
	}
	return names, o.Synced()
}

// maxProblems is how many names of one cluster Problems names.
const maxProblems = 3

// Problems are the names that cannot be brought to what is wanted, a line each; of each cluster some, and how many more there are.
func (o *Objects[T]) Problems() []string {
	var lines []string
	of := map[string]int{}
	for _, p := range o.loop.Problems() {
		cluster := o.failingOf(p.Key)
		if of[cluster]++; of[cluster] <= maxProblems {
			lines = append(lines, fmt.Sprintf("%s %s: %v (since %s)", o.kind.name, p.Key, p.Err, p.Since.UTC().Format(time.RFC3339)))
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(of)) {
		if more := of[cluster] - maxProblems; more > 0 {
			lines = append(lines, fmt.Sprintf("%d more objects of type %s of cluster %s could not be written", more, o.kind.name, cmp.Or(cluster, "unknown")))
		}
	}
	contests := o.contests.lines(o.kind.name, time.Now())
	if more := len(contests) - maxProblems; more > 0 {
		contests = append(contests[:maxProblems], fmt.Sprintf("%d more objects of type %s are changed by others", more, o.kind.name))
	}
	return append(lines, contests...)
}

func (o *Objects[T]) failingOf(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failing[name]
}

// sourceOf is the cluster for which a name is reconciled; empty where it is not known, or is none's.
func (o *Objects[T]) sourceOf(name string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sources[name]
}

// from notes the cluster that an object under a name came from, where it was not marked for one.
func (o *Objects[T]) from(name string, object T) {
	cluster := object.GetLabels()[naming.LabelSourceCluster]
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.sources[name]; !known && cluster != "" {
		o.sources[name] = cluster
	}
}

// Synced says whether what is in the cluster is known. Before, nothing is written.
func (o *Objects[T]) Synced() bool { return o.synced.Load() }

// Run writes until ctx ends.
func (o *Objects[T]) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.loop.Run(ctx) })
	g.Go(func() error {
		for {
			if err := o.serve(ctx); err != nil {
				return err
			}
			select {
			case <-time.After(afterUnserved):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return g.Wait()
}

// serve lets the loop write for as long as the cluster serves the type in one way.
func (o *Objects[T]) serve(ctx context.Context) error {
	connection, err := o.kind.connect(ctx)
	if err != nil {
		return err
	}
	ended, unserved := context.WithCancel(ctx)
	defer unserved()
	informer, err := o.informer(connection.listWatch, func() {
		if connection.unserved != nil {
			unserved()
		}
	})
	if err != nil {
		return err
	}
	before := o.owned()
	o.contests.reset() // versions are those of the way in which the type is served
	o.using.Lock()
	o.connection = connection
	o.newest.reset(informer.GetStore())
	o.using.Unlock()

	following, stop := follow(ended, informer)
	defer stop()
	if cache.WaitForCacheSync(following.Done(), informer.HasSynced) {
		o.begin(before)
		<-following.Done()
	}
	o.synced.Store(false)
	o.using.Lock() // whoever writes has ended
	defer o.using.Unlock()
	if ctx.Err() == nil {
		connection.unserved()
	}
	return ctx.Err()
}

// begin has all that is there looked at, all that was before, and all that is wanted.
func (o *Objects[T]) begin(before []T) {
	var names []string
	for _, object := range append(o.owned(), before...) {
		names = append(names, o.nameOf(object))
		o.from(o.nameOf(object), object)
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

func (o *Objects[T]) informer(listWatch cache.ListerWatcher, unserved func()) (cache.SharedIndexInformer, error) {
	return following[T]{
		kind: o.kind.name, listWatch: listWatch, example: o.kind.example,
		reduce: reduce[T],
		saw: func(_, object T, gone bool) {
			o.newest.saw(key(object), object, gone)
			o.from(o.nameOf(object), object)
			if gone {
				o.lose(o.nameOf(object), object.GetUID())
			}
			o.agreed(o.nameOf(object))
			o.observe(o.nameOf(object))
			o.loop.Enqueue(o.nameOf(object))
		},
		failed: func(err error) {
			if apierrors.IsNotFound(err) {
				unserved()
			}
		},
	}.informer(o.options)
}

// reduce leaves of an object what is asked of it.
func reduce[T Object](object T) T {
	object.SetManagedFields(otherManager(object.GetManagedFields()))
	return object
}

// lose notes that an object of ours is not there any more, or does not say that it is ours.
func (o *Objects[T]) lose(name string, uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost[name] = uid
}

// forget forgets what was under a name.
func (o *Objects[T]) forget(name string) {
	o.contests.forget(name)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, name)
	delete(o.failing, name)
	delete(o.sources, name)
}

// key is that of the informer's store.
func key[T Object](o T) string {
	if ns := o.GetNamespace(); ns != "" {
		return ns + "/" + o.GetName()
	}
	return o.GetName()
}

// nameOf is the name by which an object goes here.
func (o *Objects[T]) nameOf(object T) string {
	if o.kind.everywhere {
		return key(object)
	}
	return object.GetName()
}

// keyOf is the key of a name. Where objects are not everywhere, all of a type are in one namespace or in none.
func (o *Objects[T]) keyOf(name string) string {
	if ns := o.kind.example.GetNamespace(); ns != "" {
		return ns + "/" + name
	}
	return name
}

func (o *Objects[T]) owned() []T {
	store := o.newest.informed()
	if store == nil {
		return nil
	}
	var all []T
	for _, object := range store.List() {
		if object, ok := object.(T); ok {
			all = append(all, object)
		}
	}
	return all
}

func (o *Objects[T]) present() int { return len(o.owned()) }

// observe tells what is under a name, in the order in which it became so.
func (o *Objects[T]) observe(name string) {
	if o.desired.Observed == nil {
		return
	}
	o.newest.mu.Lock()
	defer o.newest.mu.Unlock()
	object, there := o.newest.getLocked(o.keyOf(name))
	o.desired.Observed(name, object, there)
}

// reconcile brings one name to what is wanted; it returns reconcile.ErrIdle where it is so already.
func (o *Objects[T]) reconcile(ctx context.Context, name string) error {
	o.using.RLock()
	defer o.using.RUnlock()
	if !o.Synced() {
		return reconcile.ErrIdle // all names come again when it is known what is there
	}
	if o.pace != nil {
		if wait := o.pace.wait(name, time.Now(), func() bool { return o.urgent(name) }); wait > 0 {
			o.loop.EnqueueAfter(name, wait)
			return reconcile.ErrIdle
		}
	}
	if _, over := o.newest.believes(o.keyOf(name)); over {
		o.observe(name)
	}
	o.lookAgain(name)
	have, there := o.newest.get(o.keyOf(name))
	owner := ""
	if there {
		owner = have.GetLabels()[naming.LabelSourceCluster]
	}
	m := o.take(name)
	answer := o.desired.Want(name, owner)
	if answer.Again > 0 {
		o.keep(name, m)
		o.loop.EnqueueAfter(name, answer.Again)
	}
	switch {
	case answer.Verdict == Absent && there:
		o.spared(name)
		return o.write(ctx, name, m, "delete", have, func() error { return o.delete(ctx, have) })
	case answer.Verdict == Absent:
		o.spared(name)
		o.forget(name)
		return reconcile.ErrIdle
	case answer.Verdict != Present:
		return reconcile.ErrIdle
	}
	payer := cmp.Or(m.cluster, answer.Object.GetLabels()[naming.LabelSourceCluster])
	switch {
	case !there:
		contest, wait := o.contested(name, m, "", func() (string, []string) { return "somebody", []string{"the object, which is deleted,"} })
		if wait == 0 {
			wait = o.afford(name, payer, answer.Object, time.Now())
		}
		if wait > 0 {
			return o.later(name, m, wait)
		}
		return o.restoring(name, contest, o.write(ctx, name, m, "create", answer.Object, func() error { return o.create(ctx, answer.Object) }))
	case have.GetDeletionTimestamp() != nil:
		return reconcile.ErrIdle // made anew when it has gone, which the informer tells
	case o.kind.replace != nil && o.kind.replace(have, answer.Object):
		if wait := o.afford(name, payer, answer.Object, time.Now()); wait > 0 {
			return o.later(name, m, wait)
		}
		return o.write(ctx, name, m, "replace", answer.Object, func() error {
			if err := o.delete(ctx, have); err != nil {
				return err
			}
			return o.create(ctx, answer.Object)
		})
	}
	merged := o.kind.merge(have, answer.Object)
	if o.kind.equal(merged, have) {
		o.spared(name)
		o.contests.agree(name, have.GetResourceVersion())
		return reconcile.ErrIdle
	}
	contest, wait := o.contested(name, m, have.GetResourceVersion(), func() (string, []string) { return managerOf(have), fieldsThatDiffer(have, merged) })
	if wait == 0 {
		wait = o.afford(name, payer, merged, time.Now())
	}
	if wait > 0 {
		return o.later(name, m, wait)
	}
	return o.restoring(name, contest, o.write(ctx, name, m, "update", answer.Object, func() error { return o.update(ctx, merged, answer.Object) }))
}

// urgent says whether what is under a name must not stay for longer than it has to.
func (o *Objects[T]) urgent(name string) bool {
	if o.desired.Urgent != nil {
		return o.desired.Urgent(name)
	}
	have, there := o.newest.get(o.keyOf(name))
	if o.kind.urgent == nil || !there {
		return false
	}
	answer := o.desired.Want(name, have.GetLabels()[naming.LabelSourceCluster])
	return answer.Verdict == Absent || answer.Verdict == Present && o.kind.urgent(have, answer.Object)
}

// contested is the contest of an object that somebody else has changed, and for how long it is not to be restored yet. What
// has changed of what is wanted is written at once, and restores the rest.
func (o *Objects[T]) contested(name string, m mark, version string, what func() (string, []string)) (*contest, time.Duration) {
	contest, wait := o.contests.meet(name, version, time.Now(), what)
	if contest == nil || m.cluster != "" {
		return contest, 0
	}
	if contest.n > freeRestores {
		o.options.Events.WarnOf("", "Contested "+o.kind.name+" "+name+" "+contest.manager, "Contested", fmt.Sprintf("%s %s: %s", o.kind.name, name, contest.fought()))
	}
	return contest, wait
}

// later has a name reconciled after a while.
func (o *Objects[T]) later(name string, m mark, wait time.Duration) error {
	o.keep(name, m)
	o.loop.EnqueueAfter(name, wait)
	return reconcile.ErrIdle
}

// restoring tells of an object that was restored.
func (o *Objects[T]) restoring(name string, contest *contest, err error) error {
	if contest != nil && err == nil {
		o.options.Metrics.restored.WithLabelValues(o.kind.name).Inc()
		o.options.Log.Warn("restored what somebody else has changed", "kind", o.kind.name, "name", name, "manager", contest.manager, "fields", contest.fields, "times", contest.n)
		o.options.Events.WarnOf("", "Restored "+o.kind.name+" "+name+" "+contest.manager, "Restored", fmt.Sprintf(
			"%s %s: %s changed %s; the broker has restored it, as it does with all that it writes", o.kind.name, name, contest.manager, strings.Join(contest.fields, ", ")))
	}
	return err
}

func (o *Objects[T]) update(ctx context.Context, object, want T) error {
	object.SetManagedFields(nil) // those that the apiserver has stay
	out, err := o.client.Update(ctx, object)
	if err == nil {
		o.believe(out, want)
	}
	return err
}

// believe notes the answer to a write of what is wanted.
func (o *Objects[T]) believe(object, want T) {
	object = reduce(object)
	o.newest.wrote(key(object), object)
	if o.kind.equal(o.kind.merge(object, want), object) {
		o.contests.agree(o.nameOf(object), object.GetResourceVersion())
	} else {
		o.contests.changed(o.nameOf(object))
		o.loop.Enqueue(o.nameOf(object)) // the watch tells nothing of a write that changed nothing
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.lost, o.nameOf(object))
}

// lookAgain has a name looked at when a write of ours is not believed any more. An object that we wrote, and that
// somebody took away while the watch was being made anew, is one of which the informer never tells anything.
func (o *Objects[T]) lookAgain(name string) {
	if left, _ := o.newest.believes(o.keyOf(name)); left > 0 {
		o.loop.EnqueueAfter(name, left)
	}
}

func (o *Objects[T]) create(ctx context.Context, object T) error {
	if o.blocked != nil {
		if err := o.blocked(ctx, object); err != nil {
			return err
		}
	}
	out, err := o.client.Create(ctx, object)
	mayBeOurs := o.answered(o.nameOf(object), err)
	switch {
	case err == nil:
		o.believe(out, object)
	case apierrors.IsAlreadyExists(err) && !mayBeOurs:
		return o.adoptOr(ctx, object)
	}
	return err
}

// answered notes whether a creation was answered, and returns whether the one before it was not.
func (o *Objects[T]) answered(name string, err error) (unanswered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	unanswered = o.unanswered[name]
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		o.unanswered[name] = true
	} else {
		delete(o.unanswered, name)
	}
	return unanswered
}

// adoptOr takes over what is under the name of an object that we want, or is the conflict.
func (o *Objects[T]) adoptOr(ctx context.Context, want T) error {
	foreign := conflict{kind: o.kind.name, name: o.nameOf(want)}
	have, err := o.client.Get(ctx, want)
	if err != nil {
		return fmt.Errorf("reading %s %s, which is in the way: %w", o.kind.name, foreign.name, err)
	}
	if have.GetLabels()[naming.LabelManagedBy] == "" && have.GetAnnotations()[naming.AnnotationSourceName] != "" {
		if o.isLost(foreign.name, have.GetUID()) {
			return o.regain(ctx, have, want)
		}
		foreign.hint = fmt.Sprintf("it was, and its label %s has been taken off: put back %s, or delete it", naming.LabelManagedBy, Owned)
		return foreign
	}
	if o.adopt == nil {
		return foreign
	}
	have, ok, hint, err := o.adopt(ctx, want)
	if errors.Is(err, errLater) {
		return err
	}
	if err != nil {
		return fmt.Errorf("taking over %s %s: %w", o.kind.name, foreign.name, err)
	}
	if !ok {
		foreign.hint = hint
		return foreign
	}
	o.newest.wrote(key(have), have)
	o.loop.Enqueue(foreign.name) // it has what it had until it is looked at again
	return nil
}

// isLost says whether an object under a name is the one that was ours until now.
func (o *Objects[T]) isLost(name string, uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost[name] == uid
}

// regain restores an object that is ours, and of which somebody has taken off the label that says so.
func (o *Objects[T]) regain(ctx context.Context, have, want T) error {
	name, manager := o.nameOf(have), managerOf(have)
	if err := o.update(ctx, o.kind.merge(have, want), want); err != nil {
		return err
	}
	o.options.Events.WarnOf("", "Restored label "+o.kind.name+" "+name, "Restored", fmt.Sprintf(
		"%s %s: %s took off its label %s; the broker has restored it, as it does with all that it writes", o.kind.name, name, manager, naming.LabelManagedBy))
	return nil
}

func (o *Objects[T]) delete(ctx context.Context, have T) error {
	err := o.client.Delete(ctx, have)
	if err == nil || apierrors.IsNotFound(err) {
		o.newest.deleted(key(have), have)
		o.contests.forget(o.nameOf(have))
		return nil
	}
	return err
}

// write makes one write and tells of it.
func (o *Objects[T]) write(ctx context.Context, name string, m mark, op string, object T, do func() error) error {
	cluster := object.GetLabels()[naming.LabelSourceCluster]
	if o.pace != nil {
		o.pace.writing(name, time.Now())
	}
	err := do()
	if o.pace != nil {
		o.pace.wrote(name, time.Now(), err == nil)
		if err == nil && op == "delete" {
			o.pace.gone(name)
		}
	}
	o.observe(name)
	var foreign conflict
	switch {
	case err == nil:
		o.agreed(name)
		o.lookAgain(name)
		o.options.Metrics.write(o.kind.name, op, "ok")
		if m.cluster != "" && !m.observedAt.IsZero() {
			o.options.Metrics.propagated(m.cluster, o.kind.name, time.Since(m.observedAt))
		}
		o.options.Recorder.Record(debug.Event{Source: cluster, Object: o.kind.name + " " + name, Action: op, Detail: "written to the apiserver", ObservedAt: m.observedAt})
		return nil
	case ctx.Err() != nil:
		return err
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && op == "update" || errors.Is(err, errLater):
		// What is there is not what we saw, or is what we made without an answer: the informer will bring it, and
		// the name with it. If it does not, it is looked at again, and is someone else's then.
		o.options.Metrics.write(o.kind.name, op, "conflict")
		o.newest.forget(o.keyOf(name))
		o.keep(name, m)
		o.loop.EnqueueAfter(name, o.conflicted(name))
		return reconcile.ErrIdle
	case errors.As(err, &foreign):
		o.options.Metrics.write(o.kind.name, op, "foreign")
		o.options.Events.Warn(cluster, "NameTaken", foreign.Error())
	default:
		o.options.Metrics.write(o.kind.name, op, "error")
		cause, note := causeOf(err), fmt.Sprintf("%s of %s %s: %v", op, o.kind.name, name, err)
		switch {
		case cause.All: // the apiserver would not take an Event either
		case cause.Shared:
			o.options.Events.WarnOf(cluster, "WriteFailed "+o.kind.name+" "+cause.Name, "WriteFailed", note)
		default:
			o.options.Events.Warn(cluster, "WriteFailed", note)
		}
	}
	o.keep(name, m)
	o.mu.Lock()
	o.failing[name] = cluster
	o.mu.Unlock()
	o.options.Recorder.Record(debug.Event{Source: cluster, Object: o.kind.name + " " + name, Action: op + "-failed", Detail: err.Error(), ObservedAt: m.observedAt})
	return err
}

// conflicted is when a name is reconciled again after one more conflict.
func (o *Objects[T]) conflicted(name string) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.conflicts[name]
	o.conflicts[name]++
	return min(afterConflict<<min(n, 10), maxAfterConflict)
}

// agreed forgets conflicts: the informer has told of the name, or it was written.
func (o *Objects[T]) agreed(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conflicts, name)
	delete(o.failing, name)
}

// keep remembers what the next write of a name is for.
func (o *Objects[T]) keep(name string, m mark) {
	if m.cluster == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sources[name] = m.cluster
	was, ok := o.marks[name]
	if !ok || was.observedAt.IsZero() || !m.observedAt.IsZero() && m.observedAt.Before(was.observedAt) {
		o.marks[name] = m
	}
}

func (o *Objects[T]) take(name string) mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.marks[name]
	delete(o.marks, name)
	return m
}

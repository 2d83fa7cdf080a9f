package follow

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// countsEvery is the interval of writes of an object's status if only counts and times changed.
const countsEvery = 10 * time.Second

// heardEvery is how much later the last message is than the one that was written before the time is written, if nothing
// else changes.
const heardEvery = time.Minute

// StatusWriter writes the part of the status of RemoteClusters that one program owns, by server-side apply.
type StatusWriter struct {
	client  dynamic.Interface
	manager string
	log     *slog.Logger

	mu      sync.Mutex
	written map[types.UID]written
}

type written struct {
	status v1alpha1.RemoteClusterStatus
	at     time.Time
	// problem is why the status is not written; empty if it is.
	problem string
}

func NewStatusWriter(client dynamic.Interface, manager string, log *slog.Logger) *StatusWriter {
	return &StatusWriter{client: client, manager: manager, log: log, written: map[types.UID]written{}}
}

// Unreported is the condition Ready of an object before the broker reports it. The CustomResourceDefinition has it as
// the default of an object without any status.
func Unreported() metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown,
		Reason: string(finding.NotReported), Message: "the broker of this cluster has not reported yet"}
}

// Propose is Report for the exporter, which adds that the object is not known to be ready, until the broker reports
// that. Otherwise its first report would leave an object without Ready, which tools take for one that is ready. The
// apiserver refuses the proposal if the broker has reported meanwhile, and the next report comes without it.
func (w *StatusWriter) Propose(ctx context.Context, o remotes.Object, want v1alpha1.RemoteClusterStatus) {
	none := Unreported()
	none.ObservedGeneration = o.Generation
	if is := meta.FindStatusCondition(o.Status.Conditions, none.Type); is == nil || is.Message == none.Message {
		want.Conditions = append(want.Conditions, none)
	}
	w.Report(ctx, o, want)
}

// Report writes what this program reports of an object, if it differs from the last write, or from the object before
// the first one. Transition times are those of the object.
func (w *StatusWriter) Report(ctx context.Context, o remotes.Object, want v1alpha1.RemoteClusterStatus) {
	w.mu.Lock()
	last, have := w.written[o.UID]
	w.mu.Unlock()
	for i := range want.Conditions {
		c := &want.Conditions[i]
		c.LastTransitionTime = metav1.Now().Rfc3339Copy()
		was := meta.FindStatusCondition(last.status.Conditions, c.Type)
		if was == nil {
			was = meta.FindStatusCondition(o.Status.Conditions, c.Type)
		}
		if was != nil && was.Status == c.Status && was.LastTransitionTime.Unix() > 0 { // 0 in the default of an object
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	now := time.Now()
	switch {
	case have && last.problem != "" && now.Sub(last.at) < again:
		return
	case have && last.problem == "" && same(last.status, want, true) && !heardLater(last.status, want):
		return
	case have && last.problem == "" && same(last.status, want, false) && now.Sub(last.at) < countsEvery:
		return
	}
	err := w.write(ctx, o, want)
	if ctx.Err() != nil {
		return
	}
	problem := ""
	// It was deleted meanwhile, or created again: neither is a problem.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		problem = fmt.Sprintf("the status of RemoteCluster %s is not written: %v", o.Name, err)
	}
	if problem != "" && problem != last.problem {
		w.log.Warn(problem)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written[o.UID] = written{want, now, problem}
}

// problems returns why the status of objects is not written, a line each.
func (w *StatusWriter) problems() (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, was := range w.written {
		if was.problem != "" {
			lines = append(lines, was.problem)
		}
	}
	slices.Sort(lines)
	return lines
}

// Keep forgets the written status of other objects than these.
func (w *StatusWriter) Keep(objects remotes.Objects) {
	there := map[types.UID]bool{}
	for _, o := range objects {
		there[o.UID] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.written, func(uid types.UID, _ written) bool { return !there[uid] })
}

// same reports whether two states are the same, with counts or without. A new time of the last message alone is no
// change.
func same(a, b v1alpha1.RemoteClusterStatus, counts bool) bool {
	a.LastHeard, b.LastHeard = nil, nil
	if !counts {
		a.Objects, b.Objects, a.Refused, b.Refused, a.Retained, b.Retained = nil, nil, 0, 0, 0, 0
		a.Problem, b.Problem, a.MTU, b.MTU = "", "", 0, 0
	}
	return reflect.DeepEqual(a, b)
}

// heardLater reports whether the last message is so much later that its time is written.
func heardLater(was, is v1alpha1.RemoteClusterStatus) bool {
	return is.LastHeard != nil && was.LastHeard != nil && is.LastHeard.Sub(was.LastHeard.Time) >= heardEvery
}

func (w *StatusWriter) write(ctx context.Context, o remotes.Object, status v1alpha1.RemoteClusterStatus) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
	u.SetName(o.Name)
	u.SetUID(o.UID) // the object of that name was created again since then
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	proposes := ready != nil && ready.Message == Unreported().Message
	_, err = w.client.Resource(v1alpha1.RemoteClusters).ApplyStatus(ctx, o.Name, u,
		metav1.ApplyOptions{FieldManager: w.manager, Force: !proposes})
	return err
}

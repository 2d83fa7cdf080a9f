package feedback

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// condition is what the annotation says, as a condition of Kubernetes does. It has no time: an exporter that restarts writes the same,
// which the apiserver does not store.
func condition(e Event) string {
	status := metav1.ConditionTrue
	if e.reason != Offered {
		status = metav1.ConditionFalse
	}
	text, err := json.Marshal(struct {
		Type    string                 `json:"type"`
		Status  metav1.ConditionStatus `json:"status"`
		Reason  string                 `json:"reason"`
		Message string                 `json:"message"`
	}{Offered, status, e.reason, cut(e.note)})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// annotate sets the annotation of a Service, or with nil takes it away. The error is that of ctx; what else fails is logged, and not written.
func (f *Feedback) annotate(ctx context.Context, namespace, name, uid string, text *string) (written bool, err error) {
	if err := f.limiter.Wait(ctx); err != nil {
		return false, ctx.Err()
	}
	// Of another Service under that name the UID differs, and the apiserver refuses.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "annotations": map[string]any{naming.AnnotationExportStatus: text}}})
	if err != nil {
		return false, err
	}
	_, err = f.kube.CoreV1().Services(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "semaphore-exporter"})
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true, nil // one that has gone needs none
	case apierrors.IsForbidden(err):
		f.unmarked = time.Now().Add(refusedAgain)
	}
	f.log.Warn("cannot write the annotation of a Service that is offered (the component features/service-status has the right to)",
		"namespace", namespace, "service", name, "error", err)
	return false, nil
}

// list notes the Services that bear the annotation: an exporter before this one may have written it, and they may not be offered any more.
func (f *Feedback) list(ctx context.Context, now time.Time) bool {
	options := metav1.ListOptions{Limit: 500}
	for {
		all, err := f.kube.CoreV1().Services("").List(ctx, options)
		if err != nil {
			f.log.Warn("cannot list Services with an annotation of an earlier exporter", "error", err)
			return false
		}
		for i := range all.Items {
			if s := &all.Items[i]; s.Annotations[naming.AnnotationExportStatus] != "" {
				f.stale[service{s.Namespace, s.Name}] = now
			}
		}
		if options.Continue = all.Continue; options.Continue == "" {
			return true
		}
	}
}

// sweep takes the annotation off Services that are not offered, when that has been so for a while: at first the catalog knows none. The error is that
// of ctx.
func (f *Feedback) sweep(ctx context.Context, now time.Time) error {
	for at, since := range f.stale {
		if f.services[at] != nil {
			delete(f.stale, at) // it is told what is so now
			continue
		}
		if now.Sub(since) < patience || now.Before(f.unmarked) {
			continue
		}
		s, err := f.kube.CoreV1().Services(at.namespace).Get(ctx, at.name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err):
			delete(f.stale, at)
			continue
		case err != nil:
			continue // it is tried again
		case s.Annotations[naming.AnnotationExportStatus] == "":
			delete(f.stale, at)
			continue
		}
		if written, err := f.annotate(ctx, at.namespace, at.name, string(s.UID), nil); err != nil {
			return err
		} else if written {
			delete(f.stale, at)
		}
	}
	return nil
}

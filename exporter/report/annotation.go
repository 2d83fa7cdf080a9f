package report

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// condition returns the annotation's value, in the form of a Kubernetes condition. It has no time, so that an exporter
// that restarts writes the same value, which the apiserver does not store again.
func condition(e event) string {
	status := metav1.ConditionFalse
	switch e.reason {
	case finding.Offered, finding.InvalidServiceSetting:
		status = metav1.ConditionTrue
	case finding.NotConfirmed:
		status = metav1.ConditionUnknown
	}
	text, err := json.Marshal(struct {
		Type    string                 `json:"type"`
		Status  metav1.ConditionStatus `json:"status"`
		Reason  string                 `json:"reason"`
		Message string                 `json:"message"`
	}{string(finding.Offered), status, string(e.reason), truncateEvent(e.note)})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// annotate sets the annotation of a Service; nil removes it. The error is that of ctx. Other errors are logged, and
// written is false.
func (f *Feedback) annotate(ctx context.Context, namespace, name, uid string, text *string) (written bool, err error) {
	if err := f.limiter.Wait(ctx); err != nil {
		return false, ctx.Err()
	}
	// If another Service has the name now, its UID differs, and the apiserver rejects the patch.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid,
		"annotations": map[string]any{naming.AnnotationExportStatus: text}}})
	if err != nil {
		return false, err
	}
	_, err = f.kube.CoreV1().Services(namespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "semaphore-exporter"})
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		f.logged.annotations = ""
		return true, nil // the Service was deleted
	case lacksRight(err):
		f.noAnnotationsUntil = time.Now().Add(forbiddenRetry)
	}
	if reason := reasonOf(err); reason != f.logged.annotations {
		f.log.Warn("cannot write the annotation of a Service that is offered; the exporter retries (the component "+
			"features/service-status has the right to)", "namespace", namespace, "service", name, "error", err)
		f.logged.annotations = reason
	}
	return false, nil
}

// listAnnotated records the Services that have the annotation: an earlier exporter may have written it to Services
// that are no longer offered.
func (f *Feedback) listAnnotated(ctx context.Context) bool {
	options := metav1.ListOptions{Limit: 500}
	for {
		all, err := f.kube.CoreV1().Services("").List(ctx, options)
		if err != nil {
			f.log.Warn("cannot list Services with an annotation of an earlier exporter; the exporter retries", "error", err)
			return false
		}
		for i := range all.Items {
			if s := &all.Items[i]; s.Annotations[naming.AnnotationExportStatus] != "" {
				f.stale[key{s.Namespace, s.Name}] = waiting.Repeats{}
			}
		}
		if options.Continue = all.Continue; options.Continue == "" {
			return true
		}
	}
}

// removeStaleAnnotations removes the annotation from up to maxWrites Services that are not offered. The catalog must be
// complete. The error is that of ctx.
func (f *Feedback) removeStaleAnnotations(ctx context.Context, now time.Time) error {
	writes := 0
	for at, attempts := range f.stale {
		if f.services[at] != nil {
			delete(f.stale, at) // the annotation is updated instead
			continue
		}
		if writes == maxWrites || now.Before(f.noAnnotationsUntil) || now.Before(attempts.Next(ofEvents)) {
			continue
		}
		writes++
		attempts.Add(ofEvents, now)
		f.stale[at] = attempts
		s, err := f.kube.CoreV1().Services(at.namespace).Get(ctx, at.name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err):
			delete(f.stale, at)
			continue
		case err != nil:
			continue // a later pass retries
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

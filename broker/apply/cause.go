package apply

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// Some causes appear only in the text of the apiserver's error: which webhook it could not call (apiserver,
// admission/plugin/webhook), which quota is full (admission/plugin/resourcequota), and which policy or webhook refused
// an object.
var (
	webhookFailed   = regexp.MustCompile(`failed calling webhook "([^"]*)"`)
	quotaExceeded   = regexp.MustCompile(`exceeded quota: ([^,]*),`)
	policyRefused   = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']*)'`)
	webhookRefused  = regexp.MustCompile(`admission webhook "([^"]*)" denied`)
	quotaNotCounted = regexp.MustCompile(`status unknown for quota: ([^,]*),`)
)

// CauseOf returns why a write failed: for a reason that it shares with other objects, or because of this object.
func CauseOf(err error) reconcile.Cause {
	shared := func(name string) reconcile.Cause { return reconcile.Cause{Name: name, Shared: true} }
	named := func(what string, in *regexp.Regexp) (string, bool) {
		if m := in.FindStringSubmatch(err.Error()); m != nil {
			return what + " " + m[1], true
		}
		return "", false
	}
	if errors.As(err, new(writes.NotOurs)) {
		return reconcile.Cause{} // each object conflicts with another one
	}
	if errors.Is(err, leader.ErrDeposed) {
		return reconcile.Cause{Name: "this replica no longer leads", All: true}
	}
	// A policy or webhook that refuses one object may refuse others, and one change may fix all of them. It chooses the
	// code and the reason of its refusal, or has none.
	for what, in := range map[string]*regexp.Regexp{"policy": policyRefused, "webhook": webhookRefused} {
		if name, ok := named(what, in); ok {
			return reconcile.Cause{Name: name}
		}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return reconcile.Cause{Name: "the apiserver does not answer", All: true}
	}
	switch reason, code := status.Status().Reason, status.Status().Code; {
	case reason == metav1.StatusReasonServiceUnavailable, reason == metav1.StatusReasonTooManyRequests,
		reason == metav1.StatusReasonServerTimeout, reason == metav1.StatusReasonTimeout,
		reason == metav1.StatusReasonUnauthorized:
		return reconcile.Cause{Name: "the apiserver answers " + string(reason), All: true}
	// A proxy says so, or an apiserver that its storage does not answer (apiserver, ErrorToAPIStatus).
	case code > http.StatusInternalServerError, reason == metav1.StatusReasonUnknown && code/100 != 4:
		return reconcile.Cause{Name: fmt.Sprint("the apiserver answers ", code), All: true}
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return shared("the namespace is being deleted")
	case reason == metav1.StatusReasonInternalError:
		if name, ok := named("webhook that cannot be called:", webhookFailed); ok {
			return shared(name)
		}
		return shared("the apiserver answers " + string(reason))
	case reason == metav1.StatusReasonForbidden:
		for what, in := range map[string]*regexp.Regexp{"quota": quotaExceeded, "uncounted quota": quotaNotCounted,
			"missing right to": kube.MissingRight} {
			if name, ok := named(what, in); ok {
				return shared(name)
			}
		}
	}
	return reconcile.Cause{Name: cmp.Or(string(status.Status().Reason), fmt.Sprint("code ", status.Status().Code))}
}

package apply

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// The texts are those of Kubernetes 1.36; TestSharedCauses has a real apiserver say them.
func TestCauseOf(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	status := func(code int32, reason metav1.StatusReason, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason, Message: message}}
	}
	terminating := apierrors.NewForbidden(services, "s",
		errors.New("unable to create new content in namespace x because it is being terminated"))
	terminating.ErrStatus.Details.Causes = append(terminating.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	for _, c := range []struct {
		err  error
		want reconcile.Cause
	}{
		{errors.New("dial tcp 127.0.0.1:6443: connect: connection refused"),
			reconcile.Cause{Name: "the apiserver does not answer", All: true}},
		{fmt.Errorf("not written: %w", leader.ErrDeposed), reconcile.Cause{Name: "this replica no longer leads", All: true}},
		{apierrors.NewServiceUnavailable("x"), reconcile.Cause{Name: "the apiserver answers ServiceUnavailable", All: true}},
		{apierrors.NewTooManyRequests("x", 1), reconcile.Cause{Name: "the apiserver answers TooManyRequests", All: true}},
		{apierrors.NewUnauthorized("x"), reconcile.Cause{Name: "the apiserver answers Unauthorized", All: true}},
		{apierrors.NewInternalError(errors.New(`failed calling webhook "w.example.org": failed to call webhook: Post ` +
			`"https://x": dial tcp: refused`)),
			reconcile.Cause{Name: "webhook that cannot be called: w.example.org", Shared: true}},
		{apierrors.NewInternalError(errors.New("etcdserver: leader changed")),
			reconcile.Cause{Name: "the apiserver answers InternalError", Shared: true}},
		{apierrors.NewForbidden(services, "s",
			errors.New("exceeded quota: few, requested: services=1, used: services=5, limited: services=5")),
			reconcile.Cause{Name: "quota few", Shared: true}},
		{apierrors.NewForbidden(services, "s",
			errors.New(`User "broker" cannot create resource "services" in API group "" in the namespace "x"`)),
			reconcile.Cause{Name: "missing right to create", Shared: true}},
		{terminating, reconcile.Cause{Name: "the namespace is being deleted", Shared: true}},
		{status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			`services "s" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`),
			reconcile.Cause{Name: "policy p"}},
		{status(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "w" denied the request: no`),
			reconcile.Cause{Name: "webhook w"}},
		// Kyverno's has no reason, and others have one that an apiserver uses for itself.
		{status(http.StatusBadRequest, "", `admission webhook "w" denied the request: no`),
			reconcile.Cause{Name: "webhook w"}},
		{status(http.StatusInternalServerError, "", `admission webhook "w" denied the request: EOF`),
			reconcile.Cause{Name: "webhook w"}},
		{status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized,
			`services "s" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`),
			reconcile.Cause{Name: "policy p"}},
		{status(http.StatusBadRequest, "", "no"), reconcile.Cause{Name: "code 400"}},
		// An apiserver whose etcd does not answer, and what client-go makes of the page of a proxy.
		{status(http.StatusInternalServerError, "", "etcdserver: request timed out"),
			reconcile.Cause{Name: "the apiserver answers 500", All: true}},
		{apierrors.NewGenericServerResponse(http.StatusBadGateway, http.MethodPost, services, "s", "<html>", 0, true),
			reconcile.Cause{Name: "the apiserver answers 502", All: true}},
		{apierrors.NewGenericServerResponse(http.StatusFound, http.MethodPost, services, "s", "<html>", 0, true),
			reconcile.Cause{Name: "the apiserver answers 302", All: true}},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "s", nil), reconcile.Cause{Name: "Invalid"}},
		{writes.NotOurs{Kind: "service", Name: "s"}, reconcile.Cause{}},
	} {
		if got := CauseOf(fmt.Errorf("apiserver: %w", c.err)); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.want)
		}
	}
}

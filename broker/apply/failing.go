package apply

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
)

// Failing returns, for each name that the broker cannot write, a reason that may be sent to another cluster: it
// contains no detail from the apiserver or from a policy of the own cluster.
func (o *Objects[T]) Failing() map[string]string {
	out := map[string]string{}
	for _, p := range o.loop.Problems() {
		out[p.Key] = outward(string(o.kind.Name), p.Err)
	}
	return out
}

func outward(kind string, err error) string {
	if c := (writes.NotOurs{}); errors.As(err, &c) {
		return fmt.Sprintf("there is a %s with its name that semaphore did not create", kind)
	}
	if reason := apierrors.ReasonForError(err); reason != "" {
		return fmt.Sprintf(
			"the apiserver refuses its %s (%s); the operator of that cluster sees why in semaphorectl status",
			kind,
			reason,
		)
	}
	return fmt.Sprintf("its %s cannot be written; the operator of that cluster sees why in semaphorectl status", kind)
}

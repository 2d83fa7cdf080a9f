package apply

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Failing says of each name that cannot be brought to what is wanted why, in words that may leave the cluster: they have nothing of
// what the apiserver, or a policy here, says in detail.
func (o *Objects[T]) Failing() map[string]string {
	out := map[string]string{}
	for _, p := range o.loop.Problems() {
		out[p.Key] = outward(o.kind.name, p.Err)
	}
	return out
}

func outward(kind string, err error) string {
	if c := (conflict{}); errors.As(err, &c) {
		return fmt.Sprintf("there is a %s of the name that it would have, which semaphore did not make", kind)
	}
	if reason := apierrors.ReasonForError(err); reason != "" {
		return fmt.Sprintf("the apiserver does not take its %s (%s); the operator of that cluster sees why in semaphorectl status", kind, reason)
	}
	return fmt.Sprintf("its %s cannot be written; the operator of that cluster sees why in semaphorectl status", kind)
}

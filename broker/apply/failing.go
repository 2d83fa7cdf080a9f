package apply

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// failingFor is how long an answer of Failing counts: each heartbeat of each remote asks, and Problems sorts all
// failures under the lock that each write needs.
const failingFor = time.Second

// Failing returns, for each name that the broker cannot write, a reason that may be sent to another cluster: it
// contains no detail from the apiserver or from a policy of the own cluster. The caller must not change the map.
func (o *Objects[T]) Failing() map[string]string {
	o.failing.Lock()
	defer o.failing.Unlock()
	if now := time.Now(); now.Sub(o.failing.at) >= failingFor {
		o.failing.at, o.failing.reasons = now, map[string]string{}
		for _, p := range o.loop.Problems() {
			o.failing.reasons[p.Key] = outward(string(o.kind.Name), p.Err)
		}
	}
	return o.failing.reasons
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

// reasons say what delays a write that has not failed.
var reasons = map[reconcile.Reason]string{
	reconcile.Reason(writes.Gathering): "more changes may come, which one write then carries",
	reconcile.Reason(writes.Limited):   "more was written for its remote than limits.kibibytesPerSecond",
	reconcile.Reason(writes.Contested): "another writer changes it again and again",
	reconcile.Reason(writes.Stale): "the apiserver's watch has not reported its newest version, or what comes first, " +
		"such as its Service",
}

// Delay returns why the write of a name is delayed, since when and until when; empty if it is not.
func (o *Objects[T]) Delay(name string) string {
	w := o.loop.Wait(name)
	if w.Reason == "" {
		return ""
	}
	until := "until another one that failed for the same cause succeeds"
	if !w.Until.IsZero() {
		until = "until " + w.Until.UTC().Format(time.TimeOnly+"Z")
	}
	why := reasons[w.Reason]
	if w.Err != nil {
		why = w.Err.Error()
	}
	return fmt.Sprintf("its write is delayed (%s) since %s, %s: %s", w.Reason,
		w.Since.UTC().Format(time.TimeOnly+"Z"), until, why)
}

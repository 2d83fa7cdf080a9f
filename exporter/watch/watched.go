package watch

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The verbs of RBAC that a watch needs.
const (
	list     = "list"
	watching = "watch"
)

var (
	errBroken  = errors.New("the connection broke before there was an answer")
	emptyWatch = reflect.TypeOf(watch.NewEmptyWatch())
)

// isEmpty recognises what client-go gives for a watch whose connection broke before there was an
// answer: no error, but a watch that ends at once.
func isEmpty(events watch.Interface) bool { return reflect.TypeOf(events) == emptyWatch }

// watched is one watch on the apiserver.
type watched struct {
	resource string
	// what is such as "services (mirror.semaphore.uw.io/mirror-service=true)".
	what string
	*follower
	// list is asked for the resourceVersion of the store; its errors are not noted.
	list cache.ListWithContextFunc
	// read is how far the catalog has been told, as a resourceVersion.
	read   atomic.Uint64
	errors *prometheus.CounterVec

	mu sync.Mutex
	// failures are those of the last request of each verb, where it failed.
	failures map[string]error
	// unserved is the error that means that there is nothing to read, nil for none, and absent says that it came.
	unserved error
	absent   bool
}

// synced reports whether the catalog was told all of a first list.
func (it *watched) synced() bool {
	it.mu.Lock()
	absent := it.absent
	it.mu.Unlock()
	return absent || it.queue.HasSynced()
}

// listed reports whether there was a first list, which what is not served has not.
func (it *watched) listed() bool { return it.queue.HasSynced() }

// note takes note of how a request ended; client-go makes the next, backing off.
func (it *watched) note(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return // it was given up, not refused
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // everyday: the next request lists
	}
	it.mu.Lock()
	if it.unserved != nil && errors.Is(err, it.unserved) {
		err, it.absent = nil, true
	}
	before := it.failures[verb]
	switch {
	case err != nil:
		if it.failures == nil {
			it.failures = map[string]error{}
		}
		it.failures[verb] = err
	case verb == watching:
		// A watch begins where a list ended, or brings the list itself.
		clear(it.failures)
	default:
		delete(it.failures, verb)
	}
	it.mu.Unlock()
	if err == nil {
		return
	}
	it.errors.WithLabelValues(it.resource, verb).Inc()
	switch {
	case before != nil && before.Error() == err.Error():
	case apierrors.IsForbidden(err):
		slog.Error("the apiserver does not allow it; apply the feature's rights from deploy/features", "verb", verb, "resource", it.what, "error", err)
	default:
		slog.Warn("request to the apiserver failed; trying again", "verb", verb, "resource", it.what, "error", err)
	}
}

// failure is why the watch does not work now; empty when it does.
func (it *watched) failure() string {
	it.mu.Lock()
	defer it.mu.Unlock()
	for _, verb := range []string{list, watching} {
		if err := it.failures[verb]; err != nil {
			return "cannot " + verb + ": " + err.Error()
		}
	}
	return ""
}

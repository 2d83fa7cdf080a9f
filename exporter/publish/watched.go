package publish

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// The RBAC verbs that a watch needs.
const (
	list     = "list"
	watching = "watch"
)

var errBroken = errors.New("the connection broke before the apiserver answered")

type watched struct {
	resource string
	// description is text such as "services (mirror.semaphore.uw.io/mirror-service=true)".
	description string
	*follower
	// list lists the resource to read its resourceVersion; its errors are not recorded.
	list cache.ListWithContextFunc
	// read is the resourceVersion up to which the catalog was updated.
	read   atomic.Uint64
	errors *prometheus.CounterVec
	// unread are the objects that cannot be read.
	unread kube.Unread

	mu sync.Mutex
	// failures are the errors of the last request of each verb, if it failed.
	failures map[string]error
	// unserved is the error of a cluster that does not serve the resource, nil if it must; absent is set when it occurred.
	unserved error
	absent   bool
}

func (it *watched) known(of kube.Object) (kube.Object, bool) {
	held, ok, err := it.store.Get(of)
	if err != nil || !ok {
		return nil, false
	}
	object, ok := held.(kube.Object)
	return object, ok
}

// synced reports whether the catalog has all objects of the first list.
func (it *watched) synced() bool {
	it.mu.Lock()
	absent := it.absent
	it.mu.Unlock()
	return absent || it.queue.HasSynced()
}

// listed reports whether there was a first list; a resource that is not served has none.
func (it *watched) listed() bool { return it.queue.HasSynced() }

// recordResult records how a request ended; client-go makes the next one, with backoff.
func (it *watched) recordResult(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return // the exporter ended the request
	}
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // this is regular: the next request lists
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
		// A watch begins after a successful list, or includes the list.
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
		slog.Error("the exporter lacks a right; apply the feature's rights from deploy/features", "resource",
			it.description, "verb", verb, "error", err)
	default:
		slog.Warn("a request to the apiserver failed; the exporter retries", "resource", it.description, "verb", verb,
			"error", err)
	}
}

// failure returns why the watch does not work now; empty if it works.
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

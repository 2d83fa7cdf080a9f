package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// StoreEvery is the interval at which FollowStore reads the revision of the store, outside of tests.
const StoreEvery = 10 * time.Second

// ErrPutBack is the error after the cluster's etcd was restored to an earlier state during a watch. A watch that
// continues from a resourceVersion that the store has not reached yet is silent until the store reaches it, and then
// lacks the changes between; it never gets an error. For this reason, Kubernetes requires a restart of all components
// (https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster).
var ErrPutBack = errors.New(
	"the cluster's etcd was put back to an earlier state, and watches from before miss what happens now",
)

// FollowStore reads the revision of the cluster's store at an interval until ctx ends. It returns an ErrPutBack if
// the revision is less than an earlier one, or than the result of read. read, which may be nil, returns the latest
// resourceVersion that was read from that store. list lists any objects in the store: a list without a resourceVersion
// is consistent, so no lagging apiserver answers it with an older revision.
func FollowStore(ctx context.Context, every time.Duration,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error), read func() uint64) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var newest uint64
	for {
		if read != nil {
			newest = max(newest, read())
		}
		now, err := storeRevision(ctx, list)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // watches report an apiserver that does not answer
			slog.Debug("the apiserver does not say how far its store is", "error", err)
		case now < newest:
			return fmt.Errorf("%w: resourceVersion %d was read, and it is at %d", ErrPutBack, newest, now)
		}
		newest = max(newest, now)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func storeRevision(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object,
	error)) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, StoreEvery)
	defer cancel()
	objects, err := list(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	m, err := meta.ListAccessor(objects)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(m.GetResourceVersion(), 10, 64) // KEP-5504: they are numbers that grow
}

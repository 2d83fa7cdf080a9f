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

// storeEvery is how often the apiserver is asked how far its store is.
const storeEvery = 10 * time.Second

// ErrPutBack says that the cluster's etcd was put back to an earlier state while it was followed. A watch that continues from a
// resourceVersion that the store has not reached yet is silent until it has, and then lacks what happened meanwhile: no
// error ever comes of it. Kubernetes has all components restarted for this reason
// (https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster).
var ErrPutBack = errors.New("the cluster's etcd was put back to an earlier state, and watches from before miss what happens now")

// FollowStore asks every ten seconds how far the cluster's store is, until ctx ends, and returns an ErrPutBack when that is less than it
// was, or than read says. read, which may be nil, is the newest resourceVersion of that store that was read. list lists anything in it: without
// a resourceVersion a list is consistent, and no apiserver that lags answers it with an old one.
func FollowStore(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error), read func() uint64) error {
	tick := time.NewTicker(storeEvery)
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
		case err != nil: // watches tell of an apiserver that does not answer
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

func storeRevision(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error)) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeEvery)
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

package watch

import (
	"context"
	"fmt"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// followStore ends with a kube.ErrPutBack when the cluster's etcd was put back.
func (w *Watcher) followStore(ctx context.Context) error {
	for _, r := range w.resources {
		if r.foreign != nil {
			continue
		}
		if err := kube.FollowStore(ctx, r.watches[0].list, w.newestRead); err != nil {
			return fmt.Errorf("%w; all is read again from the beginning, and other clusters keep what they were told until writes have passed "+
				"that, or until restores in the exporter's configuration is raised", err)
		}
		return nil
	}
	return nil
}

// newestRead is the newest resourceVersion of the cluster's own store that was read.
func (w *Watcher) newestRead() (newest uint64) {
	for _, r := range w.resources {
		if r.foreign == nil || !r.foreign() {
			for _, it := range r.watches {
				newest = max(newest, it.read.Load())
			}
		}
	}
	return newest
}

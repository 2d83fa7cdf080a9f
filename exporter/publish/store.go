package publish

import (
	"context"
	"fmt"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// detectRestore returns a kube.ErrPutBack when the cluster's etcd was restored from a backup.
func (w *Watcher) detectRestore(ctx context.Context) error {
	newest := func() uint64 { return w.newestOf((*resource).comparable) }
	for _, r := range w.resources {
		if r.ownVersions != nil {
			continue
		}
		if err := kube.FollowStore(ctx, w.storeEvery, r.watches[0].list, newest); err != nil {
			return fmt.Errorf("%w; the exporter reads everything again, and other clusters keep what they received until "+
				"resourceVersions have passed the old ones, or until you raise restores in the exporter's configuration", err)
		}
		return nil
	}
	return nil
}

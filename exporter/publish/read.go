package publish

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// sourceNamespace is the namespace whose UID identifies a cluster. The exporter asks for it again after identifyRetry.
const (
	sourceNamespace = metav1.NamespaceSystem
	identifyRetry   = time.Second
)

// identify reads the cluster's identity. Without the right to read it the exporter works, but without protection
// against an apiserver that lags.
func (w *Watcher) identify(ctx context.Context) {
	for {
		asked, cancel := context.WithTimeout(ctx, 10*time.Second)
		ns, err := w.client.CoreV1().Namespaces().Get(asked, sourceNamespace, metav1.GetOptions{})
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := identifyRetry
		refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
		w.mu.Lock()
		before := w.unidentified
		w.unidentified = err
		if err == nil {
			w.id = string(ns.UID)
			if w.restores > 0 {
				w.id += "/" + strconv.Itoa(w.restores)
			}
		}
		w.identified = w.identified || err == nil || refused
		w.mu.Unlock()
		if err == nil {
			return
		}
		if refused {
			wait = w.identifyForbiddenRetry
		}
		if before == nil {
			slog.Warn("cannot read the namespace whose UID identifies this cluster; the exporter retries, and does not "+
				"detect an apiserver that lags", "namespace", sourceNamespace, "error", err)
		}
		if kube.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// ID identifies the source by the UID of the namespace kube-system and the number of restores, as brokers compare
// resourceVersions of one source only; empty if unknown.
func (w *Watcher) ID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

func (w *Watcher) Ready(kind semaphorev1.Kind) bool {
	w.mu.Lock()
	identified := w.identified
	w.mu.Unlock()
	if !identified {
		return false
	}
	for _, r := range w.resources {
		if r.contributesTo(kind) && !r.synced() {
			return false
		}
	}
	return true
}

// Read returns the resourceVersion up to which the catalog contains everything of a kind; 0 for nothing.
func (w *Watcher) Read(kind semaphorev1.Kind) uint64 {
	var least uint64
	first := true
	for _, r := range w.resources {
		if !r.versionsComparable(kind) {
			continue
		}
		for _, it := range r.watches {
			if it.synced() && !it.listed() {
				continue // it is not served, and has no objects
			}
			if read := it.read.Load(); first || read < least {
				least, first = read, false
			}
		}
	}
	return least
}

// Newest returns the newest resourceVersion that the catalog may contain of a kind. The resources that contribute to a
// kind, such as Services and slices, are read independently.
func (w *Watcher) Newest(kind semaphorev1.Kind) uint64 {
	return w.newestOf(func(r *resource) bool { return r.versionsComparable(kind) })
}

func (w *Watcher) newestOf(which func(*resource) bool) (newest uint64) {
	for _, r := range w.resources {
		if which(r) {
			for _, it := range r.watches {
				newest = max(newest, it.read.Load())
			}
		}
	}
	return newest
}

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

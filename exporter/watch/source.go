package watch

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The namespace whose UID names a cluster, and how often its apiserver is asked for it where there is no answer, or a no.
const (
	sourceNamespace = metav1.NamespaceSystem
	askAgain        = time.Second
	askRefused      = 15 * time.Second
)

// identify finds out which apiserver this is. That there are no rights to know is no reason not to export: it
// only takes away the protection against an apiserver that lags.
func (w *Watcher) identify(ctx context.Context) {
	for {
		asked, cancel := context.WithTimeout(ctx, 10*time.Second)
		ns, err := w.client.CoreV1().Namespaces().Get(asked, sourceNamespace, metav1.GetOptions{})
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := askAgain
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
			wait = askRefused
		}
		if before == nil {
			slog.Warn("cannot read the namespace whose UID names this cluster", "namespace", sourceNamespace, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Restored says how often the etcd of the cluster was put back to an earlier state: resourceVersions before and after are not of one
// source. It is called before Run.
func (w *Watcher) Restored(times int) { w.restores = times }

// ID names what is read: the UID of the namespace kube-system, and how often its etcd was put back, as brokers compare revisions of
// one source only; empty where it cannot be known.
func (w *Watcher) ID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id
}

// Ready reports whether the catalog holds all there is of a kind.
func (w *Watcher) Ready(kind semaphorev1.Kind) bool {
	w.mu.Lock()
	identified := w.identified
	w.mu.Unlock()
	if !identified {
		return false
	}
	for _, r := range w.resources {
		if r.decides(kind) && !r.synced() {
			return false
		}
	}
	return true
}

// Read is how far the source has been read for a kind: the catalog holds all that the apiserver had of it at that
// resourceVersion. 0 for nothing.
func (w *Watcher) Read(kind semaphorev1.Kind) uint64 {
	var least uint64
	first := true
	for _, r := range w.resources {
		if !r.dates(kind) {
			continue
		}
		for _, it := range r.watches {
			if it.synced() && !it.listed() {
				continue // it is not served, and holds nothing
			}
			if read := it.read.Load(); first || read < least {
				least, first = read, false
			}
		}
	}
	return least
}

// Newest is the newest resourceVersion that the catalog can have anything of a kind from: what decides on a kind, such as
// Services and slices, is not read in step.
func (w *Watcher) Newest(kind semaphorev1.Kind) uint64 {
	var newest uint64
	for _, r := range w.resources {
		if r.dates(kind) {
			for _, it := range r.watches {
				newest = max(newest, it.read.Load())
			}
		}
	}
	return newest
}

package apply

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Watched watches objects that it does not write.
type Watched[T writes.Object] struct {
	watch   Watch[T]
	options InformerOptions
	// known, if not nil, is called after Saw has received the first list.
	known  func()
	synced atomic.Bool
}

func (w *Watched[T]) Run(ctx context.Context) error {
	var store Store[T]
	return w.watch.Run(ctx, w.options, &store, func(ctx context.Context) error {
		if w.known != nil {
			w.known()
		}
		w.synced.Store(true)
		<-ctx.Done()
		return ctx.Err()
	})
}

// Synced reports whether the objects are known: each change from now on is reported.
func (w *Watched[T]) Synced() bool { return w.synced.Load() }

// Findings returns nothing: InformerOptions.Failing has a list or a watch that fails.
func (*Watched[T]) Findings() []finding.Finding { return nil }

// NewNamespaces watches the cluster's namespaces. It calls changed with each of the first list and with each change, in
// order, and known once, after the first list. A terminating namespace counts as deleted: nothing can be created in it,
// and its objects are deleted with it.
func NewNamespaces(kube kubernetes.Interface, known func(), changed func(name string, there bool),
	options InformerOptions) *Watched[*corev1.Namespace] {
	return &Watched[*corev1.Namespace]{
		options: options, known: known,
		watch: Watch[*corev1.Namespace]{
			Kind: writes.Namespace, ListWatch: ListWatch(kube.CoreV1().Namespaces(), metav1.ListOptions{}),
			Example: &corev1.Namespace{},
			Reduce: func(ns *corev1.Namespace) *corev1.Namespace {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name, UID: ns.UID,
					ResourceVersion: ns.ResourceVersion, DeletionTimestamp: ns.DeletionTimestamp}}
			},
			Saw: func(_, ns *corev1.Namespace, gone bool) { changed(ns.Name, !gone && ns.DeletionTimestamp == nil) },
		},
	}
}

// NewPods watches the pods of one ServiceAccount. It calls ended with the UID of each that is deleted, or whose
// containers have terminated for good, and may do so more than once for a pod.
func NewPods(kube kubernetes.Interface, namespace, serviceAccount string, ended func(types.UID),
	options InformerOptions) *Watched[*corev1.Pod] {
	of := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.serviceAccountName",
		serviceAccount).String()}
	return &Watched[*corev1.Pod]{options: options, watch: Watch[*corev1.Pod]{
		Kind: writes.Pod, ListWatch: ListWatch(kube.CoreV1().Pods(namespace), of), Example: &corev1.Pod{},
		Reduce: func(pod *corev1.Pod) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
				ResourceVersion: pod.ResourceVersion}, Status: corev1.PodStatus{Phase: pod.Status.Phase}}
		},
		Saw: func(_, pod *corev1.Pod, gone bool) {
			if gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				ended(pod.UID)
			}
		},
	}}
}

package apply

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
)

// Namespaces watches the cluster's namespaces. A terminating namespace counts as deleted: nothing can be created in it,
// and its objects are deleted with it.
type Namespaces struct {
	kube    kubernetes.Interface
	options InformerOptions
	known   func(names []string)
	changed func(name string, there bool)
	onlyWatched
}

// NewNamespaces returns a watch. It calls known with the first list, and changed with each change; a change may come
// before the list.
func NewNamespaces(kube kubernetes.Interface, known func([]string), changed func(string, bool),
	options InformerOptions) *Namespaces {
	return &Namespaces{kube: kube, options: options, known: known, changed: changed}
}

// Run watches until ctx ends, and returns ctx's error.
func (n *Namespaces) Run(ctx context.Context) error {
	var store Store[*corev1.Namespace]
	return Watch[*corev1.Namespace]{
		Kind: writes.Namespace, ListWatch: ListWatch(n.kube.CoreV1().Namespaces(), metav1.ListOptions{}),
		Example: &corev1.Namespace{}, Reduce: reduceNamespace,
		Saw: func(_, ns *corev1.Namespace, gone bool) { n.changed(ns.Name, !gone && ns.DeletionTimestamp == nil) },
	}.Run(ctx, n.options, &store, func(ctx context.Context) error {
		var names []string
		for _, ns := range store.All() {
			if ns.DeletionTimestamp == nil {
				names = append(names, ns.Name)
			}
		}
		n.known(names)
		n.synced.Store(true)
		return untilEnd(ctx)
	})
}

// reduceNamespace keeps of a namespace what its readers need.
func reduceNamespace(ns *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, DeletionTimestamp: ns.DeletionTimestamp,
	}}
}

package apply

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Namespaces follows which namespaces the cluster has. One that is being deleted is there no more: nothing can be
// written into it. Its own objects go with it.
type Namespaces struct {
	kube    kubernetes.Interface
	options Options
	known   func(names []string)
	changed func(name string, there bool)
	synced  atomic.Bool
}

// NewNamespaces tells known which there are at first, and changed of changes, which may come before that.
func NewNamespaces(kube kubernetes.Interface, known func([]string), changed func(string, bool), options Options) *Namespaces {
	return &Namespaces{kube: kube, options: options, known: known, changed: changed}
}

// Synced says whether the namespaces are known.
func (n *Namespaces) Synced() bool { return n.synced.Load() }

// Problems are none: what cannot be listed is not known, and that is told by Synced.
func (n *Namespaces) Problems() []string { return nil }

// Run follows until ctx ends.
func (n *Namespaces) Run(ctx context.Context) error {
	informer, err := following[*corev1.Namespace]{
		kind: "namespace", listWatch: listWatch(n.kube.CoreV1().Namespaces(), metav1.ListOptions{}), example: &corev1.Namespace{}, reduce: reduceNamespace,
		saw: func(_, ns *corev1.Namespace, gone bool) { n.changed(ns.Name, !gone && ns.DeletionTimestamp == nil) },
	}.informer(n.options)
	if err != nil {
		return err
	}
	ctx, stop := follow(ctx, informer)
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	var names []string
	for _, object := range informer.GetStore().List() {
		if ns := object.(*corev1.Namespace); ns.DeletionTimestamp == nil {
			names = append(names, ns.Name)
		}
	}
	n.known(names)
	n.synced.Store(true)
	<-ctx.Done()
	return ctx.Err()
}

// reduceNamespace leaves of a namespace what is asked of it.
func reduceNamespace(ns *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, DeletionTimestamp: ns.DeletionTimestamp,
	}}
}

package apply

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Services keeps the mirror Services in namespace.
func Services(kube kubernetes.Interface, namespace string, desired Desired[*corev1.Service], options Options) *Objects[*corev1.Service] {
	api := kube.CoreV1().Services(namespace)
	return newObjects(kind[*corev1.Service]{
		name:    "service",
		example: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: connect[*corev1.Service](api, listWatch(api, metav1.ListOptions{LabelSelector: Owned})),
		merge:   mergeService,
		equal:   func(a, b *corev1.Service) bool { return equality.Semantic.DeepEqual(a, b) },
		// spec.clusterIP cannot change.
		replace: func(have, want *corev1.Service) bool {
			return (have.Spec.ClusterIP == corev1.ClusterIPNone) != (want.Spec.ClusterIP == corev1.ClusterIPNone)
		},
	}, desired, options)
}

// mergeService leaves what the apiserver allocates (addresses, families) and what others annotate.
func mergeService(have, want *corev1.Service) *corev1.Service {
	out := have.DeepCopy()
	if want.Labels[naming.LabelGlobal] == "true" {
		delete(out.Annotations, corev1.AnnotationTopologyMode) // the only one that is ours at times
	}
	mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
	out.Spec.Type = want.Spec.Type
	out.Spec.Ports = want.Spec.Ports
	out.Spec.Selector = nil
	out.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	out.Spec.IPFamilyPolicy = want.Spec.IPFamilyPolicy
	out.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster) // no endpoint of another cluster is local
	out.Spec.SessionAffinity = want.Spec.SessionAffinity
	out.Spec.SessionAffinityConfig = want.Spec.SessionAffinityConfig
	out.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	out.Spec.ExternalName = ""
	out.Spec.ExternalIPs = nil
	return out
}

// EndpointSlices keeps the slices of the mirrors in namespace.
func EndpointSlices(kube kubernetes.Interface, namespace string, desired Desired[*discoveryv1.EndpointSlice], options Options) *Objects[*discoveryv1.EndpointSlice] {
	api := kube.DiscoveryV1().EndpointSlices(namespace)
	return newObjects(kind[*discoveryv1.EndpointSlice]{
		name:    "endpointslice",
		example: &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: connect[*discoveryv1.EndpointSlice](api, listWatch(api, metav1.ListOptions{LabelSelector: Owned})),
		merge: func(have, want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
			out := have.DeepCopy()
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Endpoints, out.Ports = want.Endpoints, want.Ports
			return out
		},
		equal: func(a, b *discoveryv1.EndpointSlice) bool { return equality.Semantic.DeepEqual(a, b) },
		replace: func(have, want *discoveryv1.EndpointSlice) bool {
			return have.AddressType != want.AddressType // it cannot change
		},
	}, desired, options)
}

// typed is what the clients of Kubernetes' own types have.
type typed[T Object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// native writes Kubernetes' own types, which are always served.
type native[T Object] struct{ api typed[T] }

func connect[T Object](api typed[T], listWatch *cache.ListWatch) func(context.Context) (connection[T], error) {
	return func(context.Context) (connection[T], error) {
		return connection[T]{client: native[T]{api}, listWatch: listWatch}, nil
	}
}

func (c native[T]) Get(ctx context.Context, like T) (T, error) {
	return wrap(c.api.Get(ctx, like.GetName(), metav1.GetOptions{}))
}

func (c native[T]) Create(ctx context.Context, o T) (T, error) {
	return wrap(c.api.Create(ctx, o, metav1.CreateOptions{FieldManager: fieldManager}))
}

func (c native[T]) Update(ctx context.Context, o T) (T, error) {
	return wrap(c.api.Update(ctx, o, metav1.UpdateOptions{FieldManager: fieldManager}))
}

func (c native[T]) Delete(ctx context.Context, o T) error {
	return c.api.Delete(ctx, o.GetName(), asSeen(o))
}

// asSeen has an object deleted only as it was seen.
func asSeen(o metav1.Object) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

func wrap[T Object](o T, err error) (T, error) {
	if err != nil {
		return o, fmt.Errorf("apiserver: %w", err)
	}
	return o, nil
}

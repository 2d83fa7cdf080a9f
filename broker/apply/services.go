package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Services keeps the mirror Services in namespace.
func Services(kube kubernetes.Interface, namespace string, desired Desired[*corev1.Service], options Options) *Objects[*corev1.Service] {
	api := kube.CoreV1().Services(namespace)
	lacking := &lacking{is: map[string]bool{}}
	return newObjects(kind[*corev1.Service]{
		name:    "service",
		paced:   true,
		example: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: func(context.Context) (connection[*corev1.Service], error) {
			return connection[*corev1.Service]{
				client:    serviceClient{native[*corev1.Service]{api}, lacking},
				listWatch: listWatch(api, metav1.ListOptions{LabelSelector: Owned}),
			}, nil
		},
		merge: func(have, want *corev1.Service) *corev1.Service { return mergeService(have, lacking.without(want)) },
		equal: func(a, b *corev1.Service) bool { return equality.Semantic.DeepEqual(a, b) },
		// spec.clusterIP cannot change, nor the first of spec.ipFamilies.
		replace: func(have, want *corev1.Service) bool {
			families := lacking.without(want).Spec.IPFamilies
			return (have.Spec.ClusterIP == corev1.ClusterIPNone) != (want.Spec.ClusterIP == corev1.ClusterIPNone) ||
				len(families) == 1 && len(have.Spec.IPFamilies) == 2 && have.Spec.IPFamilies[0] != families[0]
		},
	}, desired, options)
}

// lacking is what this cluster has refused of Services: values that a later version knows, or an IP family that it does not have. Mirrors are
// made without; it is found out again when the broker starts.
type lacking struct {
	mu sync.Mutex
	is map[string]bool
}

// The fields in which a Service is refused for what the cluster lacks.
const (
	distributionField = "spec.trafficDistribution"
	familiesField     = "spec.ipFamilies"
)

// learn notes what a refusal says that the cluster lacks, and whether it says so.
func (l *lacking) learn(err error, s *corev1.Service) (learned bool) {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cause := range status.Status().Details.Causes {
		switch {
		case cause.Field == distributionField && s.Spec.TrafficDistribution != nil:
			l.is[distributionField+*s.Spec.TrafficDistribution], learned = true, true
		case strings.HasPrefix(cause.Field, familiesField) && len(s.Spec.IPFamilies) == 1:
			l.is[familiesField+string(s.Spec.IPFamilies[0])], learned = true, true
		}
	}
	return learned
}

// without is a Service as this cluster can have it.
func (l *lacking) without(s *corev1.Service) *corev1.Service {
	l.mu.Lock()
	defer l.mu.Unlock()
	distribution := s.Spec.TrafficDistribution != nil && l.is[distributionField+*s.Spec.TrafficDistribution]
	family := len(s.Spec.IPFamilies) == 1 && l.is[familiesField+string(s.Spec.IPFamilies[0])]
	if !distribution && !family {
		return s
	}
	out := s.DeepCopy()
	if distribution {
		out.Spec.TrafficDistribution = nil
	}
	if family {
		out.Spec.IPFamilyPolicy, out.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicyPreferDualStack), nil
	}
	return out
}

// serviceClient writes Services without what the cluster lacks.
type serviceClient struct {
	native[*corev1.Service]
	*lacking
}

func (c serviceClient) Create(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out, err := c.native.Create(ctx, c.without(s))
	for range 2 {
		if err == nil || !c.learn(err, c.without(s)) {
			break
		}
		out, err = c.native.Create(ctx, c.without(s))
	}
	return out, err
}

func (c serviceClient) Update(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out, err := c.native.Update(ctx, s)
	if err != nil && c.learn(err, s) && s.Spec.TrafficDistribution != nil {
		out, err = c.native.Update(ctx, c.without(s))
	}
	return out, err
}

// mergeService leaves what the apiserver allocates (addresses, families) and what others annotate.
func mergeService(have, want *corev1.Service) *corev1.Service {
	out := have.DeepCopy()
	if want.Labels[naming.LabelGlobal] == "true" {
		delete(out.Annotations, corev1.AnnotationTopologyMode) // the only one that is ours at times
	}
	dropCopied(&out.ObjectMeta)
	mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
	out.Spec.Type = want.Spec.Type
	out.Spec.Ports = want.Spec.Ports
	out.Spec.Selector = nil
	out.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	mergeFamilies(&out.Spec, &want.Spec)
	out.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster) // no endpoint of another cluster is local
	out.Spec.SessionAffinity = want.Spec.SessionAffinity
	out.Spec.SessionAffinityConfig = want.Spec.SessionAffinityConfig
	out.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	out.Spec.ExternalName = ""
	out.Spec.ExternalIPs = nil
	return out
}

// dropCopied takes off the labels that are those of the source: what is wanted of them comes with the rest. The annotation that names
// them may have been changed by hand, so of labels that no source can set none is taken for copied.
func dropCopied(have *metav1.ObjectMeta) {
	for _, key := range strings.Split(have.Annotations[naming.AnnotationCopiedLabels], ",") {
		if !naming.ReservedLabel(key) {
			delete(have.Labels, key)
		}
	}
	delete(have.Annotations, naming.AnnotationCopiedLabels)
}

// mergeFamilies brings the IP families to the one that is wanted, where it is one. A family more is taken off. One that
// stands alone in place of the one that is wanted is given that beside it, where the cluster has both; then it is replaced.
func mergeFamilies(have, want *corev1.ServiceSpec) {
	have.IPFamilyPolicy = want.IPFamilyPolicy
	switch {
	case len(want.IPFamilies) != 1 || len(have.IPFamilies) == 0:
	case have.IPFamilies[0] != want.IPFamilies[0]:
		have.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	case len(have.IPFamilies) == 2:
		have.IPFamilies = have.IPFamilies[:1]
		have.ClusterIPs = have.ClusterIPs[:min(1, len(have.ClusterIPs))]
	}
}

// EndpointSlices keeps the slices of the mirrors in namespace.
func EndpointSlices(kube kubernetes.Interface, namespace string, desired Desired[*discoveryv1.EndpointSlice], options Options) *Objects[*discoveryv1.EndpointSlice] {
	api := kube.DiscoveryV1().EndpointSlices(namespace)
	return newObjects(kind[*discoveryv1.EndpointSlice]{
		name:    "endpointslice",
		paced:   true,
		urgent:  leaves,
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

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Services writes the mirror Services in namespace. With an adoption it adopts those of another tool: all that exist at
// its start and when AdoptAll is called, and later those with the name of a desired one.
func Services(
	kube kubernetes.Interface, namespace string, adoption *migrate.Services, desired writes.Desired[*corev1.Service],
	options Options,
) *Objects[*corev1.Service] {
	api := kube.CoreV1().Services(namespace)
	lacking := &lacking{refused: map[string]bool{}}
	return newObjects(kind[*corev1.Service]{
		Kind: writes.Kind[*corev1.Service]{
			Name:  writes.Service,
			Paced: true,
			Merge: func(have, want *corev1.Service) *corev1.Service { return mergeService(have, lacking.without(want)) },
			Equal: func(a, b *corev1.Service) bool { return equality.Semantic.DeepEqual(a, b) },
			// spec.clusterIP is immutable, and so is the first of spec.ipFamilies.
			Replace: func(have, want *corev1.Service) bool {
				families := lacking.without(want).Spec.IPFamilies
				return (have.Spec.ClusterIP == corev1.ClusterIPNone) != (want.Spec.ClusterIP == corev1.ClusterIPNone) ||
					len(families) == 1 && len(have.Spec.IPFamilies) == 2 && have.Spec.IPFamilies[0] != families[0]
			},
			Recreate: func(gone, want *corev1.Service) *corev1.Service { return withAddresses(lacking.without(want), gone) },
		},
		example: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: func(ctx context.Context) (connection[*corev1.Service], error) {
			out := connection[*corev1.Service]{
				client:    serviceClient{native[*corev1.Service]{func(string) typed[*corev1.Service] { return api }}, lacking},
				listWatch: ListWatch(api, metav1.ListOptions{LabelSelector: writes.Owned}),
			}
			if adoption != nil {
				adoption.All(ctx)
				out.adoptAll, out.adopt = adoption.All, adoption.One
			}
			return out, nil
		},
	}, desired, options)
}

// lacking records what this cluster's apiserver refuses in Services: values that only later versions know, or an IP
// family that the cluster lacks. Mirrors are created without them. A restart of the broker clears the record.
type lacking struct {
	mu      sync.Mutex
	refused map[string]bool
}

// Fields whose refusal means that the cluster does not support a value.
const (
	distributionField = "spec.trafficDistribution"
	familiesField     = "spec.ipFamilies"
)

// learn records which value a refusal shows to be unsupported, and reports whether it shows one.
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
			l.refused[distributionField+*s.Spec.TrafficDistribution], learned = true, true
		case strings.HasPrefix(cause.Field, familiesField) && len(s.Spec.IPFamilies) == 1:
			l.refused[familiesField+string(s.Spec.IPFamilies[0])], learned = true, true
		}
	}
	return learned
}

// without returns a Service without the unsupported values.
func (l *lacking) without(s *corev1.Service) *corev1.Service {
	l.mu.Lock()
	defer l.mu.Unlock()
	distribution := s.Spec.TrafficDistribution != nil && l.refused[distributionField+*s.Spec.TrafficDistribution]
	family := len(s.Spec.IPFamilies) == 1 && l.refused[familiesField+string(s.Spec.IPFamilies[0])]
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

// serviceClient writes Services without the values that the cluster does not support.
type serviceClient struct {
	native[*corev1.Service]
	*lacking
}

func (c serviceClient) Create(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out, err := c.create(ctx, s)
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return out, err
	}
	// The Service was deleted. The apiserver frees its addresses after it has reported the deletion.
	for wait := freedAfter; addressesRefused(err) && wait <= maxFreed; wait *= 2 {
		if have, failed := c.native.Get(ctx, s); failed == nil { // it had only lost its label
			return nil, apierrors.NewAlreadyExists(corev1.Resource("services"), have.Name)
		}
		if kube.Sleep(ctx, wait) != nil {
			return out, err
		}
		out, err = c.create(ctx, s)
	}
	// Another Service has them, or a policy lets the broker choose none (deploy/broker/object-writes.yaml).
	if addressesRefused(err) || err != nil && strings.Contains(err.Error(), addressesPolicy) {
		out, err = c.create(ctx, withoutAddresses(s))
	}
	return out, err
}

// addressesPolicy ends the name of the policy that judges which cluster IPs the broker may choose; an overlay may put a
// prefix before it.
const addressesPolicy = "semaphore-service-addresses'"

// The waits for the addresses of a deleted Service double from freedAfter to maxFreed, 630 ms together.
const freedAfter, maxFreed = 10 * time.Millisecond, 320 * time.Millisecond

// create creates a Service without the values that the cluster does not support.
func (c serviceClient) create(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out, err := c.native.Create(ctx, c.without(s))
	for range 2 {
		if err == nil || !c.learn(err, c.without(s)) {
			break
		}
		out, err = c.native.Create(ctx, c.without(s))
	}
	return out, err
}

// addressesRefused reports whether the apiserver does not assign the ClusterIPs that a Service asks for.
func addressesRefused(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
			return strings.HasPrefix(c.Field, "spec.clusterIP")
		})
}

// withAddresses returns a Service with the ClusterIPs of one that was deleted, as far as their families are desired.
func withAddresses(s, gone *corev1.Service) *corev1.Service {
	ips, families := gone.Spec.ClusterIPs, gone.Spec.IPFamilies
	if s.Spec.ClusterIP != "" || len(ips) == 0 || len(ips) != len(families) || ips[0] == corev1.ClusterIPNone {
		return s
	}
	if len(s.Spec.IPFamilies) == 1 {
		at := slices.Index(families, s.Spec.IPFamilies[0])
		if at < 0 {
			return s
		}
		ips, families = ips[at:at+1], families[at:at+1]
	}
	out := s.DeepCopy()
	out.Spec.ClusterIP, out.Spec.ClusterIPs, out.Spec.IPFamilies = ips[0], slices.Clone(ips), slices.Clone(families)
	return out
}

// withoutAddresses returns a Service for which the apiserver chooses the ClusterIPs.
func withoutAddresses(s *corev1.Service) *corev1.Service {
	out := s.DeepCopy()
	out.Spec.ClusterIP, out.Spec.ClusterIPs = "", nil
	if ptr.Deref(out.Spec.IPFamilyPolicy, "") != corev1.IPFamilyPolicySingleStack {
		out.Spec.IPFamilies = nil
	}
	return out
}

func (c serviceClient) Update(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	out, err := c.native.Update(ctx, s)
	if err != nil && c.learn(err, s) && s.Spec.TrafficDistribution != nil {
		out, err = c.native.Update(ctx, c.without(s))
	}
	return out, err
}

// mergeService keeps the allocations of the apiserver (addresses, families) and the annotations of others.
func mergeService(have, want *corev1.Service) *corev1.Service {
	out := have.DeepCopy()
	if want.Labels[naming.LabelGlobal] == "true" || want.Labels[naming.LabelImported] == "true" {
		// annotations that the broker sets at times
		delete(out.Annotations, corev1.AnnotationTopologyMode)
		delete(out.Annotations, naming.AnnotationOwnName)
	}
	dropCopied(&out.ObjectMeta)
	mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
	out.Spec.Type = want.Spec.Type
	out.Spec.Ports = want.Spec.Ports
	out.Spec.Selector = nil
	out.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	mergeFamilies(&out.Spec, &want.Spec)
	// no endpoint of another cluster is local
	out.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	out.Spec.SessionAffinity = want.Spec.SessionAffinity
	out.Spec.SessionAffinityConfig = want.Spec.SessionAffinityConfig
	out.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	out.Spec.ExternalName = ""
	out.Spec.ExternalIPs = nil
	out.Spec.LoadBalancerIP, out.Spec.LoadBalancerSourceRanges = "", nil
	return out
}

// dropCopied removes the labels copied from the source; the desired ones are added with the other labels, as are the
// broker's own. It also removes those that are reserved now and were copied before they were.
func dropCopied(have *metav1.ObjectMeta) {
	for _, key := range strings.Split(have.Annotations[naming.AnnotationCopiedLabels], ",") {
		delete(have.Labels, key)
	}
	delete(have.Annotations, naming.AnnotationCopiedLabels)
}

// mergeFamilies sets the IP family policy to that of the desired Service. The apiserver removes an additional family of
// one that becomes SingleStack: if the broker did it, the apiserver would record that it chose the remaining ClusterIP.
// If the cluster has both families, it adds the desired one beside a different one; the Service is replaced afterwards.
func mergeFamilies(have, want *corev1.ServiceSpec) {
	have.IPFamilyPolicy = want.IPFamilyPolicy
	if len(want.IPFamilies) == 1 && len(have.IPFamilies) > 0 && have.IPFamilies[0] != want.IPFamilies[0] {
		have.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	}
}

// sliceSelectors are the selectors of the types of slices that the broker writes.
var sliceSelectors = map[writes.ObjectKind]string{writes.EndpointSlice: writes.Owned,
	writes.ImportSlice: writes.OwnedImportSlices, writes.OwnSlice: writes.OwnedOwnSlices}

// Slices writes the EndpointSlices of a type: those of the mirrors in their namespace, or those beside ServiceImports
// or under the own names of Services in all namespaces, whose names are NAMESPACE/NAME.
func Slices(
	kube kubernetes.Interface, name writes.ObjectKind, namespace string,
	desired writes.Desired[*discoveryv1.EndpointSlice], options Options,
) *Objects[*discoveryv1.EndpointSlice] {
	client := native[*discoveryv1.EndpointSlice]{func(of string) typed[*discoveryv1.EndpointSlice] {
		return kube.DiscoveryV1().EndpointSlices(cmp.Or(namespace, of))
	}}
	selected := metav1.ListOptions{LabelSelector: sliceSelectors[name]}
	listWatch := ListWatch(kube.DiscoveryV1().EndpointSlices(namespace), selected)
	return newObjects(kind[*discoveryv1.EndpointSlice]{
		Kind:       sliceKind(name),
		example:    &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		everywhere: namespace == metav1.NamespaceAll,
		connect: func(context.Context) (connection[*discoveryv1.EndpointSlice], error) {
			return connection[*discoveryv1.EndpointSlice]{client: client, listWatch: listWatch}, nil
		},
	}, desired, options)
}

func sliceKind(name writes.ObjectKind) writes.Kind[*discoveryv1.EndpointSlice] {
	return writes.Kind[*discoveryv1.EndpointSlice]{
		Name:   name,
		Paced:  true,
		Urgent: leaves,
		Merge: func(have, want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
			out := have.DeepCopy()
			delete(out.Annotations, naming.AnnotationUnusedEndpoints) // set only while some are not in use
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			if len(want.OwnerReferences) > 0 { // none while the own exporter is silent
				out.OwnerReferences = want.OwnerReferences
			}
			out.Endpoints, out.Ports = want.Endpoints, want.Ports
			return out
		},
		Equal: func(a, b *discoveryv1.EndpointSlice) bool { return equality.Semantic.DeepEqual(a, b) },
		Replace: func(have, want *discoveryv1.EndpointSlice) bool {
			// The type is immutable, and a policy lets no other slice become one under an own name, or the reverse.
			_, had := have.Labels[naming.LabelOwnName]
			_, has := want.Labels[naming.LabelOwnName]
			return have.AddressType != want.AddressType || had != has
		},
		Empty: func(have *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
			out := have.DeepCopy()
			out.Endpoints = nil
			return out
		},
	}
}

// leaves reports whether a ready endpoint of one slice is absent or not ready in another one: traffic to it fails until
// the slice is written.
func leaves(have, want *discoveryv1.EndpointSlice) bool {
	ready := func(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }
	stays := map[string]bool{}
	for i := range want.Endpoints {
		if e := &want.Endpoints[i]; len(e.Addresses) > 0 && ready(e) {
			stays[e.Addresses[0]] = true
		}
	}
	for i := range have.Endpoints {
		if e := &have.Endpoints[i]; len(e.Addresses) > 0 && ready(e) && !stays[e.Addresses[0]] {
			return true
		}
	}
	return false
}

// typed are the methods that the clients of Kubernetes' own types have.
type typed[T writes.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// native writes objects of one of Kubernetes' own types, which are always served.
type native[T writes.Object] struct {
	in func(namespace string) typed[T]
}

func (c native[T]) Get(ctx context.Context, like T) (T, error) {
	return wrap(c.in(like.GetNamespace()).Get(ctx, like.GetName(), metav1.GetOptions{}))
}

func (c native[T]) Create(ctx context.Context, o T) (T, error) {
	return wrap(c.in(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{FieldManager: writes.FieldManager}))
}

func (c native[T]) Update(ctx context.Context, o T) (T, error) {
	return wrap(c.in(o.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{FieldManager: writes.FieldManager}))
}

func (c native[T]) Delete(ctx context.Context, o T) error {
	return c.in(o.GetNamespace()).Delete(ctx, o.GetName(), writes.DeletePreconditions(o))
}

func wrap[T writes.Object](o T, err error) (T, error) {
	if err != nil {
		return o, fmt.Errorf("apiserver: %w", err)
	}
	return o, nil
}

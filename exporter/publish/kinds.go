package publish

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// kind describes how objects of one resource get from the apiserver into the catalog.
type kind struct {
	// name of the resource, as in RBAC rules.
	name string
	// kinds of exported objects that the resource contributes to, and of is the kind of those that are made of one object.
	kinds []semaphorev1.Kind
	of    semaphorev1.Kind
	// selectors of labels, with a watch for each; an empty one selects all.
	selectors []string
	client    cache.Getter
	// lister replaces client for a custom resource, where others may write fields that its type cannot hold.
	lister func(*kube.Unread) *cache.ListWatch
	// ownVersions, if not nil, reports that the resourceVersions cannot be compared with those of the cluster's other
	// objects.
	ownVersions func() bool
	// unserved, if not nil, is the error of a cluster that does not serve the resource, and therefore has no objects
	// of it.
	unserved error
	example  runtime.Object
	// trim removes the fields that the catalog does not read, to save memory.
	trim   cache.TransformFunc
	put    func(c *catalog.Catalog, o metav1.Object, now time.Time)
	remove func(c *catalog.Catalog, namespace, name string, now time.Time)
}

func nodes(client kubernetes.Interface) kind {
	return kind{
		name: "nodes", kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE},
		of: semaphorev1.Kind_KIND_NODE, selectors: []string{""},
		client: client.CoreV1().RESTClient(), example: &corev1.Node{},
		trim: trimmed(func(n *corev1.Node) {
			n.ObjectMeta = metav1.ObjectMeta{
				Name: n.Name, UID: n.UID, CreationTimestamp: n.CreationTimestamp, ResourceVersion: n.ResourceVersion,
				Annotations: catalog.Kept(n.Annotations, func(key string) bool {
					_, ok := naming.WireGuardAnnotationCluster(key)
					return ok
				}),
			}
			n.Spec = corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs}
			n.Status = corev1.NodeStatus{}
		}),
		put:    func(c *catalog.Catalog, o metav1.Object, now time.Time) { c.PutNode(o.(*corev1.Node), now) },
		remove: func(c *catalog.Catalog, _, name string, now time.Time) { c.DeleteNode(name, now) },
	}
}

// blocks are Calico's block affinities, in the API group that the cluster serves them under.
func blocks(affinities *kube.BlockAffinities) kind {
	return kind{
		name: "blockaffinities", kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE},
		selectors: []string{""}, lister: affinities.Follow, ownVersions: func() bool { return !affinities.Native() },
		example: &kube.BlockAffinity{},
		trim: trimmed(func(a *kube.BlockAffinity) {
			a.ObjectMeta = metav1.ObjectMeta{Name: a.Name, UID: a.UID, CreationTimestamp: a.CreationTimestamp,
				ResourceVersion: a.ResourceVersion}
		}),
		put:    func(c *catalog.Catalog, o metav1.Object, now time.Time) { c.PutBlock(o.(*kube.BlockAffinity), now) },
		remove: func(c *catalog.Catalog, _, name string, now time.Time) { c.DeleteBlock(name, now) },
	}
}

func services(client kubernetes.Interface, selectors []string) kind {
	return kind{
		name: "services", kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE},
		of: semaphorev1.Kind_KIND_SERVICE, selectors: selectors,
		client: client.CoreV1().RESTClient(), example: &corev1.Service{},
		trim:   trimmed(catalog.TrimService),
		put:    func(c *catalog.Catalog, o metav1.Object, now time.Time) { c.PutService(o.(*corev1.Service), now) },
		remove: (*catalog.Catalog).DeleteService,
	}
}

func endpointSlices(client kubernetes.Interface, selectors []string) kind {
	return kind{
		name: "endpointslices", kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_ENDPOINT_SLICE},
		of: semaphorev1.Kind_KIND_ENDPOINT_SLICE, selectors: selectors,
		client: client.DiscoveryV1().RESTClient(), example: &discoveryv1.EndpointSlice{},
		trim: trimmed(func(s *discoveryv1.EndpointSlice) {
			s.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion,
				Labels: s.Labels}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				e.TargetRef, e.Hints, e.DeprecatedTopology = nil, nil, nil
			}
		}),
		put: func(c *catalog.Catalog, o metav1.Object, now time.Time) {
			c.PutSlice(o.(*discoveryv1.EndpointSlice), now)
		},
		remove: (*catalog.Catalog).DeleteSlice,
	}
}

// serviceExports are those that export Services, in the version of the API that the cluster serves. Without the API
// nothing is complete: the exports of a cluster are not known then.
func serviceExports(exports func(*kube.Unread) *cache.ListWatch) kind {
	return kind{
		name:      "serviceexports",
		kinds:     []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE},
		selectors: []string{""}, lister: exports, example: &mcsv1beta1.ServiceExport{},
		trim: trimmed(catalog.TrimExport),
		put: func(c *catalog.Catalog, o metav1.Object, now time.Time) {
			c.PutExport(o.(*mcsv1beta1.ServiceExport), now)
		},
		remove: (*catalog.Catalog).DeleteExport,
	}
}

// pods are those with a label that puts them into a set of one of these domains. They keep all labels: rules that come
// later may select by any.
func pods(client kubernetes.Interface, domains []string) kind {
	var labels []string // a label selector cannot express "or": each label has a watch
	for _, domain := range domains {
		labels = append(labels, domain+"/name")
	}
	return kind{
		name: "pods", kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_SET_MEMBER},
		of: semaphorev1.Kind_KIND_SET_MEMBER, selectors: labels,
		client: client.CoreV1().RESTClient(), example: &corev1.Pod{},
		trim: trimmed(func(p *corev1.Pod) {
			p.ObjectMeta = metav1.ObjectMeta{
				Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
				Labels: p.Labels, Annotations: catalog.Kept(p.Annotations, catalog.IsExportTo),
			}
			p.Spec = corev1.PodSpec{HostNetwork: p.Spec.HostNetwork, NodeName: p.Spec.NodeName}
			p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
		}),
		put:    func(c *catalog.Catalog, o metav1.Object, now time.Time) { c.PutPod(o.(*corev1.Pod), now) },
		remove: (*catalog.Catalog).DeletePod,
	}
}

// trimmed ignores objects of another type: informers pass tombstones to transforms, too.
func trimmed[T any](trim func(T)) cache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(T); ok {
			trim(object)
		}
		return o, nil
	}
}

package fleet

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// The types of objects that several verbs read.
var (
	PodsGVR        = corev1.SchemeGroupVersion.WithResource("pods")
	ServicesGVR    = corev1.SchemeGroupVersion.WithResource("services")
	NamespacesGVR  = corev1.SchemeGroupVersion.WithResource("namespaces")
	NodesGVR       = corev1.SchemeGroupVersion.WithResource("nodes")
	ConfigMapsGVR  = corev1.SchemeGroupVersion.WithResource("configmaps")
	SecretsGVR     = corev1.SchemeGroupVersion.WithResource("secrets")
	AccountsGVR    = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	SlicesGVR      = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	DaemonSetsGVR  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	DeploymentsGVR = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// MCS returns a type of the Multi-Cluster Services API; v1alpha1 is served where v1beta1 is not.
func MCS(resource string) []schema.GroupVersionResource {
	return []schema.GroupVersionResource{{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: resource},
		{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Resource: resource}}
}

// CalicoTypes returns a type of Calico's; a cluster may serve it in either group.
func CalicoTypes(resource string) []schema.GroupVersionResource {
	return []schema.GroupVersionResource{{Group: "crd.projectcalico.org", Version: "v1", Resource: resource},
		{Group: "projectcalico.org", Version: "v3", Resource: resource}}
}

// Deployment has the fields that verbs read of one; the types of that group would make the program larger.
type Deployment struct {
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// ConfigMap returns the data of a ConfigMap; nil if it does not exist. It fails if that is not known.
func (c *Objects) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	found, err := Get[corev1.ConfigMap](ctx, c, ConfigMapsGVR, namespace, name)
	if found == nil || err != nil {
		return nil, err
	}
	if found.Data == nil {
		return map[string]string{}, nil
	}
	return found.Data, nil
}

// Services returns the Services of the namespaces with some labels. It fails as List does.
func (c *Objects) Services(ctx context.Context, namespace, selector string) ([]corev1.Service, error) {
	return List[corev1.Service](ctx, c, ServicesGVR, namespace, metav1.ListOptions{LabelSelector: selector})
}

// SubnetsLabel is the label by which admission policies find the ConfigMap semaphore-subnets, whatever its name.
const SubnetsLabel = "semaphore.uw.io/subnets"

// PolicyKeys returns the ConfigMaps of a namespace, or of all, by which admission policies judge a broker's writes. It
// fails as List does.
func (c *Objects) PolicyKeys(ctx context.Context, namespace string) ([]corev1.ConfigMap, error) {
	return List[corev1.ConfigMap](ctx, c, ConfigMapsGVR, namespace,
		metav1.ListOptions{LabelSelector: SubnetsLabel + "=true"})
}

// RemoteClusters returns those of the cluster; nil if it does not serve them. It fails for those that cannot be read,
// beside the others. The parts write their status; objects of that kind that cannot be read do not matter here.
func (c *Objects) RemoteClusters(ctx context.Context) (out []*v1alpha1.RemoteCluster, err error) {
	list, err := c.First(ctx, []schema.GroupVersionResource{v1alpha1.RemoteClusters}, "", metav1.ListOptions{})
	if list == nil || err != nil {
		return nil, err
	}
	out = []*v1alpha1.RemoteCluster{}
	for i := range list.Items {
		data, bad := list.Items[i].MarshalJSON()
		r, unreadable := kube.ReadObject[*v1alpha1.RemoteCluster](v1alpha1.Kind, data)
		if bad == nil && unreadable != nil && unreadable.Whole {
			bad = unreadable
		}
		if bad != nil {
			err = errors.Join(err, c.unread(v1alpha1.Kind+" "+list.Items[i].GetName(), bad))
			continue
		}
		out = append(out, r)
	}
	return out, err
}

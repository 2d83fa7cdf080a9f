package apply

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Endpoints keeps those of the mirrors in namespace, for tools that read no EndpointSlices. What semaphore-service-mirror left
// is taken over by Leftovers, once the broker's EndpointSlices are there. kube logs no warnings (kube.Quiet).
func Endpoints(kube kubernetes.Interface, namespace string, adoption *ServiceAdoption, desired Desired[*endpoints.Endpoints], options Options) *Objects[*endpoints.Endpoints] {
	api := kube.CoreV1().Endpoints(namespace)
	return newObjects(kind[*endpoints.Endpoints]{
		name:    "endpoints",
		paced:   true,
		urgent:  endpoints.Leaves,
		example: &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: func(context.Context) (connection[*endpoints.Endpoints], error) {
			return connection[*endpoints.Endpoints]{
				client:    native[*endpoints.Endpoints]{api},
				listWatch: listWatch(api, metav1.ListOptions{LabelSelector: Owned}),
				adopt:     endpointsAdopter{adoption, api}.one,
			}, nil
		},
		merge: func(have, want *endpoints.Endpoints) *endpoints.Endpoints {
			out := have.DeepCopy()
			delete(out.Annotations, endpoints.OverCapacity)
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Subsets = want.Subsets
			return out
		},
		equal: func(a, b *endpoints.Endpoints) bool { return equality.Semantic.DeepEqual(a, b) },
	}, desired, options)
}

// endpointsAdopter says what becomes of Endpoints under a name that is wanted.
type endpointsAdopter struct {
	*ServiceAdoption
	api typedcorev1.EndpointsInterface
}

func (a endpointsAdopter) one(ctx context.Context, want *endpoints.Endpoints) (object *endpoints.Endpoints, ok bool, hint string, err error) {
	have, err := a.api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, false, "", err
	case have.Labels[naming.LabelManagedBy] != "" || have.Labels[naming.LabelMirrored] != "true":
		return nil, false, "", nil
	case !slices.Contains(a.From, config.ServiceMirror):
		return nil, false, fmt.Sprintf("it is of %s: services.adoptFrom: [%s] takes it over", config.ServiceMirror, config.ServiceMirror), nil
	}
	return nil, false, "", errLater
}

// takeEndpoints makes Endpoints of semaphore-service-mirror ours, which keep what they list until they are written. Kubernetes takes away the
// EndpointSlices that it has made of them.
func takeEndpoints(ctx context.Context, api typedcorev1.EndpointsInterface, name, cluster string) error {
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	out := have.DeepCopy()
	out.Labels = with(out.Labels, naming.LabelManagedBy, naming.ManagedByBroker, naming.LabelSourceCluster, cluster, endpoints.SkipMirror, "true")
	_, err = api.Update(ctx, out, metav1.UpdateOptions{FieldManager: fieldManager})
	return err
}

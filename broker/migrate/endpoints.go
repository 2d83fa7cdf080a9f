package migrate

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// EndpointsAdopter returns the adopter of Endpoints in a namespace.
func (a *Services) EndpointsAdopter(kube kubernetes.Interface, namespace string) EndpointsAdopter {
	return EndpointsAdopter{a, kube.CoreV1().Endpoints(namespace)}
}

// EndpointsAdopter adopts Endpoints under the names of desired ones.
type EndpointsAdopter struct {
	*Services
	api typedcorev1.EndpointsInterface
}

// One decides about the Endpoints under the name of desired ones: they are adopted later, or never.
func (a EndpointsAdopter) One(ctx context.Context, want *endpoints.Endpoints) (object *endpoints.Endpoints, ok bool,
	hint string, err error) {
	have, err := a.api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, false, "", err
	case have.Labels[naming.LabelManagedBy] != "" || have.Labels[naming.LabelMirrored] != "true":
		return nil, false, "", nil
	case !slices.Contains(a.From, config.ServiceMirror):
		hint := fmt.Sprintf("%s created it: set services.adoptFrom: [%s] to take it over", config.ServiceMirror,
			config.ServiceMirror)
		return nil, false, hint, nil
	}
	return nil, false, "", writes.ErrLater
}

// takeEndpoints adopts Endpoints of semaphore-service-mirror. They keep their addresses until the broker writes them.
// Kubernetes deletes the EndpointSlices that it mirrored from them.
func takeEndpoints(ctx context.Context, api typedcorev1.EndpointsInterface, name, cluster string) error {
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	out := have.DeepCopy()
	out.Labels = with(out.Labels,
		naming.LabelManagedBy, naming.ManagedByBroker, naming.LabelSourceCluster, cluster, endpoints.SkipMirror, "true")
	_, err = api.Update(ctx, out, metav1.UpdateOptions{FieldManager: writes.FieldManager})
	return err
}

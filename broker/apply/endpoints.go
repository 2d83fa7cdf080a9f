package apply

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/broker/informers"
	"github.com/kube-semaphore/semaphore/broker/kinds"
	"github.com/kube-semaphore/semaphore/broker/migrate"
)

// Endpoints writes the Endpoints of mirrors in namespace, for tools that do not read EndpointSlices. migrate.Leftovers
// adopts those that semaphore-service-mirror left, after the broker has written its EndpointSlices. kube must be a
// client that logs no warnings (kube.Quiet).
func Endpoints(
	kube kubernetes.Interface, namespace string, adoption *migrate.Services, desired writes.Desired[*endpoints.Endpoints],
	options Options,
) *Objects[*endpoints.Endpoints] {
	api := kube.CoreV1().Endpoints(namespace)
	return newObjects(kind[*endpoints.Endpoints]{
		Kind: writes.Kind[*endpoints.Endpoints]{
			Name:   kinds.Endpoints,
			Paced:  true,
			Urgent: endpoints.RemovesReadyAddress,
			Merge: func(have, want *endpoints.Endpoints) *endpoints.Endpoints {
				out := have.DeepCopy()
				delete(out.Annotations, endpoints.OverCapacity)
				mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
				out.Subsets = want.Subsets
				return out
			},
			Equal: func(a, b *endpoints.Endpoints) bool { return equality.Semantic.DeepEqual(a, b) },
		},
		example: &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
		connect: func(context.Context) (connection[*endpoints.Endpoints], error) {
			return connection[*endpoints.Endpoints]{
				client:    native[*endpoints.Endpoints]{api},
				listWatch: informers.ListWatch(api, metav1.ListOptions{LabelSelector: writes.Owned}),
				adopt:     adoption.EndpointsAdopter(kube, namespace).One,
			}, nil
		},
	}, desired, options)
}

package ctltest

import (
	"context"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// Monitoring has the types of the Prometheus Operator.
var Monitoring = schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}

// ServeType has the apiserver serve a type of the Prometheus Operator.
func ServeType(t *testing.T, cfg *rest.Config, of schema.GroupVersionResource, kind string) {
	t.Helper()
	anything := true
	kubetest.Create(t, apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions(),
		&apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: of.GroupResource().String()},
			Spec: apiextensions.CustomResourceDefinitionSpec{Group: of.Group, Scope: "Namespaced",
				Names: apiextensions.CustomResourceDefinitionNames{Plural: of.Resource, Kind: kind},
				Versions: []apiextensions.CustomResourceDefinitionVersion{{Name: of.Version, Served: true,
					Storage: true, Schema: &apiextensions.CustomResourceValidation{
						OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object",
							XPreserveUnknownFields: &anything}}}}}})
	testkit.Must(t, wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			_, err := dynamic.NewForConfigOrDie(cfg).Resource(of).List(ctx, metav1.ListOptions{})
			return err == nil, nil
		}))
}

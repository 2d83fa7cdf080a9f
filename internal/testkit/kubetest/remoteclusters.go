package kubetest

import (
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/deploy/crds"
)

// InstallRemoteClusters installs the CustomResourceDefinition of RemoteClusters that a release contains, and waits
// until the apiserver serves it.
func InstallRemoteClusters(t testing.TB, cfg *rest.Config) {
	t.Helper()
	client, err := apiextensionsclient.NewForConfig(cfg)
	if err != nil {
		t.Fatalf("client for CRDs: %v", err)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crds.RemoteClusters, &crd); err != nil {
		t.Fatalf("CRD of RemoteClusters: %v", err)
	}
	if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &crd,
		metav1.CreateOptions{}); err != nil {
		t.Fatalf("CRD of RemoteClusters: %v", err)
	}
	awaitServed(t, cfg, v1alpha1.GroupVersion, v1alpha1.Resource)
}

package kubetest

import (
	"context"
	"slices"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// CalicoCRD is the group of the CustomResourceDefinitions in which Calico stores its data.
var CalicoCRD = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}

// InstallCalico registers Calico's types in a group and version, by the plural names of their resources
// ("globalnetworksets", "ippools", …), and returns when the apiserver serves them.
//
// In CalicoCRD the definitions are Calico's own. Another group gets the same definitions under its name, as Calico
// installs them with native v3 CRDs.
func InstallCalico(t testing.TB, cfg *rest.Config, gv schema.GroupVersion, resources ...string) {
	t.Helper()
	for _, resource := range resources {
		define(t, cfg, gv, resource, nil)
	}
	for _, resource := range resources {
		awaitServed(t, cfg, gv, resource)
	}
}

// InstallCalicoType is InstallCalico for one type with a modified definition: edit receives the schema of its spec.
func InstallCalicoType(t testing.TB, cfg *rest.Config, gv schema.GroupVersion, resource string,
	edit func(spec *apiextensions.JSONSchemaProps)) {
	t.Helper()
	define(t, cfg, gv, resource, edit)
	awaitServed(t, cfg, gv, resource)
}

func define(t testing.TB, cfg *rest.Config, gv schema.GroupVersion, resource string,
	edit func(spec *apiextensions.JSONSchemaProps)) {
	t.Helper()
	var crd apiextensions.CustomResourceDefinition
	servers, err := find(t.Context())
	if err == nil {
		var data []byte
		if data, err = servers.definitionOf(resource); err == nil {
			err = yaml.Unmarshal(data, &crd)
		}
	}
	if err != nil {
		t.Fatalf("CRD of %s: %v", resource, err)
	}
	crd.Name, crd.Spec.Group = resource+"."+gv.Group, gv.Group
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		v.Name = gv.Version
		if edit != nil {
			spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
			edit(&spec)
			v.Schema.OpenAPIV3Schema.Properties["spec"] = spec
		}
	}
	Create(t, apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions(), &crd)
}

func awaitServed(t testing.TB, cfg *rest.Config, gv schema.GroupVersion, resource string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, startTimeout, true,
		func(context.Context) (bool, error) {
			return served(cfg, gv, resource), nil
		})
	if err != nil {
		t.Fatalf("%s.%s is not served: %v", resource, gv.Group, err)
	}
}

// served reports whether the apiserver's discovery lists a resource in a group.
func served(cfg *rest.Config, gv schema.GroupVersion, resource string) bool {
	resources, err := discovery.NewDiscoveryClientForConfigOrDie(cfg).ServerResourcesForGroupVersion(gv.String())
	return err == nil && slices.ContainsFunc(resources.APIResources,
		func(r metav1.APIResource) bool { return r.Name == resource })
}

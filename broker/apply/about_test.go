package apply

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestClusterID: a cluster without the About API, or without the ClusterProperty, has no problem; one that it knows by
// another name has one that names both.
func TestClusterID(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	client := testkit.Value(mcs.New(cfg, "test"))(t)
	id := func(want string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "the ID", func() error {
			if got, err := client.ClusterID(ctx); err != nil || got != want {
				return fmt.Errorf("%q, %v; want %q", got, err, want)
			}
			return nil
		})
	}
	id("")
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	kubetest.Create(t, apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions(),
		&apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "clusterproperties.about.k8s.io", Annotations: map[string]string{
				"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/2149"}},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "about.k8s.io", Scope: apiextensionsv1.ClusterScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "clusterproperties", Singular: "clusterproperty",
					Kind: "ClusterProperty", ListKind: "ClusterPropertyList"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
						Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object",
							Properties: map[string]apiextensionsv1.JSONSchemaProps{"value": text}}}}}}},
			},
		})
	properties := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "about.k8s.io",
		Version: "v1alpha1", Resource: "clusterproperties"})
	testkit.Eventually(t, time.Minute, "the About API", func() error {
		_, err := properties.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "about.k8s.io/v1alpha1", "kind": "ClusterProperty",
			"metadata": map[string]any{"name": mcs.ClusterIDProperty}, "spec": map[string]any{"value": "other"}}},
			metav1.CreateOptions{})
		return err
	})
	id("other")
	for cluster, want := range map[string]string{"c1": `is "other", and this cluster is "c1" here`, "other": ""} {
		var requests kubetest.Requests
		counted := rest.CopyConfig(cfg)
		counted.Wrap(requests.Wrap)
		m := NewMCS(testkit.Value(mcs.New(counted, "test"))(t), slog.Default())
		m.aboutEvery = 10 * time.Millisecond
		stop := testkit.Run(t, func(ctx context.Context) error { return m.CompareID(ctx, cluster) })
		asked := 0 // ten requests are several questions: the answers to the first ones have been heeded
		testkit.Eventually(t, time.Minute, "the problem", func() error {
			asked += len(requests.Take())
			if got := m.AboutProblem(); asked < 10 || !strings.Contains(got, want) {
				return fmt.Errorf("it is %q after %d requests", got, asked)
			}
			return nil
		})
		stop()
		if got := m.AboutProblem(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: the problem is %q", cluster, got)
		}
	}
}

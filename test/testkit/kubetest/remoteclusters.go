package kubetest

import (
	"encoding/json"
	"slices"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/deploy"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// InstallRemoteClusters installs the CustomResourceDefinition of RemoteClusters that a release contains, and waits
// until the apiserver serves it.
func InstallRemoteClusters(t testing.TB, cfg *rest.Config) {
	t.Helper()
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(deploy.RemoteClusters, &crd); err != nil {
		t.Fatalf("CRD of RemoteClusters: %v", err)
	}
	definitions := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), &crd, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		testkit.Must(t, err)
	}
	awaitServed(t, cfg, v1alpha1.GroupVersion, v1alpha1.Resource)
}

// CreateRemote creates a RemoteCluster. spec is YAML.
func CreateRemote(t testing.TB, cfg *rest.Config, name, spec string) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("spec: "+spec), &u.Object); err != nil {
		t.Fatalf("spec of RemoteCluster %s: %v", name, err)
	}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
	u.SetName(name)
	CreateObject(t, dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters), u)
}

// Described makes the RemoteClusters of a broker's remotes, and deletes all others. It returns the configuration as a
// file has it, for a broker that follows them.
func Described(t testing.TB, cfg *rest.Config, of *config.Broker) *config.Broker {
	t.Helper()
	InstallRemoteClusters(t, cfg)
	api := dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
	list := testkit.Value(api.List(t.Context(), metav1.ListOptions{}))(t)
	for _, remote := range of.Remotes {
		spec := specOf(t, remote)
		i := slices.IndexFunc(list.Items, func(u unstructured.Unstructured) bool { return u.GetName() == remote.Name })
		if i < 0 {
			CreateRemote(t, cfg, remote.Name, spec)
			continue
		}
		patch := []byte(`[{"op": "replace", "path": "/spec", "value": ` + spec + `}]`)
		if _, err := api.Patch(t.Context(), remote.Name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatalf("RemoteCluster %s: %v", remote.Name, err)
		}
	}
	for _, u := range list.Items {
		if _, wanted := of.Remote(u.GetName()); wanted {
			continue
		}
		testkit.Must(t, api.Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}))
	}
	file := *of
	file.Remotes = nil
	return &file
}

// specOf returns the spec of a RemoteCluster that means a remote.
func specOf(t testing.TB, remote config.Remote) string {
	t.Helper()
	var spec map[string]any
	text, err := json.Marshal(remote)
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		t.Fatalf("remote %s: %v", remote.Name, err)
	}
	delete(spec, "name")
	for _, part := range []any{spec, spec["wireguard"], spec["limits"]} {
		of := part.(map[string]any)
		for key, value := range of {
			if value == nil || value == "" || value == float64(0) && key != "probePort" {
				delete(of, key) // the spec has no word for the default
			}
		}
	}
	return string(testkit.Value(json.Marshal(spec))(t))
}

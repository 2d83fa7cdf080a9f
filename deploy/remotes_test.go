package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
)

// exampleOfARemote applies the RemoteCluster of the example. Unchanged, the apiserver reports what is missing; with the
// certificate that docs/overlays.md adds, it accepts it.
func (s *server) exampleOfARemote(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("example/c1/remotes/c2.yaml")
	must(t, err)
	file := filepath.Join(t.TempDir(), "c2.yaml")
	for _, c := range []struct{ bundle, refusal string }{
		{"", "trustBundle holds no certificate"},
		{"    -----BEGIN CERTIFICATE-----\n    AA==\n    -----END CERTIFICATE-----\n", ""},
	} {
		must(t, os.WriteFile(file, append(slices.Clone(text), c.bundle...), 0o644))
		_, err := kubectl(t, "--kubeconfig", s.kubeconfig, "apply", "-f", file)
		if c.refusal == "" && err != nil || c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("the example with the bundle %q: %v; want %q", c.bundle, err, c.refusal)
		}
	}
}

// testRemoteWrites checks that no part can write the spec of a RemoteCluster, with any permissions, and that each
// writes its status.
func testRemoteWrites(t *testing.T, s *server) {
	s.apply(t, "example/c1")
	broker, exporter := account("semaphore-broker"), account("semaphore-exporter")
	bind(t, s.client(""), rbacv1.PolicyRule{
		APIGroups: []string{"semaphore.uw.io"}, Resources: []string{"remoteclusters"},
		Verbs: []string{"create", "update", "patch", "delete"},
	}, broker, exporter, account("other"))
	remotes := func(user string) dynamic.ResourceInterface {
		cfg := rest.CopyConfig(s.admin)
		if user != "" {
			cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups(user)}
		}
		return dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
	}
	create := func(user, name string) error {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podSubnets": []any{"10.9.0.0/16"}}}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
		u.SetName(name)
		_, err := remotes(user).Create(t.Context(), u, metav1.CreateOptions{})
		return err
	}
	const refusal = "semaphore's parts may not write RemoteClusters, only their status"
	eventually(t, "the resource is served", func() error { return create("", "c9") })
	s.settled(t)
	s.exampleOfARemote(t)
	patch := func(user, patch string, sub ...string) error {
		_, err := remotes(user).Patch(t.Context(), "c9", "application/merge-patch+json", []byte(patch),
			metav1.PatchOptions{}, sub...)
		return err
	}
	for _, user := range []string{broker, exporter} {
		for what, err := range map[string]error{
			"a wider subnet": patch(user, `{"spec":{"podSubnets":["10.0.0.0/8"]}}`),
			"a label":        patch(user, `{"metadata":{"labels":{"a":"b"}}}`),
			"another object": create(user, "c7"),
			"deletion":       remotes(user).Delete(t.Context(), "c9", metav1.DeleteOptions{}),
		} {
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s by %s: %v", what, user, err)
			}
		}
		if err := patch(user, `{"status":{"listenPort":7776},"spec":{"podSubnets":["10.0.0.0/8"]}}`, "status"); err != nil {
			t.Errorf("status by %s: %v", user, err)
		}
	}
	o, err := remotes("").Get(t.Context(), "c9", metav1.GetOptions{})
	must(t, err)
	if subnets, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "podSubnets"); len(subnets) != 1 ||
		subnets[0] != "10.9.0.0/16" {
		t.Errorf("a write of status has changed the subnets to %s", subnets)
	}
	if err := patch(account("other"), `{"metadata":{"labels":{"a":"b"}}}`); err != nil {
		t.Errorf("somebody else with the right: %v", err)
	}
}

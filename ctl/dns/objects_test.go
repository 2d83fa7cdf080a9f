package dns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRemotesOfObjects: a broker uses the RemoteClusters: coredns prints their blocks, and
// check requires their roots. A RemoteCluster that conflicts is not in effect.
func TestRemotesOfObjects(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, cfg)
	client, err := dynamic.NewForConfig(cfg)
	must(t, err)
	for name, subnet := range map[string]string{"c2": "10.2.0.0/16", "c3": "10.1.0.0/16"} { // c3 has the own subnet
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"podSubnets": []any{subnet},
			"servicePrefix": "of-" + name, "nodeSubnets": []any{"172.16.0.0/12"}}}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
		u.SetName(name)
		_, err := client.Resource(v1alpha1.RemoteClusters).Create(t.Context(), u, metav1.CreateOptions{})
		must(t, err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "broker.yaml")
	must(t, os.WriteFile(file, []byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nkube: {kubeConfigPath: "+
		kubetest.Kubeconfig(t, cfg)+"}\ntls: {bundleDir: "+dir+"}\n"), 0o600))
	out, _, err := ctltest.Run(t, "coredns", "--config", file)
	must(t, err)
	if !strings.Contains(out, "cluster.c2") || !strings.Contains(out, "of-c2-") || strings.Contains(out, "cluster.c3") {
		t.Errorf("the blocks are\n%s", out)
	}
	out, _, _ = ctltest.Run(t, "check", "--config", file, "--coredns", "none")
	if !strings.Contains(out, "configuration of the broker of c1") && !strings.Contains(out, "of the broker of c1") ||
		!strings.Contains(out, "c2.pem") || strings.Contains(out, "c3.pem") {
		t.Errorf("check says\n%s", out)
	}
}

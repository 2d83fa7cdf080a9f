package leader

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// TestClientConfig: the Lease is in the cluster in which the process runs. The kubeconfig, which may be for another
// cluster, applies only outside of a cluster.
func TestClientConfig(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(`
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: x, user: {}}]
`), 0o600))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cfg, err := clientConfig(config.Kube{KubeConfigPath: kubeconfig}, "exporter")
	if err != nil || cfg.Host != "https://192.0.2.1:6443" {
		t.Errorf("outside of a cluster: %v, %v", cfg, err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.2")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	// Without a token of the pod, an election must not use the other cluster: it would write there.
	cfg, err = clientConfig(config.Kube{KubeConfigPath: kubeconfig}, "exporter")
	if err == nil && cfg.Host != "https://192.0.2.2:443" || err != nil &&
		!strings.Contains(err.Error(), "leaderElection.enabled") {
		t.Errorf("in a cluster: %v, %v; want this cluster, or an error that names the key", cfg, err)
	}
}

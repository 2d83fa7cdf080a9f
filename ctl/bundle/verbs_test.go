package bundle

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbBundle: the output if a cluster cannot be reached.
func TestVerbBundle(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: c1
contexts: [{name: c1, context: {cluster: c1, user: c1}}]
clusters: [{name: c1, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: c1, user: {}}]
`), 0o600))
	t.Chdir(t.TempDir())
	s := ctltest.NewSession(t)
	s.Call("bundle --context c9", "--kubeconfig", kubeconfig)
	s.Golden("bundle-unreachable", nil)
}

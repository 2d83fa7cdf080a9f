package dns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRemotesOfObjects: a broker uses the RemoteClusters: coredns prints their blocks, and
// check requires their roots. A RemoteCluster that conflicts is not in effect.
func TestRemotesOfObjects(t *testing.T) {
	cfg := kubetest.Start(t)
	file := brokerFile(t, cfg, "", map[string]string{ // c3 has the own subnet
		"c2": "podSubnets: [10.2.0.0/16], servicePrefix: of-c2", "c3": "podSubnets: [10.1.0.0/16], servicePrefix: of-c3"})
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

// brokerFile creates RemoteClusters, with specs by name, and writes the configuration file of a broker of c1, with more
// lines.
func brokerFile(t *testing.T, cfg *rest.Config, more string, remotes map[string]string) string {
	t.Helper()
	kubetest.InstallRemoteClusters(t, cfg)
	for name, spec := range remotes {
		kubetest.CreateRemote(t, cfg, name, "{nodeSubnets: [172.16.0.0/12], "+spec+"}")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "broker.yaml")
	must(t, os.WriteFile(file, []byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nkube: {kubeConfigPath: "+
		kubetest.Kubeconfig(t, cfg)+"}\ntls: {bundleDir: "+dir+"}\n"+more), 0o600))
	return file
}

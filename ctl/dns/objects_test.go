package dns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRemotesOfObjects: a broker uses the RemoteClusters: coredns prints their blocks, and
// check requires their roots. A RemoteCluster that conflicts is not in effect.
func TestRemotesOfObjects(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, cfg)
	for name, subnet := range map[string]string{"c2": "10.2.0.0/16", "c3": "10.1.0.0/16"} { // c3 has the own subnet
		kubetest.CreateRemote(t, cfg, name, "{podSubnets: ["+subnet+"], servicePrefix: of-"+name+
			", nodeSubnets: [172.16.0.0/12]}")
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

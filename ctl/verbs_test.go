package ctl

import (
	"os"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbMigrate: the output for files of the original tools, complete and incomplete.
func TestVerbMigrate(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"mirror.json": `{"localCluster": {"name": "c1"}, "remoteClusters": [{"name": "c2", "servicePrefix": "aws"}]}`,
		"clusters.json": `{"local": {"name": "c1", "kubeConfigPath": "/k"},
			"remotes": [{"name": "c2", "kubeConfigPath": "/k2",
			"podSubnet": "10.2.0.0/16"}]}`,
		"other.yaml": "hello: world\n",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	must(t, os.Mkdir("bundles", 0o755))
	must(t, os.WriteFile("bundles/c2.pem", []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
		0o600))
	s := ctltest.NewSession(t)
	s.Call("migrate clusters.json mirror.json --bundles bundles --node-subnets c2=192.0.2.0/24")
	s.Call("migrate clusters.json")
	s.Call("migrate other.yaml")
	s.Call("migrate")
	s.Golden("migrate", nil)
}

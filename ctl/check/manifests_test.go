package check

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// checkIn runs check with a text on standard input.
func checkIn(t *testing.T, in string, args ...string) (out string, err error) {
	t.Helper()
	cmd := ctltest.Command()
	var b bytes.Buffer
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&b)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"check"}, args...))
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

// TestCheckManifests: a user can validate manifests before they are applied; each mistake is on a line of its own.
func TestCheckManifests(t *testing.T) {
	manifests := `apiVersion: v1
kind: Namespace
metadata: {name: semaphore}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: semaphore-broker-7k5d9g8t2m, namespace: semaphore}
data:
  config.yaml: |
    localSubnets: [10.1.0.0/16]
CLUSTER
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
data: {config.yaml: "not ours"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: semaphore-exporter, namespace: semaphore}
data:
  config.yaml: |
    localBroker: {address: "192.0.2.1:30843"}
CLUSTER
`
	with := strings.ReplaceAll(manifests, "CLUSTER", "    cluster: c1")
	out, err := checkIn(t, with, "-f", "-")
	ctltest.Golden(t, "check-manifests", out)
	must(t, err)
	without := strings.ReplaceAll(manifests, "CLUSTER", "")
	out, err = checkIn(t, without, "-f", "-", "--cluster", "c1")
	ctltest.Golden(t, "check-manifests", out)
	must(t, err)
	out, err = checkIn(t, without, "-f", "-")
	ctltest.Golden(t, "check-manifests-without-cluster", out)
	if err == nil || err.Error() != "2 errors, 0 warnings" {
		t.Error(err)
	}
	if _, err := checkIn(t, with, "-f", "-", "--cluster", "c3"); err == nil {
		t.Error("the name of another cluster is taken")
	}
	// RemoteClusters are judged by the broker's configuration: encryption, which is a feature unless the file says
	// otherwise, needs nodeSubnets.
	const remote = "---\napiVersion: semaphore.uw.io/v1alpha1\nkind: RemoteCluster\nmetadata: {name: NAME}\nspec: {SPEC}\n"
	objects := ""
	for _, one := range [][2]string{{"c2", "podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]"},
		{"c3", "podSubnets: [10.3.0.0/16]"}, {"c4", "podSubnets: [10.1.8.0/24], nodeSubnets: [192.0.2.0/24]"}} {
		objects += strings.NewReplacer("NAME", one[0], "SPEC", one[1]).Replace(remote)
	}
	out, err = checkIn(t, with+objects, "-f", "-")
	ctltest.Golden(t, "check-remotes", out)
	if err == nil || err.Error() != "2 errors, 0 warnings" {
		t.Error(err)
	}
	// Without a broker's, nobody knows whether they are valid.
	_, exporter, _ := strings.Cut(with, "not ours\"}\n---\n")
	out, err = checkIn(t, exporter+strings.Replace(objects, "10.2.0.0/16", "nonsense", 1), "-f", "-")
	if err == nil || err.Error() != "0 errors, 0 warnings, 1 not checked" || !strings.Contains(out, "RemotesNotChecked") ||
		!strings.Contains(out, "give the ConfigMap of the broker to -f") {
		t.Errorf("RemoteClusters without a broker: %v\n%s", err, out)
	}
	// Each unknown key is on a line of its own.
	file := filepath.Join(t.TempDir(), "broker.yaml")
	must(t, os.WriteFile(file,
		[]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: []\nlocals: {name: c1}\nkube: {path: x}\n"), 0o644))
	out, err = checkIn(t, "", "--config", file, "--coredns", "none")
	ctltest.Golden(t, "check-one-error-a-line", strings.ReplaceAll(out, file, "broker.yaml"))
	if err == nil {
		t.Error("it is valid")
	}
	if _, err := checkIn(t, "apiVersion: v1\nkind: Namespace\n", "-f", "-"); err == nil ||
		!strings.Contains(err.Error(), "there is no ConfigMap") {
		t.Errorf("nothing of ours: %v", err)
	}
}

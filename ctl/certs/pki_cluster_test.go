package certs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestKeysInTheCluster: authorities are created in the clusters, and clusters exchange their roots, with only a
// kubeconfig, and without a key on this machine's disk.
func TestKeysInTheCluster(t *testing.T) {
	kubeconfig, admins := ctltest.TwoClusters(t)
	home := t.TempDir()
	t.Chdir(home)
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", home)
	ctl := func(args string) string {
		t.Helper()
		out, code, err := ctltest.Run(t, strings.Fields(args+" --kubeconfig "+kubeconfig)...)
		if code != 0 {
			t.Fatalf("%s: exit code %d, %v", args, code, err)
		}
		return out
	}
	fails := func(args, want string) {
		t.Helper()
		if _, code, err := ctltest.Run(t, strings.Fields(args+" --kubeconfig "+kubeconfig)...); code != 1 ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v; want %q", args, code, err, want)
		}
	}
	get := func(cluster, name string) map[string][]byte {
		t.Helper()
		s := kubetest.Get(t, admins[cluster].CoreV1().Secrets("semaphore"), name)
		if s.Type != corev1.SecretTypeTLS {
			t.Errorf("Secret %s is of type %s", name, s.Type)
		}
		return s.Data
	}
	fails("pki exchange --context c1 --context c2", "semaphorectl pki init --context c1")
	fails("pki rotate --context c1", "the authority is elsewhere")
	fails("pki init --context c1 --cluster C1", "no cluster name")
	fails("pki init --context c1 --cluster c1 -n nowhere", "namespace nowhere does not exist: kubectl")
	seen := ctltest.NewSession(t, " --kubeconfig "+kubeconfig, "")
	seen.Call("pki init --context c1 --cluster c1", "--kubeconfig", kubeconfig)
	ctl("pki init --context c2 --cluster c2")
	authority, broker := string(get("c1", "semaphore-authority")["tls.key"]),
		string(get("c1", "semaphore-broker-tls")["tls.crt"])
	seen.Call("pki init --context c1 --cluster c1", "--kubeconfig", kubeconfig) // repeated: it overwrites nothing
	fails("pki init --context c1 --cluster c3", `is the authority of "c1", not of "c3"`)
	if string(get("c1", "semaphore-authority")["tls.key"]) != authority ||
		string(get("c1", "semaphore-broker-tls")["tls.crt"]) != broker {
		t.Error("a second init replaced what was there")
	}
	must(t, admins["c1"].CoreV1().Secrets("semaphore").Delete(t.Context(), "semaphore-exporter-tls",
		metav1.DeleteOptions{}))
	ctl("pki init --context c1 --cluster c1") // as after an interruption
	get("c1", "semaphore-exporter-tls")

	addsOwnRoot(t, admins["c1"], func() { ctl("pki init --context c1 --cluster c1") })
	out := ctl("pki exchange --context c1 --context c2 --yes")
	ctltest.Golden(t, "pki-exchange", regexp.MustCompile(`[0-9a-f]{16}`).ReplaceAllString(out, "FINGERPRINT"))
	fails("pki rotate --context c1 --part broker --part agent", `part "agent": use `)
	if string(get("c1", "semaphore-broker-tls")["tls.crt"]) != broker {
		t.Error("a part that is none was found after another one had a new certificate")
	}
	seen.Call("pki rotate --context c1 --part broker --days 30", "--kubeconfig", kubeconfig)
	seen.Golden("pki-cluster", nil)
	if string(get("c1", "semaphore-broker-tls")["tls.crt"]) == broker {
		t.Error("the broker's certificate is the old one")
	}
	// The mounted files match each other, by the same check as for a directory.
	dir := t.TempDir()
	for _, cluster := range []string{"c1", "c2"} {
		bundles := kubetest.Get(t, admins[cluster].CoreV1().ConfigMaps("semaphore"), "semaphore-bundles")
		for name, text := range bundles.Data {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		if len(bundles.Data) != 2 || bundles.Data[cluster+".pem"] != ctl("pki bundle --context "+cluster) {
			t.Errorf("the bundles of %s are %v", cluster, bundles.Data)
		}
		for part, secret := range map[string]string{"exporter": "semaphore-exporter-tls", "broker": "semaphore-broker-tls",
			"semaphorectl": "semaphorectl-tls"} {
			for file, data := range get(cluster, secret) {
				must(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
			}
			if f, code := ctltest.Found(t, "--tls-dir", dir, "--own", "spiffe://"+cluster+"/"+part); code != 0 {
				t.Errorf("%s of %s: exit code %d, %+v", part, cluster, code, f)
			}
		}
	}
	// A cluster whose authority is in a directory does not get a second one.
	must(t, admins["c2"].CoreV1().Secrets("semaphore").Delete(t.Context(), "semaphore-authority", metav1.DeleteOptions{}))
	fails("pki init --context c2 --cluster c2", "the cluster's authority is elsewhere")
	entries, err := os.ReadDir(home)
	must(t, err)
	for _, e := range entries {
		t.Errorf("%s was written on this machine", e.Name())
	}
}

// addsOwnRoot: while an authority is replaced by another one, parts need the roots of both. pki init adds that of the
// Secret where it is missing, and removes none.
func addsOwnRoot(t *testing.T, admin kubernetes.Interface, initialize func()) {
	t.Helper()
	bundles := admin.CoreV1().ConfigMaps("semaphore")
	own := kubetest.Get(t, bundles, "semaphore-bundles").Data["c1.pem"]
	a, err := identity.NewAuthority("c1", DefaultValidity.Authority, time.Now())
	must(t, err)
	cert, _, err := a.PEM()
	must(t, err)
	other := string(cert)
	for has, want := range map[string]string{own + other: own + other, other + own: other + own, other: other + own} {
		data := testkit.Value(json.Marshal(map[string]any{"data": map[string]string{"c1.pem": has}}))(t)
		ctltest.Patch(t, bundles, "semaphore-bundles", string(data))
		initialize()
		if is := kubetest.Get(t, bundles, "semaphore-bundles").Data["c1.pem"]; is != want {
			t.Errorf("of the roots\n%s it makes\n%s", has, is)
		}
	}
	ctltest.Patch(t, bundles, "semaphore-bundles", string(testkit.Value(json.Marshal(map[string]any{
		"data": map[string]string{"c1.pem": own}}))(t)))
}

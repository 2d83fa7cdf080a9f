package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// planted are secrets as they may appear in objects and logs.
var planted = map[string]string{
	"a PEM key":          "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIPlantedKey\nAAA\n-----END EC PRIVATE KEY-----",
	"a PEM key, cut":     "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIPlantedKey",
	"a token":            "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJQbGFudGVkIn0.UGxhbnRlZFNpZ25hdHVyZQ",
	"a bearer":           "Authorization: Bearer PlantedKey-123456",
	"a WireGuard key":    "PlantedKeyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
	"a password":         `password: PlantedKey1`,
	"a token in JSON":    `"token": "PlantedKey1"`,
	"a token in YAML":    `apiToken = PlantedKey1`,
	"a JSON private key": `"private_key":"PlantedKey1"`,
	"a kubeconfig key":   "client-key-data: LS0tPlantedKeyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	"a block":            "password: |\n    PlantedKey1\n    PlantedKey2",
	"a block in JSON":    `password: |\n  PlantedKey1\n  PlantedKey2\nname: x`,
	"a user of a URL":    "http://admin:PlantedKey1@proxy.example.org:3128",
}

// TestRemoveSecrets: all planted secrets are removed, and nothing else is.
func TestRemoveSecrets(t *testing.T) {
	for what, secret := range planted {
		got := removeSecrets("before " + secret + "\nafter")
		if regexp.MustCompile(`Planted|UGxhbnRlZ|eyJpc3`).MatchString(got) || !strings.Contains(got, removed) ||
			!strings.HasPrefix(got, "before ") {
			t.Errorf("%s: %q", what, got)
		}
	}
	got := removeSecrets("https://api.example.org:6443/x and http://[2001:db8::1]:80/a@b")
	if strings.Contains(got, removed) {
		t.Errorf("%q", got)
	}
	const harmless = `{"name": "semaphore-broker-7d9f", "ip": "10.2.0.5", "uid": "6a7c2b6e-0000-4000-8000-000000000000"}`
	if got := removeSecrets(harmless); got != harmless {
		t.Errorf("%q", got)
	}
}

// TestRemoveDirectives: the secrets of CoreDNS's plugins are removed, and the rest of a Corefile stays.
func TestRemoveDirectives(t *testing.T) {
	const corefile = ".:53 {\n    errors\n    forward . /etc/resolv.conf {\n        max_concurrent 1000\n    }\n" +
		"    route53 example.org.:Z1 {\n        aws_access_key PlantedID PlantedKey1\n    }\n" +
		"    azure group:zone {\n        secret PlantedKey2\n    }\n    etcd {\n        credentials Planted Planted\n    " +
		"}\n}\n"
	got := removeDirectives(corefile)
	if strings.Contains(got, "Planted") || strings.Count(got, removed) != 3 {
		t.Errorf("it has a secret:\n%s", got)
	}
	if !strings.Contains(got, "    forward . /etc/resolv.conf {\n        max_concurrent 1000\n") ||
		!strings.Contains(got, "    route53 example.org.:Z1 {\n") ||
		strings.Count(got, "\n") != strings.Count(corefile, "\n") {
		t.Errorf("more than the secrets were removed:\n%s", got)
	}
}

// bundledYAML has an object of each kind that a user owns. --hash-names hides payroll in all of them.
const bundledYAML = `
{apiVersion: v1, kind: Namespace, metadata: {name: payroll-ns}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: coredns, namespace: kube-system}, data: {Corefile: ".:53 {\n
    c2block\n    route53 {\n        aws_access_key PlantedID PlantedKey1\n    }\n}\n"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: kube-system}, data: {x: "Planted in another's"}}
---
{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport,
  metadata: {name: payroll-export, namespace: payroll-ns}}
---
{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport,
  metadata: {name: payroll-import, namespace: payroll-ns},
  spec: {type: ClusterSetIP, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: private, namespace: payroll-ns,
  annotations: {x: "Planted in another's"}},
  spec: {ports: [{port: 80}]}}
---
{apiVersion: semaphore.uw.io/v1alpha1, kind: RemoteCluster, metadata: {name: c2}, spec: {podSubnets: [10.2.0.0/16]}}
---
{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: of-c2}, spec: {cidr: 10.2.0.0/16}}
---
{apiVersion: crd.projectcalico.org/v1, kind: GlobalNetworkSet,
  metadata: {name: payroll-gset}, spec: {nets: [10.2.0.1/32]}}
---
{apiVersion: crd.projectcalico.org/v1, kind: NetworkSet, metadata: {name: payroll-set, namespace: payroll-ns}}
---
{apiVersion: crd.projectcalico.org/v1, kind: GlobalNetworkPolicy, metadata: {name: default.payroll-gpolicy}}
---
{apiVersion: crd.projectcalico.org/v1, kind: NetworkPolicy,
  metadata: {name: default.payroll-policy, namespace: payroll-ns}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: payroll-kpolicy, namespace: payroll-ns},
  spec: {podSelector: {}}}
---
{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: e2, namespace: payroll-ns}, reason: Tested, action: Test,
  type: Warning, eventTime: "2026-01-01T00:00:00.000000Z", reportingController: example.org/other, reportingInstance: x,
  note: Planted by another program, regarding: {kind: Service, namespace: payroll-ns, name: payroll}}
`

// createBundled creates the objects, and the types that they need.
func createBundled(t *testing.T, cfg *rest.Config) {
	t.Helper()
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "ippools", "globalnetworksets", "networksets",
		"globalnetworkpolicies", "networkpolicies")
	kubetest.InstallRemoteClusters(t, cfg)
	client := dynamic.NewForConfigOrDie(cfg)
	testkit.Value(mcs.ApplyDefinitions(t.Context(), client))(t)
	groups := discovery.NewDiscoveryClientForConfigOrDie(cfg)
	for text := range strings.SplitSeq(bundledYAML, "\n---\n") {
		var o unstructured.Unstructured
		must(t, yaml.Unmarshal([]byte(text), &o))
		must(t, wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) {
				resources, err := restmapper.GetAPIGroupResources(groups)
				if err != nil {
					return false, err
				}
				gvk := o.GroupVersionKind()
				mapping, err := restmapper.NewDiscoveryRESTMapper(resources).RESTMapping(gvk.GroupKind(), gvk.Version)
				if meta.IsNoMatchError(err) {
					return false, nil // its definition was applied just now
				}
				if err != nil {
					return false, err
				}
				_, err = client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Create(ctx, &o, metav1.CreateOptions{})
				return err == nil, err
			}))
	}
}

// TestHasher: names are hashed, equal names stay equal, and another archive has different hashes.
func TestHasher(t *testing.T) {
	names := map[string]bool{"payroll": true, "payroll-db": true, "n1": true, "semaphore": true, "": true}
	hide := hasher(names, []byte("salt"))
	got := hide(`service payroll/payroll-db on n1: c2-payroll-73736d-payroll-db in semaphore; payrolls`)
	if regexp.MustCompile(`payroll\b|n1`).MatchString(got) || !strings.Contains(got, "semaphore") ||
		!strings.Contains(got, "payrolls") {
		t.Error(got)
	}
	same, other := hasher(names, []byte("salt"))("payroll"), hasher(names, []byte("other"))("payroll")
	if hide("payroll") != same || same == other {
		t.Errorf("%q, %q, with another salt %q", hide("payroll"), same, other)
	}
}

// BenchmarkHasher: 4 MiB of text beside 50,000 names, as of a mesh of 100 clusters.
func BenchmarkHasher(b *testing.B) {
	names := map[string]bool{}
	var text strings.Builder
	for i := range 50_000 {
		name := fmt.Sprintf("team-%d-web-%x", i%500, i)
		names[name] = true
		fmt.Fprintf(&text, "service c2/shop/%s has 3 endpoints, 2 of them are ready; pod %s-7d9f\n", name, name)
	}
	for b.Loop() {
		if strings.Contains(hasher(names, []byte("salt"))(text.String()), "team-") {
			b.Fatal("a name is left")
		}
	}
}

func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	archive := tar.NewReader(testkit.Value(gzip.NewReader(r))(t))
	out := map[string]string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		out[header.Name] = string(testkit.Value(io.ReadAll(archive))(t))
	}
}

func TestBundleWrites(t *testing.T) {
	b := &bundle{files: map[string]string{"c1/logs/payroll.log": "payroll says " + planted["a token"]},
		names: map[string]bool{"payroll": true}, failed: []string{"c2: away"}}
	var out bytes.Buffer
	must(t, b.write(&out, true, time.Unix(0, 0)))
	all := unpack(t, &out)
	if len(all) != 3 || all["semaphore-bundle/errors.txt"] != "c2: away" {
		t.Errorf("%q", all)
	}
	for name, text := range all {
		if strings.Contains(name+text, "payroll") || strings.Contains(text, "eyJ") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// TestBundle collects from an apiserver without parts: the archive has what exists, names what does not, and contains
// no secret.
func TestBundle(t *testing.T) {
	cfg := kubetest.Start(t)
	client := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, client, "semaphore")
	data := map[string]string{}
	for what, secret := range planted {
		data[strings.NewReplacer(" ", "-", ",", "").Replace(what)] = secret
	}
	kubetest.Create(t, client.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-broker"}, Data: data})
	// Another program has a ConfigMap and a pod in the namespace, and one of the parts has a secret in its environment.
	kubetest.Create(t, client.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "payroll"}, Data: map[string]string{"x": "Planted in another's"}})
	for name, labels := range map[string]map[string]string{"payroll": nil,
		"ours": {"app.kubernetes.io/name": "semaphore"}} {
		kubetest.Create(t, client.CoreV1().Pods("semaphore"), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x",
				Args: []string{"--of-" + name}, Env: []corev1.EnvVar{{Name: "DB_PASSWORD", Value: "Planted1"}}}}}})
	}
	kubetest.Create(t, client.CoreV1().Secrets("semaphore"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "planted-secret"}, StringData: map[string]string{"x": "PlantedSecret"}})
	createBundled(t, cfg)
	file := filepath.Join(t.TempDir(), "out.tar.gz")
	s := ctltest.NewSession(t, file, "semaphore-bundle.tar.gz")
	s.Call("bundle", "--kubeconfig", kubetest.Kubeconfig(t, cfg), file)
	s.Golden("bundle", nil) // the exit code is 2: no part runs
	info := testkit.Value(os.Stat(file))(t)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %s", info.Mode())
	}
	all := unpackFile(t, file)
	found := false
	for name, has := range map[string]string{"corefiles": "c2block", "serviceexports": `"payroll-export"`,
		"serviceimports": `"payroll-import"`, "remoteclusters": `"c2"`, "ippools": `"of-c2"`,
		"globalnetworksets": `"payroll-gset"`, "networksets": `"payroll-set"`,
		"globalnetworkpolicies": `"default.payroll-gpolicy"`, "calico-networkpolicies": `"default.payroll-policy"`,
		"networkpolicies": `"payroll-kpolicy"`} {
		if text := all["semaphore-bundle/test/objects/"+name+".json"]; !strings.Contains(text, has) {
			t.Errorf("%s.json lacks %s: %s", name, has, text)
		}
	}
	for name, text := range all {
		found = found || strings.Contains(text, `"semaphore-broker"`)
		if regexp.MustCompile(`Planted|planted-secret|UGxhbnRlZ|PRIVATE KEY`).MatchString(text) {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
		if strings.Contains(text, "--of-") {
			t.Errorf("%s has a pod:\n%s", name, text)
		}
	}
	if !found || !strings.Contains(all["semaphore-bundle/errors.txt"], "no pod of the broker runs") {
		t.Errorf("%d files, errors: %s", len(all), all["semaphore-bundle/errors.txt"])
	}
	s.Call("bundle", "--kubeconfig", kubetest.Kubeconfig(t, cfg), "--hash-names", file)
	for name, text := range unpackFile(t, file) {
		if left := regexp.MustCompile(`payroll-(ns|export|import|g?set|[gk]?policy)\b`).
			FindString(name + text); left != "" {
			t.Errorf("--hash-names leaves %q in %s:\n%s", left, name, text)
		}
	}
}

func unpackFile(t *testing.T, file string) map[string]string {
	t.Helper()
	in := testkit.Value(os.Open(file))(t)
	defer in.Close()
	return unpack(t, in)
}

package check

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestExporterCallsRemotes: check calls the brokers of RemoteClusters as the exporter does, with the roots that they
// have, whether or not the file names the own broker, too.
func TestExporterCallsRemotes(t *testing.T) {
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	dir := ctltest.Linked(t)
	at := func(path string) string { return filepath.Join(dir, path) }
	address := ctltest.ListenAs(t, dir, identity.Exporter("c1"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := listener.Addr().String()
	must(t, listener.Close())
	must(t, os.Remove(at("bundles/c2.pem")))
	roots := testkit.Value(json.Marshal(string(testkit.Value(os.ReadFile(at("c2.pem")))(t))))(t)
	kubetest.CreateRemote(t, api, "c2", "{trustBundle: "+string(roots)+", broker: {address: \""+address+
		"\", otherAddresses: [\""+closed+"\"]}}")
	files := "certFile: " + at("c1/exporter/tls.crt") + ", keyFile: " + at("c1/exporter/tls.key") + ", bundleDir: " +
		at("bundles") + "}\n"
	spire := spireAgent{dir: at("c1"), part: "exporter", federated: at("c1")} // other roots of c2 than the object has
	file := func(kubeconfig, tls string) string {
		return wrote(t, at("exporter.yaml"), "cluster: c1\nkube: {kubeConfigPath: %s}\nsubnetsFile: %s\ntls: {%s", kubeconfig,
			at("subnets.yaml"), tls)
	}
	kubeconfig := kubetest.Kubeconfig(t, api)
	for name, more := range map[string]string{"with localBroker": files + "localBroker: {address: \"" + address + "\"}\n",
		"without": files, "with a Workload API": "workloadAPI: 'unix://" + spire.serve(t) + "'}\n"} {
		if f, code := ctltest.Found(t, "--config", file(kubeconfig, more)); code != 2 || f["PortClosed"].Subject != closed ||
			f["PortClosed"].Level != finding.Warning || f["ConnectionAgreed"].Subject != address ||
			f["ConfigInvalid"].Code != "" || f["ListenerUntrusted"].Code != "" {
			t.Errorf("%s: exit code %d\n%+v", name, code, f)
		}
	}
	// As the exporter does, it judges them with the subnets of the broker's file.
	wrote(t, at("subnets.yaml"), "cluster: c1\nlocalSubnets: [10.1.0.0/16]\n")
	kubetest.CreateRemote(t, api, "c3", "{podSubnets: [10.1.0.0/17], nodeSubnets: [172.16.0.0/12], broker: {address: \""+
		closed+"\"}}")
	if f, code := ctltest.Found(t, "--config", file(kubeconfig, files)); code != 2 ||
		f["ConfigInvalid"].Subject != "RemoteCluster c3" || f["PortClosed"].Side != "c2" {
		t.Errorf("one that is not accepted: exit code %d\n%+v", code, f)
	}
	nowhere := kubetest.Kubeconfig(t, &rest.Config{Host: "https://" + closed})
	if f, code := ctltest.Found(t, "--config", file(nowhere, files)); code != 3 || f["CertificateValid"].Code == "" ||
		f["RemotesNotChecked"].Level != finding.NotChecked {
		t.Errorf("they cannot be read: exit code %d\n%+v", code, f)
	}
}

// TestRefusedRemoteIsFound: a RemoteCluster that the broker does not accept is an error, and the spec that is in effect
// in its place is checked.
func TestRefusedRemoteIsFound(t *testing.T) {
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	admin := kubernetes.NewForConfigOrDie(api)
	dir := ctltest.Linked(t)
	kubetest.CreateRemote(t, api, "c2", "{podSubnets: [10.1.0.0/17], nodeSubnets: [172.16.0.0/12]}") // an own subnet
	file := brokerFile(t, dir, "kube: {kubeConfigPath: "+kubetest.Kubeconfig(t, api)+"}\n")
	found := func() (invalid, root string) {
		t.Helper()
		f, code := ctltest.Found(t, "--config", file, "--coredns", "none")
		if code != 2 || f["ConfigInvalid"].Subject != "RemoteCluster c2" {
			t.Errorf("exit code %d\n%+v", code, f)
		}
		out, _, _ := ctltest.Run(t, "coredns", "--config", file)
		return f["ConfigInvalid"].Evidence, out
	}
	if _, blocks := found(); strings.Contains(blocks, "cluster.c2") {
		t.Errorf("blocks of c2, of which nothing is in effect:\n%s", blocks)
	}
	kubetest.Namespace(t, admin, "semaphore")
	kubetest.Create(t, admin.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "semaphore-broker-remotes"}, Data: map[string]string{"remotes.json": `{"c2": {"name": "c2", "generation": 1,
"spec": {"podSubnets": ["10.2.0.0/16"], "nodeSubnets": ["172.16.0.0/12"]}}}`}})
	if invalid, blocks := found(); !strings.HasSuffix(invalid, "the spec of generation 1 stays in effect") ||
		!strings.Contains(blocks, "cluster.c2") {
		t.Errorf("with an earlier spec in effect: %s\n%s", invalid, blocks)
	}
}

// TestRemotesNotRead: a user who may not read which RemoteClusters are in effect has the broker's file checked, and
// needs that right only if one is not accepted.
func TestRemotesNotRead(t *testing.T) {
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	dir := ctltest.Linked(t)
	kubetest.CreateRemote(t, api, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	tenant := rest.CopyConfig(api)
	tenant.Impersonate.UserName = "tenant"
	kubetest.AllowReading(t, kubernetes.NewForConfigOrDie(api), "tenant", "semaphore.uw.io", "remoteclusters")
	with := func(cfg *rest.Config) string {
		return brokerFile(t, dir, "kube: {kubeConfigPath: "+kubetest.Kubeconfig(t, cfg)+"}\n")
	}
	check := func(file string) (f map[string]show.Finding, code int) {
		t.Helper()
		if f, code = ctltest.Found(t, "--config", file); f["CertificateValid"].Code == "" || f["ConfigValid"].Code == "" {
			t.Errorf("exit code %d\n%+v", code, f)
		}
		return f, code
	}
	if f, code := check(with(tenant)); f["RemotesNotChecked"].Code != "" {
		t.Errorf("all are accepted: exit code %d\n%+v", code, f)
	}
	if out, code, err := ctltest.Run(t, "coredns", "--config", with(tenant)); code != 0 ||
		!strings.Contains(out, "cluster.c2") {
		t.Errorf("the blocks: %d, %v\n%s", code, err, out)
	}
	kubetest.CreateRemote(t, api, "c3", "{podSubnets: [10.1.0.0/17], nodeSubnets: [172.16.0.0/12]}") // an own subnet
	nowhere := &rest.Config{Host: "https://127.0.0.1:1"}
	for name, cfg := range map[string]*rest.Config{"one is not accepted": tenant, "no apiserver answers": nowhere} {
		if f, code := check(with(cfg)); f["RemotesNotChecked"].Level != finding.NotChecked ||
			f["CoreDNSComplete"].Code != "" || !strings.Contains(f["RemotesNotChecked"].Fix,
			"get the ConfigMap semaphore-broker-remotes") {
			t.Errorf("%s: exit code %d\n%+v", name, code, f)
		}
	}
	if _, code, err := ctltest.Run(t, "coredns", "--config", with(tenant)); code != 1 {
		t.Errorf("the blocks, and one is not accepted: %d, %v", code, err)
	}
}

// TestWhoseFile: a file is that of the part that accepts it, also without the keys that only one part has.
func TestWhoseFile(t *testing.T) {
	dir := t.TempDir()
	socket := wrote(t, filepath.Join(dir, "agent.sock"), "")
	for text, want := range map[string]string{
		"podSubnets: [10.1.0.0/16]\n": "exporter", "wgKeyPath: /keys\n": "agent",
		"listen: {debugSocket: " + socket + "}\n": "agent",
		"localSubnets: [10.1.0.0/16]\n":           "broker",
	} {
		f, _ := ctltest.Found(t, "--config", wrote(t, filepath.Join(dir, "config.yaml"), "%s", text), "--cluster", "c1")
		if is := f["ConfigValid"].Evidence; is != "the configuration of the "+want+" of c1 is valid" {
			t.Errorf("%q: %s %+v; want that of the %s", text, is, f["ConfigInvalid"], want)
		}
	}
	for _, text := range []string{"", "features: [services]\n"} { // an exporter's, or a broker's without localSubnets
		f, _ := ctltest.Found(t, "--config", wrote(t, filepath.Join(dir, "config.yaml"), "%s", text), "--cluster", "c1")
		if is := f["ConfigValid"].Evidence; is != "the configuration of the exporter of c1, or of a broker "+
			"without the localSubnets that it needs, is valid" {
			t.Errorf("%q: %s", text, is)
		}
	}
	f, _ := ctltest.Found(t, "--config", wrote(t, filepath.Join(dir, "config.yaml"), "mirrorSelectr: a=b\n"), "--cluster",
		"c1")
	if !strings.Contains(f["ConfigInvalid"].Evidence, `unknown field "mirrorSelectr"`) {
		t.Errorf("an unknown key: %+v", f)
	}
}

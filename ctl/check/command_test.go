package check

import (
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestCheck(t *testing.T) {
	dir := ctltest.Linked(t)
	at := func(path string) string { return filepath.Join(dir, path) }
	address := ctltest.ListenAs(t, dir, identity.Exporter("c1"))
	before := []string{"--dir", at("c1"), "--peer-bundle", "c2=" + at("c2.pem"), "--address", address, "--expect",
		"spiffe://c2/broker"}
	if f, code := ctltest.Found(t, before...); code != 0 || f["ConnectionAgreed"].Level != finding.OK || len(f) != 4 {
		t.Errorf("two clusters that are linked as documented: exit code %d\n%+v", code, f)
	}
	exporter := func(cert string) string {
		return wrote(t, at("exporter.yaml"), "cluster: c1\nkube: {kubeConfigPath: /k}\n"+
			"localBroker: {cluster: c2, address: %q}\n"+
			"tls: {certFile: %[2]s/tls.crt, keyFile: %[2]s/tls.key, bundleDir: %s}\n", address, at(cert), at("bundles"))
	}
	if f, code := ctltest.Found(t, "--config", exporter("c1/exporter")); code != 0 ||
		f["ConnectionAgreed"].Level != finding.OK ||
		f["ListenerCertificateValid"].Subject != "spiffe://c2/broker at "+address {
		t.Errorf("an exporter's configuration: exit code %d\n%+v", code, f)
	}
	broker := brokerFile(t, dir, "")
	if f, code := ctltest.Found(t, "--config", broker); f["CertificateValid"].Subject != "spiffe://c1/broker" ||
		f["BundleMissing"].Code != "" {
		t.Errorf("a broker's configuration: exit code %d\n%+v", code, f)
	}
	agent := wrote(t, at("agent.yaml"), "cluster: c2\nbroker: {address: %q, bundleFile: %s}\n", address, at("c2.pem"))
	if f, code := ctltest.Found(t, "--config", agent); code != 2 || f["CertificateNotShown"].Level != finding.Warning ||
		f["ListenerCertificateValid"].Level != finding.OK {
		t.Errorf("an agent's, with the address of the listener for exporters: exit code %d\n%+v", code, f)
	}
	if f, code := ctltest.Found(t, "--config", exporter("c1/broker")); code != 2 ||
		f["CertificateNameWrong"].Level != finding.Error ||
		f["RefusedByListener"].Side != "c2" {
		t.Errorf("another part's certificate: exit code %d\n%+v", code, f)
	}
	wrong := wrote(t, at("wrong.yaml"), "cluster: C1\nlocalBroker: {cluster: c2, address: x}\n")
	if f, code := ctltest.Found(t, "--config", wrong); code != 2 || f["ConfigInvalid"].Level != finding.Error {
		t.Errorf("a configuration that is wrong: exit code %d\n%+v", code, f)
	}
	if f, code := ctltest.Found(t, "--tls-dir", at("c1/semaphorectl"), "--own", "spiffe://c1/semaphorectl"); code != 0 ||
		f["CertificateValid"].Level != finding.OK || f["RootValid"].Level != finding.OK {
		t.Errorf("an operator's directory: exit code %d\n%+v", code, f)
	}
	if f, code := ctltest.Found(t, "--address", address, "--expect", "spiffe://c2/broker"); code != 2 ||
		f["ListenerNotVerified"].Level != finding.Warning {
		t.Errorf("an address alone: exit code %d\n%+v", code, f)
	}

	// Files that were mixed up.
	must(t, os.Chmod(at("c1/exporter/tls.key"), 0o644))
	if f, code := ctltest.Found(t, before...); code != 2 || f["KeyOpen"].Fix != "chmod 600 "+at("c1/exporter/tls.key") {
		t.Errorf("a key for everyone: exit code %d\n%+v", code, f)
	}
	must(t, os.WriteFile(at("c2.pem"), []byte("hello"), 0o644))
	if f, code := ctltest.Found(t, before...); code != 2 || f["BundleUnreadable"].Subject != at("c2.pem") {
		t.Errorf("no bundle: exit code %d\n%+v", code, f)
	}

	out, code, err := ctltest.Run(t, append([]string{"check"}, before...)...)
	if code != 2 || err.Error() != "1 error, 1 warning" || !strings.HasPrefix(out, "OK ") ||
		!strings.Contains(out, "\nERROR    BundleUnreadable  "+at("c2.pem")) ||
		!strings.Contains(out, "to do (here): in c2: semaphorectl pki bundle") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// wrote writes a file, and returns its path.
func wrote(t *testing.T, path, format string, args ...any) string {
	t.Helper()
	must(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644))
	return path
}

// brokerFile writes the configuration of c1's broker, with the certificates of a directory, and returns its path.
func brokerFile(t *testing.T, dir, more string) string {
	t.Helper()
	return wrote(t, filepath.Join(dir, "broker.yaml"), "cluster: c1\nlocalSubnets: [10.1.0.0/16]\ntls: {certFile: "+
		"%[1]s/c1/broker/tls.crt, keyFile: %[1]s/c1/broker/tls.key, bundleDir: %[1]s/bundles}\n%s", dir, more)
}

func TestCheckUsedWrongly(t *testing.T) {
	ctltest.Refuses(t, map[string]string{
		"check --kubeconfig /nowhere":                                  "how to reach the apiserver",
		"check --kubeconfig /nowhere --coredns none":                   "how to reach the apiserver",
		"check --config a -f b":                                        "give one of them",
		"check --dir a --cluster c1":                                   "--cluster: it needs --config or -f",
		"check --config a --cluster C1":                                "--cluster: ",
		"check -f /nowhere":                                            "-f: open /nowhere",
		"check --dir a --tls-dir b":                                    "give one of them",
		"check --address a:1":                                          "give both or none",
		"check --address a:1 --expect x":                               `--expect "x"`,
		"check --dir /nowhere":                                         "--dir: root certificate",
		"check --config /nowhere":                                      "--config: open /nowhere",
		"check --tls-dir /nowhere -o xml":                              "use table, json or yaml",
		"check --tls-dir /nowhere --own x":                             `--own "x"`,
		"check --config a --coredns b":                                 `--coredns "b": use NAMESPACE/NAME`,
		"check --dir a --coredns b/c":                                  "use it with a broker's --config",
		"check --config a --cluster-domain a_b":                        "--cluster-domain",
		"check --no-such-flag":                                         "unknown flag",
		"check --dir a --peer-bundle C2=x":                             "no cluster name",
		"check --address a:1 --expect spiffe://c2/broker --timeout 0s": "use more than 0",
	})
}

// TestCheckWorkloadAPI: if certificates come from a Workload API, check uses it like the part.
func TestCheckWorkloadAPI(t *testing.T) {
	dir := ctltest.Linked(t)
	address := ctltest.ListenAs(t, dir, identity.Exporter("c1"))
	spire := spireAgent{dir: filepath.Join(dir, "c1"), part: "exporter", federated: filepath.Join(dir, "c2")}
	socket := spire.serve(t)
	path := filepath.Join(dir, "exporter.yaml")
	wrote(t, path, "cluster: c1\nkube: {kubeConfigPath: /k}\nlocalBroker: {cluster: c2, address: %q}\n"+
		"tls: {workloadAPI: 'unix://%s'}\n", address, socket)
	if f, code := ctltest.Found(t, "--config", path); code != 0 || f["ConnectionAgreed"].Level != finding.OK ||
		f["CertificateValid"].Subject != "spiffe://c1/exporter" {
		t.Errorf("exit code %d\n%+v", code, f)
	}
	wrote(t, path, "cluster: c1\nkube: {kubeConfigPath: /k}\nlocalBroker: {cluster: c3, address: %q}\n"+
		"tls: {workloadAPI: 'unix://%s'}\n", address, socket)
	if f, code := ctltest.Found(t, "--config", path); code != 2 || f["BundleMissing"].Level != finding.Error ||
		f["ListenerNameWrong"].Level != finding.Error {
		t.Errorf("a cluster that is not federated: exit code %d\n%+v", code, f)
	}
	wrote(t, path, "cluster: c1\nbroker: {address: %q, workloadAPI: 'unix://%s.not'}\n", address, socket)
	if f, code := ctltest.Found(t, "--config", path); code != 2 || f["CertificateUnreadable"].Level != finding.Error {
		t.Errorf("no agent of SPIRE: exit code %d\n%+v", code, f)
	}
}

// spireAgent is a Workload API that returns one certificate of a directory.
type spireAgent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	dir, part, federated string
}

func (a spireAgent) serve(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
	})
	return socket
}

func (a spireAgent) FetchX509SVID(_ *workload.X509SVIDRequest,
	stream workload.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	svid, err := x509svid.Load(filepath.Join(a.dir, a.part, "tls.crt"), filepath.Join(a.dir, a.part, "tls.key"))
	if err != nil {
		return err
	}
	cert, key, err := svid.MarshalRaw()
	if err != nil {
		return err
	}
	root := func(dir string) []byte {
		_, text, err := identity.Bundle(dir)
		if err != nil {
			return nil
		}
		block, _ := pem.Decode(text)
		return block.Bytes
	}
	if err := stream.Send(&workload.X509SVIDResponse{
		Svids: []*workload.X509SVID{{SpiffeId: svid.ID.String(), X509Svid: cert, X509SvidKey: key,
			Bundle: root(a.dir)}},
		FederatedBundles: map[string][]byte{"spiffe://c2": root(a.federated)},
	}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

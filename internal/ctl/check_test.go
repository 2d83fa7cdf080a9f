package ctl

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/pki"
)

// linked returns what two operators have after the commands of docs/certificates.md: directories c1 and c2 with keys,
// c1.pem and c2.pem, and bundles/ with both, as in a pod.
func linked(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "bundles"), 0o755))
	for _, cluster := range []string{"c1", "c2"} {
		_, _, err := run(t, "pki", "init", "--cluster", cluster, "--dir", filepath.Join(dir, cluster))
		must(t, err)
		rebundle(t, dir, cluster)
	}
	return dir
}

func rebundle(t *testing.T, dir, cluster string) {
	t.Helper()
	bundle, _, err := run(t, "pki", "bundle", "--dir", filepath.Join(dir, cluster))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, cluster+".pem"), []byte(bundle), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "bundles", cluster+".pem"), []byte(bundle), 0o644))
}

// listenAs starts c2's broker, which accepts c1's exporter.
func listenAs(t *testing.T, dir string) (address string) {
	t.Helper()
	source, err := identity.NewSource(config.TLS{
		CertFile: filepath.Join(dir, "c2", "broker", "tls.crt"), KeyFile: filepath.Join(dir, "c2", "broker", "tls.key"),
		BundleDir: filepath.Join(dir, "bundles"),
	})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(source.ServerTLS(func(id spiffeid.ID) error {
		if id != identity.Exporter("c1") {
			return fmt.Errorf("%s is nobody we know", id)
		}
		return nil
	}))))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
	})
	return listener.Addr().String()
}

// found returns the findings of check by code.
func found(t *testing.T, args ...string) (findings map[string]check.Finding, code int) {
	t.Helper()
	out, code, err := run(t, append([]string{"check", "-o", "json", "--timeout", "2s"}, args...)...)
	var report struct {
		Findings         []check.Finding
		Errors, Warnings int
	}
	if e := json.Unmarshal([]byte(out), &report); e != nil {
		t.Fatalf("%v: %v, %v\n%s", args, e, err, out)
	}
	findings = map[string]check.Finding{}
	worst := 0
	for _, f := range report.Findings {
		findings[string(f.Code)] = f
		worst = max(worst, map[check.Level]int{check.OK: 0, check.Warning: 1, check.Error: 2}[f.Level])
	}
	if code != map[int]int{0: 0, 1: 2, 2: 2}[worst] || (err != nil) != (worst > 0) || (report.Errors > 0) != (worst == 2) {
		t.Errorf("%v: exit code %d, %v; the worst finding is %d", args, code, err, worst)
	}
	return findings, code
}

func TestCheck(t *testing.T) {
	dir := linked(t)
	at := func(path string) string { return filepath.Join(dir, path) }
	address := listenAs(t, dir)
	before := []string{"--dir", at("c1"), "--peer-bundle", "c2=" + at("c2.pem"), "--address", address, "--expect",
		"spiffe://c2/broker"}
	if f, code := found(t, before...); code != 0 || f["connection"].Level != check.OK || len(f) != 4 {
		t.Errorf("two clusters that are linked as documented: exit code %d\n%+v", code, f)
	}
	exporter := func(cert string) string {
		path := at("exporter.yaml")
		must(t, os.WriteFile(path, []byte(fmt.Sprintf("cluster: c1\nbrokers: [{cluster: c2, address: %q}]\ntls: {certFile: "+
			"%s/tls.crt, keyFile: %s/tls.key, bundleDir: %s}\n",
			address, at(cert), at(cert), at("bundles"))), 0o644))
		return path
	}
	if f, code := found(t, "--config", exporter("c1/exporter")); code != 0 || f["connection"].Level != check.OK ||
		f["peer"].Subject != "spiffe://c2/broker at "+address {
		t.Errorf("an exporter's configuration: exit code %d\n%+v", code, f)
	}
	broker := at("broker.yaml")
	must(t, os.WriteFile(broker, []byte(fmt.Sprintf("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, "+
		"podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}, {name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: "+
		"[172.16.0.0/12], wireguard: {listenPort: 51821}}]\ntls: {certFile: %s/tls.crt, keyFile: %s/tls.key, "+
		"bundleDir: %s}\n",
		at("c1/broker"), at("c1/broker"), at("bundles"))), 0o644))
	if f, code := found(t, "--config", broker); code != 2 || f["bundle-missing"].Subject != at("bundles/c3.pem") ||
		f["certificate"].Subject != "spiffe://c1/broker" {
		t.Errorf("a broker's configuration, without the bundle of c3: exit code %d\n%+v", code, f)
	}
	agent := at("agent.yaml")
	must(t, os.WriteFile(agent,
		[]byte(fmt.Sprintf("cluster: c2\nbroker: {address: %q, bundleFile: %s}\n", address, at("c2.pem"))), 0o644))
	if f, code := found(t, "--config", agent); code != 2 || f["not-shown"].Level != check.Warning ||
		f["peer"].Level != check.OK {
		t.Errorf("an agent's, with the address of the listener for exporters: exit code %d\n%+v", code, f)
	}
	if f, code := found(t, "--config", exporter("c1/broker")); code != 2 || f["certificate-name"].Level != check.Error ||
		f["refused-by-peer"].Side != "c2" {
		t.Errorf("another part's certificate: exit code %d\n%+v", code, f)
	}
	wrong := at("wrong.yaml")
	must(t, os.WriteFile(wrong, []byte("cluster: C1\nbrokers: [{cluster: c2, address: x}]\n"), 0o644))
	if f, code := found(t, "--config", wrong); code != 2 || f["config-invalid"].Level != check.Error {
		t.Errorf("a configuration that is wrong: exit code %d\n%+v", code, f)
	}
	if f, code := found(t, "--tls-dir", at("c1/semaphorectl"), "--own", "spiffe://c1/semaphorectl"); code != 0 ||
		f["certificate"].Level != check.OK || f["root"].Level != check.OK {
		t.Errorf("an operator's directory: exit code %d\n%+v", code, f)
	}
	if f, code := found(t, "--address", address, "--expect", "spiffe://c2/broker"); code != 2 ||
		f["peer-not-verified"].Level != check.Warning {
		t.Errorf("an address alone: exit code %d\n%+v", code, f)
	}

	// Files that were mixed up.
	must(t, os.Chmod(at("c1/exporter/tls.key"), 0o644))
	if f, code := found(t, before...); code != 2 || f["key-open"].Fix != "chmod 600 "+at("c1/exporter/tls.key") {
		t.Errorf("a key for everyone: exit code %d\n%+v", code, f)
	}
	must(t, os.WriteFile(at("c2.pem"), []byte("hello"), 0o644))
	if f, code := found(t, before...); code != 2 || f["bundle-unreadable"].Subject != at("c2.pem") {
		t.Errorf("no bundle: exit code %d\n%+v", code, f)
	}

	out, code, err := run(t, append([]string{"check"}, before...)...)
	if code != 2 || err.Error() != "1 error, 1 warning" || !strings.HasPrefix(out, "OK ") ||
		!strings.Contains(out, "\nERROR    bundle-unreadable  "+at("c2.pem")) ||
		!strings.Contains(out, "to do (here): in c2: semaphorectl pki bundle") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

func TestCheckUsedWrongly(t *testing.T) {
	for args, want := range map[string]string{
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
	} {
		_, code, err := run(t, strings.Fields(args)...)
		if code != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v; want 1 and %q", args, code, err, want)
		}
	}
}

// TestRotateCommands runs the commands of docs/certificates.md in order: each names the next step, and check finds
// nothing wrong after any step on either side.
func TestRotateCommands(t *testing.T) {
	dir := linked(t)
	address := listenAs(t, dir)
	c1 := filepath.Join(dir, "c1")
	well := func(when string) {
		t.Helper()
		if f, code := found(t, "--dir", c1, "--peer-bundle", "c2="+filepath.Join(dir, "c2.pem"), "--address", address,
			"--expect", "spiffe://c2/broker"); code != 0 {
			t.Errorf("%s: exit code %d\n%+v", when, code, f)
		}
	}
	next := func(want string, args ...string) {
		t.Helper()
		out, code, err := run(t, append([]string{"pki", "rotate-ca", "--dir", c1}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: exit code %d, %v\n%s; want %q", args, code, err, out, want)
		}
	}
	well("before")
	_, _, err := run(t, "pki", "rotate", "--dir", c1, "--days", "90", "--part", "exporter")
	must(t, err)
	well("rotated")
	if out, code, err := run(t, "pki", "show", "--dir", c1); code != 0 || !strings.Contains(out, "89 days") ||
		!strings.Contains(out, "364 days") || strings.Count(out, "\n") != 5 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	shown := func() (doc struct {
		Certificates []certificate
		Replacing    bool
	}) {
		t.Helper()
		out, code, err := run(t, "pki", "show", "--dir", c1, "-o", "json")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), &doc))
		if code != 0 || !slices.ContainsFunc(doc.Certificates, func(c certificate) bool {
			return c.Name == "spiffe://c1/exporter" && c.Valid && c.NotAfter.Sub(c.NotBefore) < 91*day &&
				strings.Contains(out, c.Fingerprint)
		}) {
			t.Errorf("exit code %d\n%s", code, out)
		}
		return doc
	}
	if doc := shown(); doc.Replacing || len(doc.Certificates) != 4 {
		t.Errorf("steady: %+v", doc)
	}
	next("is not being replaced. To begin:\n  semaphorectl pki rotate-ca --dir " + c1 + " --step 1")
	next("Then step 2:\n  semaphorectl pki rotate-ca --dir "+c1+" --step 2", "--step", "1")
	next("Then step 2:") // repeated, it does nothing
	if out, _, _ := run(t, "pki", "show", "--dir", c1); !strings.Contains(out, "next/ca.crt") ||
		!strings.Contains(out, "is being replaced") {
		t.Errorf("while it is replaced:\n%s", out)
	}
	if doc := shown(); !doc.Replacing || len(doc.Certificates) != 5 {
		t.Errorf("while it is replaced: %+v", doc)
	}
	rebundle(t, dir, "c1") // to c2
	well("step 1")
	next("Then step 3:", "--step", "2", "--days", "30")
	well("step 2")
	next("step 3 is done", "--step", "3")
	rebundle(t, dir, "c1")
	well("step 3")
	if _, code, err := run(t, "pki", "rotate-ca", "--dir", c1, "--step", "2"); code != 1 ||
		!strings.Contains(err.Error(), "the next one is 1") {
		t.Errorf("out of turn: exit code %d, %v", code, err)
	}
	if _, code, err := run(t, "pki", "rotate", "--dir", c1, "--days", "0"); code != 1 ||
		!strings.Contains(err.Error(), "must be above 0") {
		t.Errorf("no days: exit code %d, %v", code, err)
	}
}

// TestCheckWorkloadAPI: if certificates come from a Workload API, check uses it like the part.
func TestCheckWorkloadAPI(t *testing.T) {
	dir := linked(t)
	address := listenAs(t, dir)
	spire := spireAgent{dir: filepath.Join(dir, "c1"), part: "exporter", federated: filepath.Join(dir, "c2")}
	socket := spire.serve(t)
	path := filepath.Join(dir, "exporter.yaml")
	must(t, os.WriteFile(path,
		[]byte(fmt.Sprintf("cluster: c1\nbrokers: [{cluster: c2, address: %q}]\ntls: {workloadAPI: 'unix://%s'}\n", address,
			socket)), 0o644))
	if f, code := found(t, "--config", path); code != 0 || f["connection"].Level != check.OK ||
		f["certificate"].Subject != "spiffe://c1/exporter" {
		t.Errorf("exit code %d\n%+v", code, f)
	}
	must(t, os.WriteFile(path,
		[]byte(fmt.Sprintf("cluster: c1\nbrokers: [{cluster: c3, address: %q}]\ntls: {workloadAPI: 'unix://%s'}\n", address,
			socket)), 0o644))
	if f, code := found(t, "--config", path); code != 2 || f["bundle-missing"].Level != check.Error ||
		f["peer-name"].Level != check.Error {
		t.Errorf("a cluster that is not federated: exit code %d\n%+v", code, f)
	}
	must(t, os.WriteFile(path,
		[]byte(fmt.Sprintf("cluster: c1\nbroker: {address: %q, workloadAPI: 'unix://%s.not'}\n", address, socket)), 0o644))
	if f, code := found(t, "--config", path); code != 2 || f["certificate-unreadable"].Level != check.Error {
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
		_, text, err := pki.Bundle(dir)
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

package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestIDs(t *testing.T) {
	for want, got := range map[string]spiffeid.ID{
		"spiffe://c1/exporter":      Exporter("c1"),
		"spiffe://c1/broker":        Broker("c1"),
		"spiffe://c1/semaphorectl":  Semaphorectl("c1"),
		"spiffe://aws-eu-1/broker":  Broker("aws-eu-1"),
		"spiffe://1-2-3/exporter":   Exporter("1-2-3"),
		"spiffe://c1-c2/exporter":   Exporter("c1-c2"),
		"spiffe://localhost/broker": Broker("localhost"),
	} {
		if got.String() != want {
			t.Errorf("%s; want %s", got, want)
		}
		cluster := strings.Split(strings.TrimPrefix(want, "spiffe://"), "/")[0]
		if ClusterOf(got) != cluster {
			t.Errorf("%s is of cluster %q", got, ClusterOf(got))
		}
	}
}

// handshake connects a client to a server over loopback, and returns the error of each side. A byte goes both ways,
// because in TLS 1.3 a refused client learns of the refusal only then.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			return echo(tls.Server(conn, server))
		}()
	}()
	conn := testkit.Value(net.Dial("tcp", listener.Addr().String()))(t)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := tls.Client(conn, client)
	if clientErr = c.Handshake(); clientErr == nil {
		if _, clientErr = c.Write([]byte{'x'}); clientErr == nil {
			_, clientErr = c.Read(make([]byte, 1))
		}
	}
	conn.Close()
	return <-done, clientErr
}

func echo(s *tls.Conn) error {
	if err := s.Handshake(); err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := s.Read(b); err != nil {
		return err
	}
	_, err := s.Write(b)
	return err
}

func only(want spiffeid.ID) func(spiffeid.ID) error {
	return func(id spiffeid.ID) error {
		if id != want {
			return fmt.Errorf("%s is not %s", id, want)
		}
		return nil
	}
}

func anyone(spiffeid.ID) error { return nil }

func mustPass(t *testing.T, what string, server, client *tls.Config) {
	t.Helper()
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("%s: server: %v; client: %v; want it to pass", what, s, c)
	}
}

// mustFail expects a text in the error of the side that refuses.
func mustFail(t *testing.T, what string, server, client *tls.Config, serverText, clientText string) {
	t.Helper()
	s, c := handshake(t, server, client)
	if s == nil || c == nil {
		t.Errorf("%s: server: %v; client: %v; want both to fail", what, s, c)
		return
	}
	if !strings.Contains(s.Error(), serverText) || !strings.Contains(c.Error(), clientText) {
		t.Errorf("%s: server: %v; client: %v; want %q and %q", what, s, c, serverText, clientText)
	}
}

func TestMutualTLS(t *testing.T) {
	ca1, ca2, ca3, stranger := newCA(t), newCA(t), newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem(), "c3": ca3.pem()}
	broker := newPart(t, ca2, "spiffe://c2/broker", all).source(t)
	server := broker.ServerTLS(only(Exporter("c1")))

	exporter := newPart(t, ca1, "spiffe://c1/exporter", all).source(t)
	mustPass(t, "c1's exporter at c2's broker", server, exporter.ClientTLS(Broker("c2")))

	mustFail(t, "client that wants another cluster's broker", server, exporter.ClientTLS(Broker("c3")),
		"bad certificate", `unexpected ID "spiffe://c2/broker"`)
	mustFail(t, "client that wants another part", server, exporter.ClientTLS(Exporter("c2")),
		"bad certificate", `unexpected ID "spiffe://c2/broker"`)

	other := newPart(t, ca3, "spiffe://c3/exporter", all).source(t)
	mustFail(t, "a known cluster that is not let in", server, other.ClientTLS(Broker("c2")),
		"spiffe://c3/exporter is not spiffe://c1/exporter", "remote error: tls:")
	mustFail(t, "another part of the right cluster", server,
		newPart(t, ca1, "spiffe://c1/semaphorectl", all).source(t).ClientTLS(Broker("c2")),
		"spiffe://c1/semaphorectl is not", "remote error: tls:")

	// The roots of c2 and c3 sign for c1: each root may speak only for its own cluster.
	for name, ca := range map[string]*authority{"c2's root": ca2, "c3's root": ca3, "a stranger's root": stranger} {
		forged := newPart(t, ca, "spiffe://c1/exporter", all)
		// The forger trusts its own root, because the file must have some root for c1.
		mustFail(t, name+" signs for c1", server, forged.source(t).ClientTLS(Broker("c2")),
			"x509: certificate signed by unknown authority", "remote error: tls:")
		// The same towards a client: the server is not c2's broker.
		fake := newPart(t, ca, "spiffe://c1/broker", all)
		mustFail(t, name+" signs for c1's broker", fake.source(t).ServerTLS(anyone),
			newPart(t, ca2, "spiffe://c2/exporter", all).source(t).ClientTLS(Broker("c1")),
			"bad certificate", "x509: certificate signed by unknown authority")
	}

	unknown := newPart(t, stranger, "spiffe://c9/exporter",
		map[string][]byte{"c9": stranger.pem(), "c2": ca2.pem()}).source(t)
	mustFail(t, "a cluster without a bundle", broker.ServerTLS(anyone), unknown.ClientTLS(Broker("c2")),
		`cluster "c9" is not trusted`, "remote error: tls:")

	two := newPart(t, ca1, "spiffe://c1/exporter", all)
	source := two.source(t)
	two.certificate(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter", "spiffe://c1/semaphorectl")
	mustPass(t, "a certificate with two IDs is not taken, the last good one is used", server,
		source.ClientTLS(Broker("c2")))
	if _, err := NewSource(two.files); err == nil {
		t.Error("a certificate with two IDs was taken")
	}

	mustFail(t, "a client without a certificate", server,
		bundleClientTLS(filepath.Join(writeRoots(t, ca2.pem())), Broker("c2")), "client didn't provide a certificate",
		"certificate required")

	plain := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}
	mustFail(t, "a client of TLS 1.2", server, plain, "unsupported versions", "protocol version not supported")
	old := newPart(t, ca2, "spiffe://c2/broker", all).source(t).ServerTLS(anyone)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	mustFail(t, "a server of TLS 1.2", old, exporter.ClientTLS(Broker("c2")), "", "protocol version not supported")
}

func TestExpired(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	server := newPart(t, ca2, "spiffe://c2/broker", all)
	client := newPart(t, ca1, "spiffe://c1/exporter", all)
	serverTLS, clientTLS := server.source(t).ServerTLS(anyone), client.source(t).ClientTLS(Broker("c2"))
	mustPass(t, "both valid", serverTLS, clientTLS)

	client.certificate(t, ca1, time.Now().Add(-time.Minute), "spiffe://c1/exporter")
	mustFail(t, "client's certificate expired", serverTLS, clientTLS, "x509: certificate has expired",
		"remote error: tls:")
	client.certificate(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	server.certificate(t, ca2, time.Now().Add(-time.Minute), "spiffe://c2/broker")
	mustFail(t, "server's certificate expired", serverTLS, clientTLS, "bad certificate", "x509: certificate has expired")

	source := client.source(t)
	if end, err := expiry(source); err != nil || time.Until(end) < 58*time.Minute || time.Until(end) > 61*time.Minute {
		t.Errorf("Expiry: %v, %v; want an hour from now", end, err)
	}
}

// TestRotation: a rotated certificate, a new root beside the old one, and a removed root take effect at the next
// handshake, without a restart.
func TestRotation(t *testing.T) {
	ca1, newCA1, ca2 := newCA(t), newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	broker := newPart(t, ca2, "spiffe://c2/broker", all)
	exporter := newPart(t, ca1, "spiffe://c1/exporter", all)
	server := broker.source(t).ServerTLS(only(Exporter("c1")))
	client := exporter.source(t).ClientTLS(Broker("c2"))
	mustPass(t, "before", server, client)

	exporter.certificate(t, newCA1, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	mustFail(t, "certificate of a new root, before the root is known", server, client, "unknown authority",
		"remote error: tls:")
	broker.bundle(t, "c1", bytes.Join([][]byte{ca1.pem(), newCA1.pem()}, nil))
	mustPass(t, "two roots, certificate of the new one", server, client)
	exporter.certificate(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	mustPass(t, "two roots, certificate of the old one", server, client)
	broker.bundle(t, "c1", newCA1.pem())
	mustFail(t, "the old root is withdrawn", server, client, "unknown authority", "remote error: tls:")
	exporter.certificate(t, newCA1, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	mustPass(t, "the new root alone", server, client)

	testkit.Must(t, os.Remove(filepath.Join(broker.files.BundleDir, "c1.pem")))
	mustFail(t, "the bundle is removed", server, client, `cluster "c1" is not trusted: there is no file`,
		"remote error: tls:")
	broker.bundle(t, "c1", newCA1.pem())
	mustPass(t, "the bundle is back", server, client)
}

// TestBrokenRotationKeepsWhatWorks: files that are unreadable or invalid for a moment do not affect what works.
func TestBrokenRotationKeepsWhatWorks(t *testing.T) {
	log := testkit.CaptureLog(t)
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	broker := newPart(t, ca2, "spiffe://c2/broker", all)
	exporter := newPart(t, ca1, "spiffe://c1/exporter", all)
	server := broker.source(t).ServerTLS(anyone)
	source := exporter.source(t)
	client := source.ClientTLS(Broker("c2"))
	mustPass(t, "before", server, client)

	// Certificate and key are two files: between the two writes they do not match.
	_, otherKey := ca1.issue(t, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	write(t, exporter.files.KeyFile, otherKey)
	mustPass(t, "key without its certificate", server, client)
	write(t, exporter.files.CertFile, []byte("not a certificate"))
	mustPass(t, "nonsense for a certificate", server, client)
	testkit.Must(t, os.Remove(exporter.files.CertFile))
	mustPass(t, "no certificate", server, client)
	broker.bundle(t, "c1", []byte("-----BEGIN NONSENSE-----"))
	mustPass(t, "nonsense for a bundle", server, client)
	broker.bundle(t, "c1", nil)
	mustPass(t, "an empty bundle", server, client)

	// Each problem is logged, but not at every handshake.
	for range 10 {
		mustPass(t, "still", server, client)
	}
	for text, want := range map[string]int{"tls.crt": 3, "c1.pem": 2} {
		if got := strings.Count(log.String(), "file="+exporter.dir+"/"+text) +
			strings.Count(log.String(), "file="+broker.files.BundleDir+"/"+text); got != want {
			t.Errorf("%d lines about %s; want %d:\n%s", got, text, want, log)
		}
	}

	exporter.certificate(t, ca1, time.Now().Add(30*time.Minute), "spiffe://c1/exporter")
	if end, err := expiry(source); err != nil || time.Until(end) > 31*time.Minute {
		t.Errorf("the next good certificate is not used: it ends at %v, %v", end, err)
	}
}

func TestNewSourceSaysWhatIsWrong(t *testing.T) {
	ca := newCA(t)
	good := func() *part {
		return newPart(t, ca, "spiffe://c1/broker", map[string][]byte{"c1": ca.pem()})
	}
	for _, test := range []struct {
		name  string
		spoil func(*part)
		want  func(config.TLS) string
	}{
		{"no certificate", func(p *part) { os.Remove(p.files.CertFile) }, func(f config.TLS) string { return f.CertFile }},
		{"no key", func(p *part) { os.Remove(p.files.KeyFile) }, func(f config.TLS) string { return f.KeyFile }},
		{"key of another", func(p *part) {
			_, key := ca.issue(t, time.Now().Add(time.Hour), "spiffe://c1/broker")
			write(t, p.files.KeyFile, key)
		}, func(f config.TLS) string { return f.KeyFile }},
		{"certificate without an ID", func(p *part) { p.certificate(t, ca, time.Now().Add(time.Hour)) },
			func(f config.TLS) string { return f.CertFile }},
		{"no bundle of its own cluster", func(p *part) { os.Remove(p.files.BundleDir + "/c1.pem") },
			func(f config.TLS) string { return `cluster "c1" is not trusted` }},
		{"empty bundle", func(p *part) { p.bundle(t, "c1", nil) },
			func(f config.TLS) string { return f.BundleDir + "/c1.pem" }},
		{"nonsense bundle", func(p *part) { p.bundle(t, "c1", []byte("x")) },
			func(f config.TLS) string { return f.BundleDir + "/c1.pem" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := good()
			if _, err := NewSource(p.files); err != nil {
				t.Fatalf("before: %v", err)
			}
			test.spoil(p)
			if _, err := NewSource(p.files); err == nil || !strings.Contains(err.Error(), test.want(p.files)) {
				t.Errorf("%v; want an error with %q", err, test.want(p.files))
			}
		})
	}
}

// TestNoSessionOutlivesTrust: a session that began while a cluster was trusted is not resumed when it is no longer
// trusted: TLS would skip the check of the certificate.
func TestNoSessionOutlivesTrust(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	broker := newPart(t, ca2, "spiffe://c2/broker", all)
	server := broker.source(t).ServerTLS(anyone)
	client := newPart(t, ca1, "spiffe://c1/exporter", all).source(t).ClientTLS(Broker("c2"))
	// The product's clients keep no sessions; an attacker's client would.
	client.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	client.ServerName = "broker"
	mustPass(t, "first", server, client)
	mustPass(t, "second", server, client)
	testkit.Must(t, os.Remove(filepath.Join(broker.files.BundleDir, "c1.pem")))
	mustFail(t, "after the bundle is removed", server, client, `cluster "c1" is not trusted`, "remote error: tls:")
}

// TestServerOnly is the case of agents: only the server authenticates by a certificate.
func TestServerOnly(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	server := newPart(t, ca1, "spiffe://c1/broker", all).source(t).ServerOnlyTLS()
	bundle := writeRoots(t, ca1.pem())
	mustPass(t, "agent of c1", server, bundleClientTLS(bundle, Broker("c1")))
	mustFail(t, "agent that wants another broker", server, bundleClientTLS(bundle, Broker("c2")), "bad certificate",
		`unexpected ID "spiffe://c1/broker"`)
	mustFail(t, "agent that wants another part", server, bundleClientTLS(bundle, Exporter("c1")), "bad certificate",
		`unexpected ID "spiffe://c1/broker"`)
	mustFail(t, "agent with the root of another cluster", server, bundleClientTLS(writeRoots(t, ca2.pem()), Broker("c1")),
		"bad certificate", "unknown authority")
	mustFail(t, "agent whose bundle is not there", server, bundleClientTLS(bundle+".not", Broker("c1")), "bad certificate",
		bundle+".not")
	mustFail(t, "agent of TLS 1.2", server, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
		"unsupported versions", "protocol version not supported")

	forged := newPart(t, ca2, "spiffe://c1/broker", map[string][]byte{"c1": ca2.pem()}).source(t).ServerOnlyTLS()
	mustFail(t, "a server with another root", forged, bundleClientTLS(bundle, Broker("c1")), "bad certificate",
		"unknown authority")

	// The bundle is read at each handshake.
	client := bundleClientTLS(bundle, Broker("c1"))
	write(t, bundle, ca2.pem())
	mustFail(t, "bundle changed", server, client, "bad certificate", "unknown authority")
	write(t, bundle, append(ca2.pem(), ca1.pem()...))
	mustPass(t, "bundle with both roots", server, client)
}

func writeRoots(t *testing.T, roots []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.pem")
	write(t, path, roots)
	return path
}

// exporterFiles are a Secret with a certificate of c1's exporter, and rootFiles a ConfigMap with the roots of c1, c2.
func exporterFiles(t *testing.T, ca *authority) map[string]string {
	t.Helper()
	cert, key := ca.issue(t, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	return map[string]string{"tls.crt": string(cert), "tls.key": string(key)}
}

func rootFiles(of ...*authority) map[string]string {
	files := map[string]string{}
	for i, ca := range of {
		files[fmt.Sprintf("c%d.pem", i+1)] = string(ca.pem())
	}
	return files
}

func sourceIn(t *testing.T, certificates, bundles *testkit.Volume) *Source {
	t.Helper()
	return testkit.Value(NewSource(config.TLS{CertFile: filepath.Join(certificates.Dir, "tls.crt"),
		KeyFile: filepath.Join(certificates.Dir, "tls.key"), BundleDir: bundles.Dir}))(t)
}

func TestSecretVolume(t *testing.T) {
	ca1, newCA1, ca2 := newCA(t), newCA(t), newCA(t)
	certificates, bundles := &testkit.Volume{Dir: t.TempDir()}, &testkit.Volume{Dir: t.TempDir()}
	testkit.Must(t, certificates.Write(exporterFiles(t, ca1)))
	testkit.Must(t, bundles.Write(rootFiles(ca1, ca2)))
	source := sourceIn(t, certificates, bundles)
	broker := newPart(t, ca2, "spiffe://c2/broker", map[string][]byte{"c1": newCA1.pem(), "c2": ca2.pem()})
	server, client := broker.source(t).ServerTLS(anyone), source.ClientTLS(Broker("c2"))
	mustFail(t, "certificate of the old root", server, client, "unknown authority", "remote error: tls:")
	testkit.Must(t, certificates.Write(exporterFiles(t, newCA1)))
	mustPass(t, "the Secret was changed", server, client)

	testkit.Must(t, bundles.Write(rootFiles(newCA1)))
	mustFail(t, "a key was taken out of the ConfigMap", server, client, "bad certificate", `cluster "c2" is not trusted`)
	testkit.Must(t, bundles.Write(rootFiles(newCA1, ca2)))
	mustPass(t, "and put back", server, client)
}

// TestSecretVolumeUnderWay: while volumes are replaced continuously, every part has its certificate, and every cluster
// its roots.
func TestSecretVolumeUnderWay(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	certificates, bundles := &testkit.Volume{Dir: t.TempDir()}, &testkit.Volume{Dir: t.TempDir()}
	both, roots := exporterFiles(t, ca1), rootFiles(ca1, ca2)
	replace := func() {
		testkit.Must(t, errors.Join(certificates.Write(both), bundles.Write(roots)))
	}
	replace()
	source := sourceIn(t, certificates, bundles)
	agent := bundleFileSource(filepath.Join(bundles.Dir, "c2.pem"))
	c2 := spiffeid.RequireTrustDomainFromString("c2")
	stop, read := make(chan struct{}), make(chan struct{})
	reads, misses := 0, []error(nil)
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, certificateErr := source.GetX509SVID()
			_, bundleErr := source.GetX509BundleForTrustDomain(c2)
			_, agentErr := agent.GetX509BundleForTrustDomain(c2)
			reads++
			if err := errors.Join(certificateErr, bundleErr, agentErr); err != nil {
				misses = append(misses, err)
			}
		}
	}()
	for range 1000 {
		replace()
	}
	close(stop)
	<-read
	t.Logf("%d reads, %d missed", reads, len(misses))
	if len(misses) != 0 {
		t.Errorf("%d of %d reads missed a file, the first: %v", len(misses), reads, misses[0])
	}
}

// TestPeerIDAndStandingStream: PeerID returns the caller's ID to a gRPC server, and an open stream outlives a rotation
// and the end of trust: neither affects traffic in progress.
func TestPeerIDAndStandingStream(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	broker := newPart(t, ca2, "spiffe://c2/broker", all)
	exporter := newPart(t, ca1, "spiffe://c1/exporter", all)
	stream := stand(t, broker.source(t).ServerTLS(anyone), exporter.source(t).ClientTLS(Broker("c2")))
	if stream.peer != "spiffe://c1/exporter" {
		t.Errorf("peer %s", stream.peer)
	}
	exporter.certificate(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter")
	broker.certificate(t, ca2, time.Now().Add(time.Hour), "spiffe://c2/broker")
	stream.echo(t)
	testkit.Must(t, os.Remove(filepath.Join(broker.files.BundleDir, "c1.pem")))
	stream.echo(t)
}

func TestPeerIDOfNobody(t *testing.T) {
	if id, err := PeerID(t.Context()); err == nil {
		t.Errorf("an ID without a peer: %s", id)
	}
	address := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}
	for name, info := range map[string]credentials.AuthInfo{
		"no TLS":         nil,
		"no certificate": credentials.TLSInfo{},
	} {
		ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: address, AuthInfo: info})
		if id, err := PeerID(ctx); err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
			t.Errorf("%s: %s, %v; want an error with the address", name, id, err)
		}
	}
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: address, AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}},
	}})
	if id, err := PeerID(ctx); err == nil {
		t.Errorf("an ID of a certificate that has none: %s", id)
	}
}

// expiry returns when a part's own certificate expires.
func expiry(s *Source) (time.Time, error) {
	svid, err := s.GetX509SVID()
	if err != nil {
		return time.Time{}, err
	}
	return svid.Certificates[0].NotAfter, nil
}

// bundleClientTLS returns the configuration to dial one server without a client certificate, with roots from a file.
func bundleClientTLS(file string, server spiffeid.ID) *tls.Config {
	return (&Roots{Source: bundleFileSource(file)}).ClientTLS(server)
}

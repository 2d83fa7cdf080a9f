package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// broker starts c2's listener as in the product: it trusts the clusters in bundles, and accepts c1's exporter.
func broker(t *testing.T, dir string, bundles map[string]string) (address string) {
	t.Helper()
	trust := t.TempDir()
	for name, of := range bundles {
		_, bundle, err := identity.Bundle(of)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(trust, name+".pem"), bundle, 0o644))
	}
	source := testkit.Value(identity.NewSource(config.TLS{
		CertFile: filepath.Join(dir, "broker", "tls.crt"), KeyFile: filepath.Join(dir, "broker", "tls.key"),
		BundleDir: trust,
	}))(t)
	return serve(t, source.ServerTLS(func(id spiffeid.ID) error {
		if id != identity.Exporter("c1") {
			return fmt.Errorf("%s is nobody we know", id)
		}
		return nil
	}))
}

func serve(t *testing.T, c *tls.Config) (address string) {
	t.Helper()
	l := listen(t)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(c)))
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		must(t, <-served)
	})
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	return testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
}

func raw(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	l := listen(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer conn.Close(); answer(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

func TestDial(t *testing.T) {
	c1, c2, stranger := cluster(t, "c1", now), cluster(t, "c2", now), cluster(t, "c1", now)
	old := cluster(t, "c2", now.Add(-366*day))
	show := func(dir, part string) *tls.Certificate {
		_, pair := ReadOwn(filepath.Join(dir, part, "tls.crt"), filepath.Join(dir, part, "tls.key"), spiffeid.ID{}, "")
		if pair == nil {
			t.Fatal("no pair")
		}
		return pair
	}
	roots := map[string]Bundle{"c2": bundleOf(t, c2)}
	good := broker(t, c2, map[string]string{"c1": c1, "c2": c2})
	closed := listen(t)
	closed.Close()
	old2 := identityTLS(t, c2)
	old2.MinVersion, old2.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	old1 := identityTLS(t, c2)
	old1.MinVersion, old1.MaxVersion = tls.VersionTLS10, tls.VersionTLS11

	for _, test := range []struct {
		name, address string
		show          *tls.Certificate
		expect        spiffeid.ID
		roots         map[string]Bundle
		want          string
	}{
		{"good", good, show(c1, "exporter"), identity.Broker("c2"), roots, "ListenerCertificateValid ConnectionAgreed"},
		{"another is expected", good, show(c1, "exporter"), identity.Broker("c3"), roots,
			"ERROR:ListenerNameWrong ListenerCertificateValid ConnectionAgreed"},
		{"no bundle here", good, show(c1, "exporter"), identity.Broker("c2"), nil,
			"ListenerCertificateValid ERROR:ListenerUntrusted ConnectionAgreed"},
		{"another bundle here", good, show(c1, "exporter"), identity.Broker("c2"), map[string]Bundle{"c2": bundleOf(t,
			old)},
			"ListenerCertificateValid ERROR:ListenerUntrusted ConnectionAgreed"},
		{"no bundle there", broker(t, c2, map[string]string{"c2": c2}), show(c1, "exporter"), identity.Broker("c2"), roots,
			"ListenerCertificateValid ERROR:RefusedByListener"},
		{"another bundle there", good, show(stranger, "exporter"), identity.Broker("c2"), roots,
			"ListenerCertificateValid ERROR:RefusedByListener"},
		{"a part that is not let in", good, show(c1, "broker"), identity.Broker("c2"), roots,
			"ListenerCertificateValid ERROR:RefusedByListener"},
		{"nothing to show", good, nil, identity.Broker("c2"), roots, "ListenerCertificateValid WARNING:CertificateNotShown"},
		{"its certificate has expired", broker(t, old, map[string]string{"c1": c1, "c2": old}), show(c1, "exporter"),
			identity.Broker("c2"),
			map[string]Bundle{"c2": bundleOf(t, old)}, "ERROR:ListenerCertificateExpired ConnectionAgreed"},
		{"a listener that asks for no certificate", serve(t, identityTLS(t, c2)), nil, identity.Broker("c2"), roots,
			"ListenerCertificateValid ConnectionAgreed"},
		{"TLS 1.2", serve(t, old2), show(c1, "exporter"), identity.Broker("c2"), roots, "ERROR:TLSOld"},
		{"TLS 1.1", serve(t, old1), show(c1, "exporter"), identity.Broker("c2"), roots, "ERROR:TLSOld"},
		{"nobody listens", closed.Addr().String(), nil, identity.Broker("c2"), roots, "ERROR:PortClosed"},
		{"SSH", raw(t, func(c net.Conn) { c.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n")); c.Read(make([]byte, 1)) }), nil,
			identity.Broker("c2"), roots, "ERROR:NotTLS"},
		{"HTTP", raw(t, func(c net.Conn) { c.Read(make([]byte, 1)); c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }),
			nil, identity.Broker("c2"), roots, "ERROR:NotTLS"},
		{"hangs up", raw(t, func(c net.Conn) { c.Read(make([]byte, 4096)) }), nil, identity.Broker("c2"), roots,
			"ERROR:TLSCut"},
		{"no port", "127.0.0.1", nil, identity.Broker("c2"), roots, "ERROR:AddressUnknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := Dial(t.Context(), test.address, "c1", test.expect, test.show, time.Minute)
			got := judgeDialled(d, test.roots, now)
			complete(t, got)
			if codes(got) != test.want {
				t.Errorf("%s; want %s\n%+v", codes(got), test.want, got)
			}
			if d.Mutual != (test.address == good) && len(d.Certs) > 0 && test.name != "no bundle there" &&
				test.name != "its certificate has expired" {
				t.Errorf("asked for our certificate: %v", d.Mutual)
			}
		})
	}
}

// TestDialSilence: a listener that reads the greeting and says nothing delays the probe no longer than requested. The
// time is over once the greeting is read: a clock here would also run while this process waits for a processor.
func TestDialSilence(t *testing.T) {
	over := &expiring{Context: t.Context(), done: make(chan struct{})}
	silent := raw(t, func(c net.Conn) { c.Read(make([]byte, 4096)); close(over.done); c.Read(make([]byte, 1)) })
	if got := codes(judgeDialled(Dial(over, silent, "", identity.Broker("c2"), nil, time.Hour), nil, now)); got !=
		"ERROR:TLSSilent" {
		t.Error(got)
	}
	mute := raw(t, func(c net.Conn) { c.Read(make([]byte, 4096)); c.Read(make([]byte, 1)) })
	d := Dial(t.Context(), mute, "", identity.Broker("c2"), nil, time.Millisecond)
	if !isTimeout(errors.Join(d.ConnectErr, d.HandshakeErr)) {
		t.Errorf("%+v; want that it gives up", d)
	}
}

// expiring is a context whose deadline passes when done is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e *expiring) Done() <-chan struct{} { return e.done }

func (e *expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// identityTLS returns the configuration of a listener without client certificates, like a broker's for agents.
func identityTLS(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "broker", "tls.crt"), filepath.Join(dir, "broker", "tls.key"))
	must(t, err)
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

func TestReadOwn(t *testing.T) {
	dir := cluster(t, "c1", now)
	cert, key := filepath.Join(dir, "broker", "tls.crt"), filepath.Join(dir, "broker", "tls.key")
	look := func() Own {
		o, pair := ReadOwn(cert, key, spiffeid.ID{}, "")
		if (pair != nil) != (o.CertErr == nil && o.KeyErr == nil) {
			t.Errorf("a pair beside %v, %v", o.CertErr, o.KeyErr)
		}
		return o
	}
	if o := look(); o.CertErr != nil || o.KeyErr != nil || o.KeyOpen || len(o.Certs) != 1 {
		t.Errorf("%+v", o)
	}
	must(t, os.Chmod(key, 0o644))
	if o := look(); !o.KeyOpen {
		t.Error("a key that everyone may read is not reported")
	}
	must(t, os.WriteFile(key, testkit.Value(os.ReadFile(filepath.Join(dir, "exporter", "tls.key")))(t), 0o600))
	if o := look(); o.KeyErr == nil || !strings.Contains(o.KeyErr.Error(), "it is not the key of "+cert) {
		t.Error(o.KeyErr)
	}
	must(t, os.Remove(key))
	if o := look(); o.KeyErr == nil || len(o.Certs) != 1 {
		t.Error("a missing key is not reported")
	}
	must(t, os.WriteFile(cert, []byte("x"), 0o600))
	if o := look(); o.CertErr == nil {
		t.Error("a missing certificate is not reported")
	}
	if b := ReadBundle("c1", cert+".no"); !errors.Is(b.Err, fs.ErrNotExist) {
		t.Errorf("%+v", b)
	}
	if b := ReadBundle("c1", cert); errors.Is(b.Err, fs.ErrNotExist) || b.Err == nil {
		t.Errorf("%+v", b)
	}
	if synced, known := Clock(); synced && !known {
		t.Error("synchronised, and not known")
	}
}

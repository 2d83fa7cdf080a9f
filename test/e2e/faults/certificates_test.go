package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// Certificates are replaced while streams exist, and then their CA, in its three steps. No stream ends because of that,
// new handshakes use the new certificates, and no handshake fails at any time.
func TestF19_CertificatesAndAuthorityReplaced(t *testing.T) {
	b := onBed(t)
	g := b.watch(t)
	ctx := t.Context()
	pki := b.install.PKI("c2")
	began := map[string]time.Time{}
	since := func(c *testbed.Cluster, name, other string) time.Time {
		t.Helper()
		var l *semaphorev1.LinkStatus
		// A replaced stream has a later start time.
		eventually(t, settle, func(ctx context.Context) (err error) {
			if _, l, err = linkTo(ctx, c, name, other); err == nil && !l.Connected {
				err = fmt.Errorf("%s of %s is not connected: %s", name, c.Name, l.LastError)
			}
			return err
		})
		return l.Since.AsTime()
	}
	// stand fails the test if a stream was replaced.
	stand := func(after string) {
		t.Helper()
		for _, end := range []struct {
			c           *testbed.Cluster
			name, other string
		}{{b.c2, "exporter", "c1"}, {b.c1, "exporter", "c2"}} {
			key := end.c.Name
			at := since(end.c, end.name, end.other)
			if was, ok := began[key]; ok && !was.Equal(at) && !deposed(ctx, t, b.c1, b.c2) {
				t.Errorf("after %s: the stream of %s's exporter is of %s, it was of %s", after, key, at.Format(time.TimeOnly),
					was.Format(time.TimeOnly))
			}
			began[key] = at
		}
	}
	stand("nothing")
	var took []string
	for _, step := range []struct {
		what string
		args []string
	}{
		{"new certificates", []string{"pki", "rotate", "--dir", pki}},
		{"both authorities are trusted", []string{"pki", "rotate-ca", "--dir", pki, "--step", "1"}},
		{"the next authority signs", []string{"pki", "rotate-ca", "--dir", pki, "--step", "2"}},
		{"the old authority is forgotten", []string{"pki", "rotate-ca", "--dir", pki, "--step", "3"}},
	} {
		testkit.Value(b.install.Semaphorectl(ctx, step.args...))(t)
		testkit.Must(t, b.distribute(ctx))
		spread := eventually(t, settle, func(ctx context.Context) error { return b.inUse(ctx, pki) })
		pause(t, 2*time.Second)
		stand(step.what)
		// Both exporters make new handshakes with the current certificates.
		b.toC1.Reset()
		b.toC2.Reset()
		again := eventually(t, settle, func(ctx context.Context) error {
			for _, end := range []struct {
				c     *testbed.Cluster
				other string
			}{{b.c2, "c1"}, {b.c1, "c2"}} {
				_, l, err := linkTo(ctx, end.c, "exporter", end.other)
				if err != nil {
					return err
				}
				if !l.Connected || l.Since.AsTime().Equal(began[end.c.Name]) {
					return fmt.Errorf("exporter of %s: connected %t: %s", end.c.Name, l.Connected, l.LastError)
				}
			}
			return nil
		})
		clear(began)
		stand("a new handshake")
		took = append(took, fmt.Sprintf("%s: in use after %s, new handshakes after %s", step.what, seconds(spread),
			seconds(again)))
	}
	t.Logf("%s; %s", strings.Join(took, "; "), g.finish())
}

// deposed reports whether a part of the clusters has exited because it lost its Lease. That happens if its apiserver
// gets no CPU time for ten seconds, and is no fault of the tested code.
func deposed(ctx context.Context, t *testing.T, clusters ...*testbed.Cluster) bool {
	t.Helper()
	for _, c := range clusters {
		for _, name := range []string{"broker", "exporter"} {
			pods := testkit.Value(e2e.Part(ctx, c, name))(t)
			for _, p := range pods {
				for _, s := range p.Status.ContainerStatuses {
					ended := s.LastTerminationState.Terminated
					if ended == nil || time.Since(ended.FinishedAt.Time) > settle {
						continue
					}
					said, _ := c.Kubectl(ctx, nil, "-n", p.Namespace, "logs", "--previous", p.Name)
					if strings.Contains(said, "no longer the leader") {
						tier.NotTested(t, "%s of %s lost its Lease at %s", p.Name, c.Name, ended.FinishedAt)
						return true
					}
				}
			}
		}
	}
	return false
}

// distribute applies the Secrets and bundles of both clusters from the operator's disk.
func (b *bed) distribute(ctx context.Context) error {
	dir := filepath.Join(b.tb.Dir(), "bundles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range b.tb.Clusters() {
		bundle, err := b.install.Semaphorectl(ctx, "pki", "bundle", "--dir", b.install.PKI(c.Name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name), []byte(bundle), 0o644); err != nil {
			return err
		}
	}
	for _, c := range b.tb.Clusters() {
		other := b.other(c).Name
		secrets, err := b.install.Semaphorectl(ctx, "pki", "secrets", "--dir", b.install.PKI(c.Name), "--namespace",
			e2e.Namespace,
			"--peer-bundle", other+"="+filepath.Join(dir, other))
		if err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, strings.NewReader(secrets), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
}

// inUse returns nil if everything that the operator has distributed is used: it is in the files of every pod, and c2's
// broker presents it to clients. The test makes kubelet sync immediately; by itself that takes up to a minute and a
// half.
func (b *bed) inUse(ctx context.Context, pki string) error {
	bundles, err := os.ReadFile(filepath.Join(b.tb.Dir(), "bundles", "c2"))
	if err != nil {
		return err
	}
	for _, c := range b.tb.Clusters() {
		for _, name := range []string{"broker", "exporter", "agent"} {
			if name == "agent" && c != b.c2 {
				continue // they only need their own cluster's bundle
			}
			pods, err := e2e.Part(ctx, c, name)
			if err != nil {
				return err
			}
			for _, p := range pods {
				running, err := c.Pod(ctx, p.Namespace, p.Name)
				if err != nil {
					return err
				}
				// Read the file from outside: the image has no program that can print it.
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/semaphore/bundles/c2.pem", running.Container.PID))
				if err != nil {
					return err
				}
				if !bytes.Equal(text, bundles) {
					return errors.Join(fmt.Errorf("%s of %s: the bundle of c2 is not there yet", p.Name, c.Name),
						c.SyncPods(ctx, p.Namespace, "app.kubernetes.io/component="+name))
				}
			}
		}
	}
	want, err := os.ReadFile(filepath.Join(pki, "broker", "tls.crt"))
	if err != nil {
		return err
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(b.install.PKI("c1"), "exporter", "tls.crt"),
		filepath.Join(b.install.PKI("c1"), "exporter", "tls.key"))
	if err != nil {
		return err
	}
	raw, err := b.tb.Fabric().DialContext(ctx, "tcp", b.toC2.Address().String())
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true,
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	block, _ := pem.Decode(want)
	if block == nil || !bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, block.Bytes) {
		return errors.New("the broker of c2 shows its old certificate")
	}
	return nil
}

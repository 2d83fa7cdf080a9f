// Package trust makes certificates for tests: the authorities of clusters that trust each other, and the certificates
// of their parts, in files as `semaphorectl pki init` writes them.
//
// In go the names of clusters, out come paths and TLS of a part. It is for tests only, and imports internal/pki,
// internal/identity and the type of their configuration; their own tests inside of these packages cannot use it.
package trust

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/pki"
	"github.com/kube-semaphore/semaphore/internal/testkit"
)

// Dir is a directory with the files of some clusters: DIR/CLUSTER is what `semaphorectl pki init` makes, and
// DIR/bundles has the roots of all of them.
type Dir string

// New makes the files of clusters, valid for an hour, in a directory of the test.
func New(tb testing.TB, clusters ...string) Dir {
	tb.Helper()
	return In(tb, tb.TempDir(), clusters...)
}

// In makes them in a directory that exists.
func In(tb testing.TB, dir string, clusters ...string) Dir {
	tb.Helper()
	d := Dir(dir)
	testkit.Must(tb, os.MkdirAll(d.Bundles(), 0o755))
	for _, cluster := range clusters {
		own := filepath.Join(dir, cluster)
		testkit.Must(tb, pki.Init(own, cluster, pki.Validity{Authority: time.Hour, Certificate: time.Hour}, time.Now()))
		_, bundle, err := pki.Bundle(own)
		testkit.Must(tb, err)
		testkit.Must(tb, os.WriteFile(filepath.Join(d.Bundles(), cluster+".pem"), bundle, 0o644))
	}
	return d
}

// Bundles is the directory with the roots of all clusters, CLUSTER.pem each.
func (d Dir) Bundles() string { return filepath.Join(string(d), "bundles") }

// Files is the configuration of a part (exporter, broker or semaphorectl) of a cluster.
func (d Dir) Files(cluster, part string) config.TLS {
	own := filepath.Join(string(d), cluster, part)
	return config.TLS{CertFile: filepath.Join(own, "tls.crt"), KeyFile: filepath.Join(own, "tls.key"),
		BundleDir: d.Bundles()}
}

// Source is the identity of a part of a cluster.
func (d Dir) Source(tb testing.TB, cluster, part string) *identity.Source {
	tb.Helper()
	s, err := identity.NewSource(d.Files(cluster, part))
	testkit.Must(tb, err)
	return s
}

// ClientTLS is for dialling one server, as an agent does, without a certificate of one's own. The roots are read from a
// file at each handshake.
func ClientTLS(bundleFile string, server spiffeid.ID) *tls.Config {
	roots, err := identity.OpenRoots(context.Background(), bundleFile, "")
	if err != nil {
		panic(err) // without a Workload API nothing is asked yet
	}
	return roots.ClientTLS(server)
}

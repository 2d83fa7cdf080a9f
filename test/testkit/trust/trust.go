// Package trust makes certificates for tests: the authorities of clusters that trust each other, and the certificates
// of their parts, in files as `semaphorectl pki init` writes them.
//
// Its input are names of clusters; its output are paths, and TLS configurations of parts. It is for tests only.
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
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Dir is a directory with the files of several clusters: `semaphorectl pki init` would write those in DIR/CLUSTER, and
// DIR/bundles has the roots of all clusters.
type Dir string

// New creates the files of clusters in a directory of the test. They are valid for an hour.
func New(tb testing.TB, clusters ...string) Dir {
	tb.Helper()
	return In(tb, tb.TempDir(), clusters...)
}

// In is New for an existing directory.
func In(tb testing.TB, dir string, clusters ...string) Dir {
	tb.Helper()
	d := Dir(dir)
	testkit.Must(tb, os.MkdirAll(d.Bundles(), 0o755))
	for _, cluster := range clusters {
		own := filepath.Join(dir, cluster)
		testkit.Must(tb, identity.Init(own, cluster,
			identity.Validity{Authority: time.Hour, Certificate: time.Hour}, time.Now()))
		_, bundle, err := identity.Bundle(own)
		testkit.Must(tb, err)
		testkit.Must(tb, os.WriteFile(filepath.Join(d.Bundles(), cluster+".pem"), bundle, 0o644))
	}
	return d
}

// Bundles returns the directory with the roots of all clusters, in files CLUSTER.pem.
func (d Dir) Bundles() string { return filepath.Join(string(d), "bundles") }

// Files returns the configuration of a part (exporter, broker or semaphorectl) of a cluster.
func (d Dir) Files(cluster, part string) config.TLS {
	own := filepath.Join(string(d), cluster, part)
	return config.TLS{CertFile: filepath.Join(own, "tls.crt"), KeyFile: filepath.Join(own, "tls.key"),
		BundleDir: d.Bundles()}
}

func (d Dir) Source(tb testing.TB, cluster, part string) *identity.Source {
	tb.Helper()
	return testkit.Value(identity.NewSource(d.Files(cluster, part)))(tb)
}

// ClientTLS returns the configuration to dial one server, as an agent does, without a client certificate. The roots are
// read from the file at each handshake.
func ClientTLS(bundleFile string, server spiffeid.ID) *tls.Config {
	roots, err := identity.OpenRoots(context.Background(), bundleFile, "")
	if err != nil {
		panic(err) // only a Workload API could fail here
	}
	return roots.ClientTLS(server)
}

// The cluster's certificate authority and the certificates of its parts are files in one directory, or Secrets:
//
//	ca.crt, ca.key                  the authority that signs
//	exporter/tls.crt, tls.key       spiffe://CLUSTER/exporter
//	broker/tls.crt, tls.key         spiffe://CLUSTER/broker
//	semaphorectl/tls.crt, tls.key   spiffe://CLUSTER/semaphorectl
//	semaphorectl/CLUSTER.pem        the bundle: the directory is all that `semaphorectl --tls-dir` needs
//	next/ca.crt, next/ca.key        while the authority is replaced: the one that will sign
//	old/ca.crt, old/ca.key          while the authority is replaced: the one that signed before
//
// The bundle, what peers trust, is the roots of all authorities that are there. The formats are those of the
// X.509-SVID specification of SPIFFE. No private key ever needs to leave the directory but into a Secret of
// its own cluster.
//
// pki.go makes a new directory, rotate.go and rollover.go replace files of one, authority.go signs, also for an
// authority that is in a Secret of its cluster, pem.go writes, secrets.go prints the objects that a cluster mounts,
// inventory.go lists the certificates.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Parts that have a certificate.
var Parts = []string{"exporter", "broker", "semaphorectl"}

const (
	certFile     = "tls.crt"
	keyFile      = "tls.key"
	caCertFile   = "ca.crt"
	caKeyFile    = "ca.key"
	nextCertFile = "next/ca.crt"
	nextKeyFile  = "next/ca.key"
	oldCertFile  = "old/ca.crt"
	oldKeyFile   = "old/ca.key"
)

type Validity struct {
	Authority, Certificate time.Duration
}

// Init creates an authority and a certificate for each part of cluster in dir. It overwrites nothing: if there is an
// authority already, it fails and changes nothing.
func Init(dir, cluster string, v Validity, now time.Time) error {
	if _, err := os.Stat(filepath.Join(dir, caKeyFile)); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = errors.New("exists already: choose another directory, or remove it if nothing uses it")
		}
		return fmt.Errorf("authority %s: %w", filepath.Join(dir, caKeyFile), err)
	}
	ca, err := NewAuthority(cluster, v.Authority, now)
	if err != nil {
		return err
	}
	// The authority's own key is written last: a directory with ca.key is complete.
	if err := ca.certify(dir, Parts, v.Certificate, now, writeNew); err != nil {
		return err
	}
	if err := writeNew(filepath.Join(dir, "semaphorectl", cluster+".pem"), pemOf(ca.cert), 0o644); err != nil {
		return err
	}
	return ca.write(filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile), writeNew)
}

// Bundle returns the root certificates, PEM, with which peers trust the cluster whose authority is in dir; there are
// two while the authority is replaced. They are public. Bundle fails if dir lacks the authority's, or one is not of
// that cluster.
func Bundle(dir string) (cluster string, bundle []byte, err error) {
	cluster, roots, err := roots(dir)
	if err != nil {
		return "", nil, err
	}
	return cluster, pemOf(roots...), nil
}

// roots returns the roots of all authorities in dir, the one that signs first.
func roots(dir string) (cluster string, all []*x509.Certificate, err error) {
	for _, file := range []string{caCertFile, nextCertFile, oldCertFile} {
		path := filepath.Join(dir, file)
		cert, err := readCertificate(path)
		if file != caCertFile && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("root certificate: %w", err)
		}
		of, err := clusterOf(cert)
		if err != nil {
			return "", nil, fmt.Errorf("root certificate %s: %w", path, err)
		}
		if cluster != "" && of != cluster {
			return "", nil, fmt.Errorf("root certificate %s: is that of %q, and %s that of %q", path, of, caCertFile, cluster)
		}
		cluster = of
		if !slices.ContainsFunc(all, cert.Equal) {
			all = append(all, cert)
		}
	}
	return cluster, all, nil
}

func clusterOf(root *x509.Certificate) (string, error) {
	if len(root.URIs) != 1 {
		return "", fmt.Errorf("names %d trust domains, not one", len(root.URIs))
	}
	td, err := spiffeid.TrustDomainFromURI(root.URIs[0])
	if err != nil {
		return "", err
	}
	return td.Name(), nil
}

// Package pki makes a cluster's certificate authority and the certificates of its parts,
// as files in one directory:
//
//	ca.crt, ca.key                  the authority; ca.crt is also what peers trust
//	exporter/tls.crt, tls.key       spiffe://CLUSTER/exporter
//	broker/tls.crt, tls.key         spiffe://CLUSTER/broker
//	semaphorectl/tls.crt, tls.key   spiffe://CLUSTER/semaphorectl
//	semaphorectl/CLUSTER.pem        ca.crt again: the directory is all that `semaphorectl --tls-dir` needs
//
// The formats are those of the X.509-SVID specification of SPIFFE. No private key ever
// needs to leave the directory but into a Secret of its own cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// Parts that have a certificate.
var Parts = []string{"exporter", "broker", "semaphorectl"}

// backdate allows for clocks of other clusters that are behind.
const backdate = 5 * time.Minute

// Validity of what Init makes.
type Validity struct {
	// Authority and Certificate are how long each is good for.
	Authority, Certificate time.Duration
}

// Init makes an authority and a certificate for each part of cluster in dir. It writes
// over nothing: where there is an authority already, it fails and changes nothing.
func Init(dir, cluster string, v Validity, now time.Time) error {
	if err := config.ClusterName(cluster); err != nil {
		return err
	}
	if v.Certificate <= 0 {
		return fmt.Errorf("validity of the certificates (%s): must be above 0", v.Certificate)
	}
	if v.Certificate > v.Authority {
		return fmt.Errorf("the certificates (%s) would outlive their authority (%s)", v.Certificate, v.Authority)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = errors.New("is there already: choose another directory, or remove it if nothing uses it")
		}
		return fmt.Errorf("authority %s: %w", filepath.Join(dir, "ca.key"), err)
	}
	td, err := spiffeid.TrustDomainFromString(cluster)
	if err != nil {
		return fmt.Errorf("cluster %q: %w", cluster, err)
	}
	ca, err := newAuthority(td, now, v.Authority)
	if err != nil {
		return err
	}
	// The authority's own key comes last: a directory with ca.key is whole.
	for _, id := range []spiffeid.ID{identity.Exporter(cluster), identity.Broker(cluster), identity.Semaphorectl(cluster)} {
		leaf, err := ca.issue(id, now, v.Certificate)
		if err != nil {
			return err
		}
		part := filepath.Join(dir, id.Path())
		if err := leaf.write(filepath.Join(part, "tls.crt"), filepath.Join(part, "tls.key")); err != nil {
			return err
		}
	}
	if err := writeNew(filepath.Join(dir, "semaphorectl", cluster+".pem"), "CERTIFICATE", ca.cert.Raw, 0o644); err != nil {
		return err
	}
	return ca.write(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
}

// Bundle is what peers need to trust the cluster whose authority is in dir: its root
// certificate, PEM. It is public.
func Bundle(dir string) (cluster string, bundle []byte, err error) {
	path := filepath.Join(dir, "ca.crt")
	bundle, err = os.ReadFile(path)
	if err != nil {
		return "", nil, fmt.Errorf("root certificate: %w", err)
	}
	block, _ := pem.Decode(bundle)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", nil, fmt.Errorf("root certificate %s: is no PEM certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", nil, fmt.Errorf("root certificate %s: %w", path, err)
	}
	if len(cert.URIs) != 1 {
		return "", nil, fmt.Errorf("root certificate %s: names %d trust domains, not one", path, len(cert.URIs))
	}
	td, err := spiffeid.TrustDomainFromURI(cert.URIs[0])
	if err != nil {
		return "", nil, fmt.Errorf("root certificate %s: %w", path, err)
	}
	return td.Name(), bundle, nil
}

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(td spiffeid.TrustDomain, now time.Time, validity time.Duration) (*pair, error) {
	return sign(nil, &x509.Certificate{
		Subject:               pkix.Name{CommonName: "semaphore " + td.Name()},
		URIs:                  []*url.URL{td.ID().URL()},
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}, now)
}

func (ca *pair) issue(id spiffeid.ID, now time.Time, validity time.Duration) (*pair, error) {
	return sign(ca, &x509.Certificate{
		Subject:               pkix.Name{CommonName: id.String()},
		URIs:                  []*url.URL{id.URL()},
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, now)
}

// sign makes a key and has ca sign its certificate; the authority itself when ca is nil.
func sign(ca *pair, template *x509.Certificate, now time.Time) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key for %s: %w", template.Subject.CommonName, err)
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	template.NotBefore = now.Add(-backdate)
	parent := &pair{template, key}
	if ca != nil {
		parent = ca
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	return &pair{cert, key}, nil
}

func (p *pair) write(certFile, keyFile string) error {
	key, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return err
	}
	if err := writeNew(certFile, "CERTIFICATE", p.cert.Raw, 0o644); err != nil {
		return err
	}
	return writeNew(keyFile, "PRIVATE KEY", key, 0o600)
}

func writeNew(path, kind string, der []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already, and nothing is written over: choose another directory, or remove it if nothing uses it", path)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// authority is a root from which tests issue certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var serial int64

func newCA(t *testing.T) *authority {
	t.Helper()
	serial++
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test root"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	testkit.Must(t, err)
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue creates a certificate and a key for SPIFFE IDs, valid until notAfter.
func (a *authority) issue(t *testing.T, notAfter time.Time, ids ...string) (cert, key []byte) {
	t.Helper()
	return a.issueFrom(t, time.Now().Add(-time.Hour), notAfter, ids...)
}

func (a *authority) issueFrom(t *testing.T, notBefore, notAfter time.Time, ids ...string) (cert, key []byte) {
	t.Helper()
	serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    notBefore, NotAfter: notAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, id := range ids {
		template.URIs = append(template.URIs, testkit.Value(url.Parse(id))(t))
	}
	leaf := newKey(t)
	der := testkit.Value(x509.CreateCertificate(rand.Reader, template, a.cert, leaf.Public(), a.key))(t)
	keyDER := testkit.Value(x509.MarshalPKCS8PrivateKey(leaf))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// part has the files of one part, in a directory of its own.
type part struct {
	dir   string
	files config.TLS
}

// newPart writes a part's certificate, issued by ca for id, and the bundles by cluster.
func newPart(t *testing.T, ca *authority, id string, bundles map[string][]byte) *part {
	t.Helper()
	dir := t.TempDir()
	p := &part{dir, config.TLS{
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		BundleDir: filepath.Join(dir, "bundles"),
	}}
	testkit.Must(t, os.Mkdir(p.files.BundleDir, 0o755))
	p.certificate(t, ca, time.Now().Add(time.Hour), id)
	for cluster, roots := range bundles {
		p.bundle(t, cluster, roots)
	}
	return p
}

func (p *part) certificate(t *testing.T, ca *authority, notAfter time.Time, ids ...string) {
	t.Helper()
	cert, key := ca.issue(t, notAfter, ids...)
	write(t, p.files.KeyFile, key)
	write(t, p.files.CertFile, cert)
}

func (p *part) validity(t *testing.T, ca *authority, notBefore, notAfter time.Time, id string) {
	t.Helper()
	cert, key := ca.issueFrom(t, notBefore, notAfter, id)
	write(t, p.files.KeyFile, key)
	write(t, p.files.CertFile, cert)
}

func (p *part) bundle(t *testing.T, cluster string, roots []byte) {
	t.Helper()
	write(t, filepath.Join(p.files.BundleDir, cluster+".pem"), roots)
}

func (p *part) source(t *testing.T) *Source {
	t.Helper()
	return testkit.Value(NewSource(p.files))(t)
}

// write replaces a file atomically, as careful writers do.
func write(t *testing.T, path string, content []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".new", content, 0o600))
	testkit.Must(t, os.Rename(path+".new", path))
}

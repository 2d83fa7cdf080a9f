package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// backdate makes certificates valid for clusters whose clocks are behind.
const backdate = 5 * time.Minute

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// commonName returns a name for people, cut to the limit of certificates (RFC 5280, ub-common-name). Only the URI
// identifies the owner.
func commonName(text string) pkix.Name {
	const most = 64
	return pkix.Name{CommonName: text[:min(len(text), most)]}
}

func newAuthority(cluster string, now time.Time, validity time.Duration) (*pair, error) {
	td, err := spiffeid.TrustDomainFromString(cluster)
	if err != nil {
		return nil, fmt.Errorf("cluster %q: %w", cluster, err)
	}
	return sign(nil, &x509.Certificate{
		Subject:               commonName("semaphore " + td.Name()),
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
		Subject:               commonName(id.String()),
		URIs:                  []*url.URL{id.URL()},
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, now)
}

// sign creates a key and has ca sign its certificate; the authority itself if ca is nil.
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

// readAuthority reads the authority from two files, which must belong together.
func readAuthority(certFile, keyFile string) (*pair, error) {
	cert, err := readCertificate(certFile)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	der, err := readPEM(keyFile, "PRIVATE KEY")
	if err != nil {
		return nil, fmt.Errorf("key of the authority: %w", err)
	}
	return authorityOf(cert, der, keyFile, certFile)
}

// authorityOf returns a certificate with its key in PKCS #8. The names are for errors.
func authorityOf(cert *x509.Certificate, der []byte, keyName, certName string) (*pair, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("key of the authority %s: %w", keyName, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key of the authority %s: it is a %T, not an ECDSA key as `semaphorectl pki init` makes",
			keyName, parsed)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("key of the authority %s: is not the key of %s", keyName, certName)
	}
	return &pair{cert, key}, nil
}

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// AuthoritySecret is the Secret of a cluster with its own authority, of type kubernetes.io/tls; cert-manager keeps its
// own there, too (deploy/features/cert-manager).
const AuthoritySecret = "semaphore-authority"

// backdate makes certificates valid for clusters whose clocks are behind.
const backdate = 5 * time.Minute

// Authority is the authority of a cluster. Its key is in a directory, or in a Secret of the cluster: one of a Secret is
// never written to a local disk.
type Authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	cluster string
}

// NewAuthority creates an authority with a new key. It fails if the cluster's name is invalid.
func NewAuthority(cluster string, validity time.Duration, now time.Time) (*Authority, error) {
	if err := config.ClusterName(cluster); err != nil {
		return nil, err
	}
	td, err := spiffeid.TrustDomainFromString(cluster)
	if err != nil {
		return nil, fmt.Errorf("cluster %q: %w", cluster, err)
	}
	cert, key, err := sign(nil, &x509.Certificate{
		Subject:               commonName("semaphore " + td.Name()),
		URIs:                  []*url.URL{td.ID().URL()},
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}, now)
	if err != nil {
		return nil, err
	}
	return &Authority{cert, key, cluster}, nil
}

// ParseAuthority parses the authority in a Secret, PEM. It fails if the two do not belong together, or if the
// certificate names no cluster.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	return parseAuthority(cert, key, "tls.crt", "tls.key")
}

// parseAuthority parses an authority from PEM. The names are for errors.
func parseAuthority(certText, keyText []byte, certName, keyName string) (*Authority, error) {
	cert, err := ParseRoot(certText)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", certName, err)
	}
	block, _ := pem.Decode(keyText)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("key of the authority %s: no PEM block PRIVATE KEY", keyName)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
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
	cluster, err := clusterOf(cert)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", certName, err)
	}
	return &Authority{cert, key, cluster}, nil
}

// readAuthority reads the authority from two files, which must belong together.
func readAuthority(certFile, keyFile string) (*Authority, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("key of the authority: %w", err)
	}
	return parseAuthority(cert, key, certFile, keyFile)
}

func (a *Authority) Cluster() string { return a.cluster }

// PEM returns the authority in the form of a Secret. It fails if the key cannot be encoded.
func (a *Authority) PEM() (cert, key []byte, err error) {
	key, err = keyPEM(a.key)
	return pemOf(a.cert), key, err
}

// errOutlives is in the error for certificates that would end after their authority.
var errOutlives = errors.New("the certificates would outlive their authority")

// lasts fails if certificates of that validity would end after the authority.
func (a *Authority) lasts(validity time.Duration, now time.Time) error {
	if validity <= 0 {
		return fmt.Errorf("validity of the certificates (%s): must be above 0", validity)
	}
	now = now.Truncate(time.Second) // as in certificates
	if end := a.cert.NotAfter; now.Add(validity).After(end) {
		return fmt.Errorf("%w, which ends at %s: give them %d days at most", errOutlives, end.UTC().Format(time.RFC3339),
			int(end.Sub(now)/(24*time.Hour)))
	}
	return nil
}

// Issue creates a key and a certificate for one of Parts, PEM. It fails for another part, and for a validity that ends
// after that of the authority.
func (a *Authority) Issue(part string, validity time.Duration, now time.Time) (cert, key []byte, err error) {
	if _, err := Named([]string{part}); err != nil {
		return nil, nil, err
	}
	if err := a.lasts(validity, now); err != nil {
		return nil, nil, err
	}
	id := IDOf(a.cluster, part)
	leaf, leafKey, err := sign(a, &x509.Certificate{
		Subject:               commonName(id.String()),
		URIs:                  []*url.URL{id.URL()},
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, now)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(leafKey)
	return pemOf(leaf), key, err
}

// Alone creates a key and a certificate for one part of a cluster that has no authority, and the root that proves it,
// PEM. The key that signed it is not kept: the root can prove nothing else. A successor has another root. Alone fails
// if the cluster's name or the part is invalid.
func Alone(cluster, part string, validity time.Duration, now time.Time) (root, cert, key []byte, err error) {
	a, err := NewAuthority(cluster, validity, now)
	if err != nil {
		return nil, nil, nil, err
	}
	cert, key, err = a.Issue(part, validity, now)
	return pemOf(a.cert), cert, key, err
}

// commonName returns a name for people, cut to the limit of certificates (RFC 5280, ub-common-name). Only the URI
// identifies the owner.
func commonName(text string) pkix.Name {
	const most = 64
	return pkix.Name{CommonName: text[:min(len(text), most)]}
}

// sign creates a key and has ca sign its certificate; the authority itself if ca is nil.
func sign(ca *Authority, template *x509.Certificate, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("key for %s: %w", template.Subject.CommonName, err)
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("serial number: %w", err)
	}
	template.NotBefore = now.Add(-backdate)
	if ca == nil {
		ca = &Authority{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	return cert, key, nil
}

package identity

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// AuthoritySecret is the Secret of a cluster with its own authority, of type kubernetes.io/tls; cert-manager keeps its
// own there, too (deploy/features/cert-manager).
const AuthoritySecret = "semaphore-authority"

// BundlesConfigMap has the roots of the own cluster and of its peers, each as CLUSTER.pem.
const BundlesConfigMap = "semaphore-bundles"

// Authority is the authority of a cluster in memory: its key is read from, and written to, a Secret of the cluster, and
// never to a local disk.
type Authority struct {
	pair    *pair
	cluster string
}

// NewAuthority creates an authority with a new key. It fails if the cluster's name is invalid.
func NewAuthority(cluster string, validity time.Duration, now time.Time) (*Authority, error) {
	if err := config.ClusterName(cluster); err != nil {
		return nil, err
	}
	p, err := newAuthority(cluster, now, validity)
	if err != nil {
		return nil, err
	}
	return &Authority{p, cluster}, nil
}

// ParseAuthority parses the authority in a Secret, PEM. It fails if the two do not belong together, or if the
// certificate names no cluster.
func ParseAuthority(cert, key []byte) (*Authority, error) {
	root, err := ParseRoot(cert)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(key)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("key of the authority: no PEM block PRIVATE KEY")
	}
	p, err := authorityOf(root, block.Bytes, "tls.key", "tls.crt")
	if err != nil {
		return nil, err
	}
	cluster, err := clusterOf(root)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return &Authority{p, cluster}, nil
}

// ParseRoot parses the first certificate of a PEM text. It fails if the first PEM block is none.
func ParseRoot(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM block CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}

func (a *Authority) Cluster() string { return a.cluster }

// PEM returns the authority in the form of a Secret. It fails if the key cannot be encoded.
func (a *Authority) PEM() (cert, key []byte, err error) {
	key, err = a.pair.keyPEM()
	return pemOf(a.pair.cert), key, err
}

// Issue creates a key and a certificate for one of Parts, PEM. It fails for another part, and for a validity that ends
// after that of the authority.
func (a *Authority) Issue(part string, validity time.Duration, now time.Time) (cert, key []byte, err error) {
	if !slices.Contains(Parts, part) {
		return nil, nil, fmt.Errorf("part %q: use %s", part, strings.Join(Parts, ", "))
	}
	if validity <= 0 {
		return nil, nil, fmt.Errorf("validity of the certificates (%s): must be above 0", validity)
	}
	if end := a.pair.cert.NotAfter; now.Add(validity).After(end) {
		return nil, nil, fmt.Errorf("the certificates would outlive their authority, which ends at %s: give them %d days "+
			"at most", end.UTC().Format(time.RFC3339), int(end.Sub(now)/(24*time.Hour)))
	}
	leaf, err := a.pair.issue(IDOf(a.cluster, part), now, validity)
	if err != nil {
		return nil, nil, err
	}
	key, err = leaf.keyPEM()
	return pemOf(leaf.cert), key, err
}

// Alone creates a key and a certificate for one part of a cluster that has no authority, and the root that proves it,
// PEM. The key that signed it is not kept: the root can prove nothing else. A successor has another root. Alone fails
// if the cluster's name or the part is invalid.
func Alone(cluster, part string, validity time.Duration, now time.Time) (root, cert, key []byte, err error) {
	a, err := NewAuthority(cluster, validity, now)
	if err != nil {
		return nil, nil, nil, err
	}
	if cert, key, err = a.Issue(part, a.pair.cert.NotAfter.Sub(now), now); err != nil {
		return nil, nil, nil, err
	}
	return pemOf(a.pair.cert), cert, key, nil
}

// CheckCertificate returns an error that says why roots, PEM, do not prove at a time that a certificate with its key
// belongs to a part of a cluster.
func CheckCertificate(roots, cert, key []byte, cluster, part string, at time.Time) error {
	svid, err := x509svid.Parse(cert, key)
	if err != nil {
		return err
	}
	if want := IDOf(cluster, part); svid.ID != want {
		return fmt.Errorf("it belongs to %s, not to %s", svid.ID, want)
	}
	bundle, err := x509bundle.Parse(svid.ID.TrustDomain(), roots)
	if err != nil {
		return err
	}
	_, _, err = x509svid.Verify(svid.Certificates, bundle, x509svid.WithTime(at))
	return err
}

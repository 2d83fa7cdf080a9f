// Package identity owns who is who: the SPIFFE IDs of the parts, and the TLS that proves them, with certificates from
// files or from a SPIFFE Workload API.
//
// Each cluster is a trust domain of its own, named like the cluster, and roots are kept by trust domain: c2's roots can
// speak for spiffe://c2/… and for nothing else. The caller decides which rights an ID has.
//
// ids.go has the names, files.go and workload.go the two places that certificates come from, explain.go the messages
// about a faulty one.
//
// Its input is a part's TLS section (internal/config) and the ID it must have; its output is a Source, and crypto/tls
// configurations made from it.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

// Source is a part's own certificate and the roots of its peers. A rotated certificate is used from the next handshake
// on, and existing streams stay. It is safe for concurrent use.
type Source struct {
	backend

	mu sync.Mutex
	// logged is the invalid certificate that the log names.
	logged *x509.Certificate
	// given are roots that the backend does not have, by trust domain.
	given map[string]*x509bundle.Bundle
}

// SetRoots sets the roots of clusters, PEM, in place of those that the backend has for them, from the next handshake
// on. Roots of an earlier call are no longer trusted, unless the backend has them. Texts without a certificate are left
// out. It returns an error that names each cluster whose text was left out, and sets the others.
func (s *Source) SetRoots(texts map[string]string) error {
	given := map[string]*x509bundle.Bundle{}
	var errs []error
	for cluster, text := range texts {
		td, err := spiffeid.TrustDomainFromString(cluster)
		if err == nil {
			given[cluster], err = parseRoots(td, []byte(text))
		}
		if err != nil {
			delete(given, cluster)
			errs = append(errs, fmt.Errorf("root certificates of cluster %q: %w", cluster, err))
		}
	}
	s.mu.Lock()
	s.given = given
	s.mu.Unlock()
	return errors.Join(errs...)
}

// parseRoots parses the roots of a cluster, PEM. It fails if there are none.
func parseRoots(td spiffeid.TrustDomain, text []byte) (*x509bundle.Bundle, error) {
	bundle, err := x509bundle.Parse(td, text)
	if err == nil && bundle.Empty() {
		err = errors.New("holds no certificate")
	}
	return bundle, err
}

// GetX509BundleForTrustDomain implements x509bundle.Source. It fails if the cluster is not trusted or its roots are
// invalid.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	s.mu.Lock()
	bundle := s.given[td.Name()]
	s.mu.Unlock()
	if bundle != nil {
		return bundle, nil
	}
	return s.backend.GetX509BundleForTrustDomain(td)
}

// backend is the source of certificates: files or a Workload API.
type backend interface {
	x509svid.Source
	x509bundle.Source
	Close() error
}

// Open returns a part's source, which must be closed. own is the ID that the part must have: a certificate of another
// owner is an error. Open reads files once, so that a fault shows at start, and waits for a Workload API until ctx
// ends.
func Open(ctx context.Context, from config.TLS, own spiffeid.ID) (*Source, error) {
	var b backend
	var err error
	if from.WorkloadAPI != "" {
		b, err = openWorkload(ctx, from.WorkloadAPI, own)
	} else {
		b, err = openFiles(from, own)
	}
	if err != nil {
		return nil, err
	}
	return &Source{backend: b}, nil
}

// NewSource is Open for files with any ID. It need not be closed. It fails if certificate and key cannot be used, or if
// the roots of the own cluster are missing.
func NewSource(from config.TLS) (*Source, error) {
	f, err := openFiles(from, spiffeid.ID{})
	if err != nil {
		return nil, err
	}
	return &Source{backend: f}, nil
}

// GetX509SVID implements x509svid.Source. It returns an expired certificate, too, and logs it: the other end decides
// whether our clock is right. It fails if there is no usable certificate.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	svid, err := s.backend.GetX509SVID()
	if err != nil {
		return nil, err
	}
	cert := svid.Certificates[0]
	if err := CheckValidity(cert, time.Now()); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.logged != cert {
			s.logged = cert
			slog.Warn("peers will refuse our own certificate; replace it", "error", err)
		}
	}
	return svid, nil
}

// ServerTLS returns the configuration of a listener whose clients authenticate with a certificate of a trust domain
// that we have roots of, and which authorize accepts. It logs refusals, because TLS does not transmit the reason.
func (s *Source) ServerTLS(authorize func(spiffeid.ID) error) *tls.Config {
	c := modern(tlsconfig.MTLSServerConfig(s, s, tlsconfig.AdaptMatcher(authorize)))
	verify := c.VerifyPeerCertificate
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		one := c.Clone()
		one.GetConfigForClient = nil
		one.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			err := verify(raw, chains)
			if err == nil {
				return nil
			}
			err = explained(err, time.Now())
			logRefused(hello.Conn.RemoteAddr(), raw, err)
			return err
		}
		return one, nil
	}
	return c
}

// ClientTLS returns the configuration to dial one known server.
func (s *Source) ClientTLS(server spiffeid.ID) *tls.Config {
	return inWords(modern(tlsconfig.MTLSClientConfig(s, s, tlsconfig.AuthorizeID(server))))
}

// ServerOnlyTLS returns the configuration of a listener whose clients authenticate by other means.
func (s *Source) ServerOnlyTLS() *tls.Config {
	return modern(tlsconfig.TLSServerConfig(s))
}

// Roots are the roots of the cluster whose servers a part without a certificate of its own dials.
type Roots struct {
	x509bundle.Source
	close func() error
}

// OpenRoots reads roots from a file, or from a Workload API if its address is not empty; it waits for the API's first
// answer, and fails if ctx ends before. The roots must be closed. A file is read, and can fail, at each handshake.
func OpenRoots(ctx context.Context, bundleFile, workloadAPI string) (*Roots, error) {
	if workloadAPI == "" {
		return &Roots{bundleFileSource(bundleFile), func() error { return nil }}, nil
	}
	w, err := openWorkload(ctx, workloadAPI, spiffeid.ID{})
	if err != nil {
		return nil, err
	}
	return &Roots{w, w.Close}, nil
}

// ClientTLS returns the configuration to dial one known server without a certificate of one's own.
func (r *Roots) ClientTLS(server spiffeid.ID) *tls.Config {
	return inWords(modern(tlsconfig.TLSClientConfig(r.Source, tlsconfig.AuthorizeID(server))))
}

// Close ends the watch of the roots, and fails if the connection to the Workload API cannot be closed.
func (r *Roots) Close() error { return r.close() }

// bundleFileSource reads its file at every handshake: an agent makes few.
type bundleFileSource string

func (f bundleFileSource) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	text, err := volume.ReadFile(string(f))
	var bundle *x509bundle.Bundle
	if err == nil {
		bundle, err = parseRoots(td, text)
	}
	if err != nil {
		return nil, fmt.Errorf("root certificates %s of cluster %q: %w", string(f), td.Name(), err)
	}
	return bundle, nil
}

// modern refuses all that TLS 1.3 replaced, and session resumption, which skips the check of the peer's certificate: a
// session would outlive the trust at its start.
func modern(c *tls.Config) *tls.Config {
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	return c
}

// inWords makes a client explain a server's certificate that is not valid now by the times of both clocks.
func inWords(c *tls.Config) *tls.Config {
	verify := c.VerifyPeerCertificate
	c.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
		return explained(verify(raw, chains), time.Now())
	}
	return c
}

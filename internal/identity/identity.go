// Package identity owns who is who: the SPIFFE IDs of the parts, and the TLS that proves
// them, with certificates from files or from a SPIFFE Workload API.
//
// Each cluster is a trust domain of its own, named like the cluster, and roots are kept
// by trust domain: c2's roots can speak for spiffe://c2/… and for nothing else. What an
// ID may do is for the caller to decide.
//
// ids.go has the names, files.go and workload.go the two places that certificates come from,
// explain.go the words for what is wrong with one.
//
// In go a part's TLS section (internal/config) and the ID it must bear; out comes a Source, and crypto/tls configurations made of
// it. It imports internal/config and internal/volume.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// Source is a part's own certificate and the roots of those it talks to. A rotated certificate is used
// from the next handshake on, and streams that stand are not touched. Its methods may be called from any
// goroutine.
type Source struct {
	backend
	refusals refusals

	mu sync.Mutex
	// told is the certificate whose time is over, or has not come, that the log has.
	told *x509.Certificate
}

// backend is where certificates come from: files or a Workload API.
type backend interface {
	x509svid.Source
	x509bundle.Source
	Close() error
}

// Open is a part's source, which must be closed. own is the ID that the part has to have: a certificate
// of somebody else is an error. It reads files once, so that what is wrong with them shows at start, and
// waits for a Workload API until ctx ends.
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

// NewSource is Open of files with any ID. It need not be closed.
func NewSource(from config.TLS) (*Source, error) {
	f, err := openFiles(from, spiffeid.ID{})
	if err != nil {
		return nil, err
	}
	return &Source{backend: f}, nil
}

// GetX509SVID implements x509svid.Source. A certificate whose time is over is given all the same, and
// told in the log: that our clock is right is for the other end to doubt.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	svid, err := s.backend.GetX509SVID()
	if err != nil {
		return nil, err
	}
	cert := svid.Certificates[0]
	if err := Validity(cert, time.Now()); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.told != cert {
			s.told = cert
			slog.Warn("our own certificate will be refused", "error", err)
		}
	}
	return svid, nil
}

// ServerTLS is for a listener whose callers prove themselves by a certificate of a trust
// domain we have roots of, and whom authorize then lets in. Who is refused is told in the log,
// as TLS lets us tell the caller no more than that.
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
			s.refusals.log(hello.Conn.RemoteAddr(), raw, err, time.Now())
			return err
		}
		return one, nil
	}
	return c
}

// ClientTLS is for dialling one known server.
func (s *Source) ClientTLS(server spiffeid.ID) *tls.Config {
	return inWords(modern(tlsconfig.MTLSClientConfig(s, s, tlsconfig.AuthorizeID(server))))
}

// ServerOnlyTLS is for a listener whose callers prove themselves by other means.
func (s *Source) ServerOnlyTLS() *tls.Config {
	return modern(tlsconfig.TLSServerConfig(s))
}

// Roots are those of the cluster whose servers a part without a certificate of its own talks to.
type Roots struct {
	x509bundle.Source
	close func() error
}

// OpenRoots takes roots from a file, or from a Workload API where its address is not empty, for the first answer
// of which it waits until ctx ends. They must be closed.
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

// ClientTLS is for dialling one known server without a certificate of one's own.
func (r *Roots) ClientTLS(server spiffeid.ID) *tls.Config {
	return inWords(modern(tlsconfig.TLSClientConfig(r.Source, tlsconfig.AuthorizeID(server))))
}

// Close ends what follows the roots.
func (r *Roots) Close() error { return r.close() }

// bundleFileSource reads its file at every handshake: an agent makes few.
type bundleFileSource string

func (f bundleFileSource) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	text, err := volume.ReadFile(string(f))
	var bundle *x509bundle.Bundle
	if err == nil {
		bundle, err = x509bundle.Parse(td, text)
	}
	if err != nil {
		return nil, fmt.Errorf("root certificates %s of cluster %q: %w", string(f), td.Name(), err)
	}
	return bundle, nil
}

// modern refuses all that TLS 1.3 has left behind, and the resumption of sessions: it skips the check
// of the peer's certificate, so that a session would outlive the trust that it was begun with.
func modern(c *tls.Config) *tls.Config {
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	return c
}

// inWords has a client say of a server's certificate that is out of its time what both clocks say.
func inWords(c *tls.Config) *tls.Config {
	verify := c.VerifyPeerCertificate
	c.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
		return explained(verify(raw, chains), time.Now())
	}
	return c
}

// Package identity owns who is who: the SPIFFE IDs of the parts, and the TLS that proves
// them from files.
//
// Each cluster is a trust domain of its own, named like the cluster, and roots are kept
// by trust domain: c2's roots can speak for spiffe://c2/… and for nothing else. What an
// ID may do is for the caller to decide.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Exporter is the ID of a cluster's exporter.
func Exporter(cluster string) spiffeid.ID { return id(cluster, "exporter") }

// Broker is the ID of a cluster's broker.
func Broker(cluster string) spiffeid.ID { return id(cluster, "broker") }

// Semaphorectl is the ID of the operators of a cluster.
func Semaphorectl(cluster string) spiffeid.ID { return id(cluster, "semaphorectl") }

// id panics on a name that is no trust domain; configurations that passed
// config.Load have none.
func id(cluster, part string) spiffeid.ID {
	return spiffeid.RequireFromPath(spiffeid.RequireTrustDomainFromString(cluster), "/"+part)
}

// ClusterOf is the cluster an ID belongs to.
func ClusterOf(id spiffeid.ID) string { return id.TrustDomain().Name() }

// Source is a part's own certificate and the roots of those it talks to, from files that
// are read again whenever they changed: a rotated certificate is used from the next
// handshake on, and streams that stand are not touched. Its methods may be called from
// any goroutine.
type Source struct {
	files config.TLS

	mu      sync.Mutex
	svid    *x509svid.SVID
	svidAt  stamp
	bundles map[string]cachedBundle
	// told is by file what was last logged of its being unusable.
	told map[string]string
}

type cachedBundle struct {
	bundle *x509bundle.Bundle
	at     stamp
}

// NewSource reads the files once, so that what is wrong with them shows at start.
func NewSource(files config.TLS) (*Source, error) {
	s := &Source{files: files, bundles: map[string]cachedBundle{}, told: map[string]string{}}
	svid, err := s.GetX509SVID()
	if err != nil {
		return nil, err
	}
	if _, err := s.GetX509BundleForTrustDomain(svid.ID.TrustDomain()); err != nil {
		return nil, err
	}
	return s, nil
}

// GetX509SVID implements x509svid.Source.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := stampOf(s.files.CertFile, s.files.KeyFile)
	if err == nil && s.svid != nil && at == s.svidAt {
		return s.svid, nil
	}
	if err == nil {
		var svid *x509svid.SVID
		if svid, err = x509svid.Load(s.files.CertFile, s.files.KeyFile); err == nil {
			s.svid, s.svidAt = svid, at
			delete(s.told, s.files.CertFile)
			return svid, nil
		}
	}
	// A rotation that is under way, or went wrong, must not cost what still works.
	if s.svid != nil && time.Now().Before(s.svid.Certificates[0].NotAfter) {
		s.keep(s.files.CertFile, err)
		return s.svid, nil
	}
	return nil, fmt.Errorf("certificate %s with key %s: %w", s.files.CertFile, s.files.KeyFile, err)
}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	path := filepath.Join(s.files.BundleDir, td.Name()+".pem")
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := stampOf(path)
	if errors.Is(err, os.ErrNotExist) {
		// The operator's word that this cluster is trusted no longer.
		delete(s.bundles, td.Name())
		return nil, fmt.Errorf("cluster %q is not trusted: there is no file %s with its root certificates", td.Name(), path)
	}
	cached, have := s.bundles[td.Name()]
	if err == nil && have && cached.at == at {
		return cached.bundle, nil
	}
	if err == nil {
		var bundle *x509bundle.Bundle
		if bundle, err = x509bundle.Load(td, path); err == nil && bundle.Empty() {
			err = errors.New("holds no certificate")
		}
		if err == nil {
			s.bundles[td.Name()] = cachedBundle{bundle, at}
			delete(s.told, path)
			return bundle, nil
		}
	}
	if have {
		s.keep(path, err)
		return cached.bundle, nil
	}
	return nil, fmt.Errorf("root certificates %s of cluster %q: %w", path, td.Name(), err)
}

// keep says in the log, once for each reason, that what was read from a file before is still in use.
func (s *Source) keep(path string, err error) {
	if s.told[path] != err.Error() {
		s.told[path] = err.Error()
		slog.Warn("a changed file cannot be used; what it held before is kept", "file", path, "error", err)
	}
}

// Expiry is when the part's own certificate ends.
func (s *Source) Expiry() (time.Time, error) {
	svid, err := s.GetX509SVID()
	if err != nil {
		return time.Time{}, err
	}
	return svid.Certificates[0].NotAfter, nil
}

// ServerTLS is for a listener whose callers prove themselves by a certificate of a trust
// domain we have roots of, and whom authorize then lets in.
func (s *Source) ServerTLS(authorize func(spiffeid.ID) error) *tls.Config {
	return modern(tlsconfig.MTLSServerConfig(s, s, tlsconfig.AdaptMatcher(authorize)))
}

// ClientTLS is for dialling one known server.
func (s *Source) ClientTLS(server spiffeid.ID) *tls.Config {
	return modern(tlsconfig.MTLSClientConfig(s, s, tlsconfig.AuthorizeID(server)))
}

// ServerOnlyTLS is for a listener whose callers prove themselves by other means.
func (s *Source) ServerOnlyTLS() *tls.Config {
	return modern(tlsconfig.TLSServerConfig(s))
}

// BundleClientTLS is for dialling one known server without a certificate of one's own.
func BundleClientTLS(bundleFile string, server spiffeid.ID) *tls.Config {
	return modern(tlsconfig.TLSClientConfig(bundleFileSource(bundleFile), tlsconfig.AuthorizeID(server)))
}

// bundleFileSource reads its file at every handshake: an agent makes few.
type bundleFileSource string

func (f bundleFileSource) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	bundle, err := x509bundle.Load(td, string(f))
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

// PeerID is who proved itself by a certificate at the other end of a gRPC stream.
func PeerID(ctx context.Context) (spiffeid.ID, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return spiffeid.ID{}, errors.New("no peer in the context of the call")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return spiffeid.ID{}, fmt.Errorf("the peer %s showed no certificate", p.Addr)
	}
	return x509svid.IDFromCert(leaf(info.State))
}

func leaf(state tls.ConnectionState) *x509.Certificate { return state.PeerCertificates[0] }

// stamp tells one version of some files from the next: the targets that Kubernetes' volume symlinks
// lead to, sizes and times.
type stamp string

func stampOf(paths ...string) (stamp, error) {
	var all stamp
	for _, path := range paths {
		one, err := stampOfFile(path)
		// A volume that is replaced while its links are followed leads into a directory that has
		// gone; the next look finds the new one.
		for retries := 3; retries > 0 && errors.Is(err, os.ErrNotExist); retries-- {
			one, err = stampOfFile(path)
		}
		if err != nil {
			return "", err
		}
		all += one
	}
	return all, nil
}

func stampOfFile(path string) (stamp, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	return stamp(fmt.Sprintf("%s %d %d\n", real, info.Size(), info.ModTime().UnixNano())), nil
}

package identity

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

// files is the backend for certificates in files, which a kubelet writes from Secrets, for example.
type files struct {
	paths config.TLS
	// own is the ID that the certificate must have; the zero ID for any.
	own spiffeid.ID

	mu   sync.Mutex
	svid *x509svid.SVID
	// pair is the certificate and the key that svid was made from.
	pair    [][]byte
	bundles map[string]cachedBundle
	// logged is, by file, the last logged reason why it cannot be used.
	logged map[string]string
}

type cachedBundle struct {
	bundle *x509bundle.Bundle
	from   []byte
}

// openFiles reads the files once, so that a fault shows at start.
func openFiles(paths config.TLS, own spiffeid.ID) (*files, error) {
	f := &files{paths: paths, own: own, bundles: map[string]cachedBundle{}, logged: map[string]string{}}
	svid, err := f.GetX509SVID()
	if err != nil {
		return nil, err
	}
	if _, err := f.GetX509BundleForTrustDomain(svid.ID.TrustDomain()); err != nil {
		return nil, err
	}
	return f, nil
}

// Close implements backend. There is nothing to close.
func (f *files) Close() error { return nil }

func (f *files) GetX509SVID() (*x509svid.SVID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pair, err := volume.Read(f.paths.CertFile, f.paths.KeyFile)
	if err == nil && f.svid != nil && slices.EqualFunc(pair, f.pair, bytes.Equal) {
		return f.svid, nil
	}
	if err == nil {
		var svid *x509svid.SVID
		if svid, err = x509svid.Parse(pair[0], pair[1]); err == nil && !f.own.IsZero() && svid.ID != f.own {
			err = fmt.Errorf("it is that of %s, and this part has to be %s: is another part's Secret mounted, or the "+
				"configuration's cluster wrong?", svid.ID, f.own)
		}
		if err == nil {
			f.svid, f.pair = svid, pair
			delete(f.logged, f.paths.CertFile)
			return svid, nil
		}
	}
	// A rotation that is under way, or failed, must not stop what still works.
	if f.svid != nil && time.Now().Before(f.svid.Certificates[0].NotAfter) {
		f.keep(f.paths.CertFile, err)
		return f.svid, nil
	}
	return nil, fmt.Errorf("certificate %s with key %s: %w", f.paths.CertFile, f.paths.KeyFile, err)
}

func (f *files) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	path := filepath.Join(f.paths.BundleDir, td.Name()+".pem")
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := volume.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		// The operator removed the file: this cluster is no longer trusted.
		delete(f.bundles, td.Name())
		return nil, fmt.Errorf("cluster %q is not trusted: there is no file %s with its root certificates", td.Name(), path)
	}
	cached, have := f.bundles[td.Name()]
	if err == nil && have && bytes.Equal(cached.from, text) {
		return cached.bundle, nil
	}
	if err == nil {
		var bundle *x509bundle.Bundle
		if bundle, err = x509bundle.Parse(td, text); err == nil && bundle.Empty() {
			err = errors.New("holds no certificate")
		}
		if err == nil {
			f.bundles[td.Name()] = cachedBundle{bundle, text}
			delete(f.logged, path)
			return bundle, nil
		}
	}
	if have {
		f.keep(path, err)
		return cached.bundle, nil
	}
	return nil, fmt.Errorf("root certificates %s of cluster %q: %w", path, td.Name(), err)
}

// keep logs, once for each reason, that the previous content of a file is still in use.
func (f *files) keep(path string, err error) {
	if f.logged[path] != err.Error() {
		f.logged[path] = err.Error()
		slog.Warn("a changed file is invalid; its previous content stays in use until it is corrected", "file", path,
			"error", err)
	}
}

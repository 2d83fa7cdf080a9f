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

	mu      sync.Mutex
	svid    parsed[x509svid.SVID]
	bundles map[string]parsed[x509bundle.Bundle]
}

// parsed is what was made of files, and their content.
type parsed[T any] struct {
	value *T
	from  [][]byte
	// logged is the last logged reason why the present content cannot be used.
	logged string
}

// read returns what parse makes of the files; what it made of their last usable content if they cannot be used now: a
// rotation that is under way, or failed, must not stop what still works. This is logged once for each reason.
func (p *parsed[T]) read(parse func(texts [][]byte) (*T, error), works func(*T, error) bool,
	paths ...string) (*T, error) {
	texts, err := volume.Read(paths...)
	if err == nil && p.value != nil && slices.EqualFunc(texts, p.from, bytes.Equal) {
		return p.value, nil
	}
	if err == nil {
		var value *T
		if value, err = parse(texts); err == nil {
			*p = parsed[T]{value: value, from: texts}
			return value, nil
		}
	}
	if p.value == nil || !works(p.value, err) {
		return nil, err
	}
	if p.logged != err.Error() {
		p.logged = err.Error()
		slog.Warn("a changed file is invalid; its previous content stays in use until it is corrected", "file", paths[0],
			"error", err)
	}
	return p.value, nil
}

// openFiles reads the files once, so that a fault shows at start.
func openFiles(paths config.TLS, own spiffeid.ID) (*files, error) {
	f := &files{paths: paths, own: own, bundles: map[string]parsed[x509bundle.Bundle]{}}
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
	svid, err := f.svid.read(func(pair [][]byte) (*x509svid.SVID, error) {
		svid, err := x509svid.Parse(pair[0], pair[1])
		if err == nil && !f.own.IsZero() && svid.ID != f.own {
			err = fmt.Errorf("it is that of %s, and this part has to be %s: is another part's Secret mounted, or the "+
				"configuration's cluster wrong?", svid.ID, f.own)
		}
		return svid, err
	}, func(was *x509svid.SVID, _ error) bool {
		return time.Now().Before(was.Certificates[0].NotAfter)
	}, f.paths.CertFile, f.paths.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.paths.CertFile, f.paths.KeyFile, err)
	}
	return svid, nil
}

func (f *files) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	path := filepath.Join(f.paths.BundleDir, td.Name()+".pem")
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.bundles[td.Name()]
	bundle, err := is.read(func(texts [][]byte) (*x509bundle.Bundle, error) { return parseRoots(td, texts[0]) },
		func(_ *x509bundle.Bundle, err error) bool { return !errors.Is(err, os.ErrNotExist) }, path)
	if err == nil {
		f.bundles[td.Name()] = is
		return bundle, nil
	}
	delete(f.bundles, td.Name())
	if errors.Is(err, os.ErrNotExist) { // the operator removed the file: this cluster is no longer trusted
		return nil, fmt.Errorf("cluster %q is not trusted: there is no file %s with its root certificates", td.Name(), path)
	}
	return nil, fmt.Errorf("root certificates %s of cluster %q: %w", path, td.Name(), err)
}

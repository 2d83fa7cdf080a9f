package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"github.com/kube-semaphore/semaphore/internal/volume"
	"io/fs"
	"os"
	"path/filepath"
)

// pemOf returns certificates as PEM, one after the other.
func pemOf(certs ...*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, cert := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return out.Bytes()
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// writePair writes a certificate and its key, PEM, by writeNew or writeOver. It writes the key first: a reader that
// finds it beside an old certificate can see that the two do not belong together.
func writePair(certFile, keyFile string, cert, key []byte, write func(string, []byte, os.FileMode) error) error {
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return err
	}
	if err := write(keyFile, key, 0o600); err != nil {
		return err
	}
	return write(certFile, cert, 0o644)
}

// write writes the authority, as writePair does.
func (a *Authority) write(certFile, keyFile string, write func(string, []byte, os.FileMode) error) error {
	cert, key, err := a.PEM()
	if err != nil {
		return err
	}
	return writePair(certFile, keyFile, cert, key, write)
}

// writeNew writes a file that must not exist.
func writeNew(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already, and is not overwritten: choose another directory, or remove it if "+
			"nothing uses it", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeOver replaces a file atomically: a reader finds the old one or the new one, after a crash too.
func writeOver(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return volume.Rename(f.Name(), path)
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ParseRoot parses the first certificate of a PEM text. It fails if the first PEM block is none.
func ParseRoot(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM block CERTIFICATE")
	}
	return x509.ParseCertificate(block.Bytes)
}

func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	cert, err := ParseRoot(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}

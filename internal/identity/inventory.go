package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

type Item struct {
	// File is its path below the directory.
	File string
	// Its purpose, in a few words.
	What string
	Cert *x509.Certificate
}

// Inventory lists the certificates in dir: authorities first. It fails if the authority or the certificate of a part is
// missing or cannot be read; those of a rollover may be missing.
func Inventory(dir string) ([]Item, error) {
	var items []Item
	candidates := []Item{
		{File: caCertFile, What: "the authority"},
		{File: nextCertFile, What: "the authority that is to sign next"},
		{File: oldCertFile, What: "the authority that signed before"},
	}
	for _, part := range Parts {
		candidates = append(candidates, Item{File: filepath.Join(part, certFile), What: "the " + part})
	}
	for _, item := range candidates {
		var err error
		item.Cert, err = readCertificate(filepath.Join(dir, item.File))
		if errors.Is(err, fs.ErrNotExist) && (item.File == nextCertFile || item.File == oldCertFile) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("certificate of %s: %w", item.What, err)
		}
		items = append(items, item)
	}
	return items, nil
}

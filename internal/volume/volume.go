// Package volume owns reading files that a kubelet may replace while they are read: those of Secret, ConfigMap and
// projected volumes.
//
// A kubelet shows such a volume's files as links to ..data/FILE, where ..data is a link to a directory. An update
// writes a new directory, moves ..data to it and removes the old one
// (k8s.io/kubernetes/pkg/volume/util/atomic_writer.go). Who opens FILE by its path follows two links, one after the
// other, and finds nothing when the directory is removed between them, although the volume holds the file all the time.
// Read resolves ..data once and reads through what it named.
//
// It is a leaf: it knows files only, and imports no other package of semaphore.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	dataLink = "..data"
	// maxReplaced bounds how often a volume may be replaced during one read. A kubelet replaces it once in many
	// seconds.
	maxReplaced = 1000
)

// Read returns the content of files. Those of one volume have one version of it. The error is fs.ErrNotExist only if a
// file does not exist: in the current version of its volume, if it has one.
func Read(paths ...string) ([][]byte, error) {
	for range maxReplaced {
		content, err := readOnce(paths)
		var replaced *replacedError
		if errors.As(err, &replaced) {
			continue
		}
		return content, err
	}
	return nil, fmt.Errorf("read %q: the volume was replaced %d times meanwhile", paths, maxReplaced)
}

// ReadFile is Read for one file.
func ReadFile(path string) ([]byte, error) {
	content, err := Read(path)
	if err != nil {
		return nil, err
	}
	return content[0], nil
}

// replacedError is the error if a volume was replaced during a read.
type replacedError struct{ dir string }

func (e *replacedError) Error() string { return e.dir + " was replaced" }

func readOnce(paths []string) (content [][]byte, err error) {
	// open is, by volume, the version that all its files are read from.
	open := map[string]*version{}
	defer func() {
		for _, v := range open {
			v.close()
		}
	}()
	for _, path := range paths {
		dir, name, ok := split(path)
		var one []byte
		if ok {
			v := open[dir]
			if v == nil {
				if v, err = openVersion(dir); err != nil {
					return nil, err
				}
				open[dir] = v
			}
			one, err = v.read(name)
		} else {
			one, err = os.ReadFile(path)
		}
		if err != nil {
			return nil, err
		}
		content = append(content, one)
	}
	return content, nil
}

// split returns the volume that a file lies in, and its name there. ok is false if it lies in none.
func split(path string) (dir, name string, ok bool) {
	path = filepath.Clean(path)
	for dir = filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Readlink(filepath.Join(dir, dataLink)); err == nil {
			name, err := filepath.Rel(dir, path)
			return dir, name, err == nil
		}
		if dir == filepath.Dir(dir) {
			return "", "", false
		}
	}
}

// version is one directory that a volume's ..data named.
type version struct {
	dir, target string
	root        *os.Root
}

func openVersion(dir string) (*version, error) {
	target, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		return nil, err
	}
	v := &version{dir: dir, target: target}
	if v.root, err = os.OpenRoot(filepath.Join(dir, target)); err != nil {
		return nil, v.explain(err)
	}
	return v, nil
}

func (v *version) read(name string) ([]byte, error) {
	content, err := v.root.ReadFile(name)
	if err != nil {
		return nil, v.explain(err)
	}
	return content, nil
}

func (v *version) close() { _ = v.root.Close() }

// explain distinguishes an error of a version that the volume no longer has from one of the current version.
func (v *version) explain(err error) error {
	if now, linkErr := os.Readlink(filepath.Join(v.dir, dataLink)); linkErr == nil && now != v.target {
		return &replacedError{v.dir}
	}
	// A name within the version is not enough.
	var in *fs.PathError
	if errors.As(err, &in) {
		return &fs.PathError{Op: in.Op, Path: filepath.Join(v.dir, filepath.Base(in.Path)), Err: in.Err}
	}
	return err
}

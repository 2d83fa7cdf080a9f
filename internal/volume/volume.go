// Package volume owns reading files that a kubelet may replace while they are read: those of Secret, ConfigMap and
// projected volumes.
//
// A kubelet shows the files of such a volume as links to ..data/FILE, where ..data is a link to a directory. For an
// update it writes a new directory, moves ..data to it and removes the old one
// (k8s.io/kubernetes/pkg/volume/util/atomic_writer.go). Opening FILE by its path follows the two links one after the
// other. It fails if the directory is removed between them, although the volume contains the file all the time. Read
// resolves ..data once and reads all files from that directory.
//
// It also makes written files survive a power loss. It knows files only.
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

// Read returns the content of files. Files of one volume are read from one version of it. It fails if one cannot be
// read, with fs.ErrNotExist only if a file does not exist; in a volume, if the current version lacks it.
func Read(paths ...string) ([][]byte, error) {
	for range maxReplaced {
		content, err := readOnce(paths)
		if !errors.Is(err, errReplaced) {
			return content, err
		}
	}
	return nil, fmt.Errorf("read %q: the volume was replaced %d times meanwhile", paths, maxReplaced)
}

// ReadFile is Read for one file, and fails as Read does.
func ReadFile(path string) ([]byte, error) {
	content, err := Read(path)
	if err != nil {
		return nil, err
	}
	return content[0], nil
}

// errReplaced is the error if a volume is replaced during a read.
var errReplaced = errors.New("the volume was replaced")

func readOnce(paths []string) (content [][]byte, err error) {
	// open has, by volume, the version from which all its files are read.
	open := map[string]*version{}
	defer func() {
		for _, v := range open {
			_ = v.root.Close()
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
			if one, err = v.root.ReadFile(name); err != nil {
				err = v.explain(err)
			}
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

// split returns the volume that contains a file, and the file's name in it. ok is false if no volume does.
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

// version is the directory to which a volume's ..data pointed.
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

// explain returns errReplaced if the volume has another version now, and otherwise err, with the path of the volume's
// file.
func (v *version) explain(err error) error {
	if now, linkErr := os.Readlink(filepath.Join(v.dir, dataLink)); linkErr == nil && now != v.target {
		return errReplaced
	}
	// A name within the version is not enough.
	if in, is := errors.AsType[*fs.PathError](err); is {
		return &fs.PathError{Op: in.Op, Path: filepath.Join(v.dir, filepath.Base(in.Path)), Err: in.Err}
	}
	return err
}

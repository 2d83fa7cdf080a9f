package testkit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Volume is a Secret or a ConfigMap in a directory, as a kubelet lays it out: files are links to ..data/FILE, and
// ..data is a link to a directory.
type Volume struct {
	Dir string
	n   int
}

// Write replaces all files by one rename of ..data, and removes the old directory then.
func (v *Volume) Write(files map[string]string) error {
	v.n++
	version := fmt.Sprintf("..version_%d", v.n)
	for name, content := range files {
		path := filepath.Join(v.Dir, version, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	data := filepath.Join(v.Dir, "..data")
	old, _ := os.Readlink(data)
	if err := errors.Join(os.Symlink(version, data+"_tmp"), os.Rename(data+"_tmp", data)); err != nil {
		return err
	}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(filepath.Join("..data", first), filepath.Join(v.Dir, first)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(v.Dir, old))
}

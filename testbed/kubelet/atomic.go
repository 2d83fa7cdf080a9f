//go:build linux

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// volumeFile is one file of a configMap, secret, projected or downwardAPI volume.
type volumeFile struct {
	data []byte
	mode fs.FileMode
	// user owns the file; -1 leaves root.
	user int
}

const (
	dataLink = "..data"     // a symbolic link to the directory that holds the current files
	newLink  = "..data_tmp" // its next version, before it is renamed into place
)

// writeAtomic makes a directory show exactly the given files, by relative path, and says whether that was a change. All
// files change at once for a reader that goes through ..data: the layout is a kubelet's, on which programs that watch
// their configuration rely. Files belong to the group, -1 for root's.
func writeAtomic(dir string, files map[string]volumeFile, group int) (changed bool, err error) {
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		if !filepath.IsLocal(name) || strings.HasPrefix(first, "..") {
			return false, fmt.Errorf("path %q: want a relative path that does not lead up", name)
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read volume: %w", err)
	}
	if old != "" && sameFiles(filepath.Join(dir, old), files) {
		return false, nil
	}
	current, err := os.MkdirTemp(dir, "..data_")
	if err != nil {
		return false, fmt.Errorf("write volume: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(current)
		}
	}()
	if err := ownDir(current, group); err != nil {
		return false, err
	}
	for name, f := range files {
		path := filepath.Join(current, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return false, fmt.Errorf("write volume: %w", err)
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return false, fmt.Errorf("write volume: %w", err)
		}
		mode := f.mode
		if group >= 0 {
			mode |= 0o440
		}
		if err := errors.Join(os.Chown(path, f.user, group), os.Chmod(path, mode)); err != nil {
			return false, fmt.Errorf("write volume: %w", err)
		}
	}
	if err := os.Symlink(filepath.Base(current), filepath.Join(dir, newLink)); err != nil {
		return false, fmt.Errorf("write volume: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, newLink), filepath.Join(dir, dataLink)); err != nil {
		return false, fmt.Errorf("write volume: %w", err)
	}
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return true, fmt.Errorf("remove old version of volume: %w", err)
		}
	}
	return true, linkNames(dir, files)
}

// linkNames makes the names in the volume's directory, which are links through ..data, match the files.
func linkNames(dir string, files map[string]volumeFile) error {
	want := map[string]bool{}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		want[first] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), ".."):
		case want[e.Name()]:
			delete(want, e.Name())
		default:
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove file of volume: %w", err)
			}
		}
	}
	for name := range want {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("write volume: %w", err)
		}
	}
	return nil
}

// sameFiles tells whether a directory holds exactly these files; modes and owners do not change in a pod's life.
func sameFiles(dir string, files map[string]volumeFile) bool {
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if f, ok := files[name]; !ok || !bytes.Equal(f.data, data) {
			return fs.ErrNotExist
		}
		seen++
		return nil
	})
	return err == nil && seen == len(files)
}

// ownDir gives a volume's directory to the pod's fsGroup, with the setgid bit so that what is made in it follows.
func ownDir(dir string, group int) error {
	if group < 0 {
		return os.Chmod(dir, 0o755)
	}
	if err := os.Chown(dir, -1, group); err != nil {
		return fmt.Errorf("give volume to group: %w", err)
	}
	return os.Chmod(dir, 0o775|fs.ModeSetgid)
}

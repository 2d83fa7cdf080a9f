package components

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// ensureCalicoFiles copies the files of Calico's module that are not programs into dir.
func (b *Builder) ensureCalicoFiles(ctx context.Context, source, dir string, paths *Paths) error {
	paths.CalicoCRDs, paths.CalicoNodeFiles = filepath.Join(dir, "crd"), filepath.Join(dir, "node-files")
	manifests := filepath.Join(dir, "manifests")
	paths.CalicoManifest = filepath.Join(manifests, "calico.yaml")
	copies := []struct {
		dir string
		// from maps paths below dir to files and directories of the module.
		from map[string]string
	}{
		{paths.CalicoCRDs, map[string]string{".": "libcalico-go/config/crd"}},
		{manifests, map[string]string{"calico.yaml": "manifests/calico.yaml"}},
		// The layout is that of calico/node's Dockerfile.
		{paths.CalicoNodeFiles, map[string]string{".": "node/filesystem", "etc/calico": "confd/etc/calico"}},
	}
	module := ""
	for _, c := range copies {
		if _, err := os.Stat(c.dir); err == nil {
			continue
		}
		if module == "" {
			var err error
			if module, err = moduleDir(ctx, source, calicoModule); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		tmp, err := os.MkdirTemp(dir, ".files-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		for to, from := range c.from {
			if err := copyTree(filepath.Join(module, filepath.FromSlash(from)), filepath.Join(tmp, to)); err != nil {
				return fmt.Errorf("module %s: %w", calicoModule, err)
			}
		}
		if err := os.Chmod(tmp, 0o755); err != nil {
			return err
		}
		if err := os.Rename(tmp, c.dir); err != nil {
			return err
		}
	}
	return nil
}

// moduleDir returns the directory of a module's source. It downloads the module if necessary.
func moduleDir(ctx context.Context, source, module string) (string, error) {
	cmd := goCommand(ctx, source, "mod", "download", "-json", module)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	var answer struct{ Dir string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return answer.Dir, nil
}

// copyTree copies a file, or the files below a directory. It sets the modes, because files in the module cache are
// neither writable nor executable.
func copyTree(from, to string) error {
	if info, err := os.Stat(from); err != nil {
		return err
	} else if !info.IsDir() {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	}
	found := false
	err := fs.WalkDir(os.DirFS(from), ".", func(name string, entry fs.DirEntry, err error) error {
		target := filepath.Join(to, name)
		if err != nil || entry.IsDir() {
			if err == nil {
				err = os.MkdirAll(target, 0o755)
			}
			return err
		}
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		found = true
		data, mode := asInImage(name, data)
		return os.WriteFile(target, data, mode)
	})
	if err == nil && !found {
		err = &fs.PathError{Op: "copy", Path: from, Err: fs.ErrNotExist}
	}
	return err
}

// asInImage returns the content and mode that a file of Calico's module has on a node. The content is adapted to
// Debian's BIRD.
func asInImage(name string, data []byte) ([]byte, fs.FileMode) {
	switch base := path.Base(name); {
	case base == "bird_ipam.cfg.template":
		return withoutTunnel(data), 0o644
	case base == "run", base == "rc.local", path.Base(path.Dir(name)) == "sbin":
		return data, 0o755
	}
	return data, 0o644
}

// withoutTunnel removes the lines with krt_tunnel from confd's template. Only Calico's fork of BIRD has this variable,
// which names the IP-in-IP device and is empty if no pool uses IPIP. The upstream BIRD 1.6 rejects a configuration with
// it.
func withoutTunnel(template []byte) []byte {
	var out []byte
	for line := range bytes.Lines(template) {
		if !bytes.Contains(line, []byte("krt_tunnel")) {
			out = append(out, line...)
		}
	}
	return out
}

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

// ensureCalicoFiles copies what Calico's module has besides programs into dir.
func (b *Builder) ensureCalicoFiles(ctx context.Context, source, dir string, paths *Paths) error {
	paths.CalicoCRDs, paths.CalicoNodeFiles = filepath.Join(dir, "crd"), filepath.Join(dir, "node-files")
	manifests := filepath.Join(dir, "manifests")
	paths.CalicoManifest = filepath.Join(manifests, "calico.yaml")
	copies := []struct {
		dir string
		// from has the files and directories of the module that go into dir, by the place they go to there.
		from map[string]string
	}{
		{paths.CalicoCRDs, map[string]string{".": "libcalico-go/config/crd"}},
		{manifests, map[string]string{"calico.yaml": "manifests/calico.yaml"}},
		// As the Dockerfile of calico/node puts them together.
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

// moduleDir is the directory of a module's source, which is fetched when it is not there.
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

// copyTree copies a file, or the files below a directory, which a module has without the rights to write or run them.
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

// asInImage is what a file of Calico's module becomes on a node: its content for Debian's BIRD, and its mode.
func asInImage(name string, data []byte) ([]byte, fs.FileMode) {
	switch base := path.Base(name); {
	case base == "bird_ipam.cfg.template":
		return withoutTunnel(data), 0o644
	case base == "run", base == "rc.local", path.Base(path.Dir(name)) == "sbin":
		return data, 0o755
	}
	return data, 0o644
}

// withoutTunnel takes the lines with krt_tunnel out of confd's template. That variable exists in Calico's fork of BIRD
// alone; it names the device of IP-in-IP and is empty where no pool uses that. BIRD 1.6 as it is refuses a
// configuration with it.
func withoutTunnel(template []byte) []byte {
	var out []byte
	for line := range bytes.Lines(template) {
		if !bytes.Contains(line, []byte("krt_tunnel")) {
			out = append(out, line...)
		}
	}
	return out
}

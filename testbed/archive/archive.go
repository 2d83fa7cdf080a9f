// Package archive writes container images of one layer, without a container engine, as `docker save` does: containerd
// imports such archives. It imports nothing else of this module.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is an image to write.
type Image struct {
	// Name is the whole name, with registry and tag.
	Name string
	// Files are copied; their links are followed.
	Files []File
	// Texts are the contents of files by path.
	Texts map[string]string
	// Links are symbolic links: what each path points to.
	Links map[string]string
	// Directories are made, with those above them. /tmp may be written by everybody.
	Directories []string
	// Entrypoint and Command are those of the image's configuration.
	Entrypoint, Command []string
}

// File is a file of an image.
type File struct{ Path, Source string }

// Write writes the image to a file.
func (i Image) Write(file string) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			err = fmt.Errorf("write image %s: %w", i.Name, err)
		}
	}()
	// The layer's digest is needed before the layer's own header is written: it is written apart, and then copied.
	layer, err := os.CreateTemp("", "layer-*")
	if err != nil {
		return err
	}
	defer layer.Close()
	if err := os.Remove(layer.Name()); err != nil {
		return err
	}
	hash := sha256.New()
	buffered := bufio.NewWriterSize(io.MultiWriter(layer, hash), 1<<20)
	if err := i.writeLayer(tar.NewWriter(buffered)); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	digest := hex.EncodeToString(hash.Sum(nil))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": i.Entrypoint, "Cmd": i.Command,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(config)
	configName, layerName := hex.EncodeToString(sum[:])+".json", digest+"/layer.tar"
	index, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{i.Name}, "Layers": []string{layerName}}})
	if err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, part := range []struct {
		name    string
		size    int64
		content io.Reader
	}{
		{layerName, size, layer},
		{configName, int64(len(config)), bytes.NewReader(config)},
		{"manifest.json", int64(len(index)), bytes.NewReader(index)},
	} {
		if err := w.WriteHeader(&tar.Header{Name: part.name, Mode: 0o644, Size: part.size}); err != nil {
			return err
		}
		if _, err := io.Copy(w, part.content); err != nil {
			return err
		}
	}
	return w.Close()
}

func (i Image) writeLayer(w *tar.Writer) error {
	made := map[string]bool{"/": true, ".": true}
	var directory func(dir string) error
	directory = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := directory(path.Dir(dir)); err != nil {
			return err
		}
		mode := int64(0o755)
		if dir == "/tmp" {
			mode = 0o1777
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode})
	}
	for _, dir := range i.Directories {
		if err := directory(dir); err != nil {
			return err
		}
	}
	for _, f := range i.Files {
		if err := directory(path.Dir(f.Path)); err != nil {
			return err
		}
		if err := i.copyFile(w, f); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Texts)) {
		if err := directory(path.Dir(name)); err != nil {
			return err
		}
		text := i.Texts[name]
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		if err := directory(path.Dir(name)); err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(name, "/"), Linkname: i.Links[name], Mode: 0o777}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
	}
	return w.Close()
}

func (i Image) copyFile(w *tar.Writer, f File) error {
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

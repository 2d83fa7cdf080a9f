package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Entry is a file, directory or symlink of an image, owned by root. Create it with Dir, File, Copy or Link.
type Entry struct {
	path   string // absolute and clean
	mode   fs.FileMode
	data   []byte
	source string // file of the machine with the content
	target string // of a link
}

// Dir returns a directory. Parents of an entry are created with mode 0755 without being listed. mode may have
// permission bits and fs.ModeSticky.
func Dir(path string, mode fs.FileMode) Entry { return Entry{path: path, mode: fs.ModeDir | mode} }

func File(path string, mode fs.FileMode, content string) Entry {
	return Entry{path: path, mode: mode.Perm(), data: []byte(content)}
}

// Copy returns a file with the content of the machine's file source, which is read when the layer is created.
func Copy(path string, mode fs.FileMode, source string) Entry {
	return Entry{path: path, mode: mode.Perm(), source: source}
}

func Link(path, target string) Entry {
	return Entry{path: path, mode: fs.ModeSymlink | 0o777, target: target}
}

// epoch is the modification time of all files of an image.
var epoch = time.Unix(0, 0).UTC()

// writeTar writes the entries, sorted, with their parent directories.
func writeTar(w io.Writer, entries []Entry) error {
	byPath := map[string]Entry{}
	for _, e := range entries {
		if !path.IsAbs(e.path) || path.Clean(e.path) != e.path || e.path == "/" {
			return fmt.Errorf("path %q of an image: want an absolute path without dots", e.path)
		}
		if _, ok := byPath[e.path]; ok {
			return fmt.Errorf("path %s of an image is there twice", e.path)
		}
		byPath[e.path] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.path); dir != "/"; dir = path.Dir(dir) {
			above, ok := byPath[dir]
			if !ok {
				above = Dir(dir, 0o755)
				byPath[dir] = above
			}
			if !above.mode.IsDir() {
				return fmt.Errorf("path %s of an image is below %s, which is no directory", e.path, dir)
			}
		}
	}
	sorted := make([]Entry, 0, len(byPath))
	for _, e := range byPath {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b Entry) int { return strings.Compare(a.path, b.path) })
	tw := tar.NewWriter(w)
	for _, e := range sorted {
		if err := e.write(tw); err != nil {
			return fmt.Errorf("%s of an image: %w", e.path, err)
		}
	}
	return tw.Close()
}

func (e Entry) write(tw *tar.Writer) error {
	header := &tar.Header{Name: strings.TrimPrefix(e.path, "/"), Mode: int64(e.mode.Perm()), ModTime: epoch,
		Format: tar.FormatPAX}
	if e.mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch {
	case e.mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		return tw.WriteHeader(header)
	case e.mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.target
		return tw.WriteHeader(header)
	}
	header.Typeflag = tar.TypeReg
	data := io.Reader(bytes.NewReader(e.data))
	header.Size = int64(len(e.data))
	if e.source != "" {
		file, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return &fs.PathError{Op: "read", Path: e.source, Err: fs.ErrInvalid}
		}
		data, header.Size = file, info.Size()
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(tw, data)
	return err
}

// layer creates a layer of the entries. An uncompressed one is larger but faster to create and unpack.
func layer(entries []Entry, compressed bool) (v1.Layer, error) {
	var buf bytes.Buffer
	if err := writeTar(&buf, entries); err != nil {
		return nil, err
	}
	if !compressed {
		return static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer), nil
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

type Platform struct {
	Image v1.Image
	// sbom is the SBOM of the image, or nil.
	SBOM []byte
}

// WithSBOM builds the product's image for one platform and its SBOM. It fails as Product does.
func WithSBOM(r Release) (Platform, error) {
	made, err := Product(r)
	if err != nil {
		return Platform{}, err
	}
	sbom, err := sbom(r, made)
	return Platform{Image: made, SBOM: sbom}, err
}

// WriteRelease writes the archive of the product's image and the SBOMs into dir. It returns a line for each file. It
// fails if one cannot be written.
func WriteRelease(dir, version string, platforms ...Platform) (written []string, err error) {
	prefix := filepath.Join(dir, "semaphore-"+version)
	reference := Reference + ":" + version
	if err := Write(prefix+".tar", reference, platforms...); err != nil {
		return nil, err
	}
	info, err := os.Stat(prefix + ".tar")
	if err != nil {
		return nil, err
	}
	index, err := index(platforms...)
	if err != nil {
		return nil, err
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	written = append(written, fmt.Sprintf("%s.tar: OCI archive of %s@%s, %d MB", prefix, reference, digest,
		info.Size()>>20))
	for _, p := range platforms {
		config, err := p.Image.ConfigFile()
		if err != nil {
			return nil, err
		}
		digest, err := p.Image.Digest()
		if err != nil {
			return nil, err
		}
		file := fmt.Sprintf("%s-%s-%s.cdx.json", prefix, config.OS, config.Architecture)
		if err := os.WriteFile(file, p.SBOM, 0o644); err != nil {
			return nil, err
		}
		written = append(written, fmt.Sprintf("%s: SBOM (CycloneDX) of %s for %s", file, digest, config.Platform()))
	}
	return written, nil
}

// index returns an index of the images of several platforms.
func index(platforms ...Platform) (v1.ImageIndex, error) {
	var index v1.ImageIndex = empty.Index
	for _, p := range platforms {
		config, err := p.Image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: p.Image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return index, nil
}

// Write writes an archive in the OCI image layout for `ctr images import`, `docker load`, `podman load` and skopeo. It
// has the only image, or an index of all, with their SBOMs as referrers. The archive appears complete or not at all. It
// fails if reference is not valid, or the file cannot be written.
func Write(file, reference string, platforms ...Platform) error {
	ref, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("reference of an image: %w", err)
	}
	top := mutate.IndexAddendum{Descriptor: v1.Descriptor{Annotations: map[string]string{
		"io.containerd.image.name":          ref.Name(), // containerd and Docker
		"org.opencontainers.image.ref.name": ref.TagStr(),
	}}}
	if len(platforms) == 1 {
		top.Add = platforms[0].Image
	} else if top.Add, err = index(platforms...); err != nil {
		return err
	}
	index := mutate.AppendManifests(empty.Index, top)
	for _, p := range platforms {
		if p.SBOM == nil {
			continue
		}
		artifact, err := referrer(p.SBOM, p.Image)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: artifact})
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := layout.Write(filepath.Join(tmp, "layout"), index); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	archive := filepath.Join(tmp, "archive")
	if err := writeArchive(archive, filepath.Join(tmp, "layout")); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(archive, file)
}

// writeArchive writes the files below dir. Equal files give an equal archive.
func writeArchive(file, dir string) error {
	var entries []Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		entries = append(entries, Copy("/"+filepath.ToSlash(rel), 0o644, path))
		return err
	})
	if err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err := writeTar(out, entries); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

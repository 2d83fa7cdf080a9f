// Package images makes the archives of the container images that a testbed's nodes import: semaphore's image and the
// testbed's own. There is no registry.
//
// The name of an archive in the cache has a hash of the image's reference and digest, so each image is written once.
// Several processes may ask for the same archive at once. The package imports only deploy/image and testbed/components
// of this module.
package images

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/testbed/components"
)

// References of the images. No tag is "latest", so the kubelet uses the image on its node.
const (
	// Semaphore is the reference of the product's image in the manifests below deploy/.
	Semaphore = image.Reference + ":main"
	// Pause is the image of the container that holds a pod's namespaces.
	Pause = "testbed.local/pause:1"
	// CoreDNS has the program /coredns. The tag is its release, from which semaphorectl derives its features.
	CoreDNS = "testbed.local/coredns:1.14.7"
	// Testbed has the program testbed (`testbed echo`, `testbed sleep`), busybox's shell and applets, and curl, getent, ip
	// and ss of this machine.
	Testbed = "testbed.local/testbed:1"
)

// OfSuite are the image references in the pods of the conformance suite of sigs.k8s.io/mcs-api v0.5. Testbed has the
// programs that the suite runs from them: a shell with nc and nslookup, and socat.
var OfSuite = []string{"docker.io/nicolaka/netshoot:v0.15", "docker.io/alpine/socat:1.7.4.4"}

// Archive is an image in a file.
type Archive struct {
	Reference string
	// Path is the path of a file in the OCI image layout, which `ctr --namespace k8s.io images import` loads.
	Path string
}

// Builder makes archives.
type Builder struct {
	// Cache is the directory for archives. The default is images below the cache of package components.
	Cache string
	// Progress receives a line for each image. It may be nil.
	Progress io.Writer
}

// recipe describes how to make one image.
type recipe struct {
	name, reference string
	make            func(ctx context.Context) (v1.Image, error)
}

// Ensure puts the archives of all images into dir. programs are the programs of the checkout by name. Without the
// product's programs, Ensure omits the product's image.
func (b *Builder) Ensure(ctx context.Context, dir string, paths components.Paths,
	programs map[string]string) ([]Archive, error) {
	cache := b.Cache
	if cache == "" {
		user, err := components.CacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(user, "images")
	}
	for _, d := range []string{cache, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	var archives []Archive
	recipes := []recipe{pauseImage(), coreDNS(paths.CoreDNS), testbedImage(paths.Busybox, programs["testbed"])}
	if len(programs) > 1 {
		recipes = append(recipes, semaphore(programs))
	}
	for _, r := range recipes {
		archive, err := b.ensure(ctx, cache, dir, r)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", r.reference, err)
		}
		archives = append(archives, archive)
	}
	return archives, prune(cache, kept)
}

// ensure puts the archive of one image into dir.
func (b *Builder) ensure(ctx context.Context, cache, dir string, r recipe) (Archive, error) {
	started := time.Now()
	made, err := r.make(ctx)
	if err != nil {
		return Archive{}, err
	}
	digest, err := made.Digest()
	if err != nil {
		return Archive{}, err
	}
	archive := Archive{Reference: r.reference, Path: filepath.Join(dir, r.name+".tar")}
	key := sha256.Sum256([]byte(r.reference + "\n" + digest.Hex))
	cached := filepath.Join(cache, r.name+"-"+hex.EncodeToString(key[:])[:keyLength]+".tar")
	if err := place(cached, archive.Path); !errors.Is(err, fs.ErrNotExist) {
		return archive, err
	}
	if err := image.Write(cached, r.reference, image.Platform{Image: made}); err != nil {
		return Archive{}, err
	}
	info, err := os.Stat(cached)
	if err != nil {
		return Archive{}, err
	}
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "images: made %s in %.1f s, %d MB\n", r.reference, time.Since(started).Seconds(),
			info.Size()>>20)
	}
	return archive, place(cached, archive.Path)
}

// place links the cached archive to another path, where it outlives its removal from the cache.
func place(cached, path string) error {
	now := time.Now()
	if err := os.Chtimes(cached, now, now); err != nil { // the time of the last use, for prune
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(cached, path) == nil {
		return nil
	}
	in, err := os.Open(cached) // on another file system
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// keyLength is the number of hash characters in an archive's name that distinguish images of the same name.
const keyLength = 16

// kept is the number of archives per image in the cache. Several checkouts and earlier commits share it.
const kept = 6

// prune removes the least recently used archives, and what a killed process left behind.
func prune(cache string, kept int) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	type archive struct {
		path string
		used time.Time
	}
	byImage := map[string][]archive{}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // removed by another process
			continue
		}
		if err != nil {
			return err
		}
		path := filepath.Join(cache, e.Name())
		switch {
		case e.IsDir():
			if time.Since(info.ModTime()) > time.Hour {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
			}
		case filepath.Ext(path) == ".tar":
			name := strings.TrimSuffix(e.Name(), ".tar")
			name = name[:max(0, len(name)-keyLength)]
			byImage[name] = append(byImage[name], archive{path, info.ModTime()})
		}
	}
	for _, archives := range byImage {
		slices.SortFunc(archives, func(a, b archive) int { return b.used.Compare(a.used) })
		for _, a := range archives[min(kept, len(archives)):] {
			if err := os.Remove(a.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// simple makes an image for this machine's architecture.
func simple(config v1.Config, layers ...[]image.Entry) (v1.Image, error) {
	return image.New(image.Spec{Arch: runtime.GOARCH, Layers: layers, Config: config, Uncompressed: true})
}

//go:embed pause/pause.c
var pauseSource []byte

func pauseImage() recipe {
	return recipe{
		name: "pause", reference: Pause,
		make: func(ctx context.Context) (v1.Image, error) {
			tmp, err := os.MkdirTemp("", "semaphore-pause-")
			if err != nil {
				return nil, err
			}
			defer os.RemoveAll(tmp)
			source, program := filepath.Join(tmp, "pause.c"), filepath.Join(tmp, "pause")
			if err := os.WriteFile(source, pauseSource, 0o644); err != nil {
				return nil, err
			}
			cmd := exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-o", program, source)
			if out, err := cmd.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w (make deps installs the compiler)\n%s", cmd, err, out)
			}
			return simple(v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"},
				[]image.Entry{image.Copy("/pause", 0o755, program)})
		},
	}
}

func coreDNS(program string) recipe {
	return recipe{
		name: "coredns", reference: CoreDNS,
		make: func(context.Context) (v1.Image, error) {
			return simple(v1.Config{Entrypoint: []string{"/coredns"}}, []image.Entry{image.Copy("/coredns", 0o755, program)})
		},
	}
}

// semaphore makes the image of `make image` for this machine's architecture only, with uncompressed layers.
func semaphore(programs map[string]string) recipe {
	return recipe{name: "semaphore", reference: Semaphore, make: func(context.Context) (v1.Image, error) {
		return image.Product(image.Release{Arch: runtime.GOARCH, Programs: programs, Version: "testbed", Uncompressed: true})
	}}
}

// Package images makes the archives of the container images that a testbed's nodes need, as there is no registry: the
// product's, and those of the testbed itself.
//
// An archive's name in the cache is made of the reference and the digest of its image, so each is written once; several
// processes may ask for the same at once. It starts nothing but a C compiler, and imports deploy/image and
// testbed/components.
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

// References of the images. Their tags are not "latest", so a kubelet takes what its node has.
const (
	// Semaphore is the product's image as the manifests below deploy/ name it.
	Semaphore = image.Reference + ":main"
	// Pause holds the namespaces of a pod.
	Pause = "testbed.local/pause:1"
	// CoreDNS has the program /coredns. The tag is its release, by which semaphorectl knows what it can do.
	CoreDNS = "testbed.local/coredns:1.14.7"
	// Testbed has the program testbed (`testbed echo`, `testbed sleep`), busybox's shell and applets, and from this
	// machine curl, getent, ip and ss.
	Testbed = "testbed.local/testbed:1"
)

// OfSuite are the references by which pods of the conformance suite of sigs.k8s.io/mcs-api v0.5 name images. Testbed
// has of both what the suite runs: a shell with nc and nslookup, and socat.
var OfSuite = []string{"docker.io/nicolaka/netshoot:v0.15", "docker.io/alpine/socat:1.7.4.4"}

// Archive is an image in a file.
type Archive struct {
	Reference string
	// Path is of an archive in the OCI image layout, which `ctr --namespace k8s.io images import` loads.
	Path string
}

// Builder makes archives.
type Builder struct {
	// Cache is the directory that archives are kept in; images below the directory of components when empty.
	Cache string
	// Progress gets a line for each image that is made. May be nil.
	Progress io.Writer
}

// recipe is how one image is made.
type recipe struct {
	name, reference string
	make            func(ctx context.Context) (v1.Image, error)
}

// Ensure puts the archives of all images into dir. paths are the components, programs those of the checkout, by name;
// without those of the product its image is left out.
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

// place makes the archive in the cache appear elsewhere too, where it stays when the cache forgets it.
func place(cached, path string) error {
	now := time.Now()
	if err := os.Chtimes(cached, now, now); err != nil { // when it was used last, for prune
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(cached, path) == nil {
		return nil
	}
	in, err := os.Open(cached) // of another file system
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

// keyLength is how much of the hash of an image's reference and digest tells its archive from others of its name.
const keyLength = 16

// kept is how many archives of an image the cache keeps: those of several checkouts, and of the commits before.
const kept = 6

// prune removes archives that were not used for the longest time, and what a process that was killed left behind.
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
		if errors.Is(err, fs.ErrNotExist) { // another process was quicker
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

// simple makes an image for this machine.
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

// semaphore is the image that `make image` makes, for this machine alone and with its layers not compressed.
func semaphore(programs map[string]string) recipe {
	return recipe{name: "semaphore", reference: Semaphore, make: func(context.Context) (v1.Image, error) {
		return image.Product(image.Release{Arch: runtime.GOARCH, Programs: programs, Version: "testbed", Uncompressed: true})
	}}
}

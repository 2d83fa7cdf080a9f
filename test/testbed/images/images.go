// Package images makes the container images of a testbed's nodes, semaphore's and the testbed's own, and has a
// containerd import them once for all nodes of the machine. There is no registry.
//
// The cache has the root directory of that containerd, under a hash of what was imported. Several processes may ask for
// it at once.
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
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

// References of the images. No tag is "latest", so the kubelet uses the image on its node.
const (
	// Semaphore is the reference of the product's image in the manifests below deploy/.
	Semaphore = image.Reference + ":main"
	// Pause is the image of the container that holds a pod's namespaces.
	Pause = "testbed.local/pause:1"
	// CoreDNS has the program /coredns. The tag is its release, from which semaphorectl derives its features.
	CoreDNS = "testbed.local/coredns:1.14.7"
	// Testbed has the program testbed (`testbed echo`, `testbed sleep`), busybox's applets, and curl, dash as sh, getent,
	// ip, nc and ss of this machine.
	Testbed = "testbed.local/testbed:1"
)

// ofSuite are the image references in the pods of the conformance suite of sigs.k8s.io/mcs-api v0.5. Testbed has the
// programs that the suite runs from them: a shell with nc and nslookup, and socat.
var ofSuite = []string{"docker.io/nicolaka/netshoot:v0.15", "docker.io/alpine/socat:1.7.4.4"}

// Builder makes root directories of containerd.
type Builder struct {
	// Cache is the directory for them. The default is containerd-roots below the cache of package components.
	Cache string
	// Progress receives a line when images are imported. It may be nil.
	Progress io.Writer
}

// recipe describes how to make one image.
type recipe struct {
	name, reference string
	make            func(ctx context.Context) (v1.Image, error)
}

// imported is an image under its reference.
type imported struct {
	name, reference string
	v1.Image
}

// Ensure makes dir the root directory of a containerd that has all images. programs are the programs of the checkout by
// name. Without the product's programs, Ensure omits the product's image.
func (b *Builder) Ensure(ctx context.Context, dir string, paths components.Paths, programs map[string]string) error {
	cache := b.Cache
	if cache == "" {
		user, err := components.CacheDir()
		if err != nil {
			return err
		}
		cache = filepath.Join(user, "containerd-roots")
	}
	recipes := []recipe{pauseImage(), coreDNS(paths.CoreDNS), testbedImage(paths.Busybox, programs["testbed"])}
	if len(programs) > 1 {
		recipes = append(recipes, semaphore(programs))
	}
	var images []imported
	// The path of containerd has a hash of its source.
	hash := sha256.New()
	fmt.Fprintln(hash, paths.Containerd, ofSuite)
	for _, r := range recipes {
		made, err := r.make(ctx)
		if err != nil {
			return fmt.Errorf("image %s: %w", r.reference, err)
		}
		digest, err := made.Digest()
		if err != nil {
			return fmt.Errorf("image %s: %w", r.reference, err)
		}
		fmt.Fprintln(hash, r.reference, digest)
		images = append(images, imported{r.name, r.reference, made})
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	unlock, err := components.Lock(ctx, filepath.Join(cache, "lock"), func() {
		b.say("another process is importing images; waiting for it")
	})
	if err != nil {
		return err
	}
	defer unlock()
	cached, now := filepath.Join(cache, hex.EncodeToString(hash.Sum(nil)[:16])), time.Now()
	// The time is that of the last use, for prune.
	if err := os.Chtimes(cached, now, now); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, Clone(ctx, cached, dir))
	}
	if err := importAll(ctx, dir, paths, images); err != nil {
		return err
	}
	b.say("a containerd imported %d images in %.1f s", len(images), time.Since(now).Seconds())
	unfinished := filepath.Join(cache, "unfinished")
	if err := errors.Join(prune(cache, kept-1), Clone(ctx, dir, unfinished)); err != nil {
		return err
	}
	return os.Rename(unfinished, cached)
}

func (b *Builder) say(format string, args ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "images: "+format+"\n", args...)
	}
}

// Clone makes the directory to a copy of a root directory whose containerd has ended. The content of images, which
// containerd never writes again, is linked where both are on one file system, so it is on the disk and in memory once.
func Clone(ctx context.Context, from, to string) error {
	databases, err := filepath.Glob(filepath.Join(from, "*", "*.db"))
	if err != nil || len(databases) == 0 {
		return fmt.Errorf("%s has no databases of containerd: %w", from, errors.Join(err, fs.ErrNotExist))
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if copyTo(ctx, to, "--link", from+"/.") != nil { // on another file system
		if err := copyTo(ctx, to, from+"/."); err != nil {
			return err
		}
	}
	for _, database := range databases {
		if err := copyTo(ctx, filepath.Join(to, filepath.Base(filepath.Dir(database))), "--remove-destination",
			database); err != nil {
			return err
		}
	}
	return nil
}

// copyTo copies files into a directory, with owners, modes and attributes.
func copyTo(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "cp", append([]string{"--archive", "--target-directory", dir}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// kept is the number of root directories in the cache, of half a gigabyte each. Several checkouts share it, and each
// uses two: the tests of package testbed have images of their own.
const kept = 4

// prune removes the least recently used root directories, and what a killed process left behind. Its caller holds the
// lock.
func prune(cache string, kept int) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	type root struct {
		path string
		used time.Time
	}
	var roots []root
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		r := root{filepath.Join(cache, e.Name()), info.ModTime()}
		if e.Name() == "unfinished" {
			r.used = time.Time{}
		}
		roots = append(roots, r)
	}
	slices.SortFunc(roots, func(a, b root) int { return b.used.Compare(a.used) })
	for _, r := range roots {
		if kept--; kept >= 0 && !r.used.IsZero() {
			continue
		}
		if err := os.RemoveAll(r.path); err != nil {
			return err
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

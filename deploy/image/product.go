package image

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Reference is the image in the manifests, without a tag.
const Reference = "ghcr.io/kube-semaphore/semaphore"

// Programs are the programs of the product, each built from cmd/NAME, which the image has in its PATH.
var Programs = []string{"semaphore-exporter", "semaphore-broker", "semaphore-agent", "semaphorectl"}

// Architectures are those that the product's image is made for.
var Architectures = []string{"amd64", "arm64"}

// programDir is where the manifests start the programs.
const programDir = "/usr/local/bin"

// base is all of the product's image but the programs: the directories that the manifests mount something on, as the
// root filesystem is read-only, and the names of two users. There is no shell and no package to patch.
var base = []Entry{
	Dir("/etc/semaphore/bundles", 0o755),
	Dir("/etc/semaphore/subnets", 0o755),
	Dir("/etc/semaphore/tls", 0o755),
	Dir("/run/semaphore", 0o755),
	Dir("/tmp", 0o777|fs.ModeSticky),
	Dir("/var/lib/semaphore-wireguard", 0o755),
	Dir("/var/run/secrets/semaphore", 0o755),
	Dir("/var/run/wireguard", 0o755),
	File("/etc/group", 0o644, "root:x:0:\nsemaphore:x:65532:\n"),
	File("/etc/passwd", 0o644, "root:x:0:0:root:/:/sbin/nologin\nsemaphore:x:65532:65532:semaphore:/:/sbin/nologin\n"),
}

// Release is what the product's image is made of, for one architecture.
type Release struct {
	// Arch is a GOARCH, for which the programs are built.
	Arch string
	// Programs are the files with the programs that Programs names.
	Programs map[string]string
	// Version is the version that the programs report, Revision the commit they are built from ("" where unknown).
	Version, Revision string
	// Created is when that commit was made, so that the same commit gives the same image.
	Created time.Time
	// Uncompressed layers are for a machine's own use.
	Uncompressed bool
}

// Product is the product's image.
func Product(r Release) (v1.Image, error) {
	var programs []Entry
	for _, name := range Programs {
		if err := r.checkProgram(name); err != nil {
			return nil, err
		}
		programs = append(programs, Copy(path.Join(programDir, name), 0o755, r.Programs[name]))
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       "semaphore",
		"org.opencontainers.image.description": "Connects Kubernetes clusters with Calico: pods, Services and policies",
		"org.opencontainers.image.source":      "https://github.com/kube-semaphore/semaphore",
		"org.opencontainers.image.version":     r.Version,
	}
	if r.Revision != "" {
		labels["org.opencontainers.image.revision"] = r.Revision
	}
	return New(Spec{
		Arch: r.Arch, Layers: [][]Entry{base, programs}, Created: r.Created, Uncompressed: r.Uncompressed,
		// As a number, or a kubelet could not know that it is not root.
		Config: v1.Config{User: "65532:65532", Env: []string{"PATH=" + programDir}, Labels: labels},
	})
}

// checkProgram refuses a program that could not run in the image, or would not be the same when built again.
func (r Release) checkProgram(name string) error {
	file, ok := r.Programs[name]
	if !ok {
		return fmt.Errorf("product's image: no program %s is given", name)
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("product's image: program %s: %w", name, err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	var errs []error
	for _, want := range []struct{ key, value, why string }{
		{"GOOS", "linux", "the image is for Linux"},
		{"GOARCH", r.Arch, "the image is for that architecture"},
		{"CGO_ENABLED", "0", "the image has no C library"},
		{"-trimpath", "true", "a program has the path of its checkout otherwise"},
	} {
		if settings[want.key] != want.value {
			errs = append(errs, fmt.Errorf("is built with %s=%s, want %s: %s", want.key, settings[want.key],
				want.value, want.why))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("product's image: program %s (%s): %w", name, file, errors.Join(errs...))
	}
	return nil
}

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

// Reference is the product's image in the manifests, without a tag.
const Reference = "ghcr.io/kube-semaphore/semaphore"

// Programs are the programs of the product, each built from cmd/NAME. They are in the image's PATH.
var Programs = []string{"semaphore-exporter", "semaphore-broker", "semaphore-agent", "semaphorectl"}

// Architectures are the architectures of the product's image.
var Architectures = []string{"amd64", "arm64"}

// programDir is the directory from which the manifests start the programs.
const programDir = "/usr/local/bin"

// base is the product's image without the programs: the mount points of the manifests, because the root filesystem is
// read-only, and the names of two users. There is no shell and no package to patch.
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

// Release describes the product's image for one architecture.
type Release struct {
	// Arch is the GOARCH of the programs.
	Arch string
	// Programs maps the names in Programs to files.
	Programs map[string]string
	// Version is the version that the programs report. Revision is their commit, "" if unknown.
	Version, Revision string
	// Created is the time of that commit, so that the same commit gives the same image.
	Created time.Time
	// Uncompressed layers suit an image that stays on this machine.
	Uncompressed bool
}

// Product builds the product's image. It fails for a missing program, and for one that is not reproducible or not for
// the platform.
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
		// The user is numeric, because a kubelet can check runAsNonRoot only with a number.
		Config: v1.Config{User: "65532:65532", Env: []string{"PATH=" + programDir}, Labels: labels},
	})
}

// checkProgram refuses a program that could not run in the image or is not reproducible.
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

package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/testbed/archive"
	"github.com/kube-semaphore/semaphore/testbed/components"
)

// Names of the images that nodes have besides the product's. They come from no registry; a pod that names them is to
// have the pull policy IfNotPresent, which is the default for these tags, or Never.
const (
	// Image has the program testbed (`testbed echo`, `testbed sleep`), curl, ip, getent, and a shell.
	Image = "testbed.local/testbed:1"
	// CoreDNSImage is that of the cluster's DNS.
	CoreDNSImage = "testbed.local/coredns:1"
	// PauseImage is what keeps the namespaces of each pod.
	PauseImage = "testbed.local/pause:1"
	// ProductImage is the image under the name that deploy/ has.
	ProductImage = "ghcr.io/kube-semaphore/semaphore:main"
)

// makeImages writes the archives of all images into the testbed's directory.
func (tb *Testbed) makeImages(ctx context.Context, builder *components.Builder) ([]string, error) {
	dir := filepath.Join(tb.state.path, "images")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	programs := tb.options.Programs
	if programs == nil {
		done := tb.times.span("", "programs of the checkout are current")
		var err error
		if programs, err = builder.Programs(ctx); err != nil {
			return nil, err
		}
		done()
	}
	defer tb.times.span("", "images")()
	busybox := archive.File{Path: "/bin/busybox", Source: tb.paths.Busybox}
	images := []archive.Image{
		{Name: PauseImage, Files: []archive.File{busybox}, Command: []string{"/bin/busybox", "sleep", "2147483647"}},
		{Name: CoreDNSImage, Files: []archive.File{{Path: "/coredns", Source: tb.paths.CoreDNS}}, Entrypoint: []string{"/coredns"}},
	}
	product := archive.Image{Name: ProductImage, Directories: []string{"/tmp"}}
	for name, path := range programs {
		if strings.HasPrefix(name, "semaphore") {
			product.Files = append(product.Files, archive.File{Path: "/usr/local/bin/" + name, Source: path})
		}
	}
	if len(product.Files) > 0 {
		images = append(images, product)
	}
	if program := programs["testbed"]; program != "" {
		image, err := testbedImage(ctx, program, busybox)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	archives := make([]string, len(images))
	var g errgroup.Group
	for i, image := range images {
		archives[i] = filepath.Join(dir, fmt.Sprintf("%d.tar", i))
		g.Go(func() error { return image.Write(archives[i]) })
	}
	return archives, g.Wait()
}

// applets are what a person at a shell in a pod uses; busybox has them.
var applets = strings.Fields("sh ls cat grep sed awk head tail sort wc tr cut echo printf sleep true false test date hostname id env " +
	"mkdir rm cp mv ln touch chmod ps kill stat find xargs nslookup ping wget nc dd seq timeout tee basename dirname readlink")

// testbedImage is the image of pods that tests and people use.
func testbedImage(ctx context.Context, program string, busybox archive.File) (archive.Image, error) {
	image := archive.Image{
		Name: Image, Directories: []string{"/tmp", "/etc"}, Files: []archive.File{busybox, {Path: "/usr/local/bin/testbed", Source: program}},
		Links: map[string]string{},
		Texts: map[string]string{"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/nsswitch.conf": "hosts: files dns\n"},
	}
	for _, a := range applets {
		image.Links["/bin/"+a] = "busybox"
	}
	sources := []string{program}
	for _, name := range []string{"curl", "ip", "getent", "ss", "bash"} {
		path, err := exec.LookPath(name)
		if err != nil {
			return image, err
		}
		image.Files = append(image.Files, archive.File{Path: "/usr/bin/" + name, Source: path})
		sources = append(sources, path)
	}
	libraries, err := libraries(ctx, sources)
	if err != nil {
		return image, err
	}
	for _, path := range libraries {
		image.Files = append(image.Files, archive.File{Path: path, Source: path})
	}
	return image, nil
}

// libraries are the shared libraries of programs, and what loads them: ldd(1). Static programs have none.
func libraries(ctx context.Context, programs []string) ([]string, error) {
	seen := map[string]bool{}
	var all []string
	for _, program := range programs {
		out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
			return nil, fmt.Errorf("libraries of %s: %w: %s", program, err, out)
		}
		for line := range strings.Lines(string(out)) {
			for _, word := range strings.Fields(line) {
				if strings.HasPrefix(word, "/") && !seen[word] {
					seen[word] = true
					all = append(all, word)
				}
			}
		}
	}
	return all, nil
}

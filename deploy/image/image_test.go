package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// scratch is a directory for the programs that the tests compile.
var scratch string

func TestMain(m *testing.M) {
	loopback.Enter()
	var err error
	if scratch, err = os.MkdirTemp("", "semaphore-image-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(scratch) // best effort, of a test
		os.Exit(code)
	}))
}

// built maps build arguments to the compiled program.
var built = map[string]string{}

// program compiles a small program in its own module, like the product's Programs except for args.
func program(t *testing.T, arch string, args ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles and packs programs")
	}
	how := arch + " " + strings.Join(args, " ")
	if file, ok := built[how]; ok {
		return file
	}
	dir := testkit.Value(os.MkdirTemp(scratch, ""))(t)
	for name, text := range map[string]string{
		"go.mod":  "module example.test/program\n\ngo 1.26.0\n",
		"main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	cmd := exec.CommandContext(t.Context(), "go",
		append(append([]string{"build", "-buildvcs=false", "-o", "program"}, args...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	built[how] = filepath.Join(dir, "program")
	return built[how]
}

func release(t *testing.T, arch string, args ...string) Release {
	t.Helper()
	r := Release{Arch: arch, Programs: map[string]string{}, Version: "v1.2.3", Revision: "0123",
		Created: time.Unix(1700000000, 0).UTC()}
	file := program(t, arch, args...)
	for _, name := range Programs {
		r.Programs[name] = file
	}
	return r
}

func files(t *testing.T, image v1.Image) map[string]*tar.Header {
	t.Helper()
	rc := mutate.Extract(image)
	defer rc.Close()
	found := map[string]*tar.Header{}
	for tr := tar.NewReader(rc); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		testkit.Must(t, err)
		found["/"+strings.Trim(header.Name, "/")] = header
	}
}

// TestProduct checks that the image is for its architecture, has the programs where the manifests start them and the
// other files as documented, that root owns them, and that the only time in it is the given one.
func TestProduct(t *testing.T) {
	for _, arch := range Architectures {
		image := testkit.Value(Product(release(t, arch, "-trimpath")))(t)
		config := testkit.Value(image.ConfigFile())(t)
		if config.OS != "linux" || config.Architecture != arch || !config.Created.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("made for %s: %s/%s of %s", arch, config.OS, config.Architecture, config.Created)
		}
		if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Env, []string{"PATH=/usr/local/bin"}) ||
			c.Entrypoint != nil || c.Cmd != nil ||
			c.Labels["org.opencontainers.image.version"] != "v1.2.3" || c.Labels["org.opencontainers.image.revision"] != "0123" {
			t.Errorf("configuration of the image: %+v", c)
		}
		got := files(t, image)
		for path, mode := range map[string]int64{
			"/usr/local/bin/semaphore-exporter": 0o755, "/usr/local/bin/semaphore-broker": 0o755,
			"/usr/local/bin/semaphore-agent": 0o755,
			"/usr/local/bin/semaphorectl":    0o755, "/tmp": 0o1777, "/etc/passwd": 0o644, "/etc/group": 0o644,
			"/run/semaphore":     0o755,
			"/etc/semaphore/tls": 0o755, "/etc/semaphore/bundles": 0o755, "/etc/semaphore/subnets": 0o755,
			"/var/run/secrets/semaphore": 0o755, "/var/run/wireguard": 0o755,
			"/var/lib/semaphore-wireguard": 0o755,
		} {
			header, ok := got[path]
			if !ok || header.Mode != mode {
				t.Errorf("%s in the image: %+v, want mode %o", path, header, mode)
			}
		}
		for path, header := range got {
			if header.Uid != 0 || header.Gid != 0 || header.Uname != "" || header.ModTime.Unix() != 0 {
				t.Errorf("%s in the image: of %d:%d (%s), changed %s", path, header.Uid, header.Gid, header.Uname, header.ModTime)
			}
		}
		if len(got) != 14+len([]string{"/etc", "/etc/semaphore", "/run", "/usr", "/usr/local", "/usr/local/bin", "/var",
			"/var/lib", "/var/run", "/var/run/secrets"}) {
			t.Errorf("the image has more or less than documented: %q", slices.Sorted(maps.Keys(got)))
		}
	}
}

// TestReproducible checks that the same programs give the same archive, at any place and time.
func TestReproducible(t *testing.T) {
	digest := func(change func(*Release)) v1.Hash {
		r := release(t, "amd64", "-trimpath")
		change(&r)
		platform := testkit.Value(WithSBOM(r))(t)
		file := filepath.Join(t.TempDir(), "archive.tar")
		testkit.Must(t, Write(file, Reference+":v1", platform))
		archive := testkit.Value(os.Open(file))(t)
		defer archive.Close()
		hash, _, err := v1.SHA256(archive)
		testkit.Must(t, err)
		return hash
	}
	first := digest(func(*Release) {})
	if again := digest(func(*Release) {}); again != first {
		t.Errorf("made twice: %s and %s", first, again)
	}
	for what, change := range map[string]func(*Release){
		"version": func(r *Release) { r.Version = "v2" },
		"commit":  func(r *Release) { r.Created = r.Created.Add(time.Second) },
		"program": func(r *Release) { r.Programs["semaphorectl"] = program(t, "amd64", "-trimpath", "-ldflags=-s") },
	} {
		if other := digest(change); other == first {
			t.Errorf("with another %s the archive is the same", what)
		}
	}
}

// TestUnfitPrograms checks that a program that could not run in the image is refused, with its name and the reason.
func TestUnfitPrograms(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Release)
		want   string
	}{
		{"architecture", func(r *Release) { r.Arch = "arm64" }, "is built with GOARCH=amd64, want arm64"},
		{"path of the checkout", func(r *Release) { r.Programs["semaphore-broker"] = program(t, "amd64", "-trimpath=false") },
			"semaphore-broker"},
		{"missing", func(r *Release) { delete(r.Programs, "semaphorectl") }, "no program semaphorectl is given"},
		{"not Go", func(r *Release) { r.Programs["semaphorectl"] = "/bin/true" }, "program semaphorectl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := release(t, "amd64", "-trimpath")
			c.change(&r)
			if _, err := Product(r); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestEntries checks that contradictory entries are refused.
func TestEntries(t *testing.T) {
	for want, entries := range map[string][]Entry{
		"is there twice":           {File("/a", 0o644, "1"), File("/a", 0o644, "2")},
		"want an absolute path":    {File("a", 0o644, "")},
		"path without dots":        {File("/a/../b", 0o644, "")},
		"which is no directory":    {File("/a", 0o644, ""), File("/a/b", 0o644, "")},
		"no such file":             {Copy("/a", 0o644, "/nonexistent")},
		"invalid argument":         {Copy("/a", 0o644, "/dev/null")},
		"/l, which is no director": {Link("/l", "x"), File("/l/b", 0o644, "")},
	} {
		if _, err := New(Spec{Arch: "amd64", Layers: [][]Entry{entries}}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", entries, err, want)
		}
	}
}

// TestSBOM checks that the SBOM has the programs with their hashes and all modules compiled into them.
func TestSBOM(t *testing.T) {
	r := release(t, "arm64", "-trimpath")
	r.Programs["semaphorectl"] = filepath.Join(t.TempDir(), "image") // any program that has modules of others in it
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o",
		r.Programs["semaphorectl"], "./build")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	image := testkit.Value(New(Spec{Arch: r.Arch}))(t)
	data := testkit.Value(sbom(r, image))(t)
	var bom cdx.BOM
	testkit.Must(t, json.Unmarshal(data, &bom))
	names := map[string]string{}
	for _, c := range *bom.Components {
		names[c.Name] = string(c.Type) + " " + c.PackageURL
	}
	for name, want := range map[string]string{
		"example.test/program":                     "application ",
		"std":                                      "library pkg:golang/std@1.",
		"github.com/google/go-containerregistry":   "library pkg:golang/github.com/google/go-containerregistry@v0.",
		"github.com/CycloneDX/cyclonedx-go":        "library pkg:golang/github.com/CycloneDX/cyclonedx-go@v0.",
		"github.com/kube-semaphore/semaphore/none": "",
	} {
		if got := names[name]; !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s in the SBOM: %q, want %q", name, got, want)
		}
	}
	digest := testkit.Value(image.Digest())(t)
	if root := bom.Metadata.Component; root.Name != Reference || (*root.Hashes)[0].Value != digest.Hex {
		t.Errorf("the SBOM is of %+v, want %s", root, digest)
	}
	refs := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		if refs[c.BOMRef] {
			t.Errorf("%s is in the SBOM twice", c.BOMRef)
		}
		refs[c.BOMRef] = true
	}
	for _, d := range *bom.Dependencies {
		for _, ref := range append(*d.Dependencies, d.Ref) {
			if !refs[ref] {
				t.Errorf("the SBOM says that something depends on %s, which it does not list", ref)
			}
		}
	}
}

// TestWriteRelease checks that the archive has an index of both architectures under the reference, and an SBOM for each
// image that refers to it.
func TestWriteRelease(t *testing.T) {
	var platforms []Platform
	for _, arch := range Architectures {
		p := testkit.Value(WithSBOM(release(t, arch, "-trimpath")))(t)
		platforms = append(platforms, p)
	}
	dir := t.TempDir()
	written := testkit.Value(WriteRelease(dir, "v1.2.3", platforms...))(t)
	if len(written) != 3 {
		t.Errorf("written: %q", written)
	}
	for i, arch := range Architectures {
		sbom, err := os.ReadFile(filepath.Join(dir, "semaphore-v1.2.3-linux-"+arch+".cdx.json"))
		if err != nil || string(sbom) != string(platforms[i].SBOM) {
			t.Errorf("SBOM of %s beside the archive: %v", arch, err)
		}
	}
	unpacked := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", filepath.Join(dir, "semaphore-v1.2.3.tar"), "-C",
		unpacked).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	top := testkit.Value(layout.ImageIndexFromPath(unpacked))(t)
	testkit.NoError(t, validate.Index(top))
	manifest := testkit.Value(top.IndexManifest())(t)
	first := manifest.Manifests[0]
	if !first.MediaType.IsIndex() ||
		first.Annotations["io.containerd.image.name"] != "ghcr.io/kube-semaphore/semaphore:v1.2.3" {
		t.Errorf("first in the archive: %+v", first)
	}
	inner := testkit.Value(top.ImageIndex(first.Digest))(t)
	innerManifest := testkit.Value(inner.IndexManifest())(t)
	var subjects, images []string
	for _, d := range innerManifest.Manifests {
		images = append(images, fmt.Sprintf("%s %s", d.Platform, d.Digest))
	}
	for i, d := range manifest.Manifests[1:] {
		artifact := testkit.Value(top.Image(d.Digest))(t)
		m := testkit.Value(artifact.Manifest())(t)
		subjects = append(subjects, fmt.Sprintf("linux/%s %s", Architectures[i], m.Subject.Digest))
		if m.Config.MediaType != mediaTypeSBOM || m.Layers[0].MediaType != mediaTypeSBOM {
			t.Errorf("types of the artifact: %s, %s", m.Config.MediaType, m.Layers[0].MediaType)
		}
	}
	if len(images) != 2 || !slices.Equal(images, subjects) {
		t.Errorf("images %q, SBOMs of %q", images, subjects)
	}
}

// TestPush checks that a registry has the index under the reference afterwards, and returns the SBOM as a referrer of
// the image.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/semaphore:v1.2.3"
	var platforms []Platform
	for _, arch := range Architectures {
		p := testkit.Value(WithSBOM(release(t, arch, "-trimpath")))(t)
		platforms = append(platforms, p)
	}
	pushed := testkit.Value(Push(t.Context(), reference, platforms...))(t)
	tag := testkit.Value(name.NewTag(reference))(t)
	index := testkit.Value(remote.Index(tag, remote.WithContext(t.Context())))(t)
	digest, err := index.Digest()
	if err != nil || !strings.HasSuffix(pushed, "@"+digest.String()) {
		t.Errorf("pushed %s, the registry has %s, %v", pushed, digest, err)
	}
	for _, p := range platforms {
		image := testkit.Value(p.Image.Digest())(t)
		referrers := testkit.Value(remote.Referrers(tag.Context().Digest(image.String()), remote.WithContext(t.Context())))(t)
		manifest := testkit.Value(referrers.IndexManifest())(t)
		if len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != string(mediaTypeSBOM) {
			t.Errorf("what refers to %s: %+v", image, manifest.Manifests)
			continue
		}
		artifact := testkit.Value(remote.Image(tag.Context().Digest(manifest.Manifests[0].Digest.String()),
			remote.WithContext(t.Context())))(t)
		layers := testkit.Value(artifact.Layers())(t)
		rc := testkit.Value(layers[0].Compressed())(t)
		got, err := io.ReadAll(rc)
		testkit.Must(t, errors.Join(err, rc.Close()))
		if string(got) != string(p.SBOM) {
			t.Errorf("the SBOM of %s in the registry is another", image)
		}
	}
}

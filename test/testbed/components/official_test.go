package components

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// hosts is a server of official programs, with the layouts of a registry and of releases, and a checkout that pins
// them: alpha is in an image below another layer, beta and cni/gamma are in an archive, and delta is a file.
type hosts struct {
	t           *testing.T
	address     string // of the server
	repo, cache string
	builder     *Builder
	progress    bytes.Buffer
	asked       atomic.Int64 // requests
	fault       atomic.Pointer[fault]
	image       string // REPOSITORY@DIGEST
	layer       string // the digest of the layer with alpha
	files       map[string][]byte
}

// fault may answer instead of the server.
type fault func(w http.ResponseWriter, r *http.Request) (answered bool)

// testTool has no code of its own: each program is a package of its module.
var testTool = tool{name: "components", programs: []program{
	{name: "alpha", module: "example.test/one", pkg: "example.test/tool/alpha"},
	{name: "beta", module: "example.test/one", pkg: "example.test/tool/beta"},
	{name: "cni/gamma", module: "example.test/one", pkg: "example.test/tool/gamma"},
	{name: "delta", module: "example.test/one", pkg: "example.test/tool/delta"},
}}

func newHosts(t *testing.T) *hosts {
	t.Setenv("CI", "")
	t.Setenv("KUBEBUILDER_ASSETS", "")
	h := &hosts{t: t, repo: t.TempDir(), cache: t.TempDir(), files: map[string][]byte{
		"/two.tar.gz": archive(t, "two/beta", "official beta", "./gamma", "official gamma"),
		"/delta":      []byte("official delta"),
	}}
	h.builder = &Builder{Repository: h.repo, Cache: h.cache, Progress: &h.progress}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		if fault := h.fault.Load(); fault != nil && (*fault)(w, r) {
			return
		}
		if data, ok := h.files[r.URL.Path]; ok {
			_, _ = w.Write(data)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = server.Listener.Addr().String()
	h.push()

	module := filepath.Join("tools", "components")
	h.write(filepath.Join(module, "go.sum"), "")
	h.write(filepath.Join(module, "go.mod"),
		"module example.test/tool\n\ngo 1.26\n\nrequire example.test/one v1.2.3\n\nreplace example.test/one => ./one\n")
	h.write(filepath.Join(module, "one", "go.mod"), "module example.test/one\n\ngo 1.26\n")
	for _, p := range testTool.programs {
		h.write(filepath.Join(module, filepath.Base(p.name), "main.go"), "package main\n\nfunc main() {}\n")
	}
	h.pin(h.address)
	return h
}

// push makes an image of two layers for two architectures.
func (h *hosts) push() {
	h.t.Helper()
	layer := func(data []byte) v1.Layer {
		layer := testkit.Value(tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}))(h.t)
		return layer
	}
	index := v1.ImageIndex(empty.Index)
	for _, arch := range []string{runtime.GOARCH, "other"} {
		program := layer(archive(h.t, "usr/local/bin/alpha", "official alpha for "+arch))
		image := testkit.Value(mutate.AppendLayers(empty.Image, program, layer(archive(h.t, "etc/passwd", "x"))))(h.t)
		if arch == runtime.GOARCH {
			digest := testkit.Value(program.Digest())(h.t)
			h.layer = digest.String()
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	ref := testkit.Value(name.ParseReference(h.address + "/one/alpha:v1.2.3"))(h.t)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	testkit.Must(h.t, remote.WriteIndex(ref, index, remote.WithTransport(transport)))
	digest := testkit.Value(index.Digest())(h.t)
	h.image = "/one/alpha@" + digest.String()
}

// pin writes the pins. The image is at registry.
func (h *hosts) pin(registry string) {
	sum := func(file string) string {
		sum := sha256.Sum256(h.files[file])
		return hex.EncodeToString(sum[:])
	}
	h.write(pinFile, strings.NewReplacer("REGISTRY", registry, "HOST", h.address, "IMAGE", h.image, "GOARCH",
		runtime.GOARCH, "TWO", sum("/two.tar.gz"), "DELTA", sum("/delta")).Replace(`
- {name: alpha, version: v1.2.3, image: REGISTRYIMAGE, programs: {alpha: usr/local/bin/alpha}}
- {name: two, version: v1.2.1, url: "http://HOST/two.tar.gz", sha256: {GOARCH: TWO},
   programs: {beta: two/beta, cni/gamma: gamma}}
- {name: delta, version: v1.2.3, url: "http://HOST/delta", sha256: {GOARCH: DELTA}, programs: {delta: ""}}
`))
}

func (h *hosts) faulty(f fault) { h.fault.Store(&f) }

func (h *hosts) obtain() (*plan, error) {
	h.t.Helper()
	h.progress.Reset()
	plans, err := h.builder.obtain(h.t.Context(), h.repo, h.cache, []tool{testTool}, func(program) bool { return true })
	if err != nil {
		return nil, err
	}
	return plans[0], nil
}

// check compares which of the programs are official, and that the others were built.
func (h *hosts) check(p *plan, official ...string) {
	h.t.Helper()
	for _, m := range testTool.programs {
		data := testkit.Value(os.ReadFile(p.found[m.name]))(h.t)
		content, want := string(data), "official "+filepath.Base(m.name)
		switch is := slices.Contains(official, m.name); {
		case !isProgram(p.found[m.name]):
			h.t.Errorf("%s may not be run", p.found[m.name])
		case is && !strings.HasPrefix(content, want):
			h.t.Errorf("%s is not the official one", p.found[m.name])
		case is == strings.HasPrefix(p.found[m.name], p.dir+"/"):
			h.t.Errorf("%s: official is %v, and built programs are in %s", p.found[m.name], is, p.dir)
		case !is && !strings.HasPrefix(content, "\x7fELF"):
			h.t.Errorf("%s was not built", p.found[m.name])
		}
	}
}

// directories returns the names in the cache without the versions and digests.
func (h *hosts) directories() []string {
	h.t.Helper()
	entries := testkit.Value(os.ReadDir(h.cache))(h.t)
	var names []string
	for _, e := range entries {
		names = append(names, regexp.MustCompile(`-(v[0-9]|[0-9a-f]{16}).*`).ReplaceAllString(e.Name(), ""))
	}
	return names
}

// said fails unless exactly one line of the progress is about the way that was taken, and has all of parts.
func (h *hosts) said(parts ...string) {
	h.t.Helper()
	way := regexp.MustCompile(`(?m)^components: (taking|building from source).*\n`)
	lines := way.FindAllString(h.progress.String(), -1)
	if len(lines) != 1 {
		h.t.Fatalf("%d lines say which way was taken:\n%s", len(lines), &h.progress)
	}
	for _, part := range parts {
		if !strings.Contains(lines[0], part) {
			h.t.Errorf("%q lacks %q", lines[0], part)
		}
	}
}

func (h *hosts) write(file, content string) {
	h.t.Helper()
	to := filepath.Join(h.repo, file)
	testkit.Must(h.t, os.MkdirAll(filepath.Dir(to), 0o755))
	testkit.Must(h.t, os.WriteFile(to, []byte(content), 0o644))
}

// archive makes a .tar.gz of pairs of names and contents.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	entries := tar.NewWriter(packed)
	for pair := range slices.Chunk(files, 2) {
		testkit.Must(t, entries.WriteHeader(&tar.Header{Name: pair[0], Mode: 0o644, Size: int64(len(pair[1]))}))
		testkit.Value(io.WriteString(entries, pair[1]))(t)
	}
	testkit.Must(t, entries.Close())
	testkit.Must(t, packed.Close())
	return out.Bytes()
}

var allOfTestTool = []string{"alpha", "beta", "cni/gamma", "delta"}

// TestOfficial checks that the official programs are taken, each in a directory of its own, and nothing is built; and
// that nothing is asked when they are in the cache.
func TestOfficial(t *testing.T) {
	h := newHosts(t)
	p := testkit.Value(h.obtain())(h.t)
	h.check(p, allOfTestTool...)
	h.said("taking official programs from "+h.address, pinFile, "--source")
	if data, err := os.ReadFile(p.found["alpha"]); string(data) != "official alpha for "+runtime.GOARCH {
		t.Errorf("alpha is %q (%v), another architecture's", data, err)
	}
	want := []string{"official-alpha", "official-delta", "official-two"}
	if got := h.directories(); !slices.Equal(got, want) {
		t.Errorf("the cache has %v, want %v", got, want)
	}
	if !strings.Contains(h.progress.String(), "fetched two v1.2.1 (") || !strings.Contains(h.progress.String(), "3 of 3") {
		t.Errorf("no progress: %s", &h.progress)
	}

	asked := h.asked.Load()
	p = testkit.Value(h.obtain())(h.t)
	h.check(p, allOfTestTool...)
	if now := h.asked.Load(); now != asked || h.progress.Len() > 0 {
		t.Errorf("with all in the cache %d requests, and: %s", now-asked, &h.progress)
	}
}

// TestOfficialArchitecture checks that of an image for several architectures the asked one is taken.
func TestOfficialArchitecture(t *testing.T) {
	h := newHosts(t)
	pins, err := readPins(h.repo, "other") // only an image is pinned for it
	testkit.Must(h.t, err)
	if len(pins) != 1 {
		t.Fatalf("%d pins, want that of alpha", len(pins))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	testkit.Must(h.t, h.builder.fetchAll(t.Context(), &http.Client{Transport: transport}, h.cache, "other", pins))
	data, err := os.ReadFile(filepath.Join(pins[0].dir(h.cache, "other"), "alpha"))
	if string(data) != "official alpha for other" {
		t.Errorf("alpha is %q (%v)", data, err)
	}
}

// TestOfficialRefused checks that nothing but what is pinned is accepted, that the error names the way out, and that
// nothing of it stays or is built instead.
func TestOfficialRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(h *hosts, w http.ResponseWriter, r *http.Request) bool
		want  []string
	}{
		{"another file", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/delta" && answer(w, "another delta")
		}, []string{"official delta v1.2.3", "not the pinned"}},
		{"another archive", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/two.tar.gz" &&
				answer(w, string(archive(h.t, "two/beta", "another beta", "gamma", "another gamma")))
		}, []string{"official two v1.2.1", "not the pinned"}},
		{"an archive with something behind it", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/two.tar.gz" && answer(w, string(h.files["/two.tar.gz"])+"x")
		}, []string{"official two v1.2.1", "not the pinned"}},
		{"a part of a file", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/delta" {
				w.Header().Set("Content-Length", "14")
			}
			return r.URL.Path == "/delta" && answer(w, "official")
		}, []string{"official delta v1.2.3", "unexpected EOF"}},
		{"a file is missing", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/delta" {
				return false
			}
			http.NotFound(w, r)
			return true
		}, []string{"official delta v1.2.3", "/delta: 404 Not Found"}},
		{"another layer", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, h.layer) &&
				answer(w, string(archive(h.t, "usr/local/bin/alpha", "another alpha")))
		}, []string{"official alpha v1.2.3", "sha256"}},
		{"a layer is missing", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, h.layer) {
				return false
			}
			http.NotFound(w, r)
			return true
		}, []string{"official alpha v1.2.3", "404"}},
		{"another image", func(h *hosts, w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/manifests/") && answer(w, `{"schemaVersion": 2}`)
		}, []string{"official alpha v1.2.3", "sha256"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t)
			var asked atomic.Bool // the first request is whether the host answers
			h.faulty(func(w http.ResponseWriter, r *http.Request) bool {
				if asked.CompareAndSwap(false, true) {
					return answer(w, "")
				}
				return c.fault(h, w, r)
			})
			_, err := h.obtain()
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(c.want, "--source", pinFile) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			bad := "official-" + regexp.MustCompile(`official (\w+)`).FindStringSubmatch(c.want[0])[1]
			for _, dir := range h.directories() {
				if dir == bad || !strings.HasPrefix(dir, "official-") {
					t.Errorf("the cache has %s", dir)
				}
			}

			h.fault.Store(nil)
			p := testkit.Value(h.obtain())(h.t)
			h.check(p, allOfTestTool...)
		})
	}
}

func answer(w http.ResponseWriter, content string) bool {
	_, _ = io.WriteString(w, content)
	return true
}

// TestOfficialProgramMissing checks that an archive without one of its programs is an error.
func TestOfficialProgramMissing(t *testing.T) {
	h := newHosts(t)
	h.files["/two.tar.gz"] = archive(t, "two/beta", "official beta")
	h.pin(h.address)
	if _, err := h.obtain(); err == nil || !strings.Contains(err.Error(), "it has no gamma") {
		t.Errorf("an archive without gamma: %v", err)
	}
}

// TestBuiltFromSource checks when nothing is asked, and what is built: all, and the programs of a host that does not
// answer. A built component is used from then on.
func TestBuiltFromSource(t *testing.T) {
	const nobody = "127.0.0.1:1" // nobody listens at the port of tcpmux
	for _, c := range []struct {
		name     string
		set      func(h *hosts)
		official []string
		requests bool
		said     []string
	}{
		{"--source", func(h *hosts) { h.builder.Source = true }, nil, false, []string{"building from source: --source"}},
		{"CI", func(h *hosts) { t.Setenv("CI", "true") }, nil, false, []string{"building from source: CI is set"}},
		{"a host refuses", func(h *hosts) { h.pin(nobody) }, []string{"beta", "cni/gamma", "delta"}, true,
			[]string{"taking official programs from ", "building alpha (" + nobody + ": connect: connection refused)"}},
		{"a proxy answers for the host", func(h *hosts) {
			h.faulty(func(w http.ResponseWriter, _ *http.Request) bool {
				http.Error(w, "no", http.StatusForbidden)
				return true
			})
		}, nil, true, []string{"building from source: no host", "403 Forbidden"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t)
			before := h.asked.Load()
			c.set(h)
			p := testkit.Value(h.obtain())(h.t)
			h.check(p, c.official...)
			h.said(c.said...)
			if asked := h.asked.Load() > before; asked != c.requests {
				t.Errorf("asked is %v, want %v", asked, c.requests)
			}
			t.Setenv("CI", "")
			h.builder.Source = false
			h.fault.Store(nil)
			h.pin(h.address)
			p = testkit.Value(h.obtain())(h.t)
			if c.official == nil {
				h.check(p)
			}
		})
	}
}

// TestPinned checks which pins are of use: those with a missing program, in the minor version of its module.
func TestPinned(t *testing.T) {
	pins := []pin{{Name: "old", Version: "v1.1.9", Programs: map[string]string{"alpha": ""}},
		{Name: "new", Version: "v1.2.0", Programs: map[string]string{"beta": "", "cni/gamma": ""}},
		{Name: "there", Version: "v1.2.3", Programs: map[string]string{"delta": ""}}}
	p := &plan{pinned: map[string]string{"example.test/one": "v1.2.3"}, missing: testTool.programs[:3]}
	if got := pinned(pins, []*plan{p}); len(got) != 1 || got[0].Name != "new" {
		t.Errorf("of use: %v, want only new", got)
	}
}

// TestSourceAfterOfficial checks that --source builds although the official programs are in the cache, and that those
// of one release are not mixed with built ones.
func TestSourceAfterOfficial(t *testing.T) {
	h := newHosts(t)
	testkit.Value(h.obtain())(h.t)
	h.builder.Source = true
	p := testkit.Value(h.obtain())(h.t)
	h.check(p)

	h.builder.Source = false
	testkit.Must(h.t, os.Remove(filepath.Join(p.dir, "beta"))) // as if a build had been interrupted
	p = testkit.Value(h.obtain())(h.t)
	h.check(p, "beta", "cni/gamma")
}

// silent is a host that takes connections and says nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestSilentHosts checks that all hosts together have three seconds.
func TestSilentHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		got := new(Builder).ask(t.Context(), &http.Client{Transport: silent{}}, map[string]string{
			"a.example": "https://a.example/v2/", "b.example": "https://b.example/v2/", "c.example": "https://c.example/file"})
		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("three silent hosts take %s, want 3s", took)
		}
		for host, err := range got {
			if err == nil || err.Error() != "silent for 3s" {
				t.Errorf("%s: %v", host, err)
			}
		}
		if len(got) != 3 {
			t.Errorf("%d hosts, want 3", len(got))
		}
	})
}

// stalled is a host that sends the beginning of a file.
type stalled struct{}

func (stalled) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r,
		Body: struct {
			io.Reader
			io.Closer
		}{io.MultiReader(strings.NewReader("half"), silentReader{r.Context()}), io.NopCloser(nil)}}, nil
}

type silentReader struct{ context.Context }

func (r silentReader) Read([]byte) (int, error) {
	<-r.Done()
	return 0, r.Err()
}

// TestStalledHost checks that a file of which nothing comes any more is an error.
func TestStalledHost(t *testing.T) {
	cache := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := pin{Name: "delta", Version: "v1.2.3", URL: "https://a.example/delta", SHA256: map[string]string{"amd64": "x"},
			Programs: map[string]string{"delta": ""}}
		err := new(Builder).fetchAll(t.Context(), &http.Client{Transport: stalled{}}, cache, "amd64", []pin{p})
		if err == nil || !strings.Contains(err.Error(), "nothing has come for 1m0s") ||
			!strings.Contains(err.Error(), "--source") {
			t.Errorf("a stalled host: %v", err)
		}
	})
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("the cache has %v (%v)", left, err)
	}
}

// TestOfficialPins compares the pins with the tools: their programs, minor versions and digests; and that
// the line is short where nothing answers.
func TestOfficialPins(t *testing.T) {
	t.Setenv("CI", "")
	repo := testkit.Value(FindRepository())(t)
	b := &Builder{}
	var plans []*plan
	for _, tool := range tools {
		p := testkit.Value(b.plan(t.Context(), repo, t.TempDir(), tool, func(p program) bool { return !p.onDemand }))(t)
		plans = append(plans, p)
	}
	version := regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
	for _, arch := range []string{"amd64", "arm64"} {
		pins := testkit.Value(readPins(repo, arch))(t)
		by := map[string]string{} // pins by program
		for _, p := range pins {
			host, ask, err := p.question()
			if err != nil || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p.digest(arch)) ||
				!strings.HasPrefix(ask, "https://"+host+"/") || !version.MatchString(p.Version) || strings.Contains(ask, "$") {
				t.Errorf("%s for %s: digest %q, version %s, URL %s (%v)", p.Name, arch, p.digest(arch), p.Version, ask, err)
			}
			if p.URL != "" && !strings.Contains(p.URL, p.Version+"/") {
				t.Errorf("%s is not version %s", p.URL, p.Version)
			}
			for program := range p.Programs {
				if by[program] != "" {
					t.Errorf("%s is in %s and %s", program, by[program], p.Name)
				}
				by[program] = p.Name
			}
		}
		for _, plan := range plans {
			for _, m := range plan.programs {
				pin := by[m.name]
				delete(by, m.name)
				if strings.HasPrefix(m.name, cniDirectory+"/") && pin != "cni-plugins" {
					t.Errorf("%s comes from %q: all plugins come from one pin", m.name, pin)
				}
				if (pin == "") != (m.module == calicoModule) { // as the pin file says
					t.Errorf("%s of %s for %s: pin %q", m.name, plan.name, arch, pin)
				}
				for _, p := range pins {
					if p.Name == pin && minor(p.Version) != minor(plan.pinned[m.module]) {
						t.Errorf("%s: %s pins %s, tools/%s/go.mod %s; pin that minor version, or remove the pin", m.name, pinFile,
							p.Version, plan.name, plan.pinned[m.module])
					}
				}
			}
		}
		for program, pin := range by {
			t.Errorf("%s: no tool has a program %s", pin, program)
		}
	}
	h := &hosts{t: t}
	h.builder = &Builder{Progress: &h.progress}
	for _, p := range plans {
		p.missing = slices.Clone(p.programs)
	}
	fetch, err := h.builder.official(t.Context(), &http.Client{Transport: offline{}}, repo, t.TempDir(), "amd64", plans)
	if err != nil || len(fetch) > 0 {
		t.Errorf("where nothing answers: %d pins are to be fetched, %v", len(fetch), err)
	}
	h.said("building from source: no host", "(dl.k8s.io, github.com, registry.k8s.io: no address)")
}

// offline is a network without names.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "network is unreachable", Name: r.Host}}
}

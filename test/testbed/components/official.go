package components

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"
)

// pinFile pins official programs. It is a file of the checkout, as the modules are.
const pinFile = "tools/official.yaml"

// hostPatience is how long the hosts of official programs have to answer, all of them together.
const hostPatience = 3 * time.Second

// stallPatience is how long nothing may come of what is fetched.
const stallPatience = time.Minute

// pin is one image or file that a project publishes, with the programs in it.
type pin struct {
	Name    string
	Version string
	Image   string            // REPOSITORY@DIGEST of an index or manifest
	URL     string            // of a file, if there is no Image; $ARCH stands for the GOARCH
	SHA256  map[string]string // of the file, by GOARCH
	// Programs maps names of programs to their paths in the image or archive. A file that is the program has "".
	Programs map[string]string
}

// readPins returns the pins of a checkout for a GOARCH.
func readPins(repo, arch string) ([]pin, error) {
	data, err := os.ReadFile(filepath.Join(repo, pinFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // an older checkout
	}
	if err != nil {
		return nil, err
	}
	var pins []pin
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(string(data), "$ARCH", arch)), &pins); err != nil {
		return nil, fmt.Errorf("%s: %w", pinFile, err)
	}
	return slices.DeleteFunc(pins, func(p pin) bool { return p.digest(arch) == "" }), nil
}

// digest is the digest that decides whether the content of p is accepted, "" if there is none for arch.
func (p pin) digest(arch string) string {
	if p.Image != "" {
		_, digest, _ := strings.Cut(p.Image, "@sha256:")
		return digest
	}
	return p.SHA256[arch]
}

// dir is the directory of the programs of p in the cache.
func (p pin) dir(cache, arch string) string {
	return filepath.Join(cache, fmt.Sprintf("official-%s-%s-%s-%.16s", p.Name, p.Version, arch, p.digest(arch)))
}

// question returns the host of p and a URL that it answers if the programs can be had.
func (p pin) question() (host, ask string, err error) {
	if p.Image == "" {
		u, err := url.Parse(p.URL)
		if err != nil {
			return "", "", err
		}
		return u.Host, p.URL, nil
	}
	ref, err := name.NewDigest(p.Image)
	if err != nil {
		return "", "", err
	}
	registry := ref.Context().Registry
	return registry.Name(), registry.Scheme() + "://" + registry.Name() + "/v2/", nil
}

// pinned returns the pins with a missing program of plans, in the minor version of the program's module.
func pinned(pins []pin, plans []*plan) []pin {
	var use []pin
	for _, p := range pins {
		for _, plan := range plans {
			if slices.ContainsFunc(plan.missing, func(m program) bool {
				_, has := p.Programs[m.name]
				return has && minor(p.Version) == minor(plan.pinned[m.module])
			}) {
				use = append(use, p)
			}
		}
	}
	return use
}

// use takes the programs of p from dir: all that are not installed, so that programs of one release stay together.
func (p *plan) use(official pin, dir string) {
	has := func(m program) bool { _, has := official.Programs[m.name]; return has }
	for _, m := range p.programs {
		if found := p.found[m.name]; has(m) && found == filepath.Join(p.dir, m.name) {
			p.found[m.name] = filepath.Join(dir, m.name)
		}
	}
	p.missing = slices.DeleteFunc(p.missing, has)
}

// official returns the pins that are to be fetched, and takes their programs, and those in the cache, out of plans.
func (b *Builder) official(ctx context.Context, client *http.Client, repo, cache, arch string,
	plans []*plan) ([]pin, error) {
	pins, err := readPins(repo, arch)
	if err != nil {
		return nil, err
	}
	pins = pinned(pins, plans)
	take := func(p pin) {
		for _, plan := range plans {
			plan.use(p, p.dir(cache, arch))
		}
	}
	switch {
	case len(pins) == 0:
		return nil, nil
	case b.Source:
		b.say("building from source: --source is set")
		return nil, nil
	case os.Getenv("CI") != "":
		b.say("building from source: CI is set")
		return nil, nil
	}
	pins = slices.DeleteFunc(pins, func(p pin) bool {
		_, err := os.Stat(p.dir(cache, arch))
		if err == nil {
			take(p)
		}
		return err == nil
	})
	hosts, questions := map[string][]pin{}, map[string]string{}
	for _, p := range pins {
		host, ask, err := p.question()
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", pinFile, p.Name, err)
		}
		hosts[host], questions[host] = append(hosts[host], p), ask
	}
	if len(hosts) == 0 {
		return nil, nil
	}
	fetch, way := choose(hosts, b.ask(ctx, client, questions))
	for _, p := range fetch {
		take(p)
	}
	b.say("%s", way)
	return fetch, nil
}

// choose returns the pins of the hosts that answer, and a line that says which way is taken and why.
func choose(hosts map[string][]pin, silent map[string]error) (fetch []pin, way string) {
	var answering, built, why []string
	reasons := map[string][]string{} // hosts by error
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		err := silent[host]
		if err == nil {
			answering, fetch = append(answering, host), append(fetch, hosts[host]...)
			continue
		}
		reasons[err.Error()] = append(reasons[err.Error()], host)
		for _, p := range hosts[host] {
			built = append(built, p.Name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		why = append(why, strings.Join(reasons[reason], ", ")+": "+reason)
	}
	because := "(" + strings.Join(why, "; ") + ")"
	if len(fetch) == 0 {
		return nil, "building from source: no host of official programs answers " + because
	}
	way = "taking official programs from " + strings.Join(answering, ", ") + ", pinned in " + pinFile + "; "
	if len(built) == 0 {
		return fetch, way + "testbed build --source builds them"
	}
	return fetch, way + "building " + strings.Join(built, ", ") + " " + because
}

// ask asks all hosts at once, each one question, and returns the errors of those that do not answer it.
func (b *Builder) ask(ctx context.Context, client *http.Client, questions map[string]string) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, hostPatience)
	defer cancel()
	silent := map[string]error{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for host, ask := range questions {
		wait.Go(func() {
			err := answers(ctx, client, ask)
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("silent for %s", hostPatience)
			}
			mu.Lock()
			defer mu.Unlock()
			silent[host] = err
		})
	}
	wait.Wait()
	return silent
}

// answers asks for a URL without reading what it has. A redirection is an answer, and so is a registry's demand for a
// token. A proxy's answer instead of the host's is none.
func answers(ctx context.Context, client *http.Client, ask string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, ask, nil)
	if err != nil {
		return err
	}
	once := *client
	once.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := once.Do(request)
	if err != nil {
		return cause(err)
	}
	_ = response.Body.Close()
	if response.StatusCode >= 400 && response.StatusCode != http.StatusUnauthorized {
		return errors.New(response.Status)
	}
	return nil
}

// cause leaves out what a line about a host has already: its URL, name and addresses.
func cause(err error) error {
	var resolve *net.DNSError
	var dial *net.OpError
	var request *url.Error
	switch {
	case errors.As(err, &resolve):
		return errors.New("no address")
	case errors.As(err, &dial):
		return dial.Err
	case errors.As(err, &request):
		return request.Err
	}
	return err
}

// fetchAll fetches pins at once and reports its progress.
func (b *Builder) fetchAll(ctx context.Context, client *http.Client, cache, arch string, pins []pin) error {
	if len(pins) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var bytes, done atomic.Int64
	so := func() string {
		return fmt.Sprintf("%d of %d, %d MB so far", done.Load(), len(pins), bytes.Load()/1e6)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, p := range pins {
		group.Go(func() error {
			err := p.fetch(groupCtx, client, cache, arch, &bytes)
			if stalled := context.Cause(ctx); err != nil && stalled != nil {
				err = stalled
			}
			if err != nil {
				return fmt.Errorf("official %s %s, pinned in %s: %w\n(testbed build --source builds it instead)", p.Name,
					p.Version, pinFile, err)
			}
			done.Add(1)
			b.say("fetched %s %s (%s)", p.Name, p.Version, so())
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	moved, before := time.Now(), int64(0)
	for {
		select {
		case <-tick.C:
			b.say("  fetched %s", so())
			if now := bytes.Load(); now != before {
				moved, before = time.Now(), now
			} else if time.Since(moved) >= stallPatience {
				cancel(fmt.Errorf("nothing has come for %s", stallPatience))
			}
		case err := <-ended:
			return err
		}
	}
}

// fetch makes the directory of p in the cache, which appears with all its programs or not at all.
func (p pin) fetch(ctx context.Context, client *http.Client, cache, arch string, bytes *atomic.Int64) error {
	tmp, err := os.MkdirTemp(cache, ".fetching-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	content, root := filepath.Join(tmp, "content"), filepath.Join(tmp, "root")
	left := map[string]string{} // by path in the image or archive
	for program, in := range p.Programs {
		to := filepath.Join(root, program)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		left[in] = to
	}
	if p.Image != "" {
		err = p.fetchImage(ctx, client, arch, content, left, bytes)
	} else {
		err = p.fetchFile(ctx, client, arch, content, left, bytes)
	}
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("it has no %s", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	return os.Rename(root, p.dir(cache, arch))
}

func (p pin) fetchFile(ctx context.Context, client *http.Client, arch, content string, left map[string]string,
	bytes *atomic.Int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", p.URL, response.Status)
	}
	if err := save(response.Body, content, p.digest(arch), bytes); err != nil {
		return fmt.Errorf("%s: %w", p.URL, err)
	}
	if to, ok := left[""]; ok {
		delete(left, "")
		return errors.Join(os.Chmod(content, 0o755), os.Rename(content, to))
	}
	return unpack(content, left)
}

// fetchImage looks for the programs in the layers of an image, from the last one on, and fetches no layer below.
// Package remote compares manifests with the digests that name them.
func (p pin) fetchImage(ctx context.Context, client *http.Client, arch, content string, left map[string]string,
	bytes *atomic.Int64) error {
	ref, err := name.NewDigest(p.Image)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(client.Transport),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range slices.Backward(layers) {
		if len(left) == 0 {
			break
		}
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		blob, err := layer.Compressed()
		if err != nil {
			return fmt.Errorf("layer %s: %w", digest, err)
		}
		err = save(blob, content, digest.Hex, bytes)
		_ = blob.Close()
		if err == nil {
			err = unpack(content, left)
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", digest, err)
		}
	}
	return nil
}

// save writes all of from to a file, and returns an error if its SHA-256 is not digest.
func save(from io.Reader, to, digest string, bytes *atomic.Int64) error {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(file, hash, counter{bytes}), from); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != digest {
		return fmt.Errorf("what came has the SHA-256 %s, not the pinned %s", got, digest)
	}
	return file.Close()
}

type counter struct{ *atomic.Int64 }

func (c counter) Write(data []byte) (int, error) {
	c.Add(int64(len(data)))
	return len(data), nil
}

// unpack writes the programs in a .tar.gz to the paths that left has for them, and removes them from left.
func unpack(archive string, left map[string]string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	for entries := tar.NewReader(plain); len(left) > 0; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		in := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		to, ok := left[in]
		if !ok || header.Typeflag != tar.TypeReg {
			continue
		}
		program, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(program, entries)
		if err := errors.Join(err, program.Close()); err != nil {
			return err
		}
		delete(left, in)
	}
	return nil
}

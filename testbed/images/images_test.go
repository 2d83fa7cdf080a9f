package images

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/testbed/components"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTagOfCoreDNS checks that the tag of the CoreDNS image is the release that is built.
func TestTagOfCoreDNS(t *testing.T) {
	built, err := os.ReadFile("../../tools/coredns/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, tag, _ := strings.Cut(CoreDNS, ":")
	if !strings.Contains(string(built), "\tgithub.com/coredns/coredns v"+tag+" ") {
		t.Errorf("%s is not what tools/coredns/go.mod says", CoreDNS)
	}
}

func TestParseLibraries(t *testing.T) {
	const linked = `	linux-vdso.so.1 (0x00007fdfa99aa000)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fdfa9731000)
	libz.so.1 => /usr/local/lib/libz.so.1 (0x00007fdfa9700000)
	/lib64/ld-linux-x86-64.so.2 (0x00007fdfa99ac000)
`
	got, err := parseLibraries(linked)
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/usr/local/lib/libz.so.1", "/lib64/ld-linux-x86-64.so.2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for i, want := range []string{"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/local/lib/libz.so.1",
		"/usr/lib64/ld-linux-x86-64.so.2"} {
		if inside := inImage(got[i]); inside != want {
			t.Errorf("library %s is %s in the image, want %s", got[i], inside, want)
		}
	}
	for _, bad := range []string{"	libx.so.1 => not found\n", "	statically linked\n", ""} {
		if got, err := parseLibraries(bad); err == nil {
			t.Errorf("%q: libraries %q, want an error", bad, got)
		}
	}
}

// TestPrune checks that the most recently used archives of each image stay, and a directory that is in use.
func TestPrune(t *testing.T) {
	cache := t.TempDir()
	for i, name := range []string{"a-0123456789abcde0", "a-0123456789abcde1", "a-0123456789abcde2",
		"a-b-0123456789abcde0"} {
		path := filepath.Join(cache, name+".tar")
		used := time.Now().Add(-time.Duration(i) * time.Minute)
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, used, used); err != nil {
			t.Fatal(err)
		}
	}
	for name, age := range map[string]time.Duration{".image-1": time.Minute, ".image-2": 2 * time.Hour} {
		path := filepath.Join(cache, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Now().Add(-age), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(cache, 2); err != nil {
		t.Fatal(err)
	}
	want := []string{".image-1", "a-0123456789abcde0.tar", "a-0123456789abcde1.tar", "a-b-0123456789abcde0.tar"}
	if got := names(t, cache); !slices.Equal(got, want) {
		t.Errorf("the cache has %q, want %q", got, want)
	}
}

// TestEnsure checks that Ensure puts the archives into dir, makes nothing the second time, and that an archive in dir
// outlives its removal from the cache.
func TestEnsure(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the components")
	}
	var progress bytes.Buffer
	builder := &components.Builder{Progress: t.Output()}
	paths, err := builder.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	programs, err := builder.Programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{Cache: t.TempDir(), Progress: &progress}
	first, second := t.TempDir(), t.TempDir()
	archives, err := b.Ensure(t.Context(), first, paths, programs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", &progress)
	var references []string
	for _, a := range archives {
		references = append(references, a.Reference)
		if info, err := os.Stat(a.Path); err != nil || info.Size() == 0 || filepath.Dir(a.Path) != first {
			t.Errorf("archive of %s: %s, %v", a.Reference, a.Path, err)
		}
	}
	if want := []string{Pause, CoreDNS, Testbed, Semaphore}; !slices.Equal(references, want) {
		t.Errorf("images %q, want %q", references, want)
	}
	progress.Reset()
	started := time.Now()
	if _, err := b.Ensure(t.Context(), second, paths, programs); err != nil {
		t.Fatal(err)
	}
	t.Logf("a second time it took %s", time.Since(started))
	if progress.Len() > 0 {
		t.Errorf("a second time: %s", &progress)
	}
	if err := prune(b.Cache, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, first), []string{"coredns.tar", "pause.tar", "semaphore.tar",
		"testbed.tar"}; !slices.Equal(got, want) {
		t.Errorf("after the cache was emptied: %q, want %q", got, want)
	}
	programs["semaphore-agent"] = "/usr/bin/env"
	if _, err := b.Ensure(t.Context(), second, paths, programs); err == nil ||
		!strings.Contains(err.Error(), "program semaphore-agent") {
		t.Errorf("a program that is none of ours: %v", err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

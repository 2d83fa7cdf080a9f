package images

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTagOfCoreDNS checks that the tag of the CoreDNS image is the release that is built.
func TestTagOfCoreDNS(t *testing.T) {
	built := testkit.Value(os.ReadFile("../../../tools/components/go.mod"))(t)
	_, tag, _ := strings.Cut(CoreDNS, ":")
	if !strings.Contains(string(built), "github.com/coredns/coredns v"+tag+"\n") {
		t.Errorf("%s is not what tools/components/go.mod says", CoreDNS)
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

// TestPrune checks that the most recently used directories stay, the lock does, and nothing unfinished.
func TestPrune(t *testing.T) {
	cache := t.TempDir()
	for name, age := range map[string]time.Duration{"a": time.Minute, "b": 0, "c": 2 * time.Minute, "unfinished": 0} {
		path, used := filepath.Join(cache, name), time.Now().Add(-age)
		testkit.Must(t, errors.Join(os.MkdirAll(filepath.Join(path, "file"), 0o755), os.Chtimes(path, used, used)))
	}
	testkit.Must(t, errors.Join(os.WriteFile(filepath.Join(cache, "lock"), nil, 0o644), prune(cache, 2)))
	if got, want := names(t, cache), []string{"a", "b", "lock"}; !slices.Equal(got, want) {
		t.Errorf("the cache has %q, want %q", got, want)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries := testkit.Value(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

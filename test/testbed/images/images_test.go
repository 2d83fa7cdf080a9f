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

package components

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestPackagesOfDebian checks that fetched programs run on this system and are fetched only once.
func TestPackagesOfDebian(t *testing.T) {
	tier.OnlyAll(t, "each bed has these programs")
	if testing.Short() {
		t.Skip("needs the system's package sources")
	}
	cache := t.TempDir()
	b := &Builder{Cache: cache, Progress: t.Output()}
	var paths Paths
	testkit.Must(t, b.ensureDebian(t.Context(), cache, &paths))
	for _, c := range []struct{ program, argument, want string }{
		{paths.Runc, "--version", "runc version 1."},
		{filepath.Join(paths.Bird, "bird"), "--version", "BIRD version 1.6"},
		{filepath.Join(paths.Bird, "bird6"), "--version", "BIRD version 1.6"},
		{paths.Busybox, "--help", "BusyBox v1"},
		{filepath.Join(paths.Bird, "birdcl"), "-h", "control-socket"},
		{filepath.Join(paths.Runit, "sv"), "status", "usage: "},
	} {
		out, _ := exec.CommandContext(t.Context(), c.program, c.argument).CombinedOutput()
		if !strings.Contains(strings.ToLower(string(out)), strings.ToLower(c.want)) {
			t.Errorf("%s %s: no %q in %q", c.program, c.argument, c.want, out)
		}
	}
	fetched := paths
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that whatever it runs fails
	if err := b.ensureDebian(ctx, cache, &paths); err != nil || paths != fetched {
		t.Errorf("a second time: %+v, %v; want %+v from the cache", paths, err, fetched)
	}
}

// TestUnusablePackage checks that a package without the expected program, or with a missing library, is refused by
// name.
func TestUnusablePackage(t *testing.T) {
	root := t.TempDir()
	p := debianPackage{name: "bird", programs: []string{"usr/sbin/bird"}}
	if err := p.finish(t.Context(), root); err == nil ||
		!strings.Contains(err.Error(), "package bird has no program usr/sbin/bird") {
		t.Errorf("a package without its program: %v", err)
	}
	program := filepath.Join(root, "usr", "sbin", "bird")
	testkit.Must(t, os.MkdirAll(filepath.Dir(program), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(root, "x.c"), []byte("int answer(void) { return 0; }\n"), 0o644))
	testkit.Must(t, os.WriteFile(filepath.Join(root, "y.c"),
		[]byte("int answer(void); int main(void) { return answer(); }\n"),
		0o644))
	for _, args := range [][]string{{"-shared", "-o", "libabsent.so", "x.c"}, {"-o", program, "y.c", "-L.", "-labsent"}} {
		testkit.Must(t, command(t.Context(), root, "gcc", args...))
	}
	if err := p.finish(t.Context(), root); err == nil ||
		!strings.Contains(err.Error(), "bird of package bird needs libabsent.so") {
		t.Errorf("a package whose library is not there: %v", err)
	}
}

package components

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestVersions(t *testing.T) {
	for _, c := range []struct{ out, pinned, want string }{
		{"Kubernetes v1.36.3\n", "v1.36.9", "1.36"},
		{"etcd Version: 3.6.5\nGit SHA: Not provided\n", "v3.6.0", "3.6"},
		{"Client Version: v1.36.3\nKustomize Version: v5.8.1\n", "v1.36.3", "1.36"},
	} {
		if got := minor(toldVersion(c.out)); got != c.want || got != minor(c.pinned) {
			t.Errorf("minor version reported by %q: %q, want %q, as pinned by %s", c.out, got, c.want, c.pinned)
		}
	}
	for _, other := range []string{"", "nonsense", "Kubernetes v1.35.3\n", "Kubernetes v1.3.63"} {
		if got := minor(toldVersion(other)); got == "1.36" {
			t.Errorf("%q taken for version 1.36", other)
		}
	}
}

func TestMissingPackages(t *testing.T) {
	got := missingPackages(func(p string) bool { return p != "iptables" && p != "xtables-legacy-multi" && p != "wg" })
	if want := []string{"iptables", "wireguard-tools"}; !slices.Equal(got, want) {
		t.Errorf("missing packages: %v, want %v", got, want)
	}
}

func TestPinnedVersions(t *testing.T) {
	repo := testkit.Value(FindRepository())(t)
	versions := map[string]string{} // of modules of programs: Calico's are in both tools
	for _, tool := range tools {
		pinned := testkit.Value(pinnedVersions(filepath.Join(repo, "tools", tool.name)))(t)
		if _, err := tool.ldflags(pinned); err != nil {
			t.Error(err)
		}
		for _, p := range tool.programs {
			if pinned[p.module] == "" {
				t.Errorf("tools/%s/go.mod requires no %s, for %s", tool.name, p.module, p.name)
			}
			if other := versions[p.module]; other != "" && other != pinned[p.module] {
				t.Errorf("%s has version %s in tools/%s, and %s in another", p.module, pinned[p.module], tool.name, other)
			}
			versions[p.module] = pinned[p.module]
		}
	}
}

// TestSharedVersions checks that what both the product and the components require has one version: otherwise it, and
// all that imports it, is compiled twice.
func TestSharedVersions(t *testing.T) {
	repo := testkit.Value(FindRepository())(t)
	product := testkit.Value(pinnedVersions(repo))(t)
	components := testkit.Value(pinnedVersions(filepath.Join(repo, "tools", "components")))(t)
	shared := 0
	for module, version := range components {
		switch product[module] {
		case "":
		case version:
			shared++
		default:
			t.Errorf("%s: go.mod has %s, tools/components/go.mod %s; go get the newer one in the other", module,
				product[module], version)
		}
	}
	if shared < 50 {
		t.Errorf("%d modules are required by both: this test compares the wrong files", shared)
	}
}

// TestChange makes each kind of change in a copy of a module, whose other files stay as they are.
func TestChange(t *testing.T) {
	source, module, copied := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "copy")
	write := func(dir, file, text string) {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o444))
	}
	for _, file := range []string{"root.go", "a/kept.go", "a/left.go", "a/b/changed.go", "a/b/replaced.go", "c/kept.go"} {
		write(module, file, "once twice twice of "+file)
	}
	write(source, "own.go", "own")
	for _, c := range []struct {
		change
		want, err string
	}{
		{change: change{file: "a/left.go"}},
		{change: change{file: "a/b/replaced.go", with: "own.go"}, want: "own"},
		{change: change{file: "a/b/changed.go", old: "once", new: "1"}, want: "1 twice twice of a/b/changed.go"},
		{change: change{file: "a/b/changed.go", old: "twice"}, err: `a/b/changed.go has "twice" 2 times instead of once`},
		{change: change{file: "a/b/changed.go", old: "once"}, err: `a/b/changed.go has "once" 0 times instead of once`},
		{change: change{file: "a/gone.go"}, err: "no such file"},
	} {
		testkit.Must(t, copyAlong(module, copied, filepath.Dir(c.file)))
		err := c.make(source, filepath.Join(copied, c.file))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: %v, want %q", c.change, err, c.err)
			}
			continue
		}
		testkit.Must(t, err)
		if data, err := os.ReadFile(filepath.Join(copied, c.file)); string(data) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %q (%v), want %q", c.change, data, err, c.want)
		}
	}
	for _, file := range []string{"root.go", "a/kept.go", "c/kept.go"} {
		if data, err := os.ReadFile(filepath.Join(copied, file)); string(data) != "once twice twice of "+file {
			t.Errorf("%s: %q (%v)", file, data, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(copied, "c")); target != filepath.Join(module, "c") {
		t.Errorf("c is %q (%v): a directory without a change is a link", target, err)
	}
}

func TestBuiltName(t *testing.T) {
	for pkg, want := range map[string]string{
		"go.etcd.io/etcd/server/v3":                        "server",
		"k8s.io/kubernetes/cmd/kubectl":                    "kubectl",
		"github.com/containerd/containerd/v2/cmd/ctr":      "ctr",
		"github.com/containernetworking/plugins/main/veth": "veth",
	} {
		if got := builtName(pkg); got != want {
			t.Errorf("%s: %s, want %s", pkg, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	for _, c := range []struct {
		done, total int
		took        time.Duration
		want        string
	}{
		{0, 3000, 15 * time.Second, "0 of 3000 packages are compiled, 15s so far, about 6m15s left"},
		{0, 3000, 10 * time.Minute, "0 of 3000 packages are compiled, 10m0s so far, about 0s left"},
		{1000, 3000, 2 * time.Minute, "1000 of 3000 packages are compiled, 2m0s so far, about 4m0s left"},
		{3000, 3000, 6 * time.Minute, "all 3000 packages are compiled, linking; 6m0s so far"},
	} {
		if got := progress(c.done, c.total, c.took, 6.5); got != c.want {
			t.Errorf("%d of %d after %s: %q, want %q", c.done, c.total, c.took, got, c.want)
		}
	}
}

// TestInstalledProgram checks that a program in KUBEBUILDER_ASSETS is used only if it has the pinned minor version.
func TestInstalledProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	script := filepath.Join(dir, "kube-apiserver")
	testkit.Must(t, os.WriteFile(script, []byte("#!/bin/sh\necho Kubernetes v1.36.1\n"), 0o755))
	var progress bytes.Buffer
	b := Builder{Progress: &progress}
	p := program{name: "kube-apiserver", version: []string{"--version"}}
	if got := b.installed(t.Context(), p, "v1.36.3"); got != script {
		t.Errorf("pinned v1.36.3: %q, want %q", got, script)
	}
	if got := b.installed(t.Context(), p, "v1.37.0"); got == script {
		t.Errorf("pinned v1.37.0: %q is used, which is 1.36", got)
	}
	if !strings.Contains(progress.String(), "is not 1.37") {
		t.Errorf("progress does not say why: %q", &progress)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock := testkit.Value(Lock(t.Context(), path, func() { t.Error("waits for a free lock") }))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	waited := false
	if _, err := Lock(ctx, path, func() { waited = true }); err == nil || !waited {
		t.Errorf("a lock that is held: error %v, waited %v", err, waited)
	}
	unlock()
	again := testkit.Value(Lock(t.Context(), path, func() {}))(t)
	again()
}

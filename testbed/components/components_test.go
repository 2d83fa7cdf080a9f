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
	repo, err := FindRepository()
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if v, err := pinnedVersion(filepath.Join(repo, "tools", tool.name), tool.module); err != nil ||
			!strings.HasPrefix(v, "v") {
			t.Errorf("version of %s: %q, %v", tool.name, v, err)
		}
	}
}

// TestInstalledProgram checks that a program in KUBEBUILDER_ASSETS is used only if it has the pinned minor version.
func TestInstalledProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	script := filepath.Join(dir, "kube-apiserver")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho Kubernetes v1.36.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
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
	unlock, err := Lock(t.Context(), path, func() { t.Error("waits for a free lock") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	waited := false
	if _, err := Lock(ctx, path, func() { waited = true }); err == nil || !waited {
		t.Errorf("a lock that is held: error %v, waited %v", err, waited)
	}
	unlock()
	again, err := Lock(t.Context(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	again()
}

package deploy_test

import (
	"archive/tar"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestWhatShipsIsBuiltFromGoMod checks that each program has the versions of modules that the product's go.mod names. A
// workspace with the testbed's components would raise some of them.
func TestWhatShipsIsBuiltFromGoMod(t *testing.T) {
	programs := testkit.Value((&components.Builder{Progress: t.Output()}).Programs(context.Background()))(t)
	out := testkit.Value(exec.Command("go", "mod", "edit", "-json").Output())(t)
	var mod struct {
		Require []struct{ Path, Version string }
	}
	must(t, json.Unmarshal(out, &mod))
	pinned := map[string]string{}
	for _, required := range mod.Require {
		pinned[required.Path] = required.Version
	}
	for name, program := range programs {
		info := testkit.Value(buildinfo.ReadFile(program))(t)
		if len(info.Deps) < 5 {
			t.Errorf("%s names %d modules", name, len(info.Deps))
		}
		for _, linked := range info.Deps {
			if linked.Replace != nil || linked.Version != pinned[linked.Path] {
				t.Errorf("%s has %s %s, replaced by %v; go.mod has %q", name, linked.Path, linked.Version, linked.Replace,
					pinned[linked.Path])
			}
		}
	}
}

// TestImageFitsManifests checks that every container of the manifests runs the product's image, and that the image has
// its command, the mount point of every volume, and a numeric user that is not root.
func TestImageFitsManifests(t *testing.T) {
	programs := testkit.Value((&components.Builder{Progress: t.Output()}).Programs(context.Background()))(t)
	made := testkit.Value(image.Product(image.Release{Arch: runtime.GOARCH, Programs: programs, Version: "test",
		Uncompressed: true}))(t)
	config := testkit.Value(made.ConfigFile())(t)
	equal(t, "user of the image", config.Config.User, "65532:65532")
	files := map[string]*tar.Header{}
	rc := mutate.Extract(made)
	defer rc.Close()
	for tr := tar.NewReader(rc); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		files["/"+strings.Trim(header.Name, "/")] = header
	}
	// In a program with templates, which call methods by name, the linker keeps all methods of all types.
	for name, most := range map[string]int64{"agent": 18, "broker": 42, "exporter": 38} {
		if header := files["/usr/local/bin/semaphore-"+name]; header.Size > most<<20 {
			t.Errorf("program semaphore-%s has %d bytes; want at most %d MiB", name, header.Size, most)
		}
	}
	isDir := func(name string) bool {
		header, ok := files[name]
		return ok && header.Typeflag == tar.TypeDir
	}
	for name, dir := range map[string]string{
		"all parts": "example/c1",
		"cleanup":   "example/c1-cleanup",
		"userspace": overlay(t, "resources: [DEPLOY/agent]\ncomponents: [DEPLOY/features/userspace-wireguard]\n"),
	} {
		pods := 0
		for _, template := range templates(build(t, dir)) {
			pod := template.Spec
			pods++
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				what := name + ": container " + c.Name
				if repository, tag, _ := strings.Cut(c.Image, ":"); repository != image.Reference || tag == "" || tag == "latest" {
					t.Errorf("%s runs %s", what, c.Image)
				}
				if len(c.Command) == 0 || files[c.Command[0]] == nil || files[c.Command[0]].Mode != 0o755 {
					t.Errorf("%s: command %q is no program of the image", what, c.Command)
				}
				for _, m := range c.VolumeMounts {
					target := m.MountPath
					if m.SubPath != "" {
						target = path.Dir(target) // a file
					}
					if !isDir(target) && !strings.HasPrefix(target, "/dev/") { // the runtime mounts /dev itself
						t.Errorf("%s mounts %s, and the image has no directory %s", what, m.MountPath, target)
					}
				}
			}
			if context := pod.SecurityContext; context.RunAsUser != nil {
				equal(t, name+": user", fmt.Sprint(*context.RunAsUser), "65532")
			}
		}
		if pods == 0 {
			t.Errorf("%s has no pods", name)
		}
	}
}

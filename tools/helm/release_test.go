package helm

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

const (
	repo = "../.."
	// krew is what people install plugins of kubectl with. As a dependency its old client-go would be one of Helm's.
	krew = "sigs.k8s.io/krew/cmd/krew@v0.4.3"
)

// modules loads what make release compiles, and krew: the tests' namespace has no network.
func modules() error {
	if !tier.All() {
		return nil
	}
	tools, err := filepath.Abs(filepath.Join(repo, "bin/tools"))
	if err != nil {
		return err
	}
	for _, c := range []struct {
		dir, env string
		args     []string
	}{
		{repo, "GOOS=darwin", []string{"list", "-deps", "./cmd/semaphorectl"}},
		{repo, "GOOS=windows", []string{"list", "-deps", "./cmd/semaphorectl"}},
		{repo, "GOOS=linux", []string{"list", "-deps", "./cmd/...", "./deploy/image/build"}},
		{".", "GOOS=linux", []string{"list", "-deps", "tool"}},
		{".", "GOBIN=" + tools, []string{"install", krew}},
	} {
		cmd := exec.Command("go", c.args...)
		cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return nil
}

// call runs a program in a directory, and returns what it prints to standard output.
func call(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, &out, &errs)
	}
	return out.String()
}

// images checks that each container of the three parts has an image.
func images(t *testing.T, cfg *rest.Config, want string) {
	t.Helper()
	apps := kubernetes.NewForConfigOrDie(cfg).AppsV1()
	got := map[string]string{}
	deployments := testkit.Value(apps.Deployments("semaphore").List(t.Context(), metav1.ListOptions{}))(t)
	for _, d := range deployments.Items {
		got[d.Name] = d.Spec.Template.Spec.Containers[0].Image
	}
	daemons := testkit.Value(apps.DaemonSets("semaphore").List(t.Context(), metav1.ListOptions{}))(t)
	for _, d := range daemons.Items {
		got[d.Name] = d.Spec.Template.Spec.Containers[0].Image
	}
	if !maps.Equal(got, map[string]string{"semaphore-exporter": want, "semaphore-broker": want, "semaphore-agent": want}) {
		t.Errorf("the parts have the images %v, want %s", got, want)
	}
}

// TestReleaseFiles makes a release without a network, and installs it from its files alone: by the chart, by the
// manifests, and by semaphorectl as krew installs it. All of them name the image that the archive has.
func TestReleaseFiles(t *testing.T) {
	tier.OnlyAll(t, "it compiles semaphorectl for five platforms; TestSameObjects has the chart, deploy/image the image")
	const version = "v0.1.0-rc.1"
	dir := filepath.Join(t.TempDir(), "release")
	release := func() string {
		call(t, repo, []string{"GOPROXY=off", "MAKEFLAGS="}, "make", "release", "VERSION="+version, "RELEASE="+dir)
		return string(testkit.Value(os.ReadFile(filepath.Join(dir, "SHA256SUMS")))(t))
	}
	sums := release()
	if again := release(); again != sums {
		t.Errorf("the same commit and version give\n%s\nand then\n%s", sums, again)
	}
	file := func(name string) string { return filepath.Join(dir, name) }

	call(t, dir, nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	named := []string{"SHA256SUMS"}
	for line := range strings.Lines(sums) {
		named = append(named, strings.Fields(line)[1])
	}
	var there []string
	for _, e := range testkit.Value(os.ReadDir(dir))(t) {
		there = append(there, e.Name())
	}
	slices.Sort(named)
	if !slices.Equal(named, there) || len(there) != 12 {
		t.Errorf("SHA256SUMS names %v; there are %v", named, there)
	}

	image := imageOf(t, dir, version)
	t.Run("chart", func(t *testing.T) {
		r := newRelease(t, "")
		chart := testkit.Value(loader.Load(file("semaphore-0.1.0-rc.1.tgz")))(t)
		if chart.AppVersion() != version {
			t.Errorf("the chart has appVersion %q", chart.AppVersion())
		}
		install := action.NewInstall(r.helm)
		install.ReleaseName, install.Namespace, install.CreateNamespace = "semaphore", "semaphore", true
		testkit.Value(install.Run(chart, given(t, values+remotes)))(t)
		images(t, r.cfg, image)
	})
	t.Run("manifests", func(t *testing.T) {
		cfg, unpacked := kubetest.Start(t), t.TempDir()
		call(t, unpacked, nil, "tar", "-xzf", file("semaphore-manifests-"+version+".tar.gz"))
		call(t, unpacked, nil, kubectl(t), "--kubeconfig", kubetest.Kubeconfig(t, cfg), "apply", "-k", "deploy/example/c1")
		images(t, cfg, image)
	})
	t.Run("semaphorectl", func(t *testing.T) {
		root := t.TempDir()
		env := []string{"KREW_ROOT=" + root, "KREW_NO_UPGRADE_CHECK=1", "PATH=" + root + "/bin:" + os.Getenv("PATH")}
		archive := func(platform string) string { return file("semaphorectl-" + platform + ".tar.gz") }
		for _, platform := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64", "windows-amd64"} {
			goos, goarch, _ := strings.Cut(platform, "-")
			env := append(env, "KREW_ROOT="+t.TempDir(), "KREW_OS="+goos, "KREW_ARCH="+goarch)
			if goos == runtime.GOOS && goarch == runtime.GOARCH {
				env = append(env, "KREW_ROOT="+root)
			}
			// It compares the archive with the manifest's checksum.
			call(t, dir, env, repoFile(t, "bin/tools/krew"), "install", "--manifest", file("krew-semaphore.yaml"),
				"--archive", archive(platform))
		}
		kubeconfig, cfg := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", true)
		if got := call(t, dir, env, kubectl(t), "semaphore", "version"); !strings.Contains(got, version) {
			t.Errorf("kubectl semaphore version: %s", got)
		}
		call(t, dir, env, kubectl(t), "semaphore", "install", "--context", "c1", "--kubeconfig", kubeconfig)
		repository, _, _ := strings.Cut(image, "@")
		images(t, cfg, repository+":"+version)
	})
}

func repoFile(t *testing.T, name string) string {
	return testkit.Value(filepath.Abs(filepath.Join(repo, name)))(t)
}

func kubectl(t *testing.T) string {
	return testkit.Value(components.Ensure(t.Context(), t.Output()))(t).Kubectl
}

// imageOf checks the archive of the image, that its programs have the version, and that the SBOMs are of it. It returns
// the image's name by its digest.
func imageOf(t *testing.T, dir, version string) string {
	t.Helper()
	unpacked := t.TempDir()
	call(t, unpacked, nil, "tar", "-xf", filepath.Join(dir, "semaphore-"+version+".tar"))
	top := testkit.Value(layout.ImageIndexFromPath(unpacked))(t)
	manifest := testkit.Value(top.IndexManifest())(t).Manifests[0]
	repository, tag, _ := strings.Cut(manifest.Annotations["io.containerd.image.name"], ":")
	if tag != version {
		t.Errorf("the archive's image is %v", manifest.Annotations)
	}
	index := testkit.Value(top.ImageIndex(manifest.Digest))(t)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		digest := testkit.Value(index.IndexManifest())(t).Manifests[0].Digest
		found := false
		for _, m := range testkit.Value(index.IndexManifest())(t).Manifests {
			if match.Platforms(v1.Platform{OS: "linux", Architecture: arch})(m) {
				digest, found = m.Digest, true
			}
		}
		sbom := testkit.Value(os.ReadFile(filepath.Join(dir, "semaphore-"+version+"-linux-"+arch+".cdx.json")))(t)
		if !found || !bytes.Contains(sbom, []byte(digest.Hex)) {
			t.Errorf("%s: there is no image, or the SBOM is not of %s", arch, digest)
		}
		if arch == runtime.GOARCH {
			runPrograms(t, testkit.Value(index.Image(digest))(t), version)
		}
	}
	return repository + "@" + manifest.Digest.String()
}

// runPrograms runs each program of an image.
func runPrograms(t *testing.T, image v1.Image, version string) {
	t.Helper()
	files, dir, ran := mutate.Extract(image), t.TempDir(), 0
	defer files.Close()
	for tr := tar.NewReader(files); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		if !strings.HasPrefix(header.Name, "usr/local/bin/semaphore") {
			continue
		}
		program := filepath.Join(dir, path.Base(header.Name))
		testkit.Must(t, os.WriteFile(program, testkit.Value(io.ReadAll(tr))(t), 0o755))
		if got := call(t, dir, nil, program, "--version"); !strings.Contains(got, version) {
			t.Errorf("%s --version: %s", header.Name, got)
		}
		ran++
	}
	if ran != 4 {
		t.Errorf("the image has %d programs", ran)
	}
}

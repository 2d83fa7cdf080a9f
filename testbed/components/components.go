// Package components finds or builds the programs that a testbed runs: the Kubernetes control plane and kubelet, etcd,
// containerd, the reference CNI plugins, CoreDNS and Calico in the versions that the modules below tools/ pin; the
// other files of Calico's images; runc, BIRD, runit and busybox from Debian; and the programs of this checkout. It also
// lists the few system programs that a testbed calls.
//
// The package starts no component and imports nothing of this module.
package components

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// APIServerGC is a variable for the environment of kube-apiserver: it collects its garbage less often. On processors
// that others want too, as in the lanes of make test, a start takes 2.9 seconds of their time instead of 4.1 (load 67).
// On a quiet machine it gains nothing. It keeps 0.1 GB more memory.
const APIServerGC = "GOGC=400"

// Paths are the paths of the components.
type Paths struct {
	Etcd              string
	APIServer         string
	ControllerManager string
	Scheduler         string
	Kubelet           string
	KubeProxy         string
	Kubectl           string
	CoreDNS           string

	// Containerd finds ContainerdShim through its PATH, which must include the directory of the shim.
	Containerd     string
	ContainerdShim string
	Ctr            string
	Runc           string
	// CNIPlugins is a directory with the reference plugins: loopback, portmap, bandwidth, bridge and host-local.
	CNIPlugins string

	// CalicoNode is the program of the calico/node image. Its flags select a role: -startup, -felix, -confd and so on.
	CalicoNode string
	// CalicoCNI is the CNI plugin "calico". Under the name "calico-ipam" it is the IPAM plugin.
	CalicoCNI string
	// CalicoCNIInstall writes the CNI configuration and its kubeconfig, like the calico/cni image.
	CalicoCNIInstall      string
	CalicoKubeControllers string
	// CalicoNodeFiles is a directory with the other files of the calico/node image: etc/ (calico, confd's templates,
	// service, rc.local) and sbin/ (start_runit and others).
	CalicoNodeFiles string
	// CalicoManifest is Calico's calico.yaml: CRDs, ServiceAccounts, RBAC, configuration, DaemonSet and Deployment.
	CalicoManifest string

	// Bird is a directory with bird, birdc and birdcl.
	Bird string
	// Runit is a directory with runsvdir, runsv, sv, svlogd and chpst.
	Runit string
	// Busybox is statically linked.
	Busybox string

	// CalicoAPIServer serves projectcalico.org/v3 as an aggregated API.
	CalicoAPIServer string
	// CalicoCRDs is a directory with a YAML file for each CRD of crd.projectcalico.org.
	CalicoCRDs string
}

// Builder finds and builds components for one checkout.
type Builder struct {
	// Repository is the checkout. The default is the result of FindRepository.
	Repository string
	// Cache is the directory for built components. The default is CacheDir.
	Cache string
	// Progress receives a line for each step and while a build runs. It may be nil.
	Progress io.Writer
}

// Ensure returns components that are ready to run and builds the missing ones: minutes the first time, milliseconds
// afterwards. If several processes call it at once, one builds and the others wait.
func Ensure(ctx context.Context, progress io.Writer) (Paths, error) {
	return (&Builder{Progress: progress}).Ensure(ctx)
}

// tool is a module below tools/ and the programs built from it.
type tool struct {
	name   string
	module string // its version in tools/NAME/go.mod is the version of the programs
	// vars are linker variables and their values. An empty value stands for the pinned version.
	vars     map[string]string
	programs []program
	// dir is the field for the directory of all programs. It may be nil.
	dir func(*Paths) *string
}

// program is one program of a tool.
type program struct {
	name    string
	pkg     string
	path    func(*Paths) *string // may be nil
	version []string             // arguments that make it print its version; nil if an installed program is never used
	minutes float64              // build time on two cores, after the programs before it and with nothing else cached
}

const calicoModule = "github.com/projectcalico/calico"

// calicoVersion is the release of the pinned Calico commit, according to the manifests in that commit.
const calicoVersion = "v3.28.5"

var tools = []tool{
	{name: "etcd", module: "go.etcd.io/etcd/server/v3", programs: []program{
		{"etcd", "go.etcd.io/etcd/server/v3", func(p *Paths) *string { return &p.Etcd }, []string{"--version"}, 0.5},
	}},
	{
		name: "kubernetes", module: "k8s.io/kubernetes",
		// Without these variables, apiserver, kubelet and clients report version v0.0.0-master.
		vars: map[string]string{"k8s.io/component-base/version.gitVersion": "",
			"k8s.io/client-go/pkg/version.gitVersion": ""},
		programs: []program{
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", func(p *Paths) *string { return &p.APIServer },
				[]string{"--version"}, 5},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager",
				func(p *Paths) *string { return &p.ControllerManager }, []string{"--version"}, 1.5},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", func(p *Paths) *string { return &p.Scheduler },
				[]string{"--version"}, 0.2},
			{"kubelet", "k8s.io/kubernetes/cmd/kubelet", func(p *Paths) *string { return &p.Kubelet },
				[]string{"--version"}, 0.3},
			{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", func(p *Paths) *string { return &p.KubeProxy },
				[]string{"--version"}, 0.2},
			{"kubectl", "k8s.io/kubernetes/cmd/kubectl", func(p *Paths) *string { return &p.Kubectl },
				[]string{"version", "--client"}, 0.5},
		},
	},
	{name: "containerd", module: "github.com/containerd/containerd/v2",
		vars: map[string]string{"github.com/containerd/containerd/v2/version.Version": ""}, programs: []program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd",
				func(p *Paths) *string { return &p.Containerd }, nil, 2},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
				func(p *Paths) *string { return &p.ContainerdShim }, nil, 0.2},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr", func(p *Paths) *string { return &p.Ctr }, nil, 0.2},
		}},
	{
		name: "cni", module: cniModule, dir: func(p *Paths) *string { return &p.CNIPlugins },
		vars: map[string]string{cniModule + "/pkg/utils/buildversion.BuildVersion": ""},
		programs: []program{
			{"loopback", cniModule + "/plugins/main/loopback", nil, nil, 0.2},
			{"bridge", cniModule + "/plugins/main/bridge", nil, nil, 0.1},
			{"host-local", cniModule + "/plugins/ipam/host-local", nil, nil, 0.1},
			{"portmap", cniModule + "/plugins/meta/portmap", nil, nil, 0.1},
			{"bandwidth", cniModule + "/plugins/meta/bandwidth", nil, nil, 0.1},
		},
	},
	{name: "coredns", module: "github.com/coredns/coredns", programs: []program{
		{"coredns", "github.com/coredns/coredns", func(p *Paths) *string { return &p.CoreDNS }, nil, 3},
	}},
	{
		name: "calico", module: calicoModule,
		vars: map[string]string{"main.VERSION": calicoVersion, calicoModule +
			"/node/pkg/lifecycle/startup.VERSION": calicoVersion},
		programs: []program{
			{"calico-node", calicoModule + "/node/cmd/calico-node", func(p *Paths) *string { return &p.CalicoNode }, nil, 3},
			{"calico", calicoModule + "/cni-plugin/cmd/calico", func(p *Paths) *string { return &p.CalicoCNI }, nil, 0.2},
			{"install", calicoModule + "/cni-plugin/cmd/install",
				func(p *Paths) *string { return &p.CalicoCNIInstall }, nil, 0.2},
			{"kube-controllers", calicoModule + "/kube-controllers/cmd/kube-controllers",
				func(p *Paths) *string { return &p.CalicoKubeControllers }, nil, 0.5},
			{"calico-apiserver", calicoModule + "/apiserver/cmd/apiserver",
				func(p *Paths) *string { return &p.CalicoAPIServer }, nil, 1},
		},
	},
}

const cniModule = "github.com/containernetworking/plugins"

// Ensure is the package function Ensure with the settings of b.
func (b *Builder) Ensure(ctx context.Context) (Paths, error) {
	var paths Paths
	repo, err := b.repository()
	if err != nil {
		return paths, err
	}
	cache, err := b.cache()
	if err != nil {
		return paths, err
	}
	unlock, err := Lock(ctx, filepath.Join(cache, "lock"), func() {
		b.say("another process is building components; waiting for it")
	})
	if err != nil {
		return paths, err
	}
	defer unlock()
	for _, t := range tools {
		if err := b.ensure(ctx, repo, cache, t, &paths); err != nil {
			return paths, fmt.Errorf("component %s: %w", t.name, err)
		}
	}
	if err := b.ensureDebian(ctx, cache, &paths); err != nil {
		return paths, err
	}
	return paths, nil
}

// ensure sets the paths of one tool's programs and builds the missing ones.
func (b *Builder) ensure(ctx context.Context, repo, cache string, t tool, paths *Paths) error {
	source := filepath.Join(repo, "tools", t.name)
	pinned, err := pinnedVersion(source, t.module)
	if err != nil {
		return err
	}
	ldflags := t.ldflags(pinned)
	key, err := cacheKey(ctx, source, ldflags)
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, t.name+"-"+key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var missing []program
	for _, p := range t.programs {
		built := filepath.Join(dir, p.name)
		found := built
		if !isProgram(built) {
			if found = b.installed(ctx, p, pinned); found == "" {
				found, missing = built, append(missing, p)
			}
		}
		if p.path != nil {
			*p.path(paths) = found
		}
	}
	if t.dir != nil {
		*t.dir(paths) = dir
	}
	if len(missing) > 0 {
		if err := b.build(ctx, source, dir, ldflags, t, pinned, missing); err != nil {
			return err
		}
	}
	if t.module == calicoModule {
		return b.ensureCalicoFiles(ctx, source, dir, paths)
	}
	return nil
}

// installed returns the path of a program in KUBEBUILDER_ASSETS or PATH with the pinned minor version, or "".
func (b *Builder) installed(ctx context.Context, p program, pinned string) string {
	if p.version == nil {
		return ""
	}
	var candidates []string
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		candidates = append(candidates, filepath.Join(assets, p.name))
	}
	if path, err := exec.LookPath(p.name); err == nil {
		candidates = append(candidates, path)
	}
	for _, path := range candidates {
		if !isProgram(path) {
			continue
		}
		out, err := exec.CommandContext(ctx, path, p.version...).Output()
		if err != nil || minor(toldVersion(string(out))) != minor(pinned) {
			b.say("%s is not %s: not used", path, minor(pinned))
			continue
		}
		b.say("using %s", path)
		return path
	}
	return ""
}

// build builds programs of a tool into dir. Each appears there complete or not at all.
func (b *Builder) build(ctx context.Context, source, dir, ldflags string, t tool, version string,
	programs []program) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, p := range programs {
		// Name each program explicitly: by default it would be named after its package.
		args := []string{"build", "-trimpath", "-ldflags=" + ldflags, "-o", filepath.Join(tmp, p.name), p.pkg}
		what := fmt.Sprintf("%s %s", p.name, version)
		if err := b.run(ctx, what, p.minutes, source, "go", args...); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(tmp, p.name), filepath.Join(dir, p.name)); err != nil {
			return err
		}
	}
	return nil
}

func (t tool) ldflags(version string) string {
	flags := "-s -w"
	for _, name := range slices.Sorted(maps.Keys(t.vars)) {
		flags += " -X " + name + "=" + cmp.Or(t.vars[name], version)
	}
	return flags
}

// cacheKey identifies the pinned versions, the compiler and the flags of a build.
func cacheKey(ctx context.Context, source, ldflags string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, ldflags)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
	}
	cmd := goCommand(ctx, source, "env", "GOVERSION", "GOARCH")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	h.Write(out)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// pinnedVersion returns the version of a module that tools/NAME/go.mod requires.
func pinnedVersion(source, module string) (string, error) {
	file := filepath.Join(source, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == module {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s requires no %s", file, module)
}

// toldVersion parses the version in the first line of a program's output: "Kubernetes v1.36.3", "etcd Version: 3.6.5",
// "Client Version: v1.36.3".
func toldVersion(out string) string {
	line, _, _ := strings.Cut(out, "\n")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return ""
	}
	return fields[len(fields)-1]
}

// minor returns "MAJOR.MINOR" of a version, with or without a leading v.
func minor(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 3 {
		return version
	}
	return parts[0] + "." + parts[1]
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func (b *Builder) cache() (string, error) {
	dir := b.Cache
	if dir == "" {
		var err error
		if dir, err = CacheDir(); err != nil {
			return "", err
		}
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// CacheDir returns the cache directory that all checkouts of a user share.
func CacheDir() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep built components: %w", err)
	}
	return filepath.Join(user, "semaphore-testbed"), nil
}

func (b *Builder) repository() (string, error) {
	if b.Repository != "" {
		return filepath.Abs(b.Repository)
	}
	return FindRepository()
}

// Module is the module path of a checkout.
const Module = "github.com/kube-semaphore/semaphore"

// FindRepository returns the checkout around the working directory or, failing that, around the running program.
func FindRepository() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil {
				if first, _, _ := strings.Cut(string(data), "\n"); strings.TrimSpace(first) == "module "+Module {
					return dir, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no checkout of %s around %s: run it in one", Module, strings.Join(starts, " or "))
}

// patience is the number of attempts before Lock reports that it waits. The check that nothing needs to be built takes
// less.
const patience = 5

// Lock takes the lock file. It calls wait once if that takes long.
func Lock(ctx context.Context, path string, wait func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing the file releases the lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		if attempt == patience {
			wait()
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *Builder) say(format string, args ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "components: "+format+"\n", args...)
	}
}

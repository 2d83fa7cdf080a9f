// Package components finds, fetches or builds the programs that a testbed runs: the Kubernetes control plane and
// kubelet, etcd, containerd, the reference CNI plugins, CoreDNS and Calico in the versions that the modules below
// tools/ pin; the other files of Calico's images; runc, BIRD, runit and busybox from Debian; and the programs of this
// checkout. It also lists the few system programs that a testbed calls.
//
// The package starts no component.
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
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// CollectsLess is a variable for the environment of kube-apiserver and kubectl: they collect their garbage less often.
// On processors that others want too, as in the lanes of make test, a start of the apiserver takes 2.9 seconds of their
// time instead of 4.1 (load 67), and keeps 0.1 GB more memory. On a quiet machine it gains nothing. `kubectl apply`
// takes 1.6 instead of 2.0 seconds.
const CollectsLess = "GOGC=400"

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

	// CalicoCRDs is a directory with a YAML file for each CRD of crd.projectcalico.org.
	CalicoCRDs string
}

// Builder finds, fetches and builds components for one checkout.
type Builder struct {
	// Repository is the checkout. The default is the result of FindRepository.
	Repository string
	// Cache is the directory for components. The default is CacheDir.
	Cache string
	// Progress receives a line for each step and while a step runs. It may be nil.
	Progress io.Writer
	// Source builds what is missing, even if a project's own programs can be had. So does the variable CI.
	Source bool

	saying sync.Mutex
}

// Ensure returns components that are ready to run. It fetches the missing ones where the hosts of official programs
// answer, and builds the others: minutes the first time, milliseconds afterwards. If several processes call it at once,
// one works and the others wait.
func Ensure(ctx context.Context, progress io.Writer) (Paths, error) {
	return (&Builder{Progress: progress}).Ensure(ctx)
}

// tool is a module below tools/. One go build compiles all of its programs, so that what they share is compiled once.
type tool struct {
	name string
	// own are the directories of the module that have code.
	own []string
	// vars are linker variables. A value that is the path of a module stands for the module's pinned version.
	vars     map[string]string
	programs []program
	minutes  float64  // build time of all on two cores with an empty cache
	flags    []string // of go build, after goFlags
	changes  []change
}

// program is one program of a tool.
type program struct {
	name     string // below the tool's directory in the cache
	module   string // whose pinned version is the program's
	pkg      string
	path     func(*Paths) *string // may be nil
	version  []string             // arguments that make it print its version; nil if an installed program is never used
	onDemand bool                 // Ensure leaves it out: few use it
}

const (
	calicoModule     = "github.com/projectcalico/calico"
	cniModule        = "github.com/containernetworking/plugins"
	containerdModule = "github.com/containerd/containerd/v2"
	corednsModule    = "github.com/coredns/coredns"
	etcdModule       = "go.etcd.io/etcd/server/v3"
	kubernetesModule = "k8s.io/kubernetes"
)

// calicoVersion is the release of the pinned Calico commit, according to the manifests in that commit.
const calicoVersion = "v3.28.5"

// tools are built in this order. Calico's API server needs other versions of Kubernetes' libraries, and is a module of
// its own.
var tools = []tool{
	{
		name: "components", own: []string{"bpfproxy", "coredns", "ec2", "ec2/types"}, minutes: 4,
		flags: componentFlags, changes: changes,
		vars: map[string]string{
			// Without these variables, apiserver, kubelet and clients report version v0.0.0-master.
			"k8s.io/component-base/version.gitVersion":         kubernetesModule,
			"k8s.io/client-go/pkg/version.gitVersion":          kubernetesModule,
			containerdModule + "/version.Version":              containerdModule,
			cniModule + "/pkg/utils/buildversion.BuildVersion": cniModule,
			"main.VERSION": calicoVersion,
			calicoModule + "/node/pkg/lifecycle/startup.VERSION": calicoVersion,
		},
		programs: []program{
			{name: "etcd", module: etcdModule, pkg: etcdModule, path: func(p *Paths) *string { return &p.Etcd },
				version: []string{"--version"}},
			kubernetes("kube-apiserver", func(p *Paths) *string { return &p.APIServer }, "--version"),
			kubernetes("kube-controller-manager", func(p *Paths) *string { return &p.ControllerManager }, "--version"),
			kubernetes("kube-scheduler", func(p *Paths) *string { return &p.Scheduler }, "--version"),
			kubernetes("kubelet", func(p *Paths) *string { return &p.Kubelet }, "--version"),
			kubernetes("kube-proxy", func(p *Paths) *string { return &p.KubeProxy }, "--version"),
			kubernetes("kubectl", func(p *Paths) *string { return &p.Kubectl }, "version", "--client"),
			{name: "containerd", module: containerdModule, pkg: containerdModule + "/cmd/containerd",
				path: func(p *Paths) *string { return &p.Containerd }},
			{name: "containerd-shim-runc-v2", module: containerdModule, pkg: containerdModule + "/cmd/containerd-shim-runc-v2",
				path: func(p *Paths) *string { return &p.ContainerdShim }},
			{name: "ctr", module: containerdModule, pkg: containerdModule + "/cmd/ctr",
				path: func(p *Paths) *string { return &p.Ctr }},
			{name: cniDirectory + "/loopback", module: cniModule, pkg: cniModule + "/plugins/main/loopback"},
			{name: cniDirectory + "/bridge", module: cniModule, pkg: cniModule + "/plugins/main/bridge"},
			{name: cniDirectory + "/host-local", module: cniModule, pkg: cniModule + "/plugins/ipam/host-local"},
			{name: cniDirectory + "/portmap", module: cniModule, pkg: cniModule + "/plugins/meta/portmap"},
			{name: cniDirectory + "/bandwidth", module: cniModule, pkg: cniModule + "/plugins/meta/bandwidth"},
			{name: "coredns", module: corednsModule, pkg: Module + "/tools/components/coredns",
				path: func(p *Paths) *string { return &p.CoreDNS }},
			calico("calico-node", "/node/cmd/calico-node", func(p *Paths) *string { return &p.CalicoNode }),
			calico("calico", "/cni-plugin/cmd/calico", func(p *Paths) *string { return &p.CalicoCNI }),
			calico("install", "/cni-plugin/cmd/install", func(p *Paths) *string { return &p.CalicoCNIInstall }),
			calico("kube-controllers", "/kube-controllers/cmd/kube-controllers",
				func(p *Paths) *string { return &p.CalicoKubeControllers }),
		},
	},
	{
		name: calicoAPIServer, minutes: 1.5, flags: apiServerFlags,
		vars: map[string]string{"main.VERSION": calicoVersion},
		programs: []program{
			{name: calicoAPIServer, module: calicoModule, pkg: calicoModule + "/apiserver/cmd/apiserver", onDemand: true},
		},
	},
}

// cniDirectory has the reference plugins, below the tool's directory.
const cniDirectory = "cni"

const calicoAPIServer = "calico-apiserver"

func kubernetes(name string, path func(*Paths) *string, version ...string) program {
	return program{name: name, module: kubernetesModule, pkg: kubernetesModule + "/cmd/" + name, path: path,
		version: version}
}

func calico(name, pkg string, path func(*Paths) *string) program {
	return program{name: name, module: calicoModule, pkg: calicoModule + pkg, path: path}
}

// plan is what is known of a tool before anything is fetched or built.
type plan struct {
	tool
	source  string            // directory of the module
	pinned  map[string]string // versions of modules
	dir     string            // of built programs, in the cache
	ldflags string
	found   map[string]string // paths of the wanted programs by name, of those that are missing, too
	missing []program
}

// Ensure is the package function Ensure with the settings of b.
func (b *Builder) Ensure(ctx context.Context) (Paths, error) {
	var paths Paths
	err := b.locked(ctx, func(repo, cache string) error {
		plans, err := b.obtain(ctx, repo, cache, tools, func(p program) bool { return !p.onDemand })
		if err != nil {
			return err
		}
		for _, plan := range plans {
			for _, p := range plan.programs {
				if found, ok := plan.found[p.name]; ok && p.path != nil {
					*p.path(&paths) = found
				}
			}
			if loopback, ok := plan.found[cniDirectory+"/loopback"]; ok {
				paths.CNIPlugins = filepath.Dir(loopback)
			}
			if plan.name == "components" {
				if err := b.ensureCalicoFiles(ctx, plan.source, plan.dir, &paths); err != nil {
					return err
				}
			}
		}
		return b.ensureDebian(ctx, cache, &paths)
	})
	return paths, err
}

// EnsureCalicoAPIServer returns the path of the Calico API server, which serves projectcalico.org/v3 as an aggregated
// API. It builds the server if it is missing. Few tests use it, and nothing else.
func EnsureCalicoAPIServer(ctx context.Context, progress io.Writer) (string, error) {
	return (&Builder{Progress: progress}).EnsureCalicoAPIServer(ctx)
}

// EnsureCalicoAPIServer is the package function of that name with the settings of b.
func (b *Builder) EnsureCalicoAPIServer(ctx context.Context) (string, error) {
	var path string
	err := b.locked(ctx, func(repo, cache string) error {
		plans, err := b.obtain(ctx, repo, cache, tools, func(p program) bool { return p.name == calicoAPIServer })
		for _, plan := range plans {
			path = cmp.Or(plan.found[calicoAPIServer], path)
		}
		return err
	})
	return path, err
}

// locked runs do with the checkout and the cache while no other process fetches or builds components.
func (b *Builder) locked(ctx context.Context, do func(repo, cache string) error) error {
	repo, err := b.repository()
	if err != nil {
		return err
	}
	cache, err := b.cache()
	if err != nil {
		return err
	}
	unlock, err := Lock(ctx, filepath.Join(cache, "lock"), func() {
		b.say("another process is fetching or building components; waiting for it")
	})
	if err != nil {
		return err
	}
	defer unlock()
	return do(repo, cache)
}

// obtain finds the wanted programs of tools, and fetches or builds those that are missing, both at once.
func (b *Builder) obtain(ctx context.Context, repo, cache string, tools []tool,
	wanted func(program) bool) ([]*plan, error) {
	var plans []*plan
	for _, t := range tools {
		p, err := b.plan(ctx, repo, cache, t, wanted)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", t.name, err)
		}
		plans = append(plans, p)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 30 * time.Second
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	fetch, err := b.official(ctx, client, repo, cache, runtime.GOARCH, plans)
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.fetchAll(ctx, client, cache, runtime.GOARCH, fetch) })
	group.Go(func() error {
		for _, p := range plans {
			if err := b.build(ctx, p); err != nil {
				return fmt.Errorf("component %s: %w", p.name, err)
			}
		}
		return nil
	})
	return plans, group.Wait()
}

// plan finds the wanted programs of a tool that were built or are installed.
func (b *Builder) plan(ctx context.Context, repo, cache string, t tool, wanted func(program) bool) (*plan, error) {
	p := &plan{tool: t, source: filepath.Join(repo, "tools", t.name), found: map[string]string{}}
	var err error
	if p.pinned, err = pinnedVersions(p.source); err != nil {
		return nil, err
	}
	if p.ldflags, err = t.ldflags(p.pinned); err != nil {
		return nil, err
	}
	key, err := t.cacheKey(ctx, p.source, p.ldflags)
	if err != nil {
		return nil, err
	}
	p.dir = filepath.Join(cache, t.name+"-"+key)
	for _, m := range t.programs {
		if !wanted(m) {
			continue
		}
		p.found[m.name] = filepath.Join(p.dir, m.name)
		if isProgram(p.found[m.name]) {
			continue
		}
		if installed := b.installed(ctx, m, p.pinned[m.module]); installed != "" {
			p.found[m.name] = installed
		} else {
			p.missing = append(p.missing, m)
		}
	}
	return p, nil
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

// build builds the missing programs of a tool. Each appears in the cache complete or not at all.
func (b *Builder) build(ctx context.Context, plan *plan) error {
	if len(plan.missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(plan.dir, 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(plan.dir), ".building") // what is there is of a killed build: one has the lock
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	flags := append(slices.Clone(goFlags), plan.flags...)
	if len(plan.changes) > 0 {
		modfile, err := changed(ctx, plan.source, tmp, plan.changes)
		if err != nil {
			return err
		}
		flags = append(flags, "-modfile="+modfile)
	}
	var packages, names []string
	for _, p := range plan.missing {
		packages, names = append(packages, p.pkg), append(names, path.Base(p.name))
	}
	flags = append(flags, "-ldflags="+plan.ldflags)
	bin := filepath.Join(tmp, "bin")
	if err := b.run(ctx, strings.Join(names, ", "), plan.minutes, plan.source, bin, flags, packages); err != nil {
		return err
	}
	for _, p := range plan.missing {
		to := filepath.Join(plan.dir, p.name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(bin, builtName(p.pkg)), to); err != nil {
			return err
		}
	}
	return nil
}

// builtName is the name that go build gives the program of a package: the last element of its path that is no major
// version.
func builtName(pkg string) string {
	if majorVersion.MatchString(path.Base(pkg)) {
		pkg = path.Dir(pkg)
	}
	return path.Base(pkg)
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// ldflags are the flags of the linker. They name the versions that programs report.
func (t tool) ldflags(pinned map[string]string) (string, error) {
	flags := "-s -w"
	for _, name := range slices.Sorted(maps.Keys(t.vars)) {
		value := t.vars[name]
		if strings.Contains(value, "/") {
			version, ok := pinned[value]
			if !ok {
				return "", fmt.Errorf("tools/%s/go.mod requires no %s", t.name, value)
			}
			value = version
		}
		flags += " -X " + name + "=" + value
	}
	return flags, nil
}

// cacheKey identifies the pinned versions, the code of the module itself, the compiler and the flags of a build.
func (t tool) cacheKey(ctx context.Context, source, ldflags string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, ldflags, goFlags, t.flags, t.changes)
	files := []string{"go.mod", "go.sum"}
	for _, dir := range t.own {
		found, err := filepath.Glob(filepath.Join(source, dir, "*.go"))
		if err != nil {
			return "", err
		}
		for _, file := range found {
			files = append(files, dir+"/"+filepath.Base(file))
		}
	}
	for _, name := range files {
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

// pinnedVersions returns the versions of all modules that source/go.mod requires, by path.
func pinnedVersions(source string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return nil, err
	}
	pinned := map[string]string{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && strings.HasPrefix(fields[1], "v") {
			pinned[fields[0]] = fields[1]
		}
	}
	return pinned, nil
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

// StartsAPIServer waits until no other apiserver of this user starts on the machine. ready must be called when the one
// that begins now is ready, or when it has failed. Each computes for some ten seconds: where several begin at once on
// two processors all of them are late, and the last is not ready in time.
func StartsAPIServer(ctx context.Context) (ready func(), err error) {
	lock := filepath.Join(os.TempDir(), fmt.Sprintf("semaphore-apiserver-%d.lock", os.Getuid()))
	return Lock(ctx, lock, func() {})
}

// say is safe for concurrent use.
func (b *Builder) say(format string, args ...any) {
	b.saying.Lock()
	defer b.saying.Unlock()
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "components: "+format+"\n", args...)
	}
}

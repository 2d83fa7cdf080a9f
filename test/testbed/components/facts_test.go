package components

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func goodFacts() facts {
	return facts{root: true, capabilities: ^uint64(0), cgroups: cgroups{controllers: neededControllersV1},
		failed: map[string]string{}}
}

// TestFacts checks the remedy in the error of each fact, and that a fit machine gives no error.
func TestFacts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*facts)
		want   []string // parts of the error; no error when empty
		not    string
	}{
		{name: "all is there", change: func(*facts) {}},
		{name: "cgroup v2", change: func(f *facts) {
			f.cgroups = cgroups{v2: true, controllers: []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}}
		}},
		{name: "no CAP_SYS_RESOURCE", change: func(f *facts) { f.capabilities &^= 1 << unix.CAP_SYS_RESOURCE }},
		{name: "not root", change: func(f *facts) { f.root, f.packages = false, []string{"ipset"} },
			want: []string{"run it as root"}, not: "ipset"},
		{name: "packages", change: func(f *facts) { f.packages = []string{"ipset", "conntrack"} },
			want: []string{"`make deps`", "apt-get install ipset conntrack"}},
		{name: "capabilities", change: func(f *facts) { f.capabilities &^= 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_MKNOD },
			want: []string{"- CAP_SYS_ADMIN, CAP_MKNOD: ", "--privileged"}, not: "CAP_NET_ADMIN"},
		{name: "no cgroups", change: func(f *facts) { f.cgroups = cgroups{} },
			want: []string{"- control groups: mount -t cgroup2 none /sys/fs/cgroup"}},
		{name: "a hierarchy of v1", change: func(f *facts) {
			f.cgroups.controllers = []string{"cpu", "cpuacct", "cpuset", "devices", "freezer", "systemd"}
		}, want: []string{"- cgroup controllers memory, pids: mount each: ", "cgroup_enable=NAME"}},
		{name: "a controller of v2", change: func(f *facts) {
			f.cgroups = cgroups{v2: true, controllers: []string{"memory", "pids", "cpu"}}
		}, want: []string{"- cgroup controllers cpuset: write +NAME into cgroup.subtree_control"}, not: "freezer"},
		{name: "cgroups are read-only", change: func(f *facts) { f.cgroups.writeError = "mkdir x: read-only file system" },
			want: []string{"- the right to make control groups (mkdir x: read-only file system): mount -o remount,rw"}},
		{name: "two modules", change: func(f *facts) {
			f.failed["ipset"], f.failed["veth"] = "exit status 1: Cannot open session to kernel.",
				"exit status 2: Unknown device type."
		}, want: []string{"- veth (exit status 2: Unknown device type.): load the module veth",
			"- ipset (exit status 1: Cannot open session to kernel.): load the module ip_set_hash_net"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := goodFacts()
			c.change(&f)
			err := f.check()
			if len(c.want) == 0 {
				if err != nil {
					t.Errorf("%v, want no error", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, want %q", c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant %q", err, want)
				}
			}
			if c.not != "" && strings.Contains(err.Error(), c.not) {
				t.Errorf("%v\nwant nothing of %s", err, c.not)
			}
		})
	}
}

// TestEveryProbeIsReported checks that the error of a failed probe has its remedy.
func TestEveryProbeIsReported(t *testing.T) {
	for _, p := range probes {
		f := goodFacts()
		f.failed[p.name] = "it failed"
		if err := f.check(); err == nil || !strings.Contains(err.Error(), p.name+" (it failed): "+p.remedy) {
			t.Errorf("probe %s failed: %v", p.name, err)
		}
	}
}

func TestGatherCgroups(t *testing.T) {
	write := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	v1, v2 := t.TempDir(), t.TempDir()
	write(v1, "cpu,cpuacct/cgroup.procs", "")
	for _, link := range []string{"cpu", "cpuacct"} {
		testkit.Must(t, os.Symlink("cpu,cpuacct", filepath.Join(v1, link)))
	}
	write(v1, "pids/cgroup.procs", "")
	write(v1, "unified/cgroup.controllers", "")
	write(v2, "cgroup.controllers", "cpuset cpu io memory pids\n")
	for _, c := range []struct {
		dir  string
		v2   bool
		want []string
	}{
		{v1, false, []string{"cpu", "cpu,cpuacct", "cpuacct", "pids"}},
		{v2, true, []string{"cpuset", "cpu", "io", "memory", "pids"}},
		{filepath.Join(v1, "none"), false, nil},
	} {
		got, err := gatherCgroups(c.dir)
		if err != nil || got.v2 != c.v2 || !slices.Equal(got.controllers, c.want) || got.writeError != "" {
			t.Errorf("%+v, %v; want %q, v2 %v", got, err, c.want, c.v2)
		}
	}
}

// TestCheckSystem checks that this machine is fit, also on a second call, and that the check leaves nothing. It then
// takes a program out of the PATH, and write access to control groups in a mount namespace, and checks the errors.
func TestCheckSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := CheckSystem(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "run it as root") {
			t.Errorf("without root: %v", err)
		}
		return
	}
	if missing := MissingPackages(); len(missing) > 0 {
		t.Fatalf("packages are missing, run `make deps`: %q", missing)
	}
	dir := t.TempDir()
	for range 2 {
		testkit.Must(t, CheckSystem(t.Context(), filepath.Join(dir, "not", "there", "yet")))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the check left %v, %v", entries, err)
	}
	p := probe{name: "impossible", script: "ip link add name sbx0 type nonsense"}
	if err := p.try(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "Unknown device type") {
		t.Errorf("a probe that cannot succeed: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("a mount of the check is left, or %v", err)
	}
	// Files cannot be created in /sys.
	if err := CheckSystem(t.Context(), "/sys/kernel"); err == nil ||
		!strings.Contains(err.Error(), "- overlayfs on the disk (") {
		t.Errorf("with a directory that can hold nothing: %v", err)
	}
}

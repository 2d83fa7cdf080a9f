package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/echo"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// childTestbed is the argument with which the test binary starts a testbed and waits until it is killed.
const childTestbed = "child-testbed"

// TestMain gives the test binary two more roles: the programs of the image "testbed", and a process that owns a
// testbed.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		switch os.Args[1] {
		case "echo":
			if err := echo.Serve(ctx, ":8080", 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "sleep":
			<-ctx.Done()
			os.Exit(0)
		case childTestbed:
			tb, err := Up(ctx, Options{Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}, Programs: programs(),
				Progress: os.Stderr})
			if err != nil {
				fmt.Println("failed", err)
				os.Exit(1)
			}
			c := tb.Cluster("c1")
			if err := errors.Join(c.ApplyYAML(ctx, workload), c.WaitForDeployment(ctx, "shop", "echo", patience)); err != nil {
				fmt.Println("failed", err)
				os.Exit(1)
			}
			fmt.Println("up", tb.ID)
			select {}
		}
	}
	goleak.VerifyTestMain(m)
}

// programs returns the programs of the image "testbed". The product's programs are not needed.
func programs() map[string]string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return map[string]string{"testbed": self}
}

func needRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: brings up clusters")
	}
	testkit.NeedsRoot(t, "it makes network namespaces")
}

const workload = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      containers:
        - name: echo
          image: testbed.local/testbed:1
          command: [testbed, echo]
          env:
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10,
            failureThreshold: 10}
`

// TestSideBySide runs two testbeds with the same addresses at once and kills the owner of one. Sweep must remove the
// remains of that one without touching the other.
func TestSideBySide(t *testing.T) {
	tier.OnlyAll(t, "TestUpInterrupted; TestProcessesEndWithTheirOwner (test/testbed/spawn)")
	needRoot(t)
	self := testkit.Value(os.Executable())(t)
	child := exec.CommandContext(t.Context(), self, childTestbed)
	child.Stderr = t.Output()
	out := testkit.Value(child.StdoutPipe())(t)
	testkit.Must(t, child.Start())
	c := upWith(t, Options{Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}})
	tb := c.tb
	line, err := bufio.NewReader(out).ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "up ")
	if err != nil || !ok {
		t.Fatalf("the child says %q, %v", line, err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() })
	var ids []string
	states := testkit.Value(List())(t)
	for _, s := range states {
		ids = append(ids, s.ID)
	}
	if !slices.Contains(ids, id) || !slices.Contains(ids, tb.ID) {
		t.Errorf("testbeds that are up: %v; %s and %s are not both among them", ids, id, tb.ID)
	}
	if swept, err := Sweep(); err != nil || slices.Contains(swept, id) || slices.Contains(swept, tb.ID) {
		t.Errorf("sweeping while both are up: removed %v, %v", swept, err)
	}

	before := remember(t, id)
	if len(before) < 15 {
		t.Errorf("only %d processes are in the control groups of %s", len(before), id)
	}
	// The workload's pods have shims, and their own mounts.
	for _, program := range []string{"containerd-shim-runc-v2", "testbed\x00echo"} {
		if !slices.ContainsFunc(before, func(p process) bool {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			return strings.Contains(string(command), program)
		}) {
			t.Errorf("no process of %s is %q", id, program)
		}
	}
	testkit.Must(t, child.Process.Kill())
	killed := time.Now()
	_ = child.Wait() // killed
	// No process of a testbed outlives its owner.
	testkit.NoError(t, WaitFor(t.Context(), 3*time.Minute, "all processes of "+id+" to end", func(context.Context) error {
		if pids, err := hierarchies(t).Processes(cgroupName(id)); err != nil || len(pids) > 0 {
			return fmt.Errorf("%v, %w", pids, err)
		}
		return nil
	}))
	t.Logf("%d processes ended within %s", len(before), time.Since(killed).Round(time.Millisecond))
	swept, err := Sweep()
	if err != nil || !slices.Contains(swept, id) {
		t.Errorf("sweeping after one was killed: removed %v, %v", swept, err)
	}
	nothingLeft(t, id, before)

	if slices.Contains(swept, tb.ID) {
		t.Fatalf("the testbed that is up was swept")
	}
	testkit.Must(t, c.ApplyYAML(t.Context(), workload))
	if err := c.WaitForDeployment(t.Context(), "shop", "echo", patience); err != nil {
		t.Errorf("the testbed that was not killed: %v\n%s", err, c.Diagnose(t.Context(), "shop"))
	}
}

// TestUpFails checks that Up removes what it has created and returns the output of the failed component.
func TestUpFails(t *testing.T) {
	tier.OnlyAll(t, "TestUpInterrupted")
	needRoot(t)
	for component, flag := range map[string]string{"kube-scheduler": "--nonsense-1", "kubelet": "--nonsense-2"} {
		_, err := Up(t.Context(), Options{
			ID: "willfail", Clusters: []ClusterSpec{{Name: "c1", Nodes: 1}}, Programs: programs(), Progress: t.Output(),
			Flags: map[string][]string{component: {flag}},
		})
		if err == nil || !strings.Contains(err.Error(), component) || !strings.Contains(err.Error(), "unknown flag: "+flag) {
			t.Errorf("error: %v", err)
		}
		nothingLeft(t, "willfail", nil)
	}
}

// TestModesTheKernelLacks checks that Up refuses an unsupported mode of kube-proxy before it starts anything.
func TestModesTheKernelLacks(t *testing.T) {
	needRoot(t)
	for _, m := range KubeProxyModes() {
		t.Logf("kube-proxy mode %s: %v", m.Mode, m.Err)
		if m.Err == nil {
			continue
		}
		_, err := Up(t.Context(), Options{ID: "cannot", Programs: programs(), KubeProxyMode: m.Mode})
		// An error after the testbed has begun names it: "testbed cannot: ".
		if err == nil || !strings.HasPrefix(err.Error(), "testbed: ") ||
			!strings.Contains(err.Error(), "kube-proxy mode "+m.Mode) {
			t.Errorf("mode %s: %v", m.Mode, err)
		}
		nothingLeft(t, "cannot", nil)
	}
}

// TestUpInterrupted checks that the end of the context stops Up and that nothing is left.
func TestUpInterrupted(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := Up(ctx, Options{ID: "stopped", Clusters: []ClusterSpec{{Name: "c1"}}, Programs: programs()})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, "stopped", nil)
}

// process identifies a process by its PID and its start time in clock ticks.
type process struct {
	pid   int
	start string
}

func hierarchies(t *testing.T) *cgroup.Hierarchies {
	t.Helper()
	return testkit.Value(cgroup.Find(cgroup.Mount))(t)
}

// remember lists the processes of a testbed, including those in pods.
func remember(t *testing.T, id string) []process {
	t.Helper()
	pids, err := hierarchies(t).Processes(cgroupName(id))
	if err != nil || len(pids) == 0 {
		t.Fatalf("processes of %s: %v, %v", id, pids, err)
	}
	var all []process
	for _, pid := range pids {
		if start, ok := startOf(pid); ok {
			all = append(all, process{pid, start})
		}
	}
	return all
}

// startOf returns the start time of a process: field 22 of /proc/PID/stat. Zombies count as ended, and so do processes
// that are exiting (PF_EXITING in field 9), which have left their control group and execute nothing.
func startOf(pid int) (string, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	const exiting = 0x4
	flags, _ := strconv.ParseUint(fields[6], 10, 32)
	return fields[19], fields[0] != "Z" && flags&exiting == 0
}

func nothingLeft(t *testing.T, id string, processes []process) {
	t.Helper()
	if names, err := netns.List(namespacePrefix(id)); err != nil || len(names) > 0 {
		t.Errorf("namespaces are left: %v, %v", names, err)
	}
	if groups, err := hierarchies(t).List("sb-"); err != nil || slices.Contains(groups, cgroupName(id)) {
		t.Errorf("control groups are left: %v, %v", groups, err)
	}
	dir := filepath.Join(Directory, id)
	if mounts, err := mountsBelow(dir); err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %v, %v", mounts, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	for _, p := range processes {
		if start, ok := startOf(p.pid); ok && start == p.start {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			t.Errorf("process %d is left: %q", p.pid, command)
		}
	}
	// Also find processes outside the control groups: they have the testbed's directory in their arguments or mounts.
	entries := testkit.Value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, e := range entries {
		if data, err := os.ReadFile(e); err == nil && strings.Contains(string(data), dir+"/") {
			t.Errorf("%s: %q is left", e, data)
		}
		if data, err := os.ReadFile(filepath.Join(filepath.Dir(e), "mountinfo")); err == nil &&
			strings.Contains(string(data), dir+"/") {
			t.Errorf("%s has mounts of the testbed", filepath.Dir(e))
		}
	}
}

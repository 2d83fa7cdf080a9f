package machine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/machine/job"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

func newMachine(t *testing.T, output *bytes.Buffer) *Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an emulated machine; not with -short")
	}
	m, err := New(t.Context(), &components.Builder{Progress: t.Output()}, output)
	if errors.Is(err, ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	testkit.Must(t, err)
	return m
}

func shell(name, script string) job.Command {
	return job.Command{Name: name, Args: []string{"/bin/sh", "-euc", script}, Dir: "/usr",
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
}

func TestMachine(t *testing.T) {
	tier.OnlyAll(t, "only make test-kernel has the machine")
	var output bytes.Buffer
	m := newMachine(t, &output)
	mine := filepath.Join(t.TempDir(), "mine")
	testkit.Must(t, os.WriteFile(mine, []byte("host's"), 0o644))
	results, err := m.Run(t.Context(), []job.Command{
		// The machine has its own kernel, loads modules on demand, and has no network device.
		shell("wireguard", "uname -r; ip link add wg0 type wireguard; ls /sys/class/net; pwd; test -c /dev/net/tun"),
		shell("writes", "cat "+mine+"; echo machine > "+mine+"; cat "+mine),
		shell("fails", "exit 3"),
		shell("is killed", "kill -9 $$"),
		{Name: "is nowhere", Args: []string{"/nowhere"}},
		shell("continues", "cat "+mine),
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, output.String())
	}
	want := []job.Result{
		{Name: "wireguard"}, {Name: "writes"}, {Name: "fails", Exit: 3, Problem: "exit status 3"},
		{Name: "is killed", Exit: -1, Problem: "signal: killed"},
		{Name: "is nowhere", Exit: -1, Problem: "fork/exec /nowhere: no such file or directory"}, {Name: "continues"},
	}
	for i := range results {
		results[i].Seconds = 0
		if i < len(want) && results[i] != want[i] {
			t.Errorf("%+v; want %+v", results[i], want[i])
		}
	}
	if len(results) != len(want) {
		t.Errorf("%d results; want %d", len(results), len(want))
	}
	text := "== wireguard\n" + filepath.Base(m.Kernel.Modules) + "\nlo\nwg0\n/usr\n" +
		"== writes\nhost'smachine\n== fails\n== is killed\n== is nowhere\n== continues\nmachine\n"
	if output.String() != text {
		t.Errorf("output:\n%s\nwant:\n%s", output.String(), text)
	}
	if data, err := os.ReadFile(mine); string(data) != "host's" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
}

// lateOutput calls begun at the first write.
type lateOutput struct {
	once  sync.Once
	begun func()
}

func (o *lateOutput) Write(p []byte) (int, error) { o.once.Do(o.begun); return len(p), nil }

func TestMachineIsSwitchedOff(t *testing.T) {
	tier.OnlyAll(t, "only make test-kernel has the machine")
	m := newMachine(t, &bytes.Buffer{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun time.Time
	m.Output = &lateOutput{begun: func() { begun = time.Now(); cancel() }}
	_, err := m.Run(ctx, []job.Command{shell("waits", "sleep 1000")})
	if !errors.Is(err, context.Canceled) || begun.IsZero() {
		t.Fatalf("it ended with %v, begun %s", err, begun)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it ran on for %s", took)
	}
}

// The error includes the last lines of the console if the machine does not complete its job.
func TestMachineThatDies(t *testing.T) {
	tier.OnlyAll(t, "only make test-kernel has the machine")
	m := newMachine(t, &bytes.Buffer{})
	results, err := m.Run(t.Context(),
		[]job.Command{shell("first", "true"), shell("crash", "echo c > /proc/sysrq-trigger"), shell("never", "true")})
	if err == nil || !strings.Contains(err.Error(), "sysrq triggered crash") ||
		!strings.Contains(err.Error(), "1 of 3 commands") {
		t.Errorf("%v", err)
	}
	if len(results) != 1 || results[0].Name != "first" {
		t.Errorf("results %+v", results)
	}
}

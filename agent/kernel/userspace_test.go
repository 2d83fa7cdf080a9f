package kernel_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// userspace starts a device's process, with standard error redirected to stderr.
func userspace(t *testing.T, name string, stderr *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", UserspaceCommand, name, "1420")
	cmd.Stderr = stderr
	must(t, cmd.Start())
	eventually(t, "the device answers", func() bool { return ask(name, "get=1\n\n") != "" })
	return cmd
}

// ask sends a line to a device's socket and returns the answer; empty if there is none.
func ask(device, what string) string {
	c, err := net.Dial("unix", socket(device))
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(nodetest.Patience(5 * time.Second)))
	if _, err := c.Write([]byte(what)); err != nil {
		return ""
	}
	answer := make([]byte, 4096)
	n, _ := c.Read(answer)
	return string(answer[:n])
}

// TestUserspaceDeviceOutlivesItsLog: the device outlives the agent, and with it the reader of its log.
func TestUserspaceDeviceOutlivesItsLog(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		read, write, err := os.Pipe()
		must(t, err)
		cmd := userspace(t, device, write)
		write.Close()
		// The device writes to its log, so that the closed pipe matters.
		if got := ask(device, "set=1\nbogus=1\n\n"); !strings.Contains(got, "errno=-") {
			t.Fatalf("nonsense is answered with %q", got)
		}
		line := make([]byte, 4096)
		if n, err := read.Read(line); err != nil || !strings.Contains(string(line[:n]), "bogus") {
			t.Fatalf("log: %q, %v", line[:n], err)
		}
		must(t, read.Close())
		for range 3 {
			if got := ask(device, "set=1\nbogus=1\n\n"); !strings.Contains(got, "errno=-") {
				t.Fatalf("with nobody to read its log, nonsense is answered with %q", got)
			}
		}
		if got := ask(device, "get=1\n\n"); !strings.Contains(got, "errno=0") {
			t.Errorf("it answers %q", got)
		}
		ip(t, "link del "+device)
		if err := cmd.Wait(); err != nil {
			t.Errorf("its link is gone, and it ends with: %v", err)
		}
	})
}

func TestDeadSocket(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		every := func(string) bool { return true }
		if all, err := RemoveDeadSockets(every); err != nil || len(all) != 0 {
			t.Errorf("sockets %v, %v", all, err)
		}
		cmd := userspace(t, device, nil)
		if removed, err := RemoveDeadSocket(device); removed || err != nil {
			t.Errorf("the socket of an existing device was removed: %v, %v", removed, err)
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if all, err := RemoveDeadSockets(func(string) bool { return false }); err != nil || len(all) != 0 {
			t.Errorf("of no selected device: %v, %v", all, err)
		}
		if all, err := RemoveDeadSockets(every); err != nil || !slices.Equal(all, []string{device}) ||
			exists(socket(device)) {
			t.Fatalf("a killed process's socket was removed: %v, %v", all, err)
		}
		if removed, err := RemoveDeadSocket(device); removed || err != nil {
			t.Errorf("a second time: %v, %v", removed, err)
		}
		// A device is created after one's process was killed.
		cmd = userspace(t, device, nil)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		h := newHost(t)
		must(t, h.Create(t.Context(), device, device, 1420))
		must(t, h.Delete(device))
		eventually(t, "no process is left", func() bool { return len(children(t)) == 0 })
	})
}

// TestUserspaceTakesNoInterfaceOfOthers: a persistent TUN interface of another program that has the device's name is
// not attached to, as Linux would, and stays.
func TestUserspaceTakesNoInterfaceOfOthers(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		ip(t, "tuntap add "+device+" mode tun")
		ctx, cancel := context.WithTimeout(t.Context(), nodetest.Patience(2*time.Second))
		defer cancel()
		if err := RunUserspace(ctx, device, 1420); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), device) {
			t.Errorf("error %v, want EBUSY for %s", err, device)
		}
		ip(t, "link show "+device)
	})
}

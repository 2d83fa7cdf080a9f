package kernel_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// carrier is a process that starts the processes of devices, as the second container of an agent's pod does.
func carrier(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", UserspaceCommand, "--serve", socket)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	eventually(t, "the carrier listens", func() bool { return exists(socket) })
	return cmd
}

// TestCarrier: the carrier creates devices, each as a process of its own, for every program that may open its socket,
// and reports what it cannot do.
func TestCarrier(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "carrier.sock")
		h, err := NewHost(InUserspace, socket, DefaultRoutingTable())
		must(t, err)
		defer h.Close()
		if err := h.Create(t.Context(), device, device, 1420); !errors.Is(err, unix.ENOENT) ||
			!strings.Contains(err.Error(), "--serve") {
			t.Errorf("with nobody who carries it: %v", err)
		}
		// An earlier carrier was killed.
		c := carrier(t, socket)
		must(t, c.Process.Kill())
		_ = c.Wait()
		if err := h.Create(t.Context(), device, device, 1420); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("with nobody who carries it any more: %v", err)
		}
		c = exec.Command("/proc/self/exe", UserspaceCommand, "--serve", socket)
		must(t, c.Start())
		eventually(t, "the device is made", func() bool { return h.Create(t.Context(), device, device, 1400) == nil })
		d := get(t, h, device)
		if d.Backend != InUserspace || d.MTU != 1400 || d.Alias != device {
			t.Errorf("%+v", d)
		}
		if _, parent := nodetest.ProcessOf(t, device); parent != c.Process.Pid {
			t.Errorf("its process is a child of %d; want that of the carrier, %d", parent, c.Process.Pid)
		}
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket is for all: %v, %v", info.Mode(), err)
		}
		if err := h.Create(t.Context(), "../"+device, device, 1420); err == nil || !strings.Contains(err.Error(), "404") &&
			!strings.Contains(err.Error(), "400") {
			t.Errorf("a path for a name: %v", err)
		}
		if err := h.Create(t.Context(), "a-name-that-is-too-long", device, 1420); err == nil ||
			!strings.Contains(err.Error(), "400") {
			t.Errorf("a long name: %v", err)
		}
		// An error explains what it cannot do.
		must(t, unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, ""))
		err = h.Create(t.Context(), "wireguard.c4", "wireguard.c4", 1420)
		must(t, unix.Unmount("/dev/net", 0))
		if err == nil || !strings.Contains(err.Error(), "does /dev/net/tun exist") {
			t.Errorf("without /dev/net/tun: %v", err)
		}
		must(t, h.Create(t.Context(), "wireguard.c3", "wireguard.c3", 1420))
		must(t, h.Delete(device))
		must(t, h.Delete("wireguard.c3"))
		eventually(t, "no process of a device is left", func() bool {
			all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.Process.Pid))
			for _, file := range all {
				if list, _ := os.ReadFile(file); len(bytes.TrimSpace(list)) > 0 {
					return false
				}
			}
			return true
		})
		must(t, c.Process.Signal(unix.SIGTERM))
		_ = c.Wait()
	})
}

func TestCarrierRefusesWhatIsNoSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "precious")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	if err := ServeUserspace(t.Context(), file); err == nil || !strings.Contains(err.Error(), file) || !exists(file) {
		t.Errorf("%v, still there: %v", err, exists(file))
	}
}

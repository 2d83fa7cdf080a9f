package kernel_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestLacksWireGuard: what a host says before it makes a device is what happens when it makes one: with the kernel's
// WireGuard, in userspace by itself, or by the container beside it.
func TestLacksWireGuard(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		host := func(backend, launcher string) *Host {
			t.Helper()
			h, err := NewHost(backend, launcher, DefaultRoutingTable())
			must(t, err)
			t.Cleanup(func() { h.Close() })
			return h
		}
		inKernel := host(InKernel, "")
		lacks := inKernel.LacksWireGuard()
		err := inKernel.Create(t.Context(), device, device, 1420)
		if (lacks == "") != (err == nil) {
			t.Errorf("of the kernel it says %q, and a device: %v", lacks, err)
		}
		must(t, inKernel.Delete(device))
		kernelHas := err == nil

		for _, backend := range []string{"auto", InUserspace} {
			if why := host(backend, "").LacksWireGuard(); why != "" {
				t.Errorf("%s, with /dev/net/tun: %s", backend, why)
			}
		}
		must(t, unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, "")) // as in the agent's container
		defer func() { must(t, unix.Unmount("/dev/net", 0)) }()
		beside := filepath.Join(t.TempDir(), "carrier.sock")
		for _, backend := range []string{"auto", InUserspace} {
			if why := host(backend, beside).LacksWireGuard(); why != "" {
				t.Errorf("%s, with a container beside it: %s", backend, why)
			}
			h := host(backend, "")
			why := h.LacksWireGuard()
			if has := kernelHas && backend == "auto"; (why == "") != has ||
				!has && !strings.Contains(why, "nor /dev/net/tun (no such file or directory)") {
				t.Errorf("%s, without /dev/net/tun: %q", backend, why)
				continue
			}
			if why == "" {
				continue
			}
			if err := h.Create(t.Context(), device, device, 1420); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: a device: %v", backend, err)
			}
		}
	})
}

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// container runs the test binary alone in a pid namespace, as a container runtime does: the processes that it starts
// end with it. kill ends it like the kernel's OOM killer, or like a kubelet at the end of the grace period.
func container(t *testing.T, env []string, args ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	must(t, cmd.Start())
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	return kill
}

// TestCarriedDevice: a userspace device that another container carries continues when the agent's container is killed,
// and the next agent finds it unchanged, without the loss of a packet. A device that the agent carries itself ends with
// the container.
func TestCarriedDevice(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		cfg.Backend = kernel.InUserspace
		r := newRemote(t)
		r.pairWith(t, cfg)
		h, err := kernel.NewHost(kernel.InUserspace, "", kernel.DefaultRoutingTable())
		must(t, err)
		defer h.Close()

		dir := t.TempDir()
		file, socket := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "carrier.sock")
		must(t, os.WriteFile(file, configOf(cfg), 0o600))
		endCarrier := container(t, nil, kernel.UserspaceCommand, "--serve", socket)
		eventually(t, "the carrier listens", func() bool { _, err := os.Stat(socket); return err == nil })
		agent := func(env ...string) func() { return container(t, append(env, asAgent+"="+file)) }

		kill := agent("SEMAPHORE_USERSPACE_SOCKET=" + socket)
		b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"), r.peer())
		eventually(t, "the remote pod can be reached", reachable)
		before := deviceOn(t, h, device)

		tr := startTraffic(t)
		kill()
		if ready() {
			t.Error("the agent answers after its end")
		}
		time.Sleep(nodetest.Patience(time.Second)) // the runtime restarts a container after a while
		kill = agent("SEMAPHORE_USERSPACE_SOCKET=" + socket)
		eventually(t, "the next agent has found all as it is wanted", func() bool { return b.hello(1) != nil && b.done() })
		tr.noneLost(t, "while the agent's container was killed and another began")
		same(t, before, deviceOn(t, h, device))
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		// The next agent still owns it.
		b.say(peerOf("c2", "n2", publicKey(2), "192.0.2.9:51820", "10.2.2.0/24"))
		eventually(t, "the next agent sets a peer", func() bool { return len(deviceOn(t, h, device).Peers) == 2 })

		// Without the other container, the device would end here.
		kill()
		endCarrier()
		if d, err := h.Device(device); err == nil && d != nil {
			t.Error("the device outlives the container that carries it")
		}
		kill = agent()
		eventually(t, "an agent without a carrier makes the device", func() bool { return reachable() })
		tr = startTraffic(t)
		kill()
		if lost := tr.lost(t); lost == 0 {
			t.Error("no packet is lost when the container that carries the device is killed: this test would see nothing")
		}
	})
}

package redteam

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// remoteOf returns an entry of the ConfigMap semaphore-remotes, as the exporter writes it for a RemoteCluster.
func remoteOf(name, pods, encryption string) map[string]any {
	return map[string]any{"name": name, "podSubnets": []string{pods}, "nodeSubnets": []string{"192.0.2.16/28"},
		"encryption": encryption, "wireguard": map[string]any{"listenPort": 7775}}
}

// exports writes the exporter's list of remotes, and waits until a running agent has guarded a marker remote that only
// this version has. The agent has then read the rest too.
func (n *agentNode) exports(marker int, remotes ...map[string]any) {
	n.t.Helper()
	pods := fmt.Sprintf("10.%d.0.0/16", marker)
	c3 := remoteOf("c3", pods, "strict")
	c3["wireguard"] = map[string]any{"listenPort": 7776}
	n.bounds(append(remotes, c3)...)
	n.eventually("the agent has read of "+pods, func() bool { return strings.Contains(n.guard(), pods) })
	time.Sleep(time.Second) // a wrong change would take effect within this time
}

func (n *agentNode) guard() string {
	out, _ := exec.Command("nft", "list", "table", "inet", "semaphore").CombinedOutput()
	return string(out)
}

// boot removes everything of the agent but its files.
func (n *agentNode) boot() {
	n.t.Helper()
	_ = exec.Command("ip", "link", "del", "wireguard.c2").Run() // a userspace device has gone with the agent
	n.run("nft", "delete", "table", "inet", "semaphore")
	n.run("ip", "route", "flush", "table", "7394")
	if n.clear() == 0 {
		n.t.Fatal("after a boot no packet leaves for c2: this test would see nothing")
	}
}

// kept fails the test if a clear packet to c2 leaves the node.
func (n *agentNode) kept(when string) {
	n.t.Helper()
	if leaked := n.clear(); leaked != 0 {
		n.t.Errorf("%s: %d packets have left in the clear", when, leaked)
	}
}

// peered waits until the device to c2 has its peer n1.
func (n *agentNode) peered() {
	n.t.Helper()
	n.eventually("the device to c2 exists, with its peer", func() bool {
		out, err := exec.Command("wg", "show", "wireguard.c2", "endpoints").CombinedOutput()
		return err == nil && strings.Contains(string(out), "192.0.2.17:7775")
	})
}

// A compromised exporter writes the agents' bounds. Alone it cannot make clear packets leave to a remote that the node
// has guarded: not while an agent runs, not after another has started, and not after a boot.
func TestTakenOverExporter(t *testing.T) {
	if !testing.Short() {
		testkit.Value(programs())(t)
	}
	nodetest.Run(t, func(t *testing.T) {
		n := newAgentNode(t)
		n.configure("permissive")
		c2 := remoteOf("c2", "10.2.0.0/16", "strict")

		// No broker has sent anything yet.
		kill := n.start()
		n.eventually("c2 is known", func() bool { return strings.Contains(n.guard(), "10.2.0.0/16") })
		// On a node that has not guarded c2 before, the file decides, because there is no other source.
		if passed := n.clear(); passed < 100 {
			t.Errorf("a new agent stops %d of 100 packets to a permissive remote", 100-passed)
		}
		n.exports(30, c2)
		n.kept("strict")
		n.exports(31)
		n.kept("left out without a broker")
		kill()
		kill = n.start()
		n.exports(32)
		n.kept("left out without a broker, and another agent")
		n.exports(33, remoteOf("c2", "10.2.0.0/16", "permissive"))
		n.kept("permissive at the exporter's word alone")
		n.exports(34, remoteOf("c2", "10.2.99.0/24", "strict"))
		n.kept("fewer subnets without a broker")
		n.exports(35, c2)

		// The broker also sends c2, and its device exists.
		b := n.serve()
		b.say(deviceChange("c2", false, "10.2.0.0/16"),
			peerChange("c2", "n1", 99, "192.0.2.17:7775", "10.2.1.0/24"))
		n.peered()
		n.narrows(b, c2)
		n.exports(37)
		// Add a route around the device.
		n.run("ip", "route", "add", "10.2.200.0/24", "via", "192.0.2.1", "table", "7394")
		n.kept("left out while the agent runs")
		n.run("ip", "route", "del", "10.2.200.0/24", "via", "192.0.2.1", "table", "7394")
		kill()
		n.kept("left out while no agent runs")

		kill = n.start()
		n.exports(38)
		n.kept("left out, and another agent")
		kill()
		n.boot()
		n.run(n.program, "guard", "--state-file", n.path("keys", "agent.state"))
		n.kept("left out, and a boot with the unit")
		kill = n.start()
		n.exports(39)
		n.kept("left out, a boot with the unit, and an agent")
		kill()
		n.boot()
		n.start()
		n.exports(40)
		n.kept("left out, and a boot without the unit")
		n.reported(b)

		// Exporter and broker have both removed it, so the guard is removed.
		b.say(&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: "c2"}})
		n.eventually("c2 is guarded no more", func() bool { return !strings.Contains(n.guard(), "10.2.0.0/16") })
		if n.clear() == 0 {
			t.Error("both have removed c2, and its packets are still stopped")
		}
	})
}

// narrows removes most of c2, which has a device: first from the exporter only, and then from the broker too, like an
// operator's change, which ends the guard of the rest. It restores the initial state.
func (n *agentNode) narrows(b *takenOver, c2 map[string]any) {
	n.t.Helper()
	n.exports(36, remoteOf("c2", "10.2.99.0/24", "strict"))
	n.kept("fewer subnets")
	// The broker agrees, like after an operator's change. Then both send all of it again.
	b.say(deviceChange("c2", false, "10.2.99.0/24"))
	n.eventually("the rest of c2 is guarded no more", func() bool { return !strings.Contains(n.guard(), "10.2.0.0/16") })
	n.exports(41, c2)
	b.say(deviceChange("c2", false, "10.2.0.0/16"))
	n.eventually("c2 is guarded", func() bool { return strings.Contains(n.guard(), "10.2.0.0/16") })
}

// reported waits until the agent's report names the ConfigMap.
func (n *agentNode) reported(b *takenOver) {
	n.t.Helper()
	n.eventually("the report names the ConfigMap", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.reports) > 0 && strings.Contains(b.reports[len(b.reports)-1].String(), "ConfigMap semaphore-remotes")
	})
}

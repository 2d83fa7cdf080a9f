package migration

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/agent"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

const device = "wireguard.c2"

// stands returns c1's device.
func stands(t *testing.T) *kernel.Device {
	t.Helper()
	h := testkit.Value(kernel.NewHost("auto", "", kernel.DefaultRoutingTable()))(t)
	defer h.Close()
	return testkit.Value(h.Device(device))(t)
}

// deleteDevice deletes a device on a node.
func deleteDevice(t *testing.T, on func(func() error) error, name string) {
	t.Helper()
	must(t, on(func() error {
		h, err := kernel.NewHost("auto", "", kernel.DefaultRoutingTable())
		if err != nil {
			return err
		}
		defer h.Close()
		return h.Delete(name)
	}))
}

// peersAre waits until a device has exactly one peer, with the key, or no peer if the key is empty.
func peersAre(t *testing.T, on func(func() error) error, device, key string) {
	t.Helper()
	eventually(t, device+" has the peer "+key, func() error {
		return on(func() error {
			h, err := kernel.NewHost("auto", "", kernel.DefaultRoutingTable())
			if err != nil {
				return err
			}
			defer h.Close()
			d, err := h.Device(device)
			switch {
			case err != nil:
				return err
			case d == nil:
				return errors.New("there is no device")
			case key == "" && len(d.Peers) == 0, len(d.Peers) == 1 && d.Peers[0].PublicKey.String() == key:
				return nil
			}
			return fmt.Errorf("it has %d peers", len(d.Peers))
		})
	})
}

func TestMigration(t *testing.T) {
	tier.OnlyAll(t, "TestAdoption (agent, broker/apply), TestAdoptionOfBothOriginals (broker/apply)")
	nodetest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		t.Cleanup(func() { deleteDevice(t, here, device); deleteDevice(t, w.there, "wireguard.c1") })
		w.echo()
		pairing(t, w)
		moving(t, w)
	})
}

// A node migrates from semaphore-wireguard and back, while its remote stays with semaphore-wireguard. No packet is
// lost, except while cleanup removes the address of the device: the kernel deletes the routes with it, and
// semaphore-wireguard would remove an address that is left, with no guard.
func moving(t *testing.T, w *world) {
	w.original2()
	stopOriginal := w.original1()
	w.reached()
	before := stands(t)
	said := w.annotations(w.c1)
	tr := w.traffic()

	// Follow the documentation: stop the one on the node, start the other.
	stopOriginal()
	stopSemaphore := w.semaphore(c2Remote)
	stopAgent := w.agent(w.agentConfig("adoptFrom: [semaphore-wireguard]"))
	// The agent may be ready before its broker knows the remote's nodes. It adopts the device after that.
	eventually(t, "the device is semaphore's", func() error {
		if d := stands(t); d.Alias != device || len(d.Routes) != 1 {
			return fmt.Errorf("its alias is %q, its routes are %v", d.Alias, d.Routes)
		} else if len(d.Peers) != 1 || d.Peers[0].PersistentKeepaliveInterval != 0 {
			return fmt.Errorf("its peers are %+v", d.Peers)
		}
		return nil
	})
	now := stands(t)
	if now.Index != before.Index || now.PrivateKey != before.PrivateKey || now.ListenPort != before.ListenPort ||
		now.MTU != before.MTU {
		t.Errorf("the device is %+v; it was %+v", now, before)
	}
	if now.Alias != device || len(now.Routes) != 1 || now.Peers[0].PersistentKeepaliveInterval != 0 {
		t.Errorf("the device is not semaphore's: %+v", now)
	}
	if after := w.annotations(w.c1); !maps.Equal(after, said) {
		t.Errorf("the node says %v; it said %v", after, said)
	}
	if lost := tr.lost("semaphore had the node"); lost != 0 {
		t.Errorf("%d packets lost on the way to semaphore", lost)
	}

	// Migrate back.
	stopAgent()
	var out strings.Builder
	must(t, agent.Cleanup(&out, w.agentConfig(""), agent.CleanupOptions{LeaveDevices: true}))
	t.Logf("%s", out.String())
	if route := ip(t, "route show 10.2.0.0/16"); route != "10.2.0.0/16 dev wireguard.c2 scope link \n" {
		t.Errorf("the route after cleanup: %q", route)
	}
	tr.lost("semaphore had left the node")
	stopSemaphore()
	now = stands(t)
	if now.Index != before.Index || now.PrivateKey != before.PrivateKey || now.Alias != "" || len(now.Routes) != 0 {
		t.Errorf("the device that is left is %+v; it was %+v", now, before)
	}
	w.original1()
	now = stands(t)
	if now.Peers[0].PersistentKeepaliveInterval != 25*time.Second || now.Index != before.Index {
		t.Errorf("the device is not semaphore-wireguard's again: %+v", now)
	}
	if after := w.annotations(w.c1); !maps.Equal(after, said) {
		t.Errorf("the node says %v; it said %v", after, said)
	}
	if lost := tr.lost("semaphore-wireguard had the node again"); lost != 0 {
		t.Errorf("%d packets lost on the way back", lost)
	}
	if routes := ip(t, "route show 10.2.0.0/16"); routes != "10.2.0.0/16 dev wireguard.c2 scope link \n" {
		t.Errorf("routes %q", routes)
	}
}

// A cluster with semaphore pairs with one with semaphore-wireguard from nothing. Each follows the annotations of the
// other: a new key, a node that is added or removed. At the end the remote is removed while the node is away.
func pairing(t *testing.T, w *world) {
	stopSemaphore := w.semaphore(c2Remote)
	stopAgent := w.agent(w.agentConfig("removeKeys: true"))
	stopOriginal := w.original2()
	w.reached()
	ours, theirs := w.annotations(w.c1), w.annotations(w.c2)
	if got := ours["c2.wireguard.semaphore.uw.io/endpoint"]; got != "192.0.2.1:51820" {
		t.Errorf("c1's node says that it is at %q", got)
	}
	file := testkit.Value(os.ReadFile(filepath.Join(w.c1.keyPath, device+".key")))(t)
	key, err := wgtypes.ParseKey(string(file)) // as semaphore-wireguard would read it
	must(t, err)
	if got := ours["c2.wireguard.semaphore.uw.io/pubKey"]; got != key.PublicKey().String() {
		t.Errorf("c1's node says %q; its key file holds the key of %s", got, key.PublicKey())
	}

	// semaphore-wireguard restarts with a new key.
	stopOriginal()
	must(t, os.Remove(filepath.Join(w.c2.keyPath, "wireguard.c1.key")))
	stopOriginal = w.original2()
	again := w.annotations(w.c2)
	if again["c1.wireguard.semaphore.uw.io/pubKey"] == theirs["c1.wireguard.semaphore.uw.io/pubKey"] {
		t.Fatal("the key is not new")
	}
	peersAre(t, here, device, again["c1.wireguard.semaphore.uw.io/pubKey"])
	w.reached()

	// This end gets a new key.
	stopAgent()
	must(t, os.Remove(filepath.Join(w.c1.keyPath, device+".key")))
	deleteDevice(t, here, device)
	stopAgent = w.agent(w.agentConfig("removeKeys: true"))
	eventually(t, "c1's node says its new key", func() error {
		if got := w.annotations(w.c1)["c2.wireguard.semaphore.uw.io/pubKey"]; got != stands(t).PublicKey.String() ||
			got == key.PublicKey().String() {
			return fmt.Errorf("it says %q", got)
		}
		return nil
	})
	peersAre(t, w.there, "wireguard.c1", stands(t).PublicKey.String())
	w.reached()

	// A node of c2 without annotations is no peer, and a deleted node is no longer one.
	w.addNode(w.c2, "b2", "192.0.2.3", "10.2.2.0/24")
	must(t, w.c2.kube.CoreV1().Nodes().Delete(t.Context(), "b1", metav1.DeleteOptions{}))
	peersAre(t, here, device, "")

	// c2 is removed while the node is away, by a broker that has never known it.
	stopAgent()
	stopOriginal()
	stopSemaphore()
	if d := stands(t); d == nil {
		t.Fatal("the device does not outlive the agent")
	}
	stopSemaphore = w.semaphore(
		`[{name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 51830}}]`,
	)
	cfg := w.agentConfig("removeKeys: true")
	stopAgent = w.agent(cfg)
	eventually(t, "the device goes, and its key", func() error {
		if d := stands(t); d != nil {
			return errors.New("the device is there")
		}
		if _, err := os.Stat(filepath.Join(w.c1.keyPath, device+".key")); !os.IsNotExist(err) {
			return fmt.Errorf("the key: %v", err)
		}
		return nil
	})
	if routes := ip(t, "route show 10.2.0.0/16"); routes != "" {
		t.Errorf("routes %q", routes)
	}
	if _, err := net.InterfaceByName(device); err == nil {
		t.Error("the interface is there")
	}
	stopAgent()
	stopSemaphore()
	deleteDevice(t, w.there, "wireguard.c1")
	w.addNode(w.c2, w.c2.node, w.c2.address, w.c2.podCIDR)
}

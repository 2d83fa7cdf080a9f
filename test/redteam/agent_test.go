package redteam

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const peeringAddress = "127.0.0.1:8444"

// takenOver is a compromised broker of c1 with c1's certificate. It sends agents whatever a test wants.
type takenOver struct {
	semaphorev1.UnimplementedPeeringServiceServer
	mu      sync.Mutex
	log     []*semaphorev1.PeeringChange
	changed chan struct{}
	applied uint64
	reports []*semaphorev1.AgentReport
}

func (b *takenOver) say(changes ...*semaphorev1.PeeringChange) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range changes {
		b.log = append(b.log, c)
		c.Revision = uint64(len(b.log))
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// Attach implements PeeringService. It sends everything said so far on each stream.
func (b *takenOver) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	gone := make(chan error, 1)
	go func() {
		for {
			m, err := call.Recv()
			if err != nil {
				gone <- err
				return
			}
			b.mu.Lock()
			if r := m.GetReport(); r != nil {
				b.reports = append(b.reports, r)
			}
			if a := m.GetApplied(); a != nil {
				b.applied = a.GetRevision()
			}
			b.mu.Unlock()
		}
	}()
	send := func(m *semaphorev1.AttachResponse) error { return call.Send(m) }
	if err := send(&semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{
			Node: "n1", Cluster: "c1", Epoch: fmt.Sprint(time.Now().UnixNano()),
		}}}); err != nil {
		return err
	}
	for said := 0; ; {
		b.mu.Lock()
		rest, changed := b.log[said:], b.changed
		b.mu.Unlock()
		clusters := map[string]bool{}
		if said += len(rest); len(rest) > 0 {
			if err := send(&semaphorev1.AttachResponse{
				Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{Changes: rest}},
			}); err != nil {
				return err
			}
		}
		for _, c := range rest {
			clusters[c.GetDevice().GetCluster()] = c.GetDevice() != nil
		}
		synced := &semaphorev1.Synced{Revision: uint64(said)}
		for cluster, there := range clusters {
			if there {
				synced.Clusters = append(synced.Clusters, cluster)
			}
		}
		if err := send(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{Synced: synced}}); err != nil {
			return err
		}
		select {
		case <-changed:
		case err := <-gone:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// agentNode is a node of c1 with address 192.0.2.9, a default route to a router that forwards everything, and an agent
// with the shipped configuration.
type agentNode struct {
	t       *testing.T
	dir     string
	program string
	wire    *netns.Namespace
	log     string
}

func newAgentNode(t *testing.T) *agentNode {
	t.Helper()
	bins := testkit.Value(programs())(t)
	n := &agentNode{t: t, dir: t.TempDir(), program: bins["semaphore-agent"]}
	n.log = filepath.Join(n.dir, "agent.log")
	n.wire = testkit.Value(netns.Create("wire"))(t)
	t.Cleanup(func() { _ = n.wire.Delete() })
	for line := range strings.Lines(`link add eth0 type veth peer name eth0 netns wire
		addr add 192.0.2.9/24 dev eth0
		link set eth0 up
		-n wire addr add 192.0.2.1/24 dev eth0
		-n wire addr add 192.0.2.17/24 dev eth0
		-n wire link set eth0 up
		route add default via 192.0.2.1`) {
		n.run("ip", strings.Fields(line)...)
	}
	for _, name := range []string{"keys", "pki", "bundles"} {
		testkit.Must(n.t, os.MkdirAll(n.path(name), 0o755))
	}
	testkit.Must(n.t, os.WriteFile(n.path("token"), []byte("a token"), 0o600))
	return n
}

func (n *agentNode) path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

func (n *agentNode) run(name string, args ...string) string {
	n.t.Helper()
	return testkit.Command(n.t, name, args...)
}

// eventually waits for a condition that has no bound of its own.
func (n *agentNode) eventually(what string, ok func() bool) {
	n.t.Helper()
	testkit.Eventually(n.t, patience, what, testkit.True(ok))
}

// configure writes the agent's files: deploy/agent/config.yaml with the paths of this node, the broker.yaml of
// deploy/example/c1, the exporter's copy of the RemoteCluster c2, and the certificates of c1.
func (n *agentNode) configure(encryption string) {
	n.t.Helper()
	testkit.Must(n.t, identity.Init(n.path("pki"), "c1", identity.Validity{Authority: time.Hour, Certificate: time.Hour},
		time.Now()))
	_, bundle, err := identity.Bundle(n.path("pki"))
	testkit.Must(n.t, err)
	testkit.Must(n.t, os.WriteFile(n.path("bundles", "c1.pem"), bundle, 0o644))
	shipped := testkit.Value(os.ReadFile("../../deploy/agent/config.yaml"))(n.t)
	cfg := map[string]any{}
	testkit.Must(n.t, yaml.UnmarshalStrict(shipped, &cfg))
	cfg["cluster"] = "c1"
	cfg["broker"] = map[string]any{"address": peeringAddress, "bundleFile": n.path("bundles", "c1.pem"),
		"tokenFile": n.path("token")}
	cfg["wgKeyPath"], cfg["subnetsFile"], cfg["backend"] = n.path("keys"), n.path("broker.yaml"), "userspace"
	cfg["listen"] = map[string]any{"http": "127.0.0.1:7773", "debugSocket": n.path("agent.sock")}
	text := testkit.Value(yaml.Marshal(cfg))(n.t)
	testkit.Must(n.t, os.WriteFile(n.path("config.yaml"), text, 0o644))
	example := testkit.Value(os.ReadFile("../../deploy/example/c1/broker.yaml"))(n.t)
	testkit.Must(n.t, os.WriteFile(n.path("broker.yaml"), example, 0o644))
	n.bounds(remoteOf("c2", "10.2.0.0/16", encryption))
	if n.clear() == 0 {
		n.t.Fatal("without an agent no packet leaves for c2: this test would see nothing")
	}
}

// bounds writes the file with the remotes by which the agent bounds its broker.
func (n *agentNode) bounds(all ...map[string]any) {
	n.t.Helper()
	text := testkit.Value(yaml.Marshal(map[string]any{"remotes": all}))(n.t)
	testkit.Must(n.t, os.WriteFile(n.path(bounds.RemotesFile), text, 0o644))
}

// start runs the agent. The returned function ends it like a crash.
func (n *agentNode) start() (kill func()) {
	n.t.Helper()
	agent, err := testkit.Start(n.t, "the agent", n.log, exec.Command(n.program, "--config", n.path("config.yaml")))
	testkit.Must(n.t, err)
	return func() { agent.Kill(n.t) }
}

// serve runs the compromised broker.
func (n *agentNode) serve() *takenOver {
	n.t.Helper()
	source := testkit.Value(identity.NewSource(config.TLS{
		CertFile: n.path("pki", "broker", "tls.crt"), KeyFile: n.path("pki", "broker", "tls.key"),
		BundleDir: n.path("bundles"),
	}))(n.t)
	listener := testkit.Value((&net.ListenConfig{}).Listen(context.Background(), "tcp", peeringAddress))(n.t)
	b := &takenOver{changed: make(chan struct{})}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(source.ServerOnlyTLS())))
	semaphorev1.RegisterPeeringServiceServer(server, b)
	go func() { _ = server.Serve(listener) }()
	n.t.Cleanup(server.Stop)
	return b
}

// clear sends packets to pods of c2 for a second and returns how many the router has seen.
func (n *agentNode) clear() int {
	n.t.Helper()
	wire := testkit.Value(capture.Start(n.wire, "eth0"))(n.t)
	for range 50 {
		for _, to := range []string{"10.2.1.1", "10.2.200.7"} {
			if c, err := net.Dial("udp", to+":9"); err == nil {
				_, _ = c.Write([]byte("secret"))
				c.Close()
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	packets := testkit.Value(wire.Stop())(n.t)
	seen, pods := 0, netip.MustParsePrefix("10.2.0.0/16")
	for _, p := range packets {
		if len(p.Data) >= 34 && binary.BigEndian.Uint16(p.Data[12:]) == unix.ETH_P_IP &&
			pods.Contains(netip.AddrFrom4([4]byte(p.Data[30:34]))) {
			seen++
		}
	}
	return seen
}

func (n *agentNode) stands(device string) bool {
	return exec.Command("ip", "link", "show", device).Run() == nil
}

func deviceChange(cluster string, permissive bool, subnets ...string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: &semaphorev1.Device{
		Cluster: cluster, ListenPort: 7775, PodSubnets: subnets, Permissive: permissive,
	}}}
}

func peerChange(cluster, name string, key byte, endpoint string, allowed ...string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: &semaphorev1.Peer{
		Key: &semaphorev1.PeerKey{Cluster: cluster, Node: name}, AllowedIps: allowed,
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: append(bytes.Repeat([]byte{7}, 31), key), Address: endpoint},
	}}}
}

// R27 with the shipped configuration: whatever a compromised broker sends, and whether it runs or not, its nodes route
// only the remote's pod subnets, send only to the remote's nodes, and send no clear packet.
func TestTakenOverBroker(t *testing.T) {
	if !testing.Short() {
		testkit.Value(programs())(t)
	}
	nodetest.Run(t, func(t *testing.T) {
		n := newAgentNode(t)
		n.configure("strict")

		kill := n.start()
		n.eventually("the agent has guarded c2 without any broker",
			func() bool { return strings.Contains(n.guard(), "10.2.0.0/16") })
		n.kept("before the broker spoke")

		// The attack: routes to the own cluster and to the whole world, in parts and at once; an invented remote; clear
		// packets; endpoints of victims to which traffic would be sent, as addresses, as candidates and behind a name; and
		// nodes that call, whose endpoint is where a packet comes from.
		subnets := []string{"10.2.0.0/16", "10.1.0.0/16", "10.1.7.0/24", "10.101.0.0/16", "192.0.2.16/28", "192.0.2.8/29",
			"8.8.8.0/24", "0.0.0.0/0", "0.0.0.0/1"}
		for i := 1; i < 224; i++ {
			subnets = append(subnets, fmt.Sprintf("%d.0.0.0/8", i))
		}
		targets := []string{
			"127.0.0.1:53", "169.254.169.254:80", "192.0.2.9:22", "192.0.2.255:7775", "255.255.255.255:7775", "224.0.0.1:7775",
			"0.0.0.0:7775",
			"0.0.0.0:0", "192.0.2.10:7775", "10.1.1.1:7775", "10.101.0.1:443", "10.2.1.1:7775", "8.8.8.8:53",
			"[fd00:ec2::254]:80", "[::1]:53", "[64:ff9b::a65:1]:7775",
		}
		b := n.serve()
		attack := []*semaphorev1.PeeringChange{deviceChange("c2", true, subnets...), deviceChange("c9", false, "10.9.0.0/16")}
		for i, target := range targets {
			attack = append(attack, peerChange("c2", fmt.Sprintf("victim%d", i), byte(i), target,
				fmt.Sprintf("10.2.%d.0/24", 100+i)))
		}
		for i, candidates := range [][]string{targets, append([]string{"192.0.2.17:7775"}, targets...), {"localhost:53"}} {
			spoofed := peerChange("c2", fmt.Sprint("spoofed", i), byte(50+i), "", fmt.Sprintf("10.2.%d.0/24", 50+i))
			spoofed.GetPeer().Wireguard.Candidates = candidates
			calls := peerChange("c2", fmt.Sprint("calls", i), byte(60+i), targets[i], fmt.Sprintf("10.2.%d.0/24", 60+i))
			calls.GetPeer().Wireguard.Calls = true
			attack = append(attack, spoofed, calls)
		}
		attack = append(attack, peerChange("c2", "n1", 99, "192.0.2.17:7775", "10.2.1.0/24"),
			peerChange("c2", "n2", 98, "192.0.2.18:7775", "10.2.2.0/24", "10.1.9.9/32"))
		b.say(attack...)
		n.peered()
		time.Sleep(time.Second) // a wrong change would arrive within this time
		// By the last byte of their keys: n1, the three that call, and of the three with candidates one, at its candidate
		// that is inside the remote's nodeSubnets. The others' packets go nowhere.
		want := map[byte]string{99: "192.0.2.17:7775", 51: "192.0.2.17:7775", 50: "(none)", 52: "(none)", 60: "(none)",
			61: "(none)", 62: "(none)"}
		got := map[byte]string{}
		for line := range strings.Lines(n.run("wg", "show", "wireguard.c2", "endpoints")) {
			fields := strings.Fields(line)
			got[testkit.Value(wgtypes.ParseKey(fields[0]))(t)[31]] = fields[1]
		}
		if !maps.Equal(got, want) {
			t.Errorf("peers by key: %v; want %v", got, want)
		}
		if n.stands("wireguard.c9") {
			t.Error("there is a device to c9, which nobody configured")
		}
		for line := range strings.Lines(n.run("ip", "route", "show", "table", "7394")) {
			if !strings.HasPrefix(line, "10.2.0.0/16 dev wireguard.c2 ") &&
				!strings.HasPrefix(line, "unreachable 10.2.0.0/16 ") {
				t.Errorf("a route: %s", line)
			}
		}
		if got := n.run("ip", "route", "get", "10.1.7.7"); !strings.Contains(got, "dev eth0") {
			t.Errorf("packets to the own pods go elsewhere: %s", got)
		}
		// Add a route around the device.
		n.run("ip", "route", "add", "10.2.200.0/24", "via", "192.0.2.1", "table", "7394")
		n.kept("permissive at the broker's word alone")

		// The broker reports that the remote is gone.
		b.say(&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: "c2"}})
		n.eventually("the device has gone", func() bool { return !n.stands("wireguard.c2") })
		n.kept("after DeleteDevice")
		kill()
		n.kept("while no agent runs")
		n.start()
		time.Sleep(2 * time.Second)
		n.kept("after another agent's start")

		// The operator replaces the remote by another, which ends its guard.
		n.bounds(remoteOf("c3", "10.3.0.0/16", "strict"))
		n.eventually("c2 is guarded no more", func() bool {
			guard := n.guard()
			return !strings.Contains(guard, "10.2.0.0/16") && strings.Contains(guard, "10.3.0.0/16")
		})
		if n.clear() == 0 {
			t.Error("the operator has taken c2 out, and its packets are still stopped")
		}
	})
}

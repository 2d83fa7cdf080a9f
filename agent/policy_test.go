package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
)

// scripted is an agent on a node without a kernel. Its clock is that of its testing/synctest bubble.
type scripted struct {
	*agent
	kernel *kerneltest.Node
	report *semaphorev1.AgentReport
	sent   []uint64 // revisions
	begun  time.Time
	last   uint64 // the last revision that the broker sent
	rounds int    // of the agent's loop
}

// policy runs a test of the agent's policy: the agent's loop runs, and the test acts as its broker.
func policy(t *testing.T, test func(t *testing.T, s *scripted), before ...func(*kerneltest.Node, *config.Agent)) {
	t.Parallel()
	dir := t.TempDir()
	cfg, err := config.Parse[config.Agent](fmt.Appendf(nil, `
cluster: c1
broker: {address: "127.0.0.1:1", bundleFile: /none, tokenFile: /none}
wgKeyPath: %q
listen: {http: "127.0.0.1:0", debugSocket: %q}
`, filepath.Join(dir, "keys"), filepath.Join(dir, "agent.sock")))
	must(t, err)
	cfg.SubnetsFile = config.NoSubnets
	synctest.Test(t, func(t *testing.T) {
		n := &kerneltest.Node{}
		for _, f := range before {
			f(n, cfg)
		}
		s := &scripted{agent: newAgent(cfg, n, n.Guard()), kernel: n, begun: time.Now()}
		s.send = func(m *semaphorev1.AttachRequest) {
			if m.GetReport() != nil {
				s.report = m.GetReport()
				if err := refusal(s.report); err != nil {
					t.Errorf("a broker refuses its report: %v", err)
				}
			}
			if m.GetApplied() != nil {
				s.sent = append(s.sent, m.GetApplied().GetRevision())
			}
		}
		s.start(stream.LoadState(cfg.StateFile, cfg.Cluster))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		round := func(ctx context.Context, full bool) time.Time { s.rounds++; return s.round(ctx, full) }
		go func() { defer close(ended); _ = s.loop(ctx, round) }()
		synctest.Wait()
		test(t, s)
		stop()
		<-ended
	})
}

// attach attaches a broker that knows nothing of the agent's state, and that sends all of its own.
func (s *scripted) attach(t *testing.T, changes ...*semaphorev1.PeeringChange) {
	t.Helper()
	s.Begin()
	receive(t, s.agent, attached("A", false))
	s.change(t, changes...)
	s.receive(t, s.complete(changes))
}

// complete is the end mark of what a broker sends.
func (s *scripted) complete(changes []*semaphorev1.PeeringChange) *semaphorev1.AttachResponse {
	var clusters []string
	for _, c := range changes {
		if d := c.GetDevice(); d != nil {
			clusters = append(clusters, d.GetCluster())
		}
	}
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{
		Synced: &semaphorev1.Synced{Revision: s.last, Clusters: clusters},
	}}
}

// numbered gives changes their revisions.
func (s *scripted) numbered(changes []*semaphorev1.PeeringChange) *semaphorev1.AttachResponse {
	for _, c := range changes {
		s.last++
		c.Revision = s.last
	}
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{
		Changes: &semaphorev1.PeeringChanges{Changes: changes},
	}}
}

// change sends changes of the broker.
func (s *scripted) change(t *testing.T, changes ...*semaphorev1.PeeringChange) {
	t.Helper()
	s.receive(t, s.numbered(changes))
}

// receive delivers messages of the broker, and waits until the agent has nothing to do immediately.
func (s *scripted) receive(t *testing.T, all ...*semaphorev1.AttachResponse) {
	t.Helper()
	receive(t, s.agent, all...)
	synctest.Wait()
}

// after advances the clock.
func (s *scripted) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// reported returns the last report of a device; nil for none.
func (s *scripted) reported(cluster string) *semaphorev1.DeviceReport {
	for _, d := range s.report.GetDevices() {
		if d.GetCluster() == cluster {
			return d
		}
	}
	return nil
}

// done returns the last revision that was reported as applied.
func (s *scripted) done() uint64 {
	if len(s.sent) == 0 {
		return 0
	}
	return s.sent[len(s.sent)-1]
}

// changes returns the changes of devices since the last call. It leaves out the guard, which each full check sets
// again.
func changes(s *scripted) []string {
	return slices.DeleteFunc(s.kernel.Calls(), func(c string) bool { return strings.HasPrefix(c, "Guard ") })
}

func calls(s *scripted, method string) (n int) {
	for _, c := range s.kernel.Calls() {
		if strings.HasPrefix(c, method) {
			n++
		}
	}
	return n
}

// remoteC2 returns a remote with some nodes.
func remoteC2(nodes ...string) []*semaphorev1.PeeringChange {
	all := []*semaphorev1.PeeringChange{deviceOf("c2", 51821, "10.2.0.0/16")}
	for i, node := range nodes {
		all = append(all, peerOf("c2", node, publicKey(i+1), fmt.Sprintf("192.0.2.%d:51820", i+2),
			fmt.Sprintf("10.2.%d.0/24", i)))
	}
	return all
}

// TestPolicySet: a remote is guarded before its device exists, and a revision is reported once its device is set.
func TestPolicySet(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		if s.ready() == nil {
			t.Error("ready before a broker has said what it wants")
		}
		s.attach(t, remoteC2("n1")...)
		did := s.kernel.Calls()
		guarded, created := slices.Index(did, "Guard c2"), slices.Index(did, "Create "+device)
		configured, up := slices.Index(did, "Configure "+device), slices.Index(did, "SetLink "+device)
		routed := slices.Index(did, "AddRoute "+device+" 10.2.0.0/16")
		if guarded < 0 || !slices.IsSorted([]int{guarded, created, configured, up, routed}) {
			t.Errorf("the order is guard, device, peers, up, routes; got %s", strings.Join(did, ", "))
		}
		if s.done() != 2 || s.ready() != nil || s.reported("c2").GetPeers() != 1 ||
			len(s.reported("c2").GetPublicKey()) != 32 {
			t.Errorf("reported revision %d and %v; ready: %v", s.done(), s.reported("c2"), s.ready())
		}
		s.change(t, peerOf("c2", "n2", publicKey(2), "192.0.2.3:51820", "10.2.1.0/24"))
		if did := s.kernel.Calls(); !slices.Equal(did, []string{"Configure " + device}) || s.done() != 3 {
			t.Errorf("one peer more takes %s; reported revision %d", strings.Join(did, ", "), s.done())
		}
		s.Ended(errors.New("broken"))
		s.after(time.Hour)
		if did := changes(s); len(did) > 0 || s.ready() != nil {
			t.Errorf("without a broker the agent does %q, or is not ready: %v", did, s.ready())
		}
	})
}

// TestPolicyHeal: the agent heals changes of others: at the kernel's event, and without one within 300 ms, because
// WireGuard reports no change of a peer.
func TestPolicyHeal(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1", "n2")...)
		s.after(910 * time.Millisecond) // the last check without an event was at 900 ms, and the next one is at 1,200
		s.kernel.Change(device, func(d *kernel.Device) { d.Routes = nil })
		s.kernelChanged(kernel.Event{Interface: device})
		s.after(250 * time.Millisecond)
		if d, _ := s.kernel.Device(device); len(d.Routes) != 1 {
			t.Error("a route that was deleted is not back 250 ms after the event")
		}
		s.after(time.Second)
		s.kernel.Change(device, func(d *kernel.Device) { d.Peers = d.Peers[:1] })
		s.after(300 * time.Millisecond)
		if d, _ := s.kernel.Device(device); len(d.Peers) != 2 {
			t.Error("a peer that was removed is not back after 300 ms")
		}
		// The agent's own changes cause events, too, which have no effect.
		s.kernel.Calls()
		s.kernelChanged(kernel.Event{Interface: device})
		s.after(time.Minute)
		if did := changes(s); len(did) > 0 {
			t.Errorf("nobody has changed anything, and the agent does %q", did)
		}
	})
}

// TestPolicyTakenRoute: a route that another program replaces again and again is restored three times, and then left to
// it and reported.
func TestPolicyTakenRoute(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1")...)
		s.after(time.Second)
		s.kernel.Fail("AddRoute", kernel.ErrTaken)
		s.kernel.Calls()
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); s.after(100 * time.Millisecond) {
			s.kernel.Change(device, func(d *kernel.Device) { d.Routes = nil })
		}
		if n := calls(s, "ReplaceRoute"); n != 3 {
			t.Errorf("the route is restored %d times", n)
		}
		if got := s.reported("c2").GetProblem(); !strings.Contains(got, kernel.ErrTaken.Error()) {
			t.Errorf("the agent reports %q", got)
		}
	})
}

// peer returns a peer as in remoteC2, for a device that exists already.
func peer(i int) wgtypes.Peer {
	_, allowed, _ := net.ParseCIDR(fmt.Sprintf("10.2.%d.0/24", i))
	return wgtypes.Peer{
		PublicKey: publicKey(i + 1), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, byte(i+2)), Port: 51820},
		AllowedIPs: []net.IPNet{*allowed},
	}
}

// keyFile writes a key file as an earlier agent did.
func keyFile(cfg *config.Agent, device string) wgtypes.Key {
	key, _ := wgtypes.GeneratePrivateKey()
	_ = os.MkdirAll(cfg.WGKeyPath, 0o700)
	_ = os.WriteFile(filepath.Join(cfg.WGKeyPath, device+".key"), []byte(key.String()), 0o600)
	return key
}

// earlier returns a device of an earlier agent with some peers.
func earlier(cfg *config.Agent, cluster string, peers ...wgtypes.Peer) *kernel.Device {
	name := naming.Device(cluster)
	key := keyFile(cfg, name)
	return &kernel.Device{
		Name: name, Alias: naming.DeviceAlias(cluster), MTU: 1420, Up: true, PrivateKey: key, PublicKey: key.PublicKey(),
		ListenPort: 51821,
		Peers:      peers, Routes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
		Sources: map[netip.Prefix]netip.Addr{},
	}
}

// TestPolicyRestore: an agent that starts without a broker adds what an earlier one had received, and removes nothing
// before a broker has sent its state.
func TestPolicyRestore(t *testing.T) {
	stateFile := func(n *kerneltest.Node, cfg *config.Agent) {
		writeState(n, cfg, remoteC2("n1", "n2")...)
		n.Put(earlier(cfg, "c2", peer(0), peer(7))) // n2 is missing, and peer 7 is newer than the state
	}
	policy(t, func(t *testing.T, s *scripted) {
		d, _ := s.kernel.Device(device)
		keys := map[wgtypes.Key]bool{}
		for _, p := range d.Peers {
			keys[p.PublicKey] = true
		}
		if len(keys) != 3 || !keys[publicKey(1)] || !keys[publicKey(2)] || !keys[publicKey(8)] {
			t.Errorf("the device has %d peers; want the one that was missing added and none removed", len(keys))
		}
		if err := s.ready(); err != nil {
			t.Errorf("not ready although all that was restored is set: %v", err)
		}
		if got := s.agent.status().GetDevices()[0]; got.GetSource() != semaphorev1.StateSource_STATE_SOURCE_CACHE {
			t.Errorf("the state is said to be of the %s", got.GetSource())
		}
		s.after(time.Minute)
		if d, _ := s.kernel.Device(device); len(d.Peers) != 3 {
			t.Error("a peer is removed without a broker's word")
		}
		s.attach(t, remoteC2("n1", "n2")...)
		if d, _ := s.kernel.Device(device); len(d.Peers) != 2 || s.done() == 0 {
			t.Errorf("%d peers once the broker has said all; want 2", len(d.Peers))
		}
	}, stateFile)
}

// TestPolicyRestoreWithinBounds: the node's present subnets bound the state that an earlier agent saved.
func TestPolicyRestoreWithinBounds(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		d, _ := s.kernel.Device(device)
		if got := s.board.Get().Devices["c2"].Problem; len(d.Routes)+len(d.Peers) != 0 ||
			!strings.Contains(got, "10.2.0.0/16 of the own cluster") {
			t.Errorf("routes %v, %d peers: %s", d.Routes, len(d.Peers), got)
		}
	}, func(n *kerneltest.Node, cfg *config.Agent) {
		writeState(n, cfg, remoteC2("n1")...)
		cfg.LocalPrefixes = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
	})
}

// TestPolicyUnusableState: a state file that is damaged, or of a state without remotes, does not show what to do.
// Existing objects stay, the agent is not ready before its broker has sent its state, and the file remains as it is
// until then.
func TestPolicyUnusableState(t *testing.T) {
	for what, write := range map[string]func(n *kerneltest.Node, cfg *config.Agent){
		"damaged": func(n *kerneltest.Node, cfg *config.Agent) {
			writeState(n, cfg, remoteC2("n1", "n2")...)
			info, _ := os.Stat(cfg.StateFile)
			_ = os.Truncate(cfg.StateFile, info.Size()-7)
		},
		"without remotes": func(n *kerneltest.Node, cfg *config.Agent) { writeState(n, cfg) },
	} {
		t.Run(what, func(t *testing.T) {
			policy(t, func(t *testing.T, s *scripted) {
				before := read(t, s.cfg.StateFile)
				s.after(time.Hour)
				if d, _ := s.kernel.Device(device); d == nil || len(d.Peers) != 1 || len(changes(s)) > 0 {
					t.Errorf("the device that existed is now %v", d)
				}
				if err := s.ready(); err == nil || !strings.Contains(err.Error(), "has not sent its complete state yet") {
					t.Errorf("ready: %v", err)
				}
				if read(t, s.cfg.StateFile) != before {
					t.Error("an agent that has received nothing writes the file")
				}
				s.attach(t, remoteC2("n1", "n2")...)
				if d, _ := s.kernel.Device(device); len(d.Peers) != 2 || s.ready() != nil {
					t.Errorf("%d peers once the broker has sent its state; ready: %v", len(d.Peers), s.ready())
				}
			}, write, func(n *kerneltest.Node, cfg *config.Agent) { n.Put(earlier(cfg, "c2", peer(0))) })
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	return string(data)
}

// writeState writes the state file of an agent that received this state.
func writeState(n *kerneltest.Node, cfg *config.Agent, changes ...*semaphorev1.PeeringChange) {
	state := newAgent(cfg, n, n.Guard())
	state.send = func(*semaphorev1.AttachRequest) {}
	s := &scripted{agent: state}
	s.Begin()
	for _, m := range []*semaphorev1.AttachResponse{attached("A", false), s.numbered(changes), s.complete(changes)} {
		if err := s.Receive(context.Background(), m); err != nil {
			panic(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	stop() // it writes when it ends
	_ = state.cache.Run(ctx)
}

// TestPolicyOrphan: a device of an earlier agent that no broker names is reported, and removed only when the broker
// orders it, with its key if that is configured. A device of another program is never touched.
func TestPolicyOrphan(t *testing.T) {
	for name, removes := range map[string]bool{"keys stay": false, "its key goes": true} {
		t.Run(name, func(t *testing.T) { orphan(t, removes) })
	}
}

func orphan(t *testing.T, removesKeys bool) {
	const long = "exp-1-aws-eu-west-1" // its device is called wg. and a hash
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t)
		if got := s.reported("c9"); got.GetProblem() != notNamed || len(got.GetPublicKey()) != 32 {
			t.Errorf("the orphan is reported as %v", got)
		}
		s.after(time.Hour)
		if d, _ := s.kernel.Device("wireguard.c9"); d == nil {
			t.Fatal("the orphan is removed without the broker's word")
		}
		if s.reported(long) == nil || s.reported("c7") != nil {
			t.Errorf("reported: %v; want the orphan of a long name, and no device of semaphore-wireguard", s.report)
		}
		s.change(t, noDevice("c9"), noDevice(long), noDevice("c8"), noDevice("c7"))
		for _, orphan := range []string{"c9", long} {
			if d, _ := s.kernel.Device(naming.Device(orphan)); d != nil || s.reported(orphan) != nil {
				t.Errorf("the orphan stays although the broker orders its removal: %v, reported %v", d, s.reported(orphan))
			}
		}
		_, err := kernel.NewKeys(s.cfg.WGKeyPath).Read("wireguard.c9")
		if gone := errors.Is(err, fs.ErrNotExist); gone != removesKeys {
			t.Errorf("the orphan's key has gone: %t, %v", gone, err)
		}
		if _, err := kernel.NewKeys(s.cfg.WGKeyPath).Read("wireguard.c7"); err != nil {
			t.Errorf("the key of another device: %v", err)
		}
		if d, _ := s.kernel.Device("wireguard.c8"); d == nil {
			t.Error("somebody else's interface is removed")
		}
		if d, _ := s.kernel.Device("wireguard.c7"); d == nil {
			t.Error("the interface of semaphore-wireguard is removed")
		}
		if s.ready() == nil {
			t.Error("nothing is said of the interface that cannot be removed")
		}
	}, func(n *kerneltest.Node, cfg *config.Agent) {
		cfg.RemoveKeys = removesKeys
		n.Put(earlier(cfg, "c9", peer(0)))
		n.Put(earlier(cfg, long, peer(1)))
		n.Put(&kernel.Device{Name: "wireguard.c8", Alias: "someone's"})
		n.Put(&kernel.Device{Name: "wireguard.c7", PrivateKey: keyFile(cfg, "wireguard.c7"),
			Peers: []wgtypes.Peer{peer(0)}})
	})
}

func rotateKey(within time.Duration, force bool) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_RotateKey{RotateKey: &semaphorev1.RotateKey{
		Cluster: "c2", Within: durationpb.New(within), Force: force,
	}}}
}

func undelivered(clusters ...string) *semaphorev1.AttachResponse {
	m := &semaphorev1.Undelivered{}
	for _, c := range clusters {
		m.Remotes = append(m.Remotes, &semaphorev1.UndeliveredRemote{Cluster: c, Reason: "its broker is gone"})
	}
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Undelivered{Undelivered: m}}
}

// publicOf returns the public key of the key file of c2.
func (s *scripted) publicOf(t *testing.T) string {
	key, err := kernel.NewKeys(s.cfg.WGKeyPath).Read(device)
	must(t, err)
	public := key.PublicKey()
	return string(public[:])
}

// TestPolicyRotation: a rotation replaces the key in its file, on the device and in the report. There is none without a
// broker, or, unless it is forced, while the remote would not receive the new key: it waits without waking the loop.
func TestPolicyRotation(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1")...)
		first := s.publicOf(t)
		consistent := func(when string) string {
			t.Helper()
			d, _ := s.kernel.Device(device)
			if file := s.publicOf(t); string(d.PublicKey[:]) != file || string(s.reported("c2").GetPublicKey()) != file {
				t.Errorf("%s: file, device and report have different keys", when)
			}
			return s.publicOf(t)
		}
		s.receive(t, rotateKey(0, false))
		second := consistent("a rotation")
		if second == first {
			t.Fatal("the broker wants a new key, and the old one stays")
		}
		hour := func() int {
			before := s.rounds
			s.queue.poke() // what this goroutine has read is ordered before what the loop writes
			s.after(time.Hour)
			return s.rounds - before
		}
		idle := hour()
		s.receive(t, undelivered("c2"), rotateKey(0, false))
		// Wakes at one instant are one round or two, as the goroutines come. Waiting that wakes the loop doubles them.
		if waiting := hour(); waiting > idle+idle/10 {
			t.Errorf("%d rounds in an hour in which a key waits, and %d in one in which none does", waiting, idle)
		}
		if consistent("undelivered") != second {
			t.Error("the key is replaced although the remote would not learn of the new one")
		}
		if got := s.reported("c2").GetProblem(); !strings.Contains(got, "its broker is gone") {
			t.Errorf("why the key waits is reported as %q", got)
		}
		s.receive(t, undelivered())
		s.after(time.Second)
		third := consistent("delivered again")
		if third == second || s.reported("c2").GetProblem() != "" {
			t.Errorf("the key is not replaced once the remote learns of it, or its problem stays: %q",
				s.reported("c2").GetProblem())
		}
		s.receive(t, undelivered("c2"), rotateKey(0, true))
		if consistent("forced") == third {
			t.Error("a forced rotation waits")
		}
		s.receive(t, undelivered())
		s.Ended(errors.New("broken"))
		fourth := s.publicOf(t)
		ask := operator{agent: s.agent}.RotateKey
		_, err := ask(t.Context(), &semaphorev1.RotateKeyRequest{Cluster: "c2"})
		if grpcstatus.Code(err) != codes.FailedPrecondition || s.publicOf(t) != fourth ||
			!strings.Contains(err.Error(), "no peer would get the new key") {
			t.Errorf("an operator has the key replaced without a broker: %v", err)
		}
		answer, err := ask(t.Context(), &semaphorev1.RotateKeyRequest{Nodes: []string{"n1"}, Force: true})
		if n := answer.GetNodes(); err != nil || s.publicOf(t) == fourth || len(n) != 1 || n[0].GetNode() != "n1" ||
			!n[0].GetAccepted() || len(n[0].GetKeys()) != 1 ||
			string(n[0].GetKeys()[0].GetPublicKey()) != s.publicOf(t) {
			t.Errorf("an operator who forces it does not have the key replaced: %v, %v", answer, err)
		}
		for want, request := range map[codes.Code]*semaphorev1.RotateKeyRequest{
			codes.InvalidArgument: {Nodes: []string{"n1", "n2"}},
			codes.NotFound:        {Cluster: "c9", Force: true},
		} {
			if _, err := ask(t.Context(), request); grpcstatus.Code(err) != want {
				t.Errorf("%v: %v; want %v", request, err, want)
			}
		}
	})
}

// TestPolicyRotationByAge: a key that is too old is replaced once the greatest age is known, and the new key is not.
func TestPolicyRotationByAge(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1")...)
		first, old := s.publicOf(t), time.Now().Add(-100*time.Hour)
		must(t, os.Chtimes(filepath.Join(s.cfg.WGKeyPath, device+".key"), old, old))
		aged := remoteC2()
		aged[0].GetDevice().KeyMaxAge = durationpb.New(time.Hour)
		s.change(t, aged...)
		s.after(13 * time.Minute) // keys that are too old are replaced within a fifth of the greatest age
		second := s.publicOf(t)
		if second == first {
			t.Error("a key that is too old is not replaced")
		}
		s.after(30 * time.Minute)
		if s.publicOf(t) != second {
			t.Error("a new key is replaced")
		}
	})
}

// TestPolicyReplacedPeer: the peer of a node with a new key is removed 200 ms after its successor is set, as packets
// may be on their way through it; at once if it has no session. Nothing of the old peer stays in the agent's memory.
func TestPolicyReplacedPeer(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1", "n2")...)
		s.after(time.Minute) // what is known of sessions is old
		// A part of what the agent reads of the peer, to find out whether the agent has it.
		var session weak.Pointer[net.UDPAddr]
		s.kernel.Change(device, func(d *kernel.Device) {
			p := &d.Peers[slices.IndexFunc(d.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == publicKey(1) })]
			p.LastHandshakeTime = time.Now()
			p.Endpoint = &net.UDPAddr{IP: p.Endpoint.IP, Port: p.Endpoint.Port}
			session = weak.Make(p.Endpoint)
		})
		has := func(i int) bool {
			d, _ := s.kernel.Device(device)
			return slices.ContainsFunc(d.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == publicKey(i) })
		}
		s.change(t, peerOf("c2", "n1", publicKey(11), "192.0.2.2:51820", "10.2.0.0/24"))
		s.after(199 * time.Millisecond)
		if !has(1) || !has(11) {
			t.Errorf("with a session, after 199 ms: the old peer stands: %v, the new one: %v", has(1), has(11))
		}
		s.after(time.Millisecond)
		if has(1) || !has(11) {
			t.Errorf("with a session, after 200 ms: the old peer stands: %v, the new one: %v", has(1), has(11))
		}
		s.change(t, peerOf("c2", "n2", publicKey(12), "192.0.2.3:51820", "10.2.1.0/24"))
		if has(2) || !has(12) {
			t.Errorf("without a session, at once: the old peer stands: %v, the new one: %v", has(2), has(12))
		}
		// The agent remembers sessions for a while, because of further changes, and no longer.
		s.after(9 * time.Second)
		if runtime.GC(); session.Value() == nil {
			t.Error("after 9 s, the agent does not remember the session of the old peer: what follows proves nothing")
		}
		s.after(2 * time.Second)
		if runtime.GC(); session.Value() != nil {
			t.Error("after 11 s, the agent still has the session of the old peer in memory")
		}
	})
}

// TestPolicyRotationThatFails: a rotation is delayed as the broker requests. If its file cannot be written, it is
// retried after a minute, with the old key in use.
func TestPolicyRotationThatFails(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		s.attach(t, remoteC2("n1")...)
		first := s.publicOf(t)
		s.receive(t, rotateKey(time.Hour, false))
		s.after(time.Hour + time.Second)
		second := s.publicOf(t)
		if second == first {
			t.Error("the key is not replaced an hour after the broker asked for it within one")
		}
		// A rename cannot replace a directory, so the new key cannot be saved. The device's own key is saved instead.
		path := filepath.Join(s.cfg.WGKeyPath, device+".key")
		must(t, os.Remove(path))
		must(t, os.Mkdir(path, 0o700))
		s.receive(t, rotateKey(0, false))
		if got := s.reported("c2").GetProblem(); !strings.Contains(got, "new private key of "+device) {
			t.Errorf("the agent reports %q", got)
		}
		if d, _ := s.kernel.Device(device); string(d.PublicKey[:]) != second || s.publicOf(t) != second {
			t.Error("the device has lost its key")
		}
		s.after(59 * time.Second)
		if s.publicOf(t) != second {
			t.Error("the rotation is tried again before a minute has passed")
		}
		s.after(2 * time.Second)
		if d, _ := s.kernel.Device(device); s.publicOf(t) == second || string(d.PublicKey[:]) != s.publicOf(t) {
			t.Error("the rotation is not tried again after a minute")
		}
	})
}

// TestPolicyGuardOfARemoteThatIsBack: the deletion of a device is about the remote as it was. One that the broker's
// newest list names again stays guarded, although the agent learns of the deletion after the list.
func TestPolicyGuardOfARemoteThatIsBack(t *testing.T) {
	policy(t, func(t *testing.T, s *scripted) {
		guard := &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guarding("c2")}}
		s.Begin()
		receive(t, s.agent, attached("A", false), guard)
		all := remoteC2("n1")
		s.change(t, all...)
		s.receive(t, s.complete(all))
		if s.kernel.Guarded("c2") == nil {
			t.Fatal("c2 is not guarded")
		}
		// The stream breaks. Meanwhile the RemoteCluster c2 is deleted and created again; its exporter is not connected yet.
		s.Begin()
		receive(t, s.agent, attached("A", true), guard)
		s.change(t, &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_DeletePeer{
			DeletePeer: &semaphorev1.PeerKey{Cluster: "c2", Node: "n1"}}},
			&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: "c2"}})
		s.receive(t, synced(s.last))
		s.after(2 * time.Minute)
		if s.kernel.Guarded("c2") == nil {
			t.Errorf("the broker names c2 as a remote to guard, and packets to its pods leave in the clear; the report says "+
				"guarded: %v", s.report.GetGuarded())
		}
		// A removal comes as the deletion of the device, and then as a list without the remote.
		s.receive(t, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guarding()}})
		s.after(time.Second)
		if s.kernel.Guarded("c2") != nil {
			t.Error("the broker does not name c2 any more, and packets to its pods are stopped")
		}
	})
}

// TestPolicyGuard: the node reports that it is guarded once all remotes are, also those with a device, and a guard that
// fails is retried.
func TestPolicyGuard(t *testing.T) {
	t.Run("no device", func(t *testing.T) { guardThatFails(t) })
	t.Run("a device", func(t *testing.T) { guardThatFails(t, remoteC2("n1")...) })
	t.Run("two devices", func(t *testing.T) {
		guardThatFails(t, append(remoteC2("n1"), deviceOf("c3", 51822, "10.3.0.0/16"))...)
	})
}

func guardThatFails(t *testing.T, changes ...*semaphorev1.PeeringChange) {
	t.Helper()
	policy(t, func(t *testing.T, s *scripted) {
		s.kernel.Fail("Guard", errors.New("no nftables today"))
		s.Begin()
		receive(t, s.agent, attached("A", false),
			&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guarding("c2", "c3")}})
		s.change(t, changes...)
		s.receive(t, s.complete(changes))
		s.after(10 * time.Second)
		if s.board.Get().Node.Guarded || s.ready() == nil {
			t.Error("the node is said to be guarded, and is not")
		}
		s.kernel.Fail("Guard", nil)
		s.after(2 * time.Second)
		if !s.report.GetGuarded() || s.kernel.Guarded("c2") == nil || s.kernel.Guarded("c3") == nil || s.ready() != nil {
			t.Errorf("guarded: %v, ready: %v", s.report.GetGuarded(), s.ready())
		}
		if problems := s.board.Get().Node.Problems(); len(problems) > 0 {
			t.Errorf("problems stay: %q", problems)
		}
	})
}

// TestPolicyRetainedEnds: subnets that the subnets file no longer names are reported while they are guarded, and no
// longer once the broker removed the remote, too.
func TestPolicyRetainedEnds(t *testing.T) {
	dir := t.TempDir()
	file, beside := filepath.Join(dir, "broker.yaml"), filepath.Join(dir, bounds.RemotesFile)
	policy(t, func(t *testing.T, s *scripted) {
		reported := func() bool {
			return slices.ContainsFunc(s.board.Get().Node.Findings, func(f finding.Finding) bool {
				return f.Code == finding.SubnetsFileProblem
			})
		}
		all := remoteC2("n1")
		s.Begin()
		receive(t, s.agent, attached("A", false),
			&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guarding("c2")}})
		s.change(t, all...)
		s.receive(t, s.complete(all))
		if s.kernel.Guarded("c2") == nil || reported() {
			t.Fatalf("c2 is guarded: %v; %v", s.kernel.Guarded("c2"), s.board.Get().Node.Findings)
		}
		must(t, os.WriteFile(beside, []byte("remotes: []\n"), 0o600))
		s.reloadSubnets()
		s.after(2 * time.Second)
		if s.kernel.Guarded("c2") == nil || !reported() {
			t.Fatalf("c2 is guarded: %v; %v", s.kernel.Guarded("c2"), s.board.Get().Node.Findings)
		}
		s.receive(t, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guarding()}})
		s.change(t, noDevice("c2"))
		s.after(time.Minute)
		if s.kernel.Guarded("c2") != nil || reported() {
			t.Errorf("c2 is guarded: %v; %v", s.kernel.Guarded("c2"), s.board.Get().Node.Findings)
		}
	}, func(_ *kerneltest.Node, cfg *config.Agent) {
		cfg.SubnetsFile = file
		must(t, os.WriteFile(file, []byte("features: [encryption]\nlocalSubnets: [10.1.0.0/16]\n"), 0o600))
		must(t, os.WriteFile(beside, []byte("remotes:\n"+entry("c2", 51821, "10.2.0.0/16")), 0o600))
	})
}

// TestPolicyClockSetBackBeforeTheStart: a node's clock was ahead when an earlier agent ran, and was corrected since.
// Its state file shows that: the agent reports it and renews the keys, and the age of the state is unknown, and not 0.
func TestPolicyClockSetBackBeforeTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration
		back  bool
	}{
		"ahead by an hour": {time.Hour, true},
		"an hour ago":      {-time.Hour, false},
		"now":              {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			policy(t, func(t *testing.T, s *scripted) {
				first := s.publicOf(t)
				if got := s.clockProblem(); strings.Contains(got, "set back by 1h0m0s") != c.back {
					t.Errorf("the clock's problem is %q", got)
				}
				metrics := &status.Metrics{Board: s.board, Session: s.session, Counts: s.guard.Counts}
				ages := testutil.CollectAndCount(metrics, "semaphore_agent_state_age_seconds")
				remarks := status.Remarks(s.board.Get(), s.session.View(time.Now()), time.Now())
				if unknown := ages == 0; unknown != c.back || strings.Contains(remarks, "age unknown") != c.back {
					t.Errorf("%d ages, %q", ages, remarks)
				}
				s.attach(t, remoteC2("n1")...)
				s.after(renewWithin)
				if renewed := s.publicOf(t) != first; renewed != c.back {
					t.Errorf("the key was renewed: %t", renewed)
				}
			}, func(n *kerneltest.Node, cfg *config.Agent) {
				writeState(n, cfg, remoteC2("n1")...)
				keyFile(cfg, device)
				at := time.Now().Add(c.ahead)
				must(t, os.Chtimes(cfg.StateFile, at, at))
			})
		})
	}
}

// TestStatusDoesNotWait: a scrape does not wait for the current round, and shows the last view.
func TestStatusDoesNotWait(t *testing.T) {
	var b status.Board
	b.PutDevice("c2", status.Device{Problem: "first"})
	view := b.Get()
	b.PutDevice("c2", status.Device{Problem: "second"})
	b.PutDevice("c3", status.Device{})
	if len(view.Devices) != 1 || view.Devices["c2"].Problem != "first" {
		t.Errorf("a view changes after it was taken: %v", view.Devices)
	}
}

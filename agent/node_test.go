package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// must ends the test on an error.
var must = testkit.Must

// eventually waits for a condition without a time limit of its own, and returns how long that took. If it does not
// happen, all goroutines are logged: agents run in this process.
func eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	happened := false
	defer func() {
		if !happened {
			var all strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // a Builder takes all
			t.Log(all.String())
		}
	}()
	took := testkit.Eventually(t, nodetest.Patience(90*time.Second), what, testkit.True(ok))
	happened = true
	return took
}

var ip = testkit.IP

// run starts an agent, and returns what stops it. At the end of the test it stops, and then these devices go, which it
// would restore otherwise.
func run(t testing.TB, cfg *config.Agent, devices ...string) (stop func()) {
	t.Helper()
	removeAtEnd(t, devices...)
	return testkit.Run(t, func(ctx context.Context) error { return Run(ctx, cfg) })
}

// fetch reads a page of the agent. The status is 0 if it does not answer.
func fetch(path string) (int, string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://127.0.0.1:7773/" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

// sameCodes checks the beginning of /readyz, and that /readyz, metrics and status list the same codes.
func sameCodes(t *testing.T, cfg *config.Agent, begins string) {
	t.Helper()
	client := debugClient(t, cfg)
	eventually(t, "/readyz, metrics and status have the same codes", func() bool {
		_, page := fetch("readyz?verbose")
		_, metrics := fetch("metrics")
		s, err := client.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
		must(t, err)
		if err = testkit.SameCodes(page, metrics, s.GetFindings()); err != nil {
			t.Log(err)
		}
		return err == nil && strings.HasPrefix(page, begins)
	})
}

func ready() bool {
	code, _ := fetch("readyz")
	return code == http.StatusOK
}

// metric returns the value of a series as text; empty if there is none.
func metric(t testing.TB, series string) string {
	t.Helper()
	_, page := fetch("metrics")
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// shows checks the value of a series.
func shows(t testing.TB, series, want string) {
	t.Helper()
	if got := metric(t, series); got != want {
		t.Errorf("%s is %q; want %q", series, got, want)
	}
}

// number returns the value of a series as a number; 0 if there is none.
func number(t testing.TB, series string) float64 {
	t.Helper()
	n, _ := strconv.ParseFloat(metric(t, series), 64)
	return n
}

func deviceOf(cluster string, port uint32, subnets ...string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: &semaphorev1.Device{
		Cluster: cluster, ListenPort: port, Mtu: 1380, PodSubnets: subnets,
		PersistentKeepalive: durationpb.New(25 * time.Second),
	}}}
}

func peerOf(cluster, node string, key wgtypes.Key, endpoint string, allowed ...string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: &semaphorev1.Peer{
		Key: &semaphorev1.PeerKey{Cluster: cluster, Node: node}, AllowedIps: allowed,
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: key[:], Address: endpoint},
	}}}
}

// other returns one of many peers of c2 at which no node is, with the key of a number.
func other(i, key int) *semaphorev1.PeeringChange {
	return peerOf("c2", fmt.Sprint("x", i), publicKey(key), "192.0.2.9:51820",
		fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&255))
}

// others returns n of them, and their device, without a keepalive that none would answer.
func others(n int) []*semaphorev1.PeeringChange {
	all := []*semaphorev1.PeeringChange{deviceOf("c2", 51820, "10.2.0.0/16", "10.64.0.0/11")}
	all[0].GetDevice().PersistentKeepalive = nil
	for i := range n {
		all = append(all, other(i, i))
	}
	return all
}

func noPeer(cluster, node string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{
		Change: &semaphorev1.PeeringChange_DeletePeer{DeletePeer: &semaphorev1.PeerKey{Cluster: cluster, Node: node}},
	}
}

func noDevice(cluster string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: cluster}}
}

func publicKey(seed int) wgtypes.Key {
	return wgtypes.Key(slices.Concat(bytes.Repeat([]byte{7}, 28),
		[]byte{0, byte(seed >> 16), byte(seed >> 8), byte(seed)}))
}

func newHost(t testing.TB) *kernel.Host { return newHostWith(t, kernel.DefaultRoutingTable()) }

func newHostWith(t testing.TB, table kernel.RoutingTable) *kernel.Host {
	t.Helper()
	h, err := kernel.NewHost(nodetest.Backend(), "", table)
	must(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

// unguard removes the guard and all routes of an agent, as a boot does.
func unguard(t *testing.T) {
	t.Helper()
	_, err := guard.RemoveTable()
	must(t, err)
	_, err = kernel.RemoveRouting()
	must(t, err)
}

func deviceOn(t testing.TB, h *kernel.Host, name string) *kernel.Device {
	t.Helper()
	d, err := h.Device(name)
	must(t, err)
	if d == nil {
		t.Fatalf("there is no device %s", name)
	}
	return d
}

// remote is a node of c2 in a network namespace beside this node's, with one pod, 10.2.1.1, that echoes packets to UDP
// port 7.
type remote struct {
	*netns.Namespace
	host *kernel.Host
	key  wgtypes.Key
}

const remoteDevice = "wireguard.c1"

func newRemote(t testing.TB) *remote {
	t.Helper()
	ns, err := netns.Create("remote")
	must(t, err)
	r := &remote{Namespace: ns}
	ip(t, "link add eth0 type veth peer name eth0 netns remote")
	ip(t, "addr add 192.0.2.1/24 dev eth0")
	ip(t, "link set eth0 up")
	ip(t, "addr add 10.1.1.1/32 dev lo")
	ip(t, "-n remote addr add 192.0.2.2/24 dev eth0")
	ip(t, "-n remote link set eth0 up")
	r.begin(t)
	return r
}

// begin creates the remote node's device and pod.
func (r *remote) begin(t testing.TB) {
	t.Helper()
	ip(t, "-n "+r.Name()+" addr add 10.2.1.1/32 dev lo")
	r.host, r.key = tunnel(t, r.Namespace, nil, "10.1.0.0/16")
	echo(t, r.Namespace, "10.2.1.1:7")
}

// tunnel creates a device with a new key in a namespace until the test ends.
func tunnel(t testing.TB, ns *netns.Namespace, peers []wgtypes.PeerConfig, subnets ...string) (h *kernel.Host,
	key wgtypes.Key) {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	port := 51820
	must(t, ns.Do(func() error {
		if h, err = kernel.NewHost(nodetest.Backend(), "", kernel.DefaultRoutingTable()); err != nil {
			return err
		}
		err = errors.Join(h.Create(t.Context(), remoteDevice, remoteDevice, 1380),
			h.Configure(remoteDevice, wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: peers}),
			h.SetLink(remoteDevice, remoteDevice, 1380, true))
		for _, subnet := range subnets {
			err = errors.Join(err, h.AddRoute(remoteDevice, netip.MustParsePrefix(subnet), netip.Addr{}))
		}
		return err
	}))
	t.Cleanup(func() {
		must(t, ns.Do(func() error { return h.Delete(remoteDevice) }))
		h.Close()
	})
	return h, key
}

// echo sends back what comes to an address in a namespace, until the test ends.
func echo(t testing.TB, ns *netns.Namespace, at string) {
	t.Helper()
	echo, err := ns.ListenPacket(t.Context(), "udp", at)
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 2048)
		for {
			n, from, err := echo.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buffer[:n], from)
		}
	}()
	t.Cleanup(func() { echo.Close(); <-ended })
}

// pair adds this node as a peer to the remote one, with the key that it reported.
func (r *remote) pair(t testing.TB, key []byte) {
	t.Helper()
	_, allowed, _ := net.ParseCIDR("10.1.1.0/24")
	must(t, r.Do(func() error {
		return r.host.Configure(remoteDevice, wgtypes.Config{ReplacePeers: true, Peers: []wgtypes.PeerConfig{{
			PublicKey: wgtypes.Key(key), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 51820},
			AllowedIPs: []net.IPNet{*allowed},
		}}})
	}))
}

// pairWith pairs the node with this one, whose agent has not run yet, and returns the key that the agent will have.
func (r *remote) pairWith(t testing.TB, cfg *config.Agent) wgtypes.Key {
	t.Helper()
	key, err := kernel.NewKeys(cfg.WGKeyPath).Of(device, nil)
	must(t, err)
	public := key.Private.PublicKey()
	r.pair(t, public[:])
	return public
}

// peer is the node as the broker names it.
func (r *remote) peer() *semaphorev1.PeeringChange {
	return peerOf("c2", "n1", r.key.PublicKey(), "192.0.2.2:51820", "10.2.1.0/24")
}

// requests is a pod that continuously sends to the remote one.
type requests struct {
	sent, back atomic.Int64
	// most is the largest number in flight, and patience how long the last ones may be under way at the end.
	most     int
	patience time.Duration
	stop     chan struct{}
	stopped  chan struct{}

	mu sync.Mutex
	// open has when the unanswered ones were sent, by number. writtenOff of them will not come back; the others are in
	// flight.
	open       map[int64]time.Time
	writtenOff int
	// last is when the last one was sent.
	last time.Time
}

const podAddress = "10.1.1.1"

// toPod connects this node's pod to a remote one.
func toPod(t testing.TB, to string) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(podAddress)}, &net.UDPAddr{IP: net.ParseIP(to), Port: 7})
	must(t, err)
	return c
}

func startTraffic(t *testing.T) *requests {
	t.Helper()
	return startTrafficEvery(t, 2*time.Millisecond)
}

func startTrafficEvery(t *testing.T, interval time.Duration) *requests {
	t.Helper()
	return converse(toPod(t, "10.2.1.1"), nodetest.Patience(interval))
}

// converse sends while answers come.
func converse(c net.Conn, interval time.Duration) *requests {
	return (&requests{most: 100, patience: nodetest.Patience(15 * time.Second)}).start(c, interval)
}

// insist sends whether answers come or not.
func insist(c net.Conn) *requests {
	return (&requests{most: math.MaxInt}).start(c, 2*time.Millisecond)
}

func (tr *requests) start(c net.Conn, interval time.Duration) *requests {
	tr.open, tr.stop, tr.stopped = map[int64]time.Time{}, make(chan struct{}), make(chan struct{})
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 2048)
		for {
			if n, err := c.Read(buffer); err == nil {
				tr.answered(string(buffer[:n]))
			} else if errors.Is(err, net.ErrClosed) {
				return
			} else {
				time.Sleep(time.Millisecond) // the kernel reported that there is no route
			}
		}
	}()
	go func() {
		defer close(tr.stopped)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if n, more := tr.next(); more {
					_, _ = c.Write(strconv.AppendInt(nil, n, 10)) // a packet that is refused counts as lost, too
				}
			case <-tr.stop:
				// Packets in flight are late on a busy machine, and not lost.
				at, back := time.Now(), tr.back.Load()
				for back < tr.sent.Load() && time.Since(at) < tr.patience {
					time.Sleep(10 * time.Millisecond)
					if now := tr.back.Load(); now > back {
						at, back = time.Now(), now
					}
				}
				c.Close()
				<-read
				return
			}
		}
	}()
	return tr
}

func (tr *requests) answered(number string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n, err := strconv.ParseInt(number, 10, 64)
	if _, open := tr.open[n]; open && err == nil {
		delete(tr.open, n)
		tr.back.Add(1)
	}
}

// next returns the number of another packet, if it may be sent: the number in flight is so small that all queues have
// room for it, those of devices, sockets and wireguard-go. They fill while the process that empties them waits for a
// CPU. If none is sent for a second, packets without an answer no longer count as in flight.
func (tr *requests) next() (n int64, more bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.writtenOff = min(tr.writtenOff, len(tr.open)); len(tr.open)-tr.writtenOff < tr.most {
		n, tr.last = tr.sent.Add(1), time.Now()
		tr.open[n] = tr.last
		return n, true
	}
	if time.Since(tr.last) > nodetest.Patience(time.Second) {
		tr.writtenOff = len(tr.open)
	}
	return 0, false
}

// overdue returns the number of packets without an answer that were sent before a time.
func (tr *requests) overdue(before time.Time) (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, at := range tr.open {
		if at.Before(before) {
			n++
		}
	}
	return n
}

// unanswered returns the number of packets that have no answer for more than a second, or for ten on a machine that is
// ten times slower, and get none: on a busy machine some answers are late.
func (tr *requests) unanswered() (lost int) {
	begin := time.Now()
	before := begin.Add(-nodetest.Patience(time.Second))
	for lost = tr.overdue(before); lost > 0 && time.Since(begin) < tr.patience; lost = tr.overdue(before) {
		time.Sleep(20 * time.Millisecond)
	}
	return lost
}

func (tr *requests) end() { close(tr.stop); <-tr.stopped }

// wait waits until some more packets were sent.
func (tr *requests) wait(t *testing.T, what string) {
	t.Helper()
	from := tr.sent.Load()
	eventually(t, what+": packets are sent", func() bool { return tr.sent.Load() > from+20 })
}

// hears returns a function that reports whether answers have come since this call.
func (tr *requests) hears() func() bool {
	from := tr.back.Load()
	return func() bool { return tr.back.Load() > from }
}

// noneLost ends the traffic, all of which came back.
func (tr *requests) noneLost(t *testing.T, when string) {
	t.Helper()
	if lost := tr.lost(t); lost != 0 {
		t.Errorf("%d packets lost %s", lost, when)
	}
}

// lost ends the traffic, and returns the number of sent packets that did not come back.
func (tr *requests) lost(t *testing.T) int64 {
	t.Helper()
	eventually(t, "there was some traffic", func() bool { return tr.sent.Load() >= 200 })
	tr.end()
	sent, back := tr.sent.Load(), tr.back.Load()
	t.Logf("%d packets sent, %d came back", sent, back)
	return sent - back
}

// reachable reports whether one packet to the remote pod comes back.
func reachable() bool { return echoed(podAddress, "10.2.1.1:7", 4) }

// echoed reports whether one packet of size bytes comes back. If from is empty, the kernel chooses the source address.
func echoed(from, to string, size int) bool {
	return echoedFrom(&net.UDPAddr{IP: net.ParseIP(from)}, to, size, 200*time.Millisecond)
}

// echoedFrom is echoed with a socket's whole address, and within a time.
func echoedFrom(from *net.UDPAddr, to string, size int, within time.Duration) bool {
	c, err := (&net.Dialer{LocalAddr: from}).Dial("udp", to)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(nodetest.Patience(within)))
	if _, err := c.Write(make([]byte, size)); err != nil {
		return false
	}
	n, err := c.Read(make([]byte, 2048))
	return err == nil && n == size
}

// connect starts a node that has a tunnel to a remote one.
func connect(t testing.TB) (*broker, *config.Agent, *remote, func()) {
	t.Helper()
	return connectWith(t, func(*config.Agent) {})
}

// connectWith is connect with a function that runs before the agent's key is created.
func connectWith(t testing.TB, before func(*config.Agent)) (b *broker, cfg *config.Agent, r *remote, stop func()) {
	t.Helper()
	b, cfg = newBroker(t, "c2")
	before(cfg)
	r = newRemote(t)
	// WireGuard retries an unanswered handshake only after 5 s, so the remote node must know the key first.
	public := r.pairWith(t, cfg)
	stop = run(t, cfg, device)
	b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"), r.peer())
	if got := b.reportOf("c2").GetPublicKey(); !bytes.Equal(got, public[:]) {
		t.Errorf("the agent reports the key %x; want %x", got, public)
	}
	took := eventually(t, "the remote pod can be reached", reachable)
	t.Logf("reached after %s", took)
	return b, cfg, r, stop
}

// removeAtEnd deletes devices when the test ends, after the end of agents that run starts later.
func removeAtEnd(t testing.TB, names ...string) {
	t.Helper()
	h := newHost(t)
	t.Cleanup(func() {
		for _, name := range names {
			must(t, h.Delete(name))
		}
	})
}

const device = "wireguard.c2"

// The problems of orphans: of a device that the broker does not name, and of a guard without a device.
const (
	notNamed  = "the broker sent nothing about this cluster, so the agent leaves its device unchanged"
	onlyGuard = "the broker sent nothing about this cluster and the device is missing, so the guard drops packets to it"
)

// TestTrafficContinuesThroughChangesAndRestarts: a tunnel loses no packet while other peers change, the agent restarts,
// and the broker is replaced; the latter changes nothing.
func TestTrafficContinuesThroughChangesAndRestarts(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		if !ready() {
			t.Error("not ready")
		}

		// A thousand peers, and a thousand changes of them, with packets between them. Each fourth change waits until
		// all before it are on the device, so that even on a slow machine the changes take at least 250 updates of it.
		b.program(t, others(1000)...)
		updates := func() float64 { return number(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`) }
		set := updates()
		tr := startTraffic(t)
		begin := time.Now()
		for i := range 1000 {
			if i%40 == 39 {
				b.say(noPeer("c2", fmt.Sprint("x", i)))
			} else {
				b.say(other(i, 1000+i))
			}
			if i%4 == 3 {
				eventually(t, "the change is programmed", b.done)
			}
			if i%20 == 19 {
				sent := tr.sent.Load()
				eventually(t, "packets are sent meanwhile", func() bool { return tr.sent.Load() > sent })
			}
			time.Sleep(3 * time.Millisecond)
		}
		eventually(t, "all is programmed", b.done)
		took := time.Since(begin)
		tr.noneLost(t, "while other peers changed")
		t.Logf("1,000 changes programmed in %s, by %v updates of the device", took, updates()-set)
		if updates()-set < 250 {
			t.Errorf("1,000 changes came to %v updates: they were not apart", updates()-set)
		}
		before := deviceOn(t, h, device)
		if len(before.Peers) != 976 {
			t.Errorf("%d peers; want 976", len(before.Peers))
		}

		tr = startTraffic(t)
		stop()
		if ready() {
			t.Error("it answers after its end")
		}
		started := time.Now()
		run(t, cfg)
		eventually(t, "all is programmed again", b.done)
		tr.noneLost(t, "while the agent restarted")
		same(t, before, deviceOn(t, h, device))
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")

		// From here on nothing is written: the kernel sends no notifications, and the device's configuration does not
		// change.
		notified := changesOf(t)
		sets := func() float64 {
			return number(t, `semaphore_wg_sync_peers_total{cluster="c2",device="wireguard.c2",success="1"}`)
		}
		looks := sets()
		tr = startTraffic(t)
		b.restart(t, "B")
		eventually(t, "the agent has attached to the new broker", b.done)
		tr.noneLost(t, "while the broker was replaced")
		// The exception are the checks that are due every FullCheck, some of which a slow machine sees meanwhile.
		due := float64(time.Since(started) / plan.FullCheck)
		if after := sets(); after > looks+due {
			t.Errorf("a replaced broker that wants the same has the device set: %v before, %v after", looks, after)
		}
		if n := notified(); n != 0 {
			t.Errorf("%d changes of interfaces or routes by a replaced broker", n)
		}
		same(t, before, deviceOn(t, h, device))
		if code, page := fetch("metrics"); code != http.StatusOK || strings.Contains(page, "<nil>") {
			t.Errorf("metrics, %d: %s", code, page)
		}
	})
}

// same compares the parts of a device that must not change.
func same(t *testing.T, before, after *kernel.Device) {
	t.Helper()
	if after.Index != before.Index || after.PrivateKey != before.PrivateKey || after.ListenPort != before.ListenPort ||
		after.MTU != before.MTU {
		t.Errorf("index %d, port %d, MTU %d; before: %d, %d, %d; the same key: %v", after.Index, after.ListenPort, after.MTU,
			before.Index, before.ListenPort, before.MTU, after.PrivateKey == before.PrivateKey)
	}
	keys := func(d *kernel.Device) (all []string) {
		for _, p := range d.Peers {
			all = append(all, p.PublicKey.String()+" "+fmt.Sprint(p.AllowedIPs))
		}
		slices.Sort(all)
		return all
	}
	if diff := cmp.Diff(keys(before), keys(after)); diff != "" {
		t.Errorf("peers (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before.Routes, after.Routes,
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("routes (-before +after):\n%s", diff)
	}
}

// TestHealing (F27 and F28): the agent restores completely what another program removes or replaces, and packets pass.
// If the program keeps removing it, the agent does not spin.
func TestHealing(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, _, _ := connect(t)
		b.program(t, withoutKeepalive())
		time.Sleep(plan.HealGap + 100*time.Millisecond) // the checks of the agent's own changes are over by now
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
		h := newHost(t)
		before, routes, rules := deviceOn(t, h, device), ip(t, "route show table 7394"), ip(t, "rule show")
		stands := func(ok func(*kernel.Device) bool) func() bool {
			return func() bool {
				d, err := h.Device(device)
				return err == nil && d != nil && d.Up && len(d.Peers) == 1 && len(d.Routes) == 1 && !d.UnruledV4 &&
					(ok == nil || ok(d))
			}
		}
		does := func(args string) func() { return func() { ip(t, args) } }
		harms := []struct {
			name string
			harm func()
			ok   func(*kernel.Device) bool
		}{
			{"its route", does("route del 10.2.0.0/16 table 7394 dev wireguard.c2"), nil},
			{"the rule for its route", does("rule del pref 94"), nil},
			{"it is set down", does("link set wireguard.c2 down"), nil},
			{"its MTU", does("link set wireguard.c2 mtu 1300"), func(d *kernel.Device) bool { return d.MTU == 1380 }},
			{"a route in the place of its own", does("route replace 10.2.0.0/16 via 192.0.2.2 table 7394"), nil},
			{"the device", does("link del wireguard.c2"), nil},
			{"its process", func() {
				pid, _ := nodetest.ProcessOf(t, device)
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}, nil},
		}
		if before.Backend != kernel.InUserspace {
			harms = harms[:len(harms)-1]
		}
		for _, c := range harms {
			time.Sleep(50 * time.Millisecond)
			c.harm()
			withinASecond(t, c.name+" is healed", stands(c.ok))
			eventually(t, c.name+": the remote pod can be reached", reachable)
			after := deviceOn(t, h, device)
			before.Index = after.Index
			same(t, before, after)
			if r, l := ip(t, "route show table 7394"), ip(t, "rule show"); r != routes || l != rules {
				t.Errorf("%s: routes\n%s\nand rules\n%s\nbefore\n%s\nand\n%s", c.name, r, l, routes, rules)
			}
		}
		// The rule belongs to the device and to the guard. Whichever checks first heals it, and perhaps counts it. A
		// heal is counted when it is complete, which may be after the device exists.
		heals := func() int { n, _ := healsAndLooks(t); return n }
		eventually(t, "the heals are counted", func() bool { return heals() >= len(harms)-1 })
		if n := heals(); n > len(harms) {
			t.Errorf("%d heals; want %d, or one less", n, len(harms))
		}
		// Another program keeps changing it.
		begin := time.Now()
		for ; time.Since(begin) < 3*time.Second; time.Sleep(time.Millisecond) {
			_ = exec.Command("ip", "route", "del", "10.2.0.0/16", "table", "7394", "dev", device).Run()
		}
		eventually(t, "the route is back", stands(nil))
		n, most := heals(), len(harms)+int(time.Since(begin)/plan.HealGap)+2
		t.Logf("%d heals after a fight of %s", n, time.Since(begin))
		if n <= len(harms) || n > most {
			t.Errorf("%d heals after a fight of %s; want more than %d and at most %d", n, time.Since(begin), len(harms), most)
		}
		eventually(t, "who continues is reported", func() bool {
			_ = exec.Command("ip", "route", "del", "10.2.0.0/16", "table", "7394", "dev", device).Run()
			return strings.Contains(b.reportOf("c2").GetProblem(), "another program keeps changing the device")
		})
	})
}

// TestFailedOperationsAreReportedAndRetried: a failed operation is reported as a problem and not as programmed, and is
// retried until it succeeds.
func TestFailedOperationsAreReportedAndRetried(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2", "c3")
		h := newHost(t)
		file := filepath.Join(cfg.WGKeyPath, device+".key")
		must(t, os.MkdirAll(cfg.WGKeyPath, 0o700))
		must(t, os.WriteFile(file, []byte("damaged"), 0o600))
		ip(t, "link add other type veth peer name p1")
		ip(t, "link set other up")
		ip(t, "link set p1 up")
		ip(t, "route add 10.3.0.0/16 dev other table 7394")
		run(t, cfg, device, "wireguard.c3")
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"), deviceOf("c3", 51821, "10.3.0.0/16", "10.33.0.0/16"),
			peerOf("c3", "n1", publicKey(1), "192.0.2.250:9", "10.3.1.0/24"))
		eventually(t, "the problems are reported", func() bool {
			return strings.Contains(b.reportOf("c2").GetProblem(), "contains no key") &&
				strings.Contains(b.reportOf("c3").GetProblem(), "another program has a route there")
		})
		t.Logf("%s", b.reportOf("c3").GetProblem())
		if d := deviceOn(t, h, "wireguard.c3"); len(d.Peers) != 1 ||
			!slices.Equal(d.Routes, []netip.Prefix{netip.MustParsePrefix("10.33.0.0/16")}) {
			t.Errorf("a route in the way holds the rest back: %d peers, routes %v", len(d.Peers), d.Routes)
		}
		notDone := func(why string) {
			t.Helper()
			if code, page := fetch("readyz"); code != http.StatusServiceUnavailable || !strings.Contains(page, why) {
				t.Errorf("readyz: %d %s", code, page)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.applied != 0 {
				t.Errorf("it reports %d as applied", b.applied)
			}
		}
		time.Sleep(200 * time.Millisecond)
		notDone("wireguard.c2")
		if data, _ := os.ReadFile(file); string(data) != "damaged" {
			t.Errorf("the damaged file was written over")
		}
		must(t, os.Remove(file))
		took := eventually(t, "the device to c2 is made", func() bool { d, _ := h.Device(device); return d != nil && d.Up })
		t.Logf("tried again after %s", took)

		// One route to c3 that cannot be created delays nothing else, and is reported.
		eventually(t, "all that can be is programmed", b.done)
		if code, page := fetch("readyz"); code != http.StatusOK ||
			!strings.Contains(page, "device wireguard.c3: route 10.3.0.0/16 of table 7394: another program has a route there") {
			t.Errorf("readyz: %d %s", code, page)
		}
		shows(t, `semaphore_agent_routes_failed{cluster="c3",device="wireguard.c3"}`, "1")
		c3 := deviceOn(t, h, "wireguard.c3")
		if r := b.reportOf("c3"); !bytes.Equal(r.GetPublicKey(), c3.PublicKey[:]) || r.GetListenPort() != 51821 ||
			r.GetPeers() != 1 {
			t.Errorf("the agent reports %v", r)
		}
		singles := metric(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`)
		b.program(t, peerOf("c3", "n1", publicKey(11), "192.0.2.250:9", "10.3.1.0/24"))
		if after := metric(t, `semaphore_agent_apply_duration_seconds_count{what="peers"}`); after == singles {
			t.Errorf("%s changes of single peers before one, %s after", singles, after)
		}
		must(t, h.Configure("wireguard.c3", wgtypes.Config{ReplacePeers: true}))
		eventually(t, "peers are looked at", func() bool { return len(deviceOn(t, h, "wireguard.c3").Peers) == 1 })
		ip(t, "route del 10.3.0.0/16 dev other table 7394")
		took = eventually(t, "the route is made", func() bool { return len(deviceOn(t, h, "wireguard.c3").Routes) == 2 })
		t.Logf("made %s after it could be", took)
		eventually(t, "nothing is reported any longer", func() bool { return b.reportOf("c3").GetProblem() == "" })
		if p := b.reportOf("c2").GetProblem() + b.reportOf("c3").GetProblem(); p != "" {
			t.Errorf("still reported: %s", p)
		}
		if n := metric(t, `semaphore_wg_sync_requeue_total{cluster="c2",device="wireguard.c2"}`); n == "" || n == "0" {
			t.Errorf("%q requeues", n)
		}
		shows(t, `semaphore_wg_sync_queue_full_failures_total{cluster="c2",device="wireguard.c2"}`, "0")

		// A name from the wire is never used as a path.
		b.say(deviceOf("../x", 51840))
		eventually(t, "the name is reported",
			func() bool { return strings.Contains(b.reportOf("../x").GetProblem(), "not a cluster name") })
		b.program(t, noDevice("../x"))
		if links := ip(t, "-br link"); strings.Contains(links, "x@") || strings.Contains(links, "../") {
			t.Errorf("%s", links)
		}
	})
}

// TestAttaching: the broker comes back, another one answers in its place, and tokens change.
func TestAttaching(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		b.say(deviceOf("c2", 51820, "10.2.0.0/16"), peerOf("c2", "n1", publicKey(1), "192.0.2.250:9", "10.2.1.0/24"))
		b.mu.Lock()
		b.token = "second"
		b.mu.Unlock()
		run(t, cfg, device)
		eventually(t, "it is said why there is no stream", func() bool {
			_, page := fetch("readyz")
			return strings.Contains(page, "another token")
		})
		must(t, os.WriteFile(cfg.Broker.TokenFile, []byte("second"), 0o600))
		eventually(t, "attached with the new token", b.done)
		b.mu.Lock()
		close(b.ends) // the same broker ends the stream
		b.ends = make(chan struct{})
		b.mu.Unlock()
		eventually(t, "attached again", func() bool { return b.hello(1) != nil && b.done() })
		if hello := b.hello(1); hello.GetResumeEpoch() != "A" || hello.GetResumeRevision() != 2 {
			t.Errorf("it resumes from %q %d; want A 2", hello.GetResumeEpoch(), hello.GetResumeRevision())
		}
		b.stop()
		eventually(t, "it is noticed", func() bool { return metric(t, "semaphore_agent_connected") == "0" })
		if !ready() {
			t.Error("not ready because there is no broker; what exists continues to work")
		}

		// A broker with other roots is refused.
		other, _ := newBroker(t)
		time.Sleep(2 * time.Second)
		if other.hello(0) != nil {
			t.Error("an agent shows its token to any program that has the broker's address")
		}
		other.stop()
		b.restart(t, "C")
		eventually(t, "attached to the broker that came back", b.done)
	})
}

func TestCleanup(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2")
		before := ip(t, "-br link") + ip(t, "route show table all") + ip(t, "-6 route show table all") + ip(t, "rule") +
			ip(t, "-6 rule")
		stop := run(t, cfg)
		const long = "exp-1-aws-eu-west-1"
		dotted := strings.Repeat("c", 55) + ".example"
		b.program(t, deviceOf(dotted, 51822, "10.5.0.0/16"), deviceOf("a.b", 51823, "10.6.0.0/16"),
			deviceOf("c2", 51820, "10.2.0.0/16", "fd00:2::/48"),
			peerOf("c2", "n1", publicKey(1), "192.0.2.250:9", "10.2.1.0/24"), deviceOf(long, 51821, "10.4.0.0/16"))
		eventually(t, "all is reported", func() bool { return b.reportOf(dotted) != nil && b.reportOf("a.b") != nil })
		for cluster, port := range map[string]int{dotted: 51822, "a.b": 51823} {
			d := deviceOn(t, newHost(t), naming.Device(cluster))
			if problem := b.reportOf(cluster).GetProblem(); problem != "" || d.ListenPort != port ||
				d.Alias != naming.DeviceAlias(cluster) || len(d.Routes) != 1 {
				t.Errorf("the device of %s: %+v %s", cluster, d, problem)
			}
			shows(t, `semaphore_agent_refused{cluster="`+cluster+`",device="`+naming.Device(cluster)+`"}`, "0")
		}
		stop()
		// The remains of crashes and kills.
		must(t, os.WriteFile(filepath.Join(cfg.WGKeyPath, "wireguard.c3.key.123456"), nil, 0o600))
		must(t, os.WriteFile(filepath.Join(cfg.WGKeyPath, "notes.txt"), nil, 0o600))
		must(t, os.MkdirAll("/var/run/wireguard", 0o755)) // the kernel's devices need no directory
		must(t, os.WriteFile("/var/run/wireguard/wireguard.c3.sock", nil, 0o600))
		must(t, os.WriteFile("/var/run/wireguard/utun9.sock", nil, 0o600))
		ip(t, "route add 10.9.0.0/16 dev lo proto 94")

		var out bytes.Buffer
		must(t, Cleanup(&out, cfg, CleanupOptions{}))
		t.Logf("\n%s", out.String())
		if after := ip(t, "-br link") + ip(t, "route show table all") + ip(t, "-6 route show table all") + ip(t, "rule") +
			ip(t, "-6 rule"); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		left, err := os.ReadDir("/var/run/wireguard")
		must(t, err)
		if len(left) != 1 || left[0].Name() != "utun9.sock" {
			t.Errorf("sockets left: %v", left)
		}
		if _, err := kernel.NewKeys(cfg.WGKeyPath).Read(device); err != nil {
			t.Errorf("the key went without --keys: %v", err)
		}
		must(t, Cleanup(io.Discard, cfg, CleanupOptions{Keys: true}))
		keys, err := os.ReadDir(cfg.WGKeyPath)
		must(t, err)
		if len(keys) != 1 || keys[0].Name() != "notes.txt" {
			t.Errorf("keys left: %v", keys)
		}
		out.Reset()
		must(t, Cleanup(&out, cfg, CleanupOptions{Keys: true}))
		if out.Len() > 0 {
			t.Errorf("a second time: %s", out.String())
		}
	})
}

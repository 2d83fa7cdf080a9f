package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// flow sends packets in one direction only, so that no answer starts a handshake.
type flow struct {
	from net.Conn
	to   net.PacketConn

	mu   sync.Mutex
	sent []time.Time
	came int             // the number that have arrived
	late []time.Duration // by number; -1 for lost
	last time.Time
	gap  time.Duration
	stop chan struct{}
	done sync.WaitGroup
}

const flowEvery = 20 * time.Millisecond

func startFlow(t *testing.T, from net.Conn, to net.PacketConn) *flow {
	f := &flow{from: from, to: to, stop: make(chan struct{})}
	f.done.Go(func() {
		tick := time.NewTicker(flowEvery)
		defer tick.Stop()
		for n := uint32(0); ; n++ {
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			// WireGuard queues 128 packets while it waits for a handshake, and other queues fill while the process that
			// empties them waits for a CPU. The limit leaves room for the next packet in all of them.
			if len(f.sent)-f.came >= 60 {
				f.mu.Unlock()
				n--
				continue
			}
			f.sent, f.late = append(f.sent, time.Now()), append(f.late, -1)
			f.mu.Unlock()
			_, _ = from.Write(binary.BigEndian.AppendUint32(nil, n))
		}
	})
	f.done.Go(func() {
		buffer := make([]byte, 16)
		for {
			n, _, err := to.ReadFrom(buffer)
			if err != nil {
				return
			}
			now := time.Now()
			f.mu.Lock()
			if i := int(binary.BigEndian.Uint32(buffer[:n])); i < len(f.sent) && f.late[i] < 0 {
				f.late[i] = now.Sub(f.sent[i])
				f.came++
			}
			if !f.last.IsZero() {
				f.gap = max(f.gap, now.Sub(f.last))
			}
			f.last = now
			f.mu.Unlock()
		}
	})
	return f
}

// complete reports whether all packets have arrived.
func (f *flow) complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.Contains(f.late, -1)
}

// arrived returns how many packets have arrived.
func (f *flow) arrived() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, late := range f.late {
		if late >= 0 {
			n++
		}
	}
	return n
}

// end ends the flow, and returns the number of packets sent and lost, the longest gap, and the largest delay.
func (f *flow) end() (sent, lost int, gap, latest time.Duration) {
	close(f.stop)
	// Packets in flight are late on a busy machine, and not lost.
	quiet := nodetest.Patience(300 * time.Millisecond)
	for {
		n := f.arrived()
		time.Sleep(quiet)
		if f.arrived() > n {
			continue
		}
		if quiet >= nodetest.Patience(2*time.Second) || f.complete() {
			break
		}
		quiet = nodetest.Patience(2 * time.Second)
	}
	f.to.Close()
	f.done.Wait()
	f.from.Close()
	for _, late := range f.late {
		if late < 0 {
			lost++
		}
		latest = max(latest, late)
	}
	return len(f.late), lost, f.gap, latest
}

// flows returns a flow from this node's pod to the remote one, and one back, on ports of their own.
func flows(t *testing.T, r *remote) (out, in *flow) {
	t.Helper()
	here, there := net.ParseIP(podAddress), net.IPv4(10, 2, 1, 1)
	to, err := r.ListenPacket(t.Context(), "udp", "10.2.1.1:9")
	must(t, err)
	from, err := net.DialUDP("udp", &net.UDPAddr{IP: here}, &net.UDPAddr{IP: there, Port: 9})
	must(t, err)
	out = startFlow(t, from, to)
	back, err := net.ListenPacket("udp", podAddress+":9")
	must(t, err)
	var away net.Conn
	must(t, r.Do(func() error {
		away, err = net.DialUDP("udp", &net.UDPAddr{IP: there}, &net.UDPAddr{IP: here, Port: 9})
		return err
	}))
	return out, startFlow(t, away, back)
}

// follow makes the remote node set every new key that this node reports after a delay, as its agent does. propagation
// returns the time from the last key's report until it was set.
func (r *remote) follow(t *testing.T, b *broker, delay time.Duration) (propagation func() time.Duration) {
	t.Helper()
	var took atomic.Int64
	_, allowed, _ := net.ParseCIDR("10.1.1.0/24")
	has := b.reportOf("c2").GetPublicKey()
	testkit.Run(t, func(ctx context.Context) error {
		for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
			is := b.reportOf("c2").GetPublicKey()
			if len(is) == 0 || bytes.Equal(is, has) {
				continue
			}
			reported := time.Now()
			time.Sleep(delay)
			if err := r.Do(func() error {
				stands, err := r.host.Device(remoteDevice)
				if err != nil {
					return err
				}
				off := time.Duration(0)
				cfg := wgtypes.Config{Peers: []wgtypes.PeerConfig{{
					PublicKey: wgtypes.Key(is), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 51820},
					ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*allowed}, PersistentKeepaliveInterval: &off,
				}, {PublicKey: wgtypes.Key(has), Remove: true}}}
				plan.TriggerHandshakes(&cfg, stands.Peers, time.Now())
				last := len(cfg.Peers) - 1
				removed := wgtypes.Config{Peers: cfg.Peers[last:]}
				cfg.Peers = cfg.Peers[:last]
				if err := r.host.Configure(remoteDevice, cfg); err != nil {
					return err
				}
				took.Store(int64(time.Since(reported)))
				// Packets on their way through a removed peer would be lost: as an agent does, wait for them.
				time.Sleep(200 * time.Millisecond)
				return r.host.Configure(remoteDevice, removed)
			}); err != nil {
				return err
			}
			has = is
		}
		return nil
	})
	return func() time.Duration { return time.Duration(took.Load()) }
}

// beside is a flow between the two nodes outside the tunnel: the machine, and not the tunnel, causes its delays.
func beside(t *testing.T, r *remote) *flow {
	t.Helper()
	to, err := r.ListenPacket(t.Context(), "udp", "192.0.2.2:9")
	must(t, err)
	from, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 9})
	must(t, err)
	return startFlow(t, from, to)
}

// withoutKeepalive returns the device of connect without a keepalive, as by default: an unused tunnel sends nothing.
func withoutKeepalive() *semaphorev1.PeeringChange {
	change := deviceOf("c2", 51820, "10.2.0.0/16")
	change.GetDevice().PersistentKeepalive = nil
	return change
}

func keyIn(t *testing.T, cfg *config.Agent) wgtypes.Key {
	t.Helper()
	key, err := kernel.NewKeys(cfg.WGKeyPath).Read(device)
	must(t, err)
	return key
}

// control returns a client for the agent's own socket.
func control(t *testing.T, cfg *config.Agent) semaphorev1.ControlServiceClient {
	t.Helper()
	return semaphorev1.NewControlServiceClient(socket(t, cfg))
}

// TestKeyRotationUnderTraffic (F13): the broker orders a new key, under traffic. Packets sent while the other end does
// not know the key wait for that, and no longer: not for the 5 s after which WireGuard itself would try again.
func TestKeyRotationUnderTraffic(t *testing.T) {
	rotateUnder(t, func(t *testing.T, r *remote) []*flow { out, in := flows(t, r); return []*flow{out, in} })
}

func TestKeyRotationUnderTrafficFromTheNode(t *testing.T) {
	rotateUnder(t, func(t *testing.T, r *remote) []*flow { out, in := flows(t, r); in.end(); return []*flow{out} })
}

func TestKeyRotationUnderTrafficToTheNode(t *testing.T) {
	rotateUnder(t, func(t *testing.T, r *remote) []*flow { out, in := flows(t, r); out.end(); return []*flow{in} })
}

// rekeyTimeout is how long WireGuard waits before it begins a handshake again.
const rekeyTimeout = 5 * time.Second

func rotateUnder(t *testing.T, traffic func(*testing.T, *remote) []*flow) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, r, _ := connect(t)
		b.program(t, withoutKeepalive())
		old := keyIn(t, cfg)
		const delay = 300 * time.Millisecond
		propagation := r.follow(t, b, delay)
		all, direct := traffic(t, r), beside(t, r)
		eventually(t, "there is traffic", func() bool {
			for _, f := range all {
				if f.arrived() < 20 {
					return false
				}
			}
			return true
		})
		h := newHost(t)
		index := deviceOn(t, h, device).Index
		b.order(rotateKey(0, false))
		eventually(t, "a new key is reported", func() bool {
			is := b.reportOf("c2").GetPublicKey()
			return len(is) > 0 && wgtypes.Key(is) != old.PublicKey()
		})
		if key := keyIn(t, cfg); key.PublicKey() != wgtypes.Key(b.reportOf("c2").GetPublicKey()) ||
			key != deviceOn(t, h, device).PrivateKey {
			t.Error("file, device and report do not have one key")
		}
		if files, _ := filepath.Glob(filepath.Join(cfg.WGKeyPath, "*.key*")); len(files) != 1 {
			t.Errorf("%v; want nothing of the old key", files)
		}
		var before []int
		for _, f := range all {
			before = append(before, f.arrived())
		}
		eventually(t, "traffic continues", func() bool {
			for i, f := range all {
				if f.arrived() < before[i]+100 {
					return false
				}
			}
			return true
		})
		_, _, unavoidable, lateAnyway := direct.end()
		unavoidable = max(unavoidable-flowEvery, lateAnyway)
		t.Logf("beside the tunnel packets came %s late", unavoidable)
		for i, f := range all {
			sent, lost, gap, latest := f.end()
			t.Logf("flow %d: %d packets, %d lost, longest gap %s, latest packet %s late; the other end heard of the key "+
				"after %s", i, sent, lost, gap, latest, delay)
			// Packets wait for one propagation and a handshake, a tenth of the time after which WireGuard itself tries again.
			// Between the two there is room for four waits for a CPU, of the two ends of the tunnel, the sender and the
			// receiver.
			limit := rekeyTimeout - time.Second + 4*unavoidable
			if propagation() == 0 || gap > limit || latest > limit {
				t.Errorf("flow %d: nothing arrived for %s, and a packet was %s late; the key was known after %s", i, gap, latest,
					propagation())
			}
			if lost > 0 {
				t.Errorf("flow %d: %d of %d packets lost", i, lost, sent)
			}
		}
		if d := deviceOn(t, h, device); d.Index != index || len(d.Peers) != 1 {
			t.Errorf("index %d, %d peers; before: %d, 1", d.Index, len(d.Peers), index)
		}
		shows(t, `semaphore_agent_key_rotations_total{cluster="c2",device="wireguard.c2"}`, "1")
		shows(t, `semaphore_agent_heals_total{cluster="c2",device="wireguard.c2"}`, "0")
	})
}

// TestKeyRotationCutShort: an agent that is killed during a rotation leaves a file with the new key, and a device with
// the old or the new one. The next agent completes the rotation.
func TestKeyRotationCutShort(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		for _, onDevice := range []bool{false, true} {
			stop()
			key, err := kernel.NewKeys(cfg.WGKeyPath).Replace(device)
			must(t, err)
			if onDevice {
				must(t, h.Configure(device, wgtypes.Config{PrivateKey: &key.Private}))
			}
			must(t, os.WriteFile(filepath.Join(cfg.WGKeyPath, device+".key.1234"), []byte("half a"), 0o600))
			stop = run(t, cfg)
			public := key.Private.PublicKey()
			eventually(t, "the new key is reported",
				func() bool { return bytes.Equal(b.reportOf("c2").GetPublicKey(), public[:]) })
			eventually(t, "all is programmed", b.done) // a key that the device has was reported before
			if deviceOn(t, h, device).PrivateKey != key.Private || keyIn(t, cfg) != key.Private {
				t.Errorf("with the key on the device %v: device and file do not have it", onDevice)
			}
			if files, _ := filepath.Glob(filepath.Join(cfg.WGKeyPath, "*.key*")); len(files) != 1 {
				t.Errorf("%v; want the key alone", files)
			}
		}
	})
}

// oldKey writes a key that was created long ago. Rotations of old keys are spread by their public halves; the one of
// this key is due immediately.
func oldKey(t testing.TB, cfg *config.Agent) (key wgtypes.Key, made time.Time) {
	t.Helper()
	for {
		var err error
		key, err = wgtypes.GeneratePrivateKey()
		must(t, err)
		if public := key.PublicKey(); public[0] == 0 && public[1] < 16 {
			break
		}
	}
	must(t, os.MkdirAll(cfg.WGKeyPath, 0o700))
	file := filepath.Join(cfg.WGKeyPath, device+".key")
	must(t, os.WriteFile(file, []byte(key.String()), 0o600))
	made = time.Now().Add(-100 * time.Hour)
	must(t, os.Chtimes(file, made, made))
	return key, made
}

// TestRotationWaitsForTheRemote: a key that is due is not rotated while the remote would not receive the new one. The
// agent reports that, and no packet is lost meanwhile, or during the later rotation. An operator's order is refused,
// unless it is forced.
func TestRotationWaitsForTheRemote(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		var old wgtypes.Key
		var made time.Time
		b, cfg, r, _ := connectWith(t, func(cfg *config.Agent) { old, made = oldKey(t, cfg) })
		if at := b.reportOf("c2").GetKeyCreatedAt().AsTime(); at.Unix() != made.Unix() {
			t.Errorf("made %s; want %s", at, made)
		}
		if at := metric(t, `semaphore_agent_key_created_timestamp_seconds{cluster="c2",device="wireguard.c2"}`); at == "" {
			t.Error("the key's age is no metric")
		}
		b.delivers("c2")
		change := withoutKeepalive()
		change.GetDevice().KeyMaxAge = durationpb.New(time.Hour)
		b.program(t, change)
		b.order(rotateKey(0, false)) // ordered just before the remote was lost
		out, in := flows(t, r)
		eventually(t, "it is reported", func() bool {
			return strings.Contains(b.reportOf("c2").GetProblem(),
				"waits until the nodes of c2 would get it: its broker is gone")
		})
		if !ready() {
			t.Error("not ready, because a key waits")
		}
		if _, err := control(t, cfg).RotateKey(t.Context(),
			&semaphorev1.RotateKeyRequest{}); status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "its broker is gone") {
			t.Errorf("at the socket: %v", err)
		}
		rounds := metric(t, "semaphore_agent_device_check_duration_seconds_count")
		for _, n := range []int{250, 500} { // one every 20 ms
			eventually(t, "packets arrive, each way", func() bool { return out.arrived() >= n && in.arrived() >= n })
		}
		if keyIn(t, cfg) != old {
			t.Fatal("there is a new key, of which the remote does not know")
		}
		t.Logf("looks at the device: %s, then %s", rounds, metric(t, "semaphore_agent_device_check_duration_seconds_count"))
		r.follow(t, b, 300*time.Millisecond)
		b.delivers()
		eventually(t, "there is a new key", func() bool { return keyIn(t, cfg) != old })
		eventually(t, "nothing is reported any longer", func() bool { return b.reportOf("c2").GetProblem() == "" })
		fresh, before := keyIn(t, cfg), out.arrived()
		eventually(t, "it is reported", func() bool {
			public, d := fresh.PublicKey(), b.reportOf("c2")
			return bytes.Equal(d.GetPublicKey(), public[:]) && d.GetKeyCreatedAt().AsTime().After(made)
		})
		eventually(t, "traffic continues", func() bool { return out.arrived() > before+100 })
		for i, f := range []*flow{out, in} {
			if sent, lost, _, latest := f.end(); lost > 0 {
				t.Errorf("flow %d: %d of %d packets lost, latest %s", i, lost, sent, latest)
			}
		}
		b.delivers("c2")
		eventually(t, "refused again", func() bool {
			_, err := control(t, cfg).RotateKey(t.Context(), &semaphorev1.RotateKeyRequest{Cluster: "c2"})
			return status.Code(err) == codes.FailedPrecondition
		})
		is := keyIn(t, cfg)
		b.order(rotateKey(0, true))
		eventually(t, "forced by the broker, there is a new key", func() bool { return keyIn(t, cfg) != is })
	})
}

// TestDamagedKeyFileOfALiveDevice (F22 and F21): the key file is damaged while the device exists, and the disk is full.
// The device continues to work, and so do changes of its peers; the key is reported only once it is saved.
func TestDamagedKeyFileOfALiveDevice(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg, _, stop := connect(t)
		h := newHost(t)
		key := keyIn(t, cfg)
		public := key.PublicKey()
		stop()
		must(t, unix.Mount("tmpfs", cfg.WGKeyPath, "tmpfs", 0, "size=16k"))
		t.Cleanup(func() { _ = unix.Unmount(cfg.WGKeyPath, unix.MNT_DETACH) })
		file := filepath.Join(cfg.WGKeyPath, device+".key")
		must(t, os.WriteFile(file, nil, 0o600))
		fill := filepath.Join(cfg.WGKeyPath, "full")
		if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		tr := startTraffic(t)
		run(t, cfg)
		b.say(peerOf("c2", "n2", publicKey(2), "192.0.2.9:51820", "10.2.2.0/24"))
		eventually(t, "the new peer is there", func() bool { d, _ := h.Device(device); return d != nil && len(d.Peers) == 2 })
		eventually(t, "the problem is reported",
			func() bool { return strings.Contains(b.reportOf("c2").GetProblem(), "cannot be saved") })
		if got := b.reportOf("c2").GetPublicKey(); len(got) != 0 {
			t.Errorf("a key that is not on the disk is reported: %x", got)
		}
		if code, page := fetch("readyz"); code != http.StatusServiceUnavailable || !strings.Contains(page, file) {
			t.Errorf("readyz: %d %s", code, page)
		}
		sameCodes(t, cfg, "KeyFileProblem, NotReady: ")
		shows(t, `semaphore_agent_key_file_problem{cluster="c2",device="wireguard.c2"}`, "1")
		must(t, os.Remove(fill))
		eventually(t, "the key is reported", func() bool { return bytes.Equal(b.reportOf("c2").GetPublicKey(), public[:]) })
		if keyIn(t, cfg) != key || deviceOn(t, h, device).PrivateKey != key {
			t.Error("it is another one")
		}
		tr.noneLost(t, "")
		aside, _ := filepath.Glob(file + ".damaged-*")
		if len(aside) != 1 || !strings.Contains(b.reportOf("c2").GetProblem(), aside[0]) {
			t.Errorf("set aside: %v; reported: %s", aside, b.reportOf("c2").GetProblem())
		}
		eventually(t, "ready all the same", ready)
		must(t, os.Remove(aside[0]))
		b.say(deviceOf("c2", 51821, "10.2.0.0/16")) // the broker makes the agent check it again
		eventually(t, "the problem is over", func() bool { return b.done() && b.reportOf("c2").GetProblem() == "" })
		shows(t, `semaphore_agent_key_file_problem{cluster="c2",device="wireguard.c2"}`, "0")
	})
}

// TestPeerGetsANewKeyUnderTraffic: the other end rotates its key repeatedly. No packet is lost, neither those in flight
// when the peer is replaced nor those that wait for the handshake.
func TestPeerGetsANewKeyUnderTraffic(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, _, r, _ := connect(t)
		b.program(t, withoutKeepalive())
		// WireGuard queues 128 packets while it waits for a handshake. At this rate that is 1.28 s, so that no packet
		// is lost on a machine on which the new key arrives late.
		tr := startTrafficEvery(t, 10*time.Millisecond)
		for range 10 {
			key, err := wgtypes.GeneratePrivateKey()
			must(t, err)
			must(t, r.Do(func() error { return r.host.Configure(remoteDevice, wgtypes.Config{PrivateKey: &key}) }))
			// This is the time until this end knows the key. Two ends that begin a handshake at the same time would
			// refuse each other's, for 5 s.
			time.Sleep(nodetest.Patience(100 * time.Millisecond))
			b.program(t, peerOf("c2", "n1", key.PublicKey(), "192.0.2.2:51820", "10.2.1.0/24"))
			back := tr.back.Load()
			eventually(t, "packets come back", func() bool { return tr.back.Load() > back+50 })
			// WireGuard ignores handshakes of one peer that are less than 50 ms apart.
			time.Sleep(nodetest.Patience(200 * time.Millisecond))
		}
		tr.noneLost(t, "")
	})
}

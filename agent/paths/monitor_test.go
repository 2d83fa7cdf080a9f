package paths

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// oneDevice is a broker that desires a device for c2 only.
type oneDevice struct{ Desired }

func (oneDevice) Device(cluster string) *semaphorev1.Device {
	if cluster != "c2" {
		return nil
	}
	return &semaphorev1.Device{Cluster: cluster}
}
func (oneDevice) Endpoints(string, int) []netip.Addr          { return nil }
func (oneDevice) Nodes(_ string, keys []wgtypes.Key) []string { return make([]string, len(keys)) }

// TestChangedMTUIsSetOnce: a device whose MTU changed is set once for each change, and no other device is.
func TestChangedMTUIsSetOnce(t *testing.T) {
	var set []string
	resize := func(cluster string) { set = append(set, cluster) }
	m := New(nil, oneDevice{}, events.New("c1"), resize, func() {}, func() string { return "" })
	at := func(mtuBytes int) plan.MTUVerdict { return plan.MTUVerdict{MTU: mtuBytes, Base: 1420} }
	m.reportChanges("c2", false, nil, PeerCounts{}, at(1420), at(1420))
	m.reportChanges("c2", true, nil, PeerCounts{}, at(1420), at(1420))
	m.reportChanges("c3", false, nil, PeerCounts{}, at(1420), at(1300))
	if len(set) != 0 {
		t.Errorf("set without need: %v", set)
	}
	m.reportChanges("c2", false, nil, PeerCounts{}, at(1420), at(1300))
	if !slices.Equal(set, []string{"c2"}) {
		t.Errorf("set: %v", set)
	}
}

// TestTraffic: the traffic of a device is reported as a rate, at the earliest 30 s after the last report, and only if
// it changed by more than a tenth. An idle device reports nothing for its keepalives.
func TestTraffic(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	d, now, sent := &device{}, start, int64(0)
	pass := func(seconds int, bytes int64) {
		now, sent = now.Add(time.Duration(seconds)*time.Second), sent+bytes
		d.liveness.Observe(now, 0, slices.Values([]PeerSample{{Key: plan.PeerKey{1}, Handshake: start.Add(time.Minute),
			Sent: sent, Received: 2 * sent}}))
	}
	pass(1, 5_000)
	d.takeReport(now)
	for _, step := range []struct {
		what    string
		seconds int
		bytes   int64
		due     bool
		rates   traffic
	}{
		{"too early", 10, 100_000, false, traffic{}},
		{"traffic began", 20, 200_000, true, traffic{10_000, 20_000}},
		{"as before", 30, 300_000, false, traffic{10_000, 20_000}},
		{"a little more", 30, 330_000, false, traffic{10_000, 20_000}},
		{"more", 30, 1_170_000, true, traffic{20_000, 40_000}},
		{"none", 30, 0, true, traffic{}},
		{"keepalives", 30, 96, false, traffic{}},
	} {
		pass(step.seconds, step.bytes)
		due := d.reportDue(now, false)
		if due {
			d.takeReport(now)
		}
		if due != step.due || d.sent.rates != step.rates {
			t.Errorf("%s: due %v, %+v", step.what, due, d.sent.rates)
		}
	}
}

// TestWhoseProbesAreAnswered: the agent answers probes only from the endpoint of a peer. A peer that never had a
// handshake has the zero time, and not 1970, which WireGuard reports.
func TestWhoseProbesAreAnswered(t *testing.T) {
	m := New(nil, oneDevice{}, events.New("c1"), func(string) {}, func() {}, func() string { return "" })
	m.device("c2")
	m.Observe("c2", 0, []wgtypes.Peer{{PublicKey: wgtypes.Key{1}, LastHandshakeTime: time.Unix(0, 0),
		Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:51820"))}})
	if !m.known(netip.MustParseAddr("192.0.2.1")) || m.known(netip.MustParseAddr("192.0.2.2")) {
		t.Error("the endpoint of a peer is not known, or an address of no peer is")
	}
	if newest := m.device("c2").liveness.Newest(); !newest.IsZero() {
		t.Errorf("the newest handshake was %s, and there was none", newest)
	}
}

// TestUnheardPeersAreAsked: a peer with pods of both families is asked on a node without IPv6, and one that has only
// IPv6 keeps no other from being asked.
func TestUnheardPeersAreAsked(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		asked, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", discard))
		must(t, err)
		defer asked.Close()
		var peers []wgtypes.Peer
		for _, allowed := range [][]string{{"fd00:2:0:1::/64"}, {"fd00:2:0:2::/64", "127.0.0.2/32"}, {"127.0.0.3/32"}} {
			var p wgtypes.Peer
			for _, text := range allowed {
				p.AllowedIPs = append(p.AllowedIPs, *kernel.IPNet(netip.MustParsePrefix(text)))
			}
			peers = append(peers, p)
		}
		var inside []netip.Addr
		for s := range samplesOf(peers) {
			inside = append(inside, s.Inside)
		}
		m := New(nil, oneDevice{}, events.New("c1"), func(string) {}, func() {}, func() string { return "" })
		must(t, m.ask(t.Context(), "lo", inside))
		must(t, asked.SetReadDeadline(time.Now().Add(nodetest.Patience(5*time.Second))))
		for i := range 2 {
			if _, _, err := asked.ReadFrom(nil); err != nil {
				t.Fatalf("of %v, %d were asked: %v", inside, i, err)
			}
		}
	})
}

// looked is a kernel that counts the looks for links to peers, whose MTU it returns.
type looked struct {
	Kernel
	times, mtu int
}

func (l *looked) EgressLinks(to []netip.Addr) ([]kernel.EgressLink, error) {
	l.times++
	return []kernel.EgressLink{{To: to[0], Link: "eth0", MTU: l.mtu}}, nil
}

// manyDevices is a broker that desires a device for each cluster.
type manyDevices struct{ oneDevice }

func (manyDevices) Device(cluster string) *semaphorev1.Device {
	return &semaphorev1.Device{Cluster: cluster}
}

func (manyDevices) Endpoints(string, int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}
}

// TestLinksAreLookedUpRarely: however often devices are sampled, because one is probed or a probe has ended, the links
// to their peers are looked up once in linksFor, and a change of their MTU counts SampleEvery after it at the latest.
func TestLinksAreLookedUpRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const length = 5 * linksFor
		links, all := &looked{mtu: 1500}, []string{"c2", "c3", "c4"}
		m := New(links, manyDevices{}, events.New("c1"), func(string) {}, func() {}, func() string { return "" })
		sample := func(seconds int) {
			for range seconds {
				for _, cluster := range all {
					m.device(cluster).mtu = cmp.Or(m.device(cluster).mtu, plan.NewMTU(0))
					m.Observe(cluster, 0, nil)
				}
				for range 10 {
					m.Sample(all)
				}
				time.Sleep(CloseEvery)
			}
		}
		sample(int(length / CloseEvery))
		if want := len(all) * int(length/linksFor); links.times != want {
			t.Errorf("links are looked up %d times in %s, want %d", links.times, length, want)
		}
		links.mtu = 9000
		sample(int(SampleEvery / CloseEvery))
		if is := m.device("c3").verdict; is.Base != 9000-60 {
			t.Errorf("%s after the MTU of the links changed, it is %+v", SampleEvery, is)
		}
	})
}

// TestProbesThatEndedFreeTheirPlace: a probe that could not be sent is no longer under way.
func TestProbesThatEndedFreeTheirPlace(t *testing.T) {
	m := New(nil, oneDevice{}, events.New("c1"), func(string) {}, func() {}, func() string { return "" })
	m.probes = 1
	err := m.probe(t.Context(), "c2", plan.MTUTarget{}, netip.AddrPortFrom(netip.Addr{}, 7774), 1420)
	if err != nil || m.probes != 0 {
		t.Errorf("%d probes under way, %v", m.probes, err)
	}
}

// goneDevice is a node whose device is removed, and forgotten, when the kernel was called so many times.
type goneDevice struct {
	Kernel
	monitor *Monitor
	calls   int
}

func (k *goneDevice) called() {
	if k.calls--; k.calls == 0 {
		k.monitor.Forget("c2")
	}
}

func (k *goneDevice) Device(string) (*kernel.Device, error) {
	defer k.called()
	return &kernel.Device{Peers: []wgtypes.Peer{{PublicKey: wgtypes.Key{1}}}}, nil
}

func (k *goneDevice) EgressLinks([]netip.Addr) ([]kernel.EgressLink, error) {
	defer k.called()
	return nil, nil
}

// TestRemovedDeviceHasNoSeries: a reader or a probe of a device that is removed meanwhile leaves no series of it.
func TestRemovedDeviceHasNoSeries(t *testing.T) {
	for name, c := range map[string]struct {
		calls int
		read  func(m *Monitor, k *goneDevice) error
	}{
		"a sample":            {1, func(m *Monitor, _ *goneDevice) error { m.Sample([]string{"c2"}); return nil }},
		"a sample with links": {2, func(m *Monitor, _ *goneDevice) error { m.Sample([]string{"c2"}); return nil }},
		"a lookup": {1, func(m *Monitor, k *goneDevice) error {
			d, err := k.Device("wireguard.c2")
			m.Observe("c2", 0, d.Peers)
			return err
		}},
		"a probe": {1, func(m *Monitor, k *goneDevice) error {
			k.called()
			return m.probe(t.Context(), "c2", plan.MTUTarget{}, netip.AddrPortFrom(netip.Addr{}, 7774), 1420)
		}},
	} {
		k := &goneDevice{calls: c.calls}
		k.monitor = New(k, oneDevice{}, events.New("c1"), func(string) {}, func() {}, func() string { return "" })
		k.monitor.device("c2")
		must(t, c.read(k.monitor, k))
		if n := testutil.CollectAndCount(k.monitor); n != 0 || k.calls != 0 {
			t.Errorf("%s: %d series of a removed device, %d calls to come", name, n, k.calls)
		}
	}
}

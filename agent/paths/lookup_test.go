package paths

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// wants is the desired state of a broker.
type wants map[string]*plan.Desired

func (w wants) Clusters() []string                   { return []string{"c2"} }
func (w wants) Network(cluster string) *plan.Desired { return w[cluster] }
func (w wants) Device(cluster string) *semaphorev1.Device {
	return w[cluster].Device
}
func (w wants) Endpoints(string, int) []netip.Addr { return nil }
func (w wants) Nodes(string, []wgtypes.Key) []string {
	return nil
}

// TestLookUp: the answer distinguishes, at each step of the path, what is desired from what the kernel has.
func TestLookUp(t *testing.T) {
	m1, stranger := wgtypes.Key{1}, wgtypes.Key{9}
	host := &kerneltest.Node{}
	want := wants{"c2": {
		Device: &semaphorev1.Device{Cluster: "c2", PodSubnets: []string{"10.2.0.0/16"}},
		Peers: map[string]*semaphorev1.Peer{
			"m1": {Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: m1[:], Address: "192.0.2.7:7775"},
				AllowedIps: []string{"10.2.0.0/24"}},
			"m2": {Wireguard: &semaphorev1.WireGuardEndpoint{Address: "192.0.2.8:7775"}, AllowedIps: []string{"10.2.0.0/20"}},
		},
	}}
	confirmed := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	n := &Lookup{
		Peers:     New(host, want, events.New("c1"), func(string) {}, func() {}, func() string { return "" }),
		Confirmed: func(string) time.Time { return confirmed }, Problem: func(string) string { return "port in use" },
		Dropped: func() uint64 { return 7 }}
	look := func(to string) *semaphorev1.LookUpPathResponse {
		t.Helper()
		got, err := n.LookUp(context.Background(), &semaphorev1.LookUpPathRequest{To: to, From: "10.1.0.5", Measure: true})
		testkit.Must(t, err)
		return got
	}
	for _, bad := range []*semaphorev1.LookUpPathRequest{{To: "x"}, {To: "10.2.0.5", From: "x"}} {
		if _, err := n.LookUp(context.Background(), bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}

	if got := look("192.0.2.200"); got.GetCluster() != "" || got.GetRoute().GetLink() != "eth0" {
		t.Errorf("an address of nobody: %v", got)
	}
	got := look("10.2.0.5")
	if got.GetCluster() != "c2" || got.GetInterface() != "wireguard.c2" || got.GetDeviceExists() ||
		got.GetDeviceProblem() !=
			"port in use" || got.GetDesired().GetNode() != "m1" || got.GetPresent() != nil || got.GetClearPackets() != 7 ||
		!got.GetConfirmedAt().AsTime().Equal(confirmed) {
		t.Errorf("without a device: %v", got)
	}

	n.Peers.WithMTU(want["c2"])
	_, prefix, _ := net.ParseCIDR("10.2.0.0/24")
	host.Put(&kernel.Device{Name: "wireguard.c2", Up: true, MTU: 1420, UnruledV4: true,
		Routes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
		Peers: []wgtypes.Peer{{PublicKey: m1, AllowedIPs: []net.IPNet{*prefix}, TransmitBytes: 100, ReceiveBytes: 92,
			LastHandshakeTime: time.Now()}}})
	got = look("10.2.0.5")
	if !got.GetDeviceUp() || got.GetMtu() != 1420 || got.GetRoute().GetLink() != "wireguard.c2" ||
		got.GetRoute().GetRuled() ||
		got.GetPresent().GetNode() != "m1" || got.GetPresent().GetAllowedIp() != "10.2.0.0/24" ||
		got.GetSession().GetSentBytes() != 100 ||
		got.GetSession().GetState() != semaphorev1.SessionState_SESSION_STATE_TALKING ||
		got.GetMeasurement().GetProblem() == "" {
		t.Errorf("with a device: %v", got)
	}
	if got = look("10.2.1.5"); got.GetDesired().GetNode() != "m2" || got.GetPresent() != nil || got.GetSession() != nil {
		t.Errorf("a peer that is wanted and missing: %v", got)
	}
	if got = look("10.2.99.5"); got.GetCluster() != "c2" || got.GetDesired() != nil {
		t.Errorf("a prefix of no peer: %v", got)
	}
	host.Change("wireguard.c2", func(d *kernel.Device) { d.Peers[0].PublicKey = stranger })
	if got = look("10.2.0.5"); got.GetPresent() == nil || got.GetPresent().GetNode() != "" {
		t.Errorf("a peer that nobody wants: %v", got)
	}
}

package status

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// scrape writes the metrics of some devices as text.
func scrape(w http.ResponseWriter, devices []*kernel.Device, peers bool) {
	gatherer := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return DeviceFamilies(devices, peers), nil })
	promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}).ServeHTTP(w, &http.Request{})
}

func TestFamilies(t *testing.T) {
	devices := []*kernel.Device{
		{Name: "wireguard.c2", Backend: "kernel", PublicKey: wgtypes.Key{1}, Peers: []wgtypes.Peer{
			{PublicKey: wgtypes.Key{2}, Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 51820}, ReceiveBytes: 10,
				TransmitBytes:     1 << 40,
				LastHandshakeTime: time.Unix(1_700_000_000, 5), AllowedIPs: []net.IPNet{
					{IP: net.IPv4(10, 2, 1, 0).To4(), Mask: net.CIDRMask(24, 32)},
					{IP: net.ParseIP("fd02::"), Mask: net.CIDRMask(64, 128)},
				}},
			{PublicKey: wgtypes.Key{3}, Endpoint: &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 1}},
			{PublicKey: wgtypes.Key{4}},
		}},
		{Name: "wireguard.c3", Backend: "userspace", PublicKey: wgtypes.Key{5}},
	}
	key := func(b byte) string { return wgtypes.Key{b}.String() }
	own := strings.ReplaceAll(
		`# HELP semaphore_agent_device_backend_info Always 1; the backend of a device, kernel or userspace.
# TYPE semaphore_agent_device_backend_info gauge
semaphore_agent_device_backend_info{backend="kernel",DEV} 1
semaphore_agent_device_backend_info{backend="userspace",cluster="c3",device="wireguard.c3"} 1
# HELP semaphore_agent_peers_applied Peers that a device has.
# TYPE semaphore_agent_peers_applied gauge
semaphore_agent_peers_applied{DEV} 3
semaphore_agent_peers_applied{cluster="c3",device="wireguard.c3"} 0
# HELP semaphore_wg_device_info Always 1; a WireGuard device of this node.
# TYPE semaphore_wg_device_info gauge
semaphore_wg_device_info{DEV,public_key="`+key(1)+`"} 1
semaphore_wg_device_info{cluster="c3",device="wireguard.c3",public_key="`+key(5)+`"} 1
`,
		"DEV",
		`cluster="c2",device="wireguard.c2"`,
	)
	peers := strings.NewReplacer("DEV", `cluster="c2",device="wireguard.c2"`, "P2", `public_key="`+key(2)+`"`, "P3",
		`public_key="`+key(3)+`"`, "P4", `public_key="`+key(4)+`"`).
		Replace(`# HELP semaphore_wg_peer_allowed_ips_info Always 1; an allowed IP of a peer.
# TYPE semaphore_wg_peer_allowed_ips_info gauge
semaphore_wg_peer_allowed_ips_info{allowed_ips="10.2.1.0/24",DEV,P2} 1
semaphore_wg_peer_allowed_ips_info{allowed_ips="fd02::/64",DEV,P2} 1
# HELP semaphore_wg_peer_info Always 1; a peer of a device.
# TYPE semaphore_wg_peer_info gauge
semaphore_wg_peer_info{DEV,endpoint="192.0.2.1:51820",P2} 1
semaphore_wg_peer_info{DEV,endpoint="[2001:db8::1]:1",P3} 1
semaphore_wg_peer_info{DEV,endpoint="",P4} 1
# HELP semaphore_wg_peer_last_handshake_seconds Last handshake with a peer, Unix time; 0 for never.
# TYPE semaphore_wg_peer_last_handshake_seconds gauge
semaphore_wg_peer_last_handshake_seconds{DEV,P2} 1.7e+09
semaphore_wg_peer_last_handshake_seconds{DEV,P3} 0
semaphore_wg_peer_last_handshake_seconds{DEV,P4} 0
# HELP semaphore_wg_peer_receive_bytes_total Bytes received from a peer.
# TYPE semaphore_wg_peer_receive_bytes_total counter
semaphore_wg_peer_receive_bytes_total{DEV,P2} 10
semaphore_wg_peer_receive_bytes_total{DEV,P3} 0
semaphore_wg_peer_receive_bytes_total{DEV,P4} 0
# HELP semaphore_wg_peer_transmit_bytes_total Bytes sent to a peer.
# TYPE semaphore_wg_peer_transmit_bytes_total counter
semaphore_wg_peer_transmit_bytes_total{DEV,P2} 1.099511627776e+12
semaphore_wg_peer_transmit_bytes_total{DEV,P3} 0
semaphore_wg_peer_transmit_bytes_total{DEV,P4} 0
`)
	for want, with := range map[string]bool{own: false, own + peers: true} {
		got := httptest.NewRecorder()
		scrape(got, devices, with)
		if got.Body.String() != want {
			t.Errorf("with peers: %v\n%s\nwant\n%s", with, got.Body, want)
		}
	}
	if got := DeviceFamilies(nil, true); len(got) != 0 {
		t.Errorf("of no device: %v", got)
	}
	// These are the checks of a registry.
	merged := prometheus.Gatherers{prometheus.GathererFunc(func() ([]*dto.MetricFamily,
		error) {
		return DeviceFamilies(devices, true), nil
	}), prometheus.NewRegistry()}
	if _, err := merged.Gather(); err != nil {
		t.Error(err)
	}
}

// Limits of a scrape of 5,000 peers: the size of its text, and the memory that it takes.
const (
	maxScrapeBytes  = 3.8e6 // 25,000 series, each with the labels cluster, device and public_key
	maxScrapeMemory = 7.5e6
	maxScrapeAllocs = 500
)

// BenchmarkFamilies measures the cost of a scrape, with its text, after 5,000 peers were read.
func BenchmarkFamilies(b *testing.B) {
	d := &kernel.Device{Name: "wireguard.c2"}
	for i := range 5000 {
		d.Peers = append(d.Peers, wgtypes.Peer{
			PublicKey:    wgtypes.Key{byte(i), byte(i >> 8)},
			Endpoint:     &net.UDPAddr{IP: net.IPv4(172, 18, byte(i>>8), byte(i)).To4(), Port: 51820},
			AllowedIPs:   []net.IPNet{{IP: net.IPv4(10, byte(i>>8), byte(i), 0).To4(), Mask: net.CIDRMask(24, 32)}},
			ReceiveBytes: int64(i) * 1e6, TransmitBytes: int64(i) * 2e6, LastHandshakeTime: time.Unix(1_700_000_000+int64(i), 0),
		})
	}
	for _, with := range []bool{true, false} {
		b.Run(fmt.Sprintf("peers=%v", with), func(b *testing.B) {
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				var w counter
				scrape(&w, []*kernel.Device{d}, with)
				size = int(w)
			}
			scraped := figure.Report(b, "bytes/scrape", float64(size))
			if with {
				scraped.AtMost(maxScrapeBytes)
				figure.Of(b, "B/op").AtMost(maxScrapeMemory)
				figure.Of(b, "allocs/op").AtMost(maxScrapeAllocs)
			}
		})
	}
}

// counter is a response that stores only its size.
type counter int

func (c *counter) Header() http.Header { return http.Header{} }
func (c *counter) WriteHeader(int)     {}
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

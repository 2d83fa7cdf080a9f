package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// known are Services by ClusterIP.
type known map[string]string

func (k known) ServiceOf(ip netip.Addr) string { return k[ip.String()] }

func (k known) ServiceExists(name string) bool {
	for _, is := range k {
		if is == name {
			return true
		}
	}
	return false
}

func of(ip string, sent, received, connections uint64) *semaphorev1.ServiceTraffic {
	return &semaphorev1.ServiceTraffic{Address: netip.MustParseAddr(ip).AsSlice(), SentBytes: sent,
		ReceivedBytes: received, Connections: connections}
}

func TestBoard(t *testing.T) {
	services := known{"10.96.0.1": "echo", "fd00::1": "echo", "10.96.0.2": "web"}
	b, at := NewTraffic("semaphore", services), time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	say := func(node string, after time.Duration, all ...*semaphorev1.ServiceTraffic) {
		b.Report(node, all, at.Add(after))
	}
	// n1 counted before this broker led, n2 counts nothing yet; what is no Service of ours, or no address, is nobody's.
	say("n1", 0, of("10.96.0.1", 1000, 1000, 10))
	say("n2", 0)
	say("n1", 30*time.Second, of("10.96.0.1", 4000, 1600, 12), of("fd00::1", 300, 300, 1), of("10.96.0.9", 9, 9, 9),
		&semaphorev1.ServiceTraffic{Address: []byte{1}, SentBytes: 5})
	say("n2", 30*time.Second, of("10.96.0.2", 600, 0, 1), of("10.96.0.2", 999999, 0, 1))
	all, total := b.Status(at.Add(40 * time.Second))
	if total != 2 || len(all) != 2 {
		t.Fatalf("%d of %d: %v", len(all), total, all)
	}
	echo, web := all[0], all[1]
	if echo.Service != "echo" || echo.SentBytes != 3300 || echo.ReceivedBytes != 900 || echo.Connections != 3 ||
		echo.SentPerSecond != 110 || echo.ReceivedPerSecond != 30 || echo.Nodes != 1 {
		t.Errorf("%v", echo)
	}
	if web.Service != "web" || web.SentBytes != 600 || web.Connections != 1 || web.SentPerSecond != 20 {
		t.Errorf("%v", web)
	}
	// An agent begins again; a report that comes soon after changes no rate.
	say("n1", time.Minute, of("10.96.0.1", 30, 0, 1))
	say("n1", time.Minute+time.Second, of("10.96.0.1", 40, 0, 1))
	if all, _ = b.Status(at.Add(time.Minute)); all[1].Service != "echo" || all[1].SentBytes != 3340 ||
		all[1].SentPerSecond != 1 {
		t.Errorf("%v", all)
	}
	if err := testutil.CollectAndCompare(b, strings.NewReader(`
# HELP semaphore_broker_service_connections_total Connections from the own nodes to remote endpoints of a Service, `+
		`through the tunnels; for UDP, flows. Only with serviceTraffic in the agents' configuration.
# TYPE semaphore_broker_service_connections_total counter
semaphore_broker_service_connections_total{namespace="semaphore",service="echo"} 4
semaphore_broker_service_connections_total{namespace="semaphore",service="web"} 1
`), "semaphore_broker_service_connections_total"); err != nil {
		t.Error(err)
	}
	// Rates end with the reports; a node's counts remain when it is deleted, and end with the Service.
	b.Forget("n1")
	if all, _ = b.Status(at.Add(5 * time.Minute)); len(all) != 2 || all[0].SentPerSecond+all[1].SentPerSecond != 0 {
		t.Errorf("%v", all)
	}
	delete(services, "10.96.0.2")
	if all, total = b.Status(at); total != 1 || all[0].Service != "echo" {
		t.Errorf("%v", all)
	}
}

// TestBoardIsBounded: whatever an agent sends, a node costs no more than what a report may have.
func TestBoardIsBounded(t *testing.T) {
	b := NewTraffic("semaphore", everything{})
	for round := range uint32(5) {
		var all []*semaphorev1.ServiceTraffic
		for i := range uint32(3 * maxAddresses) {
			ip := netip.AddrFrom4([4]byte{10, byte(round), byte(i >> 8), byte(i)})
			all = append(all, of(ip.String(), 1<<63, 1<<63, 1<<63))
		}
		b.Report("n1", all, time.Unix(int64(round)*30, 0))
	}
	if n := len(b.nodes["n1"].last); n > 2*maxAddresses {
		t.Errorf("%d addresses of one node", n)
	}
	if all, _ := b.Status(time.Unix(120, 0)); len(all) != 1 || all[0].SentBytes > maxCount {
		t.Errorf("%v", all)
	}
}

// everything has any address for its own.
type everything struct{}

func (everything) ServiceOf(netip.Addr) string { return "one" }

func (everything) ServiceExists(string) bool { return true }

// An address is that of the Service that has it now, in whatever order Services exchange it.
func TestServicesByAddress(t *testing.T) {
	with := func(ips ...string) *corev1.Service { return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: ips}} }
	all := index{}
	all.replace("a", nil, with("10.96.0.1", "fd00::1"))
	all.replace("headless", nil, with("None"))
	all.replace("b", nil, with("10.96.0.1"))
	all.replace("a", with("10.96.0.1", "fd00::1"), with("10.96.0.2"))
	if got := fmt.Sprint(all); got != "map[10.96.0.1:b 10.96.0.2:a]" {
		t.Error(got)
	}
	all.replace("a", with("10.96.0.2"), nil)
	all.replace("b", with("10.96.0.1"), nil)
	if len(all) > 0 {
		t.Error(all)
	}
}

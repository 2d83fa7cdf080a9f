package peering

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// talkers are a server and what agents have reported to it.
func talkers(t *testing.T) (*Server, *prometheus.Registry, func(node string, devices ...*semaphorev1.DeviceReport)) {
	registry := prometheus.NewRegistry()
	s := New(Options{Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}, {Name: "c3"}}, State: NewState(),
		Metrics: NewMetrics(registry)})
	s.now = func() time.Time { return noon.Add(time.Minute) }
	return s, registry, func(node string, devices ...*semaphorev1.DeviceReport) {
		t.Helper()
		session := open(t, NewState(), nil)
		r := testkit.Value(session.Receive(players.Report(devices...)))(t)
		s.attached[types.UID(node)] = &attachment{agent: Agent{Node: node}, session: session, report: r.Report,
			reported: noon}
	}
}

func deviceTo(cluster string, talking, silent, idle uint32, handshake time.Duration,
	names ...string) *semaphorev1.DeviceReport {
	d := &semaphorev1.DeviceReport{Cluster: cluster, Interface: "wireguard." + cluster, Peers: talking + silent + idle,
		PeersTalking: talking, PeersSilent: silent, PeersIdle: idle}
	if handshake > 0 {
		d.LastHandshake = timestamppb.New(noon.Add(-handshake))
	}
	for i, name := range names {
		d.Silent = append(d.Silent,
			&semaphorev1.SilentPeer{Node: name, Since: timestamppb.New(noon.Add(-time.Duration(len(names)-i) * time.Minute)),
				Reason: "no answer"})
	}
	return d
}

// gathered are the metrics by cluster.
func gathered(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families := testkit.Value(registry.Gather())(t)
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 1 && m.GetLabel()[0].GetName() == "cluster" {
				out = append(out, fmt.Sprint(strings.TrimPrefix(f.GetName(), "semaphore_broker_"), " ", m.GetLabel()[0].GetValue(),
					" ", m.GetGauge().GetValue()))
			}
		}
	}
	return strings.Join(out, "; ")
}

func TestTalk(t *testing.T) {
	s, registry, reports := talkers(t)
	reports("n1", deviceTo("c2", 2, 1, 0, 30*time.Second, "m3"), deviceTo("c3", 0, 0, 4, 0))
	reports("n2", deviceTo("c2", 1, 2, 0, 10*time.Second, "m1", "m3"), deviceTo("c9", 5, 5, 5, 0, "x"))
	reports("old", &semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", Peers: 3,
		LastHandshake: timestamppb.New(noon)})
	if got, want := fmt.Sprint(s.Tunnels()["c2"]),
		fmt.Sprint(Tunnels{Nodes: 2, Talking: 2, Silent: 2, SilentPairs: 3,
			Newest: noon.Add(-10 * time.Second)}); got != want {
		t.Errorf("c2: %s; want %s", got, want)
	}
	if got, want := fmt.Sprint(s.Tunnels()["c3"]), fmt.Sprint(Tunnels{Nodes: 1}); got != want {
		t.Errorf("c3: %s; want %s", got, want)
	}
	if all := s.Tunnels(); len(all) != 2 {
		t.Errorf("%v", all)
	}
	if some := s.TunnelsTo([]string{"c3", "c4"}); len(some) != 2 || some["c3"] != s.Tunnels()["c3"] ||
		some["c4"] != (Tunnels{}) {
		t.Errorf("of some: %v", some)
	}
	show := func() string {
		var out semaphorev1.GetStatusResponse
		s.TunnelStatus(&out)
		var lines []string
		for _, of := range out.Tunnels {
			lines = append(lines, fmt.Sprintf("%s %d/%d/%d", of.Cluster, of.Nodes, of.NodesTalking, of.NodesSilent))
		}
		lines = append(lines, fmt.Sprint(out.SilentPairsTotal))
		for _, p := range out.SilentPairs {
			lines = append(lines, fmt.Sprintf("%s-%s/%s %s", p.Node, p.Cluster, p.RemoteNode, noon.Sub(p.Since.AsTime())))
		}
		return strings.Join(lines, "; ")
	}
	equal(t, "status", show(), "c2 2/2/2; c3 1/0/0; 3; n2-c2/m1 2m0s; n1-c2/m3 1m0s; n2-c2/m3 1m0s")
	equal(t, "metrics", gathered(t, registry), "last_handshake_timestamp_seconds c2 1.76735519e+09; nodes_talking c2 2; "+
		"nodes_talking c3 0; silent_pairs c2 3; silent_pairs c3 0")
	// A node's report goes with its agent, and with the next report.
	delete(s.attached, "n2")
	reports("n1", deviceTo("c2", 3, 0, 0, time.Second), deviceTo("c3", 0, 0, 4, 0))
	equal(t, "status", show(), "c2 1/1/0; c3 1/0/0; 0")
}

// A node that reported long ago that it talks would have reported something since: the report no longer counts. That it
// has reported its device still does.
func TestTalkIsFresh(t *testing.T) {
	s, registry, reports := talkers(t)
	reports("n1", deviceTo("c2", 2, 0, 0, time.Second))
	for after, want := range map[time.Duration]int{talkingFor - 1: 1, talkingFor: 0} {
		s.now = func() time.Time { return noon.Add(after) }
		if got := s.Tunnels()["c2"]; got.Nodes != 1 || got.Talking != want {
			t.Errorf("after %s: %+v", after, got)
		}
		equal(t, "metrics", gathered(t, registry), fmt.Sprintf("last_handshake_timestamp_seconds c2 1.767355199e+09; "+
			"nodes_talking c2 %d; nodes_talking c3 0; silent_pairs c2 0; silent_pairs c3 0", want))
	}
}

// However much an agent reports, only so much is kept, and it can be sent in the status.
func TestTalkIsBounded(t *testing.T) {
	s, _, reports := talkers(t)
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("m%04d", i)
	}
	names[0] = strings.Repeat("é", 1000)
	for i := range 20 {
		d := deviceTo("c2", 0, 5000, 0, 0, names...)
		d.Silent[1].Reason = strings.Repeat("é", 1000)
		d.Silent[2].Since = &timestamppb.Timestamp{Seconds: 1 << 62}
		reports(fmt.Sprintf("n%02d", i), d)
	}
	var out semaphorev1.GetStatusResponse
	s.TunnelStatus(&out)
	if out.SilentPairsTotal != 100_000 || len(out.SilentPairs) != maxPairs {
		t.Errorf("%d pairs, %d listed", out.SilentPairsTotal, len(out.SilentPairs))
	}
	kept := s.attached["n00"].report.handshakes["c2"].peers
	if len(kept) != maxSilentKept || len(kept[0].Node) > maxNodeName || len(kept[1].Reason) > maxReason ||
		kept[2].Since != nil {
		t.Errorf("%d peers are kept: %v", len(kept), kept[:3])
	}
	if strings.ToValidUTF8(kept[0].Node, "?") != kept[0].Node {
		t.Errorf("%q cannot be sent", kept[0].Node)
	}
}

package status

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// TestStatusTables: the status of a broker and of an agent has all that they say, in their order, with ages, and with
// the number of those that a part leaves out. A name cannot control the terminal. Only a broker has ages of kinds.
func TestStatusTables(t *testing.T) {
	service := &semaphorev1.KindStatus{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 7, Complete: true, Limit: 10_000,
		LastHeard: before(3 * time.Second), Refused: 3, Retained: 4, RetainedSince: before(5 * time.Minute),
		LastPropagation:   durationpb.New(12 * time.Millisecond),
		MedianPropagation: durationpb.New(-2 * time.Millisecond), HighPropagation: durationpb.New(2340 * time.Millisecond)}
	pair := func(node string) *semaphorev1.SilentPair {
		return &semaphorev1.SilentPair{Node: node, Cluster: "c2", RemoteNode: "m2", Since: before(90 * time.Second),
			Reason: "no answer to handshakes; endpoint 192.0.2.7:51820"}
	}
	broker := &semaphorev1.GetStatusResponse{
		Part: "broker", Cluster: "c1", Ready: true, Leader: "broker-0", Now: timestamppb.New(noon),
		StartedAt: before(time.Hour), MultiCluster: multiCluster(5, 1, "c1", 2, "c2", 4),
		Links: []*semaphorev1.LinkStatus{{Cluster: "c2", Address: "192.0.2.7:8443", Connected: true,
			Since: before(time.Hour), LastHeard: before(3 * time.Second),
			Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_NODE, Objects: 2, Complete: true}, service}}},
		OwnNames: []*semaphorev1.OwnNameStatus{{Namespace: "shop", Service: "web", Use: "failover",
			Clusters: []string{"c2", "c3"}, Ready: 1, All: 4, Enough: "50%"}}, OwnNamesTotal: 7,
		Nodes: []*semaphorev1.NodeStatus{{Node: "n1", Attached: true, Since: before(time.Hour), Devices: 1}},
		Tunnels: []*semaphorev1.TunnelsStatus{
			{Cluster: "c2", Nodes: 3, NodesTalking: 3, NodesSilent: 1, LastHandshake: before(40 * time.Second)},
			{Cluster: "c3", Nodes: 3, Permissive: true, ClearOut: 70, ClearIn: 5, NodesClear: 2,
				LastClear: before(time.Minute), NodesWaiting: 1}},
		SilentPairs: []*semaphorev1.SilentPair{pair("n1")}, SilentPairsTotal: 3,
		ServiceTraffic: []*semaphorev1.ServiceTrafficStatus{
			{Namespace: "semaphore", Service: "c2-shop-73736d-echo", SentBytes: 999, ReceivedBytes: 12_345_678,
				Connections: 42, SentPerSecond: 1_500, ReceivedPerSecond: 2_000_000_000, Nodes: 3},
			{Namespace: "semaphore", Service: "c2-\x1b[2J", Nodes: 1}}, ServiceTrafficTotal: 7,
	}
	agent := &semaphorev1.GetStatusResponse{
		Part: "agent", Cluster: "c1", Node: "n1", Ready: true, Now: timestamppb.New(noon), StartedAt: before(time.Hour),
		Devices: []*semaphorev1.DeviceStatus{
			{Cluster: "c2", Interface: "wireguard.c2", Backend: semaphorev1.Backend_BACKEND_KERNEL, ListenPort: 51820,
				Mtu: 1340, PeersDesired: 2, PeersPresent: 2, PeersWithHandshake: 1, LastHandshake: before(time.Minute),
				Routes: []string{"10.2.0.0/16"}, Paths: &semaphorev1.PathsStatus{
					Talking: 4, Silent: 2, Idle: 1, Measured: 3, Unanswered: 1, MtuReason: "the path to m1 carries no more",
					SilentPeers: []*semaphorev1.SilentPair{pair("")}}},
			{Cluster: "c3", Interface: "wireguard.c3"}},
	}
	var out bytes.Buffer
	for name, s := range map[string]*semaphorev1.GetStatusResponse{"status-broker": broker, "status-agent": agent} {
		out.Reset()
		must(t, statusTable(&out, judged(s)))
		ctltest.Golden(t, name, out.String())
	}
	broker.Part = "exporter"
	out.Reset()
	must(t, statusTable(&out, broker))
	if strings.Contains(out.String(), "LAG") {
		t.Errorf("an exporter has ages:\n%s", &out)
	}
}

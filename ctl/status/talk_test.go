package status

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestSilentPairs: a broker's status begins with the number of pairs of nodes without a session, and lists them with
// the time and the reason.
func TestSilentPairs(t *testing.T) {
	s := aBroker(&semaphorev1.LinkStatus{Cluster: "c2", Connected: true, LastHeard: before(time.Second)})
	s.Tunnels = []*semaphorev1.TunnelsStatus{
		{Cluster: "c2", Nodes: 3, NodesTalking: 3, NodesSilent: 1, LastHandshake: before(40 * time.Second)},
		{Cluster: "c3", Nodes: 3, Permissive: true, ClearOut: 70, ClearIn: 5, NodesClear: 2, LastClear: before(time.Minute),
			NodesWaiting: 1},
	}
	if got := finding.Summary(judged(s)); got != "all is well" {
		t.Errorf("%q", got)
	}
	s.SilentPairs = []*semaphorev1.SilentPair{
		{Node: "n1", Cluster: "c2", RemoteNode: "m2", Since: before(90 * time.Second),
			Reason: "no answer to handshakes; endpoint 192.0.2.7:51820"},
	}
	s.SilentPairsTotal = 1
	if got := finding.Summary(judged(s)); got != "n1 → c2/m2: no answer to handshakes; endpoint 192.0.2.7:51820" {
		t.Errorf("%q", got)
	}
	s.SilentPairsTotal = 3
	var out bytes.Buffer
	must(t, statusTable(&out, judged(s)))
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"broker of c1: pairs of nodes do not talk (c2): 3 such as n1 → c2/m2: no answer to handshakes; endpoint " +
			"192.0.2.7:51820 version",
		"TUNNELS TO NODES TALKING SOME SILENT NEWEST HANDSHAKE c2 3 3 1 40s ago c3 3 0 0 never",
		"PERMISSIVE TO CLEAR OUT CLEAR IN NODES LAST NODES WAITING c3 70 5 2 1m0s ago 1",
		"SILENT PAIRS, as the nodes of c1 see them",
		"n1 c2/m2 1m30s no answer to handshakes; endpoint 192.0.2.7:51820",
		"and 2 more",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the status has no %q:\n%s", want, &out)
		}
	}
}

func TestPathsOfAnAgent(t *testing.T) {
	s := aBroker()
	s.Part = "agent"
	s.Devices = []*semaphorev1.DeviceStatus{
		{Cluster: "c2", Interface: "wireguard.c2", Mtu: 1340, Paths: &semaphorev1.PathsStatus{
			Talking: 4, Silent: 2, Idle: 1, Measured: 3, Unanswered: 1, MtuReason: "the path to m1 carries no more",
			SilentPeers: []*semaphorev1.SilentPair{{Cluster: "c2", RemoteNode: "m7", Since: before(time.Minute),
				Reason: "no answer"}},
		}},
		{Cluster: "c3", Interface: "wireguard.c3"},
	}
	const want = "pairs of nodes do not talk (c2): 2 such as wireguard.c2 → c2/m7: no answer"
	if got := finding.Summary(judged(s)); got != want {
		t.Errorf("%q", got)
	}
	var out bytes.Buffer
	must(t, statusTable(&out, judged(s)))
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"wireguard.c2 4 2 1 3 1 1340 the path to m1 carries no more", "c2/m7 1m0s no answer"} {
		if !strings.Contains(words, want) {
			t.Errorf("the status has no %q:\n%s", want, &out)
		}
	}
}

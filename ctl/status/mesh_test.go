package status

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// aPart returns the status of a healthy part, with a stream to each of the clusters.
func aPart(part, cluster string, with ...string) *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{Part: part, Cluster: cluster, SoftwareVersion: "v1.2.3", Ready: true,
		StartedAt: before(90 * time.Minute), Now: timestamppb.New(noon), Leader: "semaphore-" + part + "-6d8f7c9b5-x2x4z"}
	for _, other := range with {
		s.Links = append(s.Links, &semaphorev1.LinkStatus{
			Cluster: other, Address: "192.0.2.7:8443", Connected: true, Since: before(time.Hour),
			LastHeard: before(2 * time.Second),
			Kinds: []*semaphorev1.KindStatus{
				{Kind: semaphorev1.Kind_KIND_NODE, Objects: 3, Complete: true, LastHeard: before(2 * time.Second)},
				{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 17, Complete: true, LastHeard: before(2 * time.Second),
					MedianPropagation: durationpb.New(12 * time.Millisecond)},
			},
		})
		if part == "broker" && other != cluster {
			s.Tunnels = append(s.Tunnels, &semaphorev1.TunnelsStatus{Cluster: other, Nodes: 3, NodesTalking: 3})
		}
	}
	if part == "broker" {
		for i := range 3 {
			s.Nodes = append(s.Nodes, &semaphorev1.NodeStatus{Node: fmt.Sprintf("n%d", i+1), Attached: true})
		}
	}
	return s
}

func multiCluster(imports, conflicts uint64, exports ...any) *semaphorev1.MultiClusterStatus {
	out := &semaphorev1.MultiClusterStatus{Imports: imports, Conflicts: conflicts}
	for i := 0; i < len(exports); i += 2 {
		out.Exports = append(out.Exports, &semaphorev1.ClusterExports{Cluster: exports[i].(string),
			Services: uint64(exports[i+1].(int))})
	}
	return out
}

func judged(s *semaphorev1.GetStatusResponse, found ...finding.Finding) *semaphorev1.GetStatusResponse {
	finding.Judge(s, found...)
	return s
}

// TestMeshStatus: the verdict about the mesh comes first, and no line is wider than 100 columns: if all is well, if a
// remote is stale and has other findings, if a broker does not answer, and if a cluster does not.
func TestMeshStatus(t *testing.T) {
	well := []mesh.Facts{
		{Context: "prod-1", Parts: []*semaphorev1.GetStatusResponse{judged(aPart("broker", "c1", "c1", "c2")),
			judged(aPart("exporter", "c1", "c2"))}},
		{Context: "prod-2", Parts: []*semaphorev1.GetStatusResponse{judged(aPart("broker", "c2", "c1")),
			judged(aPart("exporter", "c2", "c1"))}},
	}

	well[0].Parts[0].MultiCluster = multiCluster(5, 1, "c1", 2, "c2", 4)
	well[1].Parts[0].MultiCluster = multiCluster(0, 0)

	well[0].Parts[0].OwnNames, well[0].Parts[0].OwnNamesTotal = []*semaphorev1.OwnNameStatus{
		{Namespace: "shop", Service: "web", Use: "failover", Clusters: []string{"c2", "c3"}, Ready: 1, All: 4,
			Enough: "50%"},
		{Namespace: "shop", Service: "echo", Use: "all", Clusters: []string{"c2"}, Ready: 2, All: 2, Enough: "1"}}, 3

	wrong := aPart("broker", "c1", "c2", "c3", "c4", "c5")
	wrong.Links[0].LastHeard, wrong.Links[0].Connected = before(252*time.Second), false
	wrong.Links[0].LastError = "connection \x1b[31mrefused"
	wrong.Links[2].Kinds[1].Retained, wrong.Links[2].Kinds[1].RetainedSince = 6, before(90*time.Second)
	wrong.Links[3].Kinds[1].Refused = 2
	wrong.Nodes[1].Attached = false
	wrong.SilentPairs = []*semaphorev1.SilentPair{{Node: "n1", Cluster: "c3", RemoteNode: "m2",
		Since:  before(time.Minute),
		Reason: "no answer to handshakes; endpoint 192.0.2.7:51820"}}
	wrong.SilentPairsTotal = 1
	judged(wrong, finding.New(finding.OverLimit, "c5", 2, "service shop/a: the remote has 10,000 services, its limit",
		"service shop/b: the remote has 10,000 services, its limit"))
	old := aPart("exporter", "c1", "c2", "c3")
	old.SoftwareVersion, old.Links = "v1.1.0", nil
	judged(old, finding.New(finding.LeaseFailed, "", 1, "leases.coordination.k8s.io is forbidden"))

	agent := aPart("agent", "c1")
	agent.Node, agent.Links = "n1",
		[]*semaphorev1.LinkStatus{{Cluster: "c1", LastError: "no broker", Since: before(time.Minute)}}
	agent.Devices = []*semaphorev1.DeviceStatus{{Cluster: "c2", Interface: "wireguard.c2",
		Source: semaphorev1.StateSource_STATE_SOURCE_CACHE, ConfirmedAt: before(time.Minute),
		Paths: &semaphorev1.PathsStatus{Talking: 3}}}
	silent := aPart("broker", "c1", "c2")
	silent.Links[0].LastHeard, silent.Tunnels[0].NodesTalking, silent.Tunnels[0].NodesSilent = before(time.Hour), 0, 3

	for name, facts := range map[string][]mesh.Facts{
		"mesh-well":  well,
		"mesh-wrong": {{Context: "prod-1", Parts: []*semaphorev1.GetStatusResponse{wrong, old}}},
		"mesh-without-broker": {{Context: "prod-1",
			Parts:     []*semaphorev1.GetStatusResponse{judged(aPart("exporter", "c1", "c2")), judged(agent)},
			Unreached: map[string]string{"broker": "prod-1: no pod of the broker runs in namespace semaphore, of 1 there"},
			Remotes:   []mesh.Remote{{Name: "c2", LastHeard: noon.Add(-time.Hour)}, {Name: "c3"}},
			Notes:     []string{"pod semaphore-broker-6d8f7c9b5-x2x4z: Pending, ImagePullBackOff"}}},
		"mesh-without-cluster": {{Context: "prod-1", Parts: []*semaphorev1.GetStatusResponse{judged(silent)}},
			{Context: "prod-2", Unreached: map[string]string{"": "dial tcp 192.0.2.9:6443: i/o timeout"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			must(t, printMesh(&out, mesh.Join(facts), "table"))
			for line := range strings.Lines(out.String()) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > show.LineWidth {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			ctltest.Golden(t, name, out.String())
		})
	}
	var out bytes.Buffer
	must(t, printMesh(&out, mesh.Join(well), "json"))
	ctltest.Golden(t, "mesh-json", out.String())
}

// TestMeshStatusOfMany: a mesh of 100 clusters with hostile names and 1,000 findings fits the width, and no name
// controls the terminal.
func TestMeshStatusOfMany(t *testing.T) {
	var all []mesh.Facts
	for i := range 100 {
		s := aPart("broker", fmt.Sprintf("c%d-with-a-name-of-32-characters-", i))
		s.SoftwareVersion = fmt.Sprintf("v%d\x1b[2J\u202e", i)
		for range 10 {
			s.Findings = append(s.Findings, &semaphorev1.Finding{Code: "stale\x1b[2J", Level: 99, Cluster: "c\u202e",
				Meaning: strings.Repeat("m\r", 300), Count: 1 << 40, Side: 99, Command: "rm\n -rf",
				First: []string{"a\x1b[2J", "b", "c", "d", "e"}})
		}
		all = append(all, mesh.Facts{Context: fmt.Sprintf("context-%d\x1b", i), Parts: []*semaphorev1.GetStatusResponse{s}})
	}
	for _, output := range []string{"table", "json", "yaml"} {
		var out bytes.Buffer
		must(t, printMesh(&out, mesh.Join(all), output))
		for line := range strings.Lines(out.String()) {
			line = strings.TrimRight(line, "\n")
			if n := utf8.RuneCountInString(line); output == "table" && n > show.LineWidth {
				t.Fatalf("%d columns: %s", n, line)
			}
			if strings.ContainsAny(line, "\x1b\a\r\u202e") {
				t.Fatalf("%s: a line commands the terminal: %q", output, line)
			}
		}
		if first, _, _ := strings.Cut(out.String(), "\n"); output == "table" && !strings.Contains(first, "remotes fresh") {
			t.Errorf("the first line is %q", first)
		}
	}
}

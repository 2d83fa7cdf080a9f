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
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// crowd is a server with agents on nodes, each of which reports on remotes, and every tenth on a silent peer in each.
// One more node has no agent.
func crowd(tb testing.TB, nodes, remotes int) (s *Server, names []string) {
	tb.Helper()
	options := Options{State: NewState(), Metrics: NewMetrics(prometheus.NewRegistry())}
	for i := range remotes {
		options.Remotes = append(options.Remotes, config.Remote{Name: fmt.Sprintf("c%03d", i)})
	}
	s = New(options)
	now := time.Now()
	for i := range nodes {
		name := fmt.Sprintf("n%05d", i)
		names = append(names, name)
		report := &Report{Devices: remotes, handshakes: map[string]handshakeStats{}}
		for _, r := range options.Remotes {
			t := handshakeStats{talking: 10, mtu: 1420, newest: now}
			if i%10 == 0 {
				t.silent = 1
				t.peers = []*semaphorev1.SilentPeer{{Node: "n1", Since: timestamppb.New(now), Reason: "no handshake"}}
			}
			report.handshakes[r.Name] = t
		}
		report.count()
		s.attached[types.UID(name)] = &attachment{agent: Agent{Node: name}, since: now, reported: now, report: report,
			session: s.options.State.Open("c1", name, s.configured)}
	}
	return s, append(names, "none")
}

// BenchmarkOverview is the part of a scrape that 5,000 agents of 100 remotes have: nothing for each remote of a node.
func BenchmarkOverview(b *testing.B) {
	s, names := crowd(b, 5000, 100)
	b.ReportAllocs()
	for b.Loop() {
		s.Overview(&semaphorev1.GetStatusResponse{}, names, expected)
		s.Findings()
	}
	figure.Of(b, "allocs/op").AtMost(50)
}

// TestOverview: a scrape finds of agents what a status finds.
func TestOverview(t *testing.T) {
	for _, remotes := range []int{1, 3} {
		s, names := crowd(t, 50, remotes)
		full, scraped := &semaphorev1.GetStatusResponse{Nodes: s.Status(names, expected)}, &semaphorev1.GetStatusResponse{}
		s.TunnelStatus(full)
		s.Overview(scraped, names, expected)
		var got []string
		for _, from := range []*semaphorev1.GetStatusResponse{full, scraped} {
			var of []string
			for _, f := range finding.Found(from, s.Findings()...) {
				of = append(of, fmt.Sprint(f.Code, " ", f.Cluster, " ", f.Count))
			}
			got = append(got, strings.Join(of, ", "))
		}
		want := "NoAgent  1, NotReady  1, SilentPairs c000 5"
		if remotes > 1 {
			want = "NoAgent  1, NotReady  1, SilentPairs  15"
		}
		if got[0] != want || got[1] != want {
			t.Errorf("%d remotes: the status finds %q and a scrape %q, want %q", remotes, got[0], got[1], want)
		}
	}
}

// expected expects an agent on every node.
func expected(string) string { return "" }

// TestNodesWithoutAnAgentOnPurpose: a node on which the agents' DaemonSet cannot run is listed with the reason, and is
// no problem, in the status and in what a scrape sees alike.
func TestNodesWithoutAnAgentOnPurpose(t *testing.T) {
	s := New(Options{State: NewState(), Metrics: NewMetrics(prometheus.NewRegistry())})
	exempt := func(node string) string {
		if node == "win1" {
			return "its operating system is windows"
		}
		return ""
	}
	full := &semaphorev1.GetStatusResponse{Part: "broker", Ready: true, Now: timestamppb.Now(),
		Nodes: s.Status([]string{"n1", "win1"}, exempt)}
	scraped := &semaphorev1.GetStatusResponse{Part: "broker", Ready: true, Now: timestamppb.Now()}
	s.Overview(scraped, []string{"n1", "win1"}, exempt)
	for what, out := range map[string]*semaphorev1.GetStatusResponse{"the status": full, "a scrape": scraped} {
		var lines []string
		for _, f := range finding.Found(out) {
			lines = append(lines, f.First...)
		}
		if got := strings.Join(lines, "; "); !strings.Contains(got, "no agent on node n1") || strings.Contains(got, "win1") {
			t.Errorf("%s finds %q", what, got)
		}
		if n := out.GetNodes()[1]; n.GetNode() != "win1" || n.GetWithoutEncryption() == "" || len(n.GetProblems()) > 0 {
			t.Errorf("%s has %v", what, n)
		}
	}
}

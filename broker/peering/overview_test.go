package peering

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/bench/figure"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/diagnose/verdict"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
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

// BenchmarkStatus is the part of a status that 5,000 agents of 100 remotes have, as a person gets it.
func BenchmarkStatus(b *testing.B) {
	s, names := crowd(b, 5000, 100)
	b.ReportAllocs()
	for b.Loop() {
		out := &semaphorev1.GetStatusResponse{Nodes: s.Status(names)}
		s.TunnelStatus(out)
		s.Findings()
	}
}

// BenchmarkOverview is the same for a scrape: nothing for each remote of a node.
func BenchmarkOverview(b *testing.B) {
	s, names := crowd(b, 5000, 100)
	b.ReportAllocs()
	for b.Loop() {
		s.Overview(&semaphorev1.GetStatusResponse{}, names)
		s.Findings()
	}
	figure.Of(b, "allocs/op").AtMost(50)
}

// TestOverview: a scrape finds of agents what a status finds.
func TestOverview(t *testing.T) {
	for _, remotes := range []int{1, 3} {
		s, names := crowd(t, 50, remotes)
		full, scraped := &semaphorev1.GetStatusResponse{Nodes: s.Status(names)}, &semaphorev1.GetStatusResponse{}
		s.TunnelStatus(full)
		s.Overview(scraped, names)
		var got []string
		for _, from := range []*semaphorev1.GetStatusResponse{full, scraped} {
			var of []string
			for _, f := range verdict.Found(from, s.Findings()...) {
				of = append(of, fmt.Sprint(f.Code, " ", f.Cluster, " ", f.Count))
			}
			got = append(got, strings.Join(of, ", "))
		}
		want := "no-agent  1, not-ready  1, silent-pairs c000 5"
		if remotes > 1 {
			want = "no-agent  1, not-ready  1, silent-pairs  15"
		}
		if got[0] != want || got[1] != want {
			t.Errorf("%d remotes: the status finds %q and a scrape %q, want %q", remotes, got[0], got[1], want)
		}
	}
}

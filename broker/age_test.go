package broker

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// An exporter stops in the middle of a stream with its connection open. The age of what it sent must be right all the
// time (I9: ±1 s) for each kind with a complete snapshot, and unknown for a kind without.
func TestAgeOfAStalledStream(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t)
	e := l.exporter("c2")
	e.Greet(players.Hello("c2", "e1", 1, semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SERVICE))
	before := time.Now()
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_NODE, 1, players.Node("n1", 21, "10.2.1.0/24"))...)
	e.Send(players.Begin(semaphorev1.Kind_KIND_SERVICE, 1))

	status := func() (link *semaphorev1.LinkStatus, node, service *semaphorev1.KindStatus) {
		t.Helper()
		link = l.server.Status()[0]
		for _, k := range link.Kinds {
			switch k.Kind {
			case semaphorev1.Kind_KIND_NODE:
				node = k
			case semaphorev1.Kind_KIND_SERVICE:
				service = k
			}
		}
		return link, node, service
	}
	eventually(t, "the nodes are taken", func() (bool, string) {
		_, node, _ := status()
		return node.Complete, node.String()
	})
	// The broker receives one more message after that, possibly late on a busy machine, and then nothing. The age is right
	// if the broker does not report a later receive time.
	early := before.Add(-time.Millisecond) // the status rounds times
	heard := map[string]map[time.Time]bool{"link": {}, "nodes": {}}
	for range 8 {
		time.Sleep(250 * time.Millisecond)
		link, node, service := status()
		for what, at := range map[string]time.Time{"link": link.LastHeard.AsTime(), "nodes": node.LastHeard.AsTime()} {
			if heard[what][at] = true; at.Before(early) || at.After(time.Now()) || len(heard[what]) > 2 {
				t.Errorf("the %s was heard of at %v, and it spoke last after %s", what, heard[what], before)
			}
		}
		if service.LastHeard != nil {
			t.Errorf("services, of which no whole snapshot was sent, were heard of at %s", service.LastHeard.AsTime())
		}
		if !link.Connected {
			t.Error("not connected")
		}
	}
	// It continues: young again.
	spoke := time.Now().Add(-time.Millisecond)
	e.Send(players.End(semaphorev1.Kind_KIND_SERVICE, 1, 0))
	eventually(t, "heard again", func() (bool, string) {
		_, node, service := status()
		for _, k := range []*semaphorev1.KindStatus{node, service} {
			if k.LastHeard == nil || k.LastHeard.AsTime().Before(spoke) {
				return false, k.String()
			}
		}
		return true, ""
	})
}

// TestAKindThatIsPromised: of a kind that the exporter promises and may not read, a leader that never heard it reports
// what one that did reports: the kind is stale, from the first promise on, whatever streams begin since. A kind that
// the exporter does not export is never stale, and keeps its age.
func TestAKindThatIsPromised(t *testing.T) {
	node, member := semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SET_MEMBER
	const metric = "semaphore_broker_kind_last_heard_timestamp_seconds"
	for name, heard := range map[string]bool{"heard before": true, "a new leader": false} {
		l := serve(t)
		from := time.Now().Add(-time.Millisecond)
		begin := func(epoch string, unread ...semaphorev1.Kind) {
			e := l.exporter("c2")
			hello := players.Hello("c2", epoch, 1, node)
			hello.GetHello().UnreadKinds = unread
			e.Greet(hello)
			e.Send(players.Snapshot(node, 1, players.Node("n1", 21, "10.2.1.0/24"))...)
			e.Acked(1)
		}
		if heard {
			e := l.exporter("c2")
			e.Greet(players.Hello("c2", "e1", 1, member))
			e.Send(players.Snapshot(member, 1)...)
			e.Acked(1)
		}
		begin("e2", member)
		promised := time.Now()
		begin("e3", member)
		// later is the status long after the last message about a kind, while the nodes are heard of.
		later := func() *semaphorev1.GetStatusResponse {
			s := &semaphorev1.GetStatusResponse{Part: "broker", Ready: true, Links: l.server.Status()[:1],
				Now: timestamppb.New(time.Now().Add(time.Minute))}
			s.Links[0].LastHeard, s.Links[0].Kinds[0].AwaitedSince = s.Now, s.Now
			finding.Judge(s)
			return s
		}
		s := later()
		at := s.Links[0].Kinds[3].AwaitedSince.AsTime()
		if f := s.Findings; len(f) != 1 || f[0].Code != string(finding.KindStale) ||
			!strings.HasPrefix(f[0].First[0], "setmember objects of c2 stale 1m") || at.Before(from) || at.After(promised) {
			t.Errorf("%s: since %s, %v", name, at, f)
		}
		if is, _ := testkit.Metric(t, l.registry, metric, "setmember"); is != float64(at.UnixMilli())/1000 {
			t.Errorf("%s: the metric is %v, not %s", name, is, at)
		}
		begin("e4")
		if s := later(); len(s.Findings) > 0 || (s.Links[0].Kinds[3].LastHeard != nil) != heard {
			t.Errorf("%s: not exported: %v", name, s)
		}
		if is, found := testkit.Metric(t, l.registry, metric, "setmember"); found {
			t.Errorf("%s: not exported: the metric is %v", name, is)
		}
	}
}

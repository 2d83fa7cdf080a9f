package broker

import (
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
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

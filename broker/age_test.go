package broker

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// An exporter that stops in the middle of a stream, its connection open: the age of what it sent is right all the time
// (I9 asks for ±1 s), for each kind of which it sent a whole snapshot, and unknown for one of which it did not.
func TestAgeOfAStalledStream(t *testing.T) {
	noLeaks(t)
	c := newClusters(t, "c1", "c2", "c3")
	address, server, _ := startFederation(t, c)
	e := publish(t, c.dial(t, "c2", "exporter", address, identity.Broker("c1")))
	e.send(helloMessage("c2", "e1", 1, semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SERVICE))
	e.recv()
	e.send(snapshotOf(semaphorev1.Kind_KIND_NODE, 1, nodeObject("n1", 21, "10.2.1.0/24"))...)
	e.send(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
		SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: semaphorev1.Kind_KIND_SERVICE, Revision: 1},
	}})
	silent := time.Now()

	status := func() (link *semaphorev1.LinkStatus, node, service *semaphorev1.KindStatus) {
		t.Helper()
		link = server.Status()[0]
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
	const tolerance = 300 * time.Millisecond
	for range 8 {
		time.Sleep(250 * time.Millisecond)
		link, node, service := status()
		age := time.Since(silent)
		for what, heard := range map[string]time.Time{"link": link.LastHeard.AsTime(), "nodes": node.LastHeard.AsTime()} {
			if off := time.Since(heard) - age; off.Abs() > tolerance {
				t.Errorf("after %s of silence the age of the %s is off by %s", age, what, off)
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
	e.send(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: semaphorev1.Kind_KIND_SERVICE, Revision: 1},
	}})
	spoke := time.Now()
	eventually(t, "heard again", func() (bool, string) {
		_, node, service := status()
		for _, k := range []*semaphorev1.KindStatus{node, service} {
			if k.LastHeard == nil || k.LastHeard.AsTime().Sub(spoke).Abs() > tolerance {
				return false, k.String()
			}
		}
		return true, ""
	})
}

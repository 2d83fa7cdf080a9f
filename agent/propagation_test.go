package agent

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/desired"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestObserved(t *testing.T) {
	at := func(c *semaphorev1.PeeringChange, second int64) *semaphorev1.PeeringChange {
		c.ObservedAt = timestamppb.New(time.Unix(second, 0))
		return c
	}
	o := observed{}
	d := desired.Dirty{Peers: map[string]map[string]bool{"c2": {"n1": true, "n2": true, "n3": true}}}
	o.changes([]*semaphorev1.PeeringChange{
		at(peerOf("c2", "n1", publicKey(1), ""), 20), at(noPeer("c2", "n2"), 30),
		at(peerOf("c2", "n9", publicKey(1), ""), 1), // nothing new
		peerOf("c2", "n3", publicKey(1), ""),        // nobody knows since when
	}, d)
	o.add(observed{"c2": {"n1": time.Unix(10, 0), "n2": time.Unix(40, 0)}, "c3": {"n1": time.Unix(50, 0)}})
	if len(o) != 2 || len(o["c2"]) != 2 || o["c2"]["n1"].Unix() != 10 || o["c2"]["n2"].Unix() != 30 || o["c3"]["n1"].Unix() != 50 {
		t.Errorf("%v", o)
	}
}

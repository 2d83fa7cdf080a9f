package stream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestObserved(t *testing.T) {
	at := func(c *semaphorev1.PeeringChange, second int64) *semaphorev1.PeeringChange {
		c.ObservedAt = timestamppb.New(time.Unix(second, 0))
		return c
	}
	o := Observed{}
	d := Dirty{Peers: map[string]map[string]bool{"c2": {"n1": true, "n2": true, "n3": true}}}
	o.changes([]*semaphorev1.PeeringChange{
		peer(0, "c2", "n3", ""), // the time of observation is unknown
		at(peer(0, "c2", "n1", ""), 20), at(noPeer(0, "c2", "n2"), 30),
		at(peer(0, "c2", "n9", ""), 1), // n9 did not change
	}, d)
	o.Add("c2", "n1", time.Unix(10, 0))
	o.Add("c2", "n2", time.Unix(40, 0))
	o.Add("c3", "n1", time.Unix(50, 0))
	if len(o) != 2 || len(o["c2"]) != 2 || o["c2"]["n1"].Unix() != 10 || o["c2"]["n2"].Unix() != 30 ||
		o["c3"]["n1"].Unix() != 50 {
		t.Errorf("%v", o)
	}
}

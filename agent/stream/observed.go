package stream

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Observed is when changes that are not programmed yet were observed in their clusters, on the clocks there, by cluster
// and node. For a peer that changes again before it is programmed the first time counts.
type Observed map[string]map[string]time.Time

func (o Observed) Add(cluster, node string, at time.Time) {
	if o[cluster] == nil {
		o[cluster] = map[string]time.Time{}
	}
	if was, ok := o[cluster][node]; !ok || at.Before(was) {
		o[cluster][node] = at
	}
}

// changes records those changes of a message that change a desired peer. A snapshot has no times: its objects may have
// existed for a long time.
func (o Observed) changes(all []*semaphorev1.PeeringChange, d Dirty) {
	for _, c := range all {
		if of := changeOf(c); c.GetObservedAt().IsValid() && d.Peers[of.cluster][of.node] {
			o.Add(of.cluster, of.node, c.GetObservedAt().AsTime())
		}
	}
}

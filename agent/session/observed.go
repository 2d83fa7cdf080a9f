//go:build ignore

package agent

import (
	"time"

	"github.com/kube-semaphore/semaphore/agent/desired"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// observed is when changes that are not programmed yet were seen at their sources, on the clocks there: by
// cluster and node, the device being that of no node. Of an object that changed again the first time counts: it
// has waited longest.
type observed map[string]map[string]time.Time

func (o observed) note(cluster, node string, at time.Time) {
	if o[cluster] == nil {
		o[cluster] = map[string]time.Time{}
	}
	if was, ok := o[cluster][node]; !ok || at.Before(was) {
		o[cluster][node] = at
	}
}

func (o observed) add(other observed) {
	for cluster, nodes := range other {
		for node, at := range nodes {
			o.note(cluster, node, at)
		}
	}
}

// changes notes those changes of a message that make something dirty. What a whole state tells has been so
// for long, and nothing is noted of it.
func (o observed) changes(all []*semaphorev1.PeeringChange, d desired.Dirty) {
	for _, c := range all {
		if !c.GetObservedAt().IsValid() {
			continue
		}
		key := c.GetPeer().GetKey()
		if key == nil {
			key = c.GetDeletePeer()
		}
		if key != nil && d.Peers[key.GetCluster()][key.GetNode()] {
			o.note(key.GetCluster(), key.GetNode(), c.GetObservedAt().AsTime())
		}
	}
}

// propagated tells the metric of what was programmed in a round, and keeps what was not for the next.
func (a *agent) propagated(done observed) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for cluster, nodes := range done {
		for node, at := range nodes {
			if a.failing[cluster] != nil {
				a.dirty.observed.note(cluster, node, at)
				continue
			}
			// The clocks of two clusters differ: before it was seen is at once.
			a.metrics.propagation.WithLabelValues(cluster).Observe(max(0, now.Sub(at).Seconds()))
		}
	}
}

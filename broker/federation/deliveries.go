package federation

import (
	"strings"
	"sync"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// deliveriesLast is how long the own exporter's word counts: it comes with its heartbeats, every 5 s.
	deliveriesLast = 15 * time.Second
	// maxDeliveryProblem bounds what is kept of a problem.
	maxDeliveryProblem = 200
)

// deliveries are what the own exporter last said of how it stands with the brokers of other clusters.
type deliveries struct {
	mu sync.Mutex
	// at is zero where it never said anything: it is of a version that does not, or there is none.
	at  time.Time
	all map[string]*semaphorev1.Delivery
}

func (d *deliveries) take(now time.Time, all []*semaphorev1.Delivery) {
	if len(all) == 0 {
		return // of a version that says nothing; one that does publishes to another cluster too
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.all = now, map[string]*semaphorev1.Delivery{}
	for _, one := range all {
		d.all[one.GetCluster()] = one
	}
}

func (d *deliveries) read() (at time.Time, all map[string]*semaphorev1.Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, d.all
}

// Undelivered are the configured remotes that do not receive what this cluster publishes, as far as can be known here, and
// why, by cluster. The own exporter knows, and says so where it publishes to its own broker. Where it does not, the stream of
// the remote's exporter to here stands for the one that cannot be seen: when the network between two clusters is cut, both end.
// The words do not change while the cause is the same.
func (s *Server) Undelivered(now time.Time) map[string]string {
	at, said := s.deliveries.read()
	own := s.links[s.options.Cluster]
	out := map[string]string{}
	for cluster, l := range s.links {
		if l == own {
			continue
		}
		one := said[cluster]
		switch {
		case own != nil && at.IsZero() && !own.connected(), !at.IsZero() && now.Sub(at) > deliveriesLast:
			out[cluster] = "this cluster's own exporter, which knows whether the remote's broker acknowledges, is not connected to this broker"
		case at.IsZero() && !l.connected():
			out[cluster] = "the remote's exporter is not connected to this broker, and nothing else is known of the way to the remote"
		case at.IsZero(), one.GetAcknowledged():
		case one == nil:
			out[cluster] = "this cluster's exporter does not publish to the remote's broker"
		default:
			out[cluster] = strings.ToValidUTF8(one.GetProblem()[:min(len(one.GetProblem()), maxDeliveryProblem)], "")
			if out[cluster] == "" {
				out[cluster] = "the remote's broker does not acknowledge what this cluster's exporter publishes"
			}
		}
	}
	return out
}

func (l *link) connected() bool { return l.connects.Load() }

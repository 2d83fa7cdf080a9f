package federation

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

const (
	// deliveriesValid is how long a report of the own exporter is valid: the exporter sends one with each heartbeat,
	// every 5 s.
	deliveriesValid = 15 * time.Second
	// maxDeliveryProblem bounds the text of a problem, in bytes.
	maxDeliveryProblem = 200
)

// deliveries are a report, by cluster; immutable.
type deliveries struct {
	at  time.Time
	all map[string]*semaphorev1.Delivery
}

func (s *Server) setDeliveries(now time.Time, all []*semaphorev1.Delivery) {
	if len(all) == 0 && s.deliveries.Load() == nil {
		return // the exporter's version sends no reports, or it has published to no other cluster yet
	}
	d := &deliveries{now, map[string]*semaphorev1.Delivery{}}
	for _, one := range all {
		d.all[one.GetCluster()] = one
	}
	s.deliveries.Store(d)
}

// Undelivered returns the configured remotes that do not receive what this cluster publishes, as far as is known, with
// the reason, by cluster. The own exporter reports it if it publishes to this broker. Otherwise the stream of the
// remote's exporter indicates it: when the network between two clusters fails, both streams end. The text does not
// change while the cause is the same.
func (s *Server) Undelivered(now time.Time) map[string]string {
	last := s.deliveries.Load()
	own := s.all()[s.options.Cluster]
	out := map[string]string{}
	for cluster, l := range s.all() {
		if l == own {
			continue
		}
		var one *semaphorev1.Delivery
		if last != nil {
			one = last.all[cluster]
		}
		switch {
		case own != nil && last == nil && !own.isConnected.Load(), last != nil && now.Sub(last.at) > deliveriesValid:
			out[cluster] = "this cluster's own exporter, which knows whether the remote's broker acknowledges, is not " +
				"connected to this broker"
		case last == nil && !l.isConnected.Load():
			out[cluster] = "the remote's exporter is not connected to this broker, and this cluster's exporter does not " +
				"report its deliveries"
		case last == nil, one.GetAcknowledged():
		case one == nil:
			out[cluster] = "this cluster's exporter does not publish to the remote's broker"
		default:
			out[cluster] = finding.CleanTo(one.GetProblem(), maxDeliveryProblem)
			if out[cluster] == "" {
				out[cluster] = "the remote's broker does not acknowledge what this cluster's exporter publishes"
			}
		}
	}
	return out
}

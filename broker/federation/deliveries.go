package federation

import (
	"sync"
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

// deliveries are the own exporter's last report of its deliveries to the brokers of other clusters.
type deliveries struct {
	mu sync.Mutex
	// at is zero if there was no report, because the exporter's version sends none or no exporter is connected.
	at  time.Time
	all map[string]*semaphorev1.Delivery
}

func (d *deliveries) set(now time.Time, all []*semaphorev1.Delivery) {
	if len(all) == 0 {
		return // the exporter's version sends no reports; one that does publishes to another cluster, too
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

// Undelivered returns the configured remotes that do not receive what this cluster publishes, as far as is known, with
// the reason, by cluster. The own exporter reports it if it publishes to this broker. Otherwise the stream of the
// remote's exporter indicates it: when the network between two clusters fails, both streams end. The text does not
// change while the cause is the same.
func (s *Server) Undelivered(now time.Time) map[string]string {
	at, reported := s.deliveries.read()
	own := s.all()[s.options.Cluster]
	out := map[string]string{}
	for cluster, l := range s.all() {
		if l == own {
			continue
		}
		one := reported[cluster]
		switch {
		case own != nil && at.IsZero() && !own.connected(), !at.IsZero() && now.Sub(at) > deliveriesValid:
			out[cluster] = "this cluster's own exporter, which knows whether the remote's broker acknowledges, is not " +
				"connected to this broker"
		case at.IsZero() && !l.connected():
			out[cluster] = "the remote's exporter is not connected to this broker, and this cluster's exporter does not " +
				"report its deliveries"
		case at.IsZero(), one.GetAcknowledged():
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

func (l *link) connected() bool { return l.isConnected.Load() }

package federation

import (
	"fmt"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Feed is the Sink of a broker: the changes of a remote's replica go into the queue of each engine, and the operators
// are warned of refused objects and of those that the brake retains.
type Feed struct {
	Queues []*replica.Queue
	Brake  config.Brake
	// Warn notifies of a problem of a cluster, which its topic tells from others.
	Warn func(cluster, topic string, reason finding.Code, note string) bool
}

func (f Feed) Take(cluster string, r replica.Result) {
	for _, refused := range r.Refused {
		f.Warn(cluster, "Refused "+refused.Key.String()+" "+string(refused.Code), finding.Refused,
			fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, cluster, refused.Reason, refused.Code))
	}
	for _, h := range r.Retained {
		if h.Objects == h.Total || h.Unexported { // those that follow belong to the same withdrawal
			kind := semaphorev1.KindName(h.Kind)
			f.Warn(cluster, "Retained "+kind, finding.Retained, fmt.Sprintf(
				"cluster %s withdrew so many %ss that the broker retains %d of %d %s",
				cluster, kind, h.Total, h.Peak, f.Brake.Until(cluster, h.Unexported)))
		}
	}
	for _, queue := range f.Queues {
		queue.Push(cluster, r)
	}
}

// Room returns nil if all engines have room for more changes of a remote; else a channel that is closed when the first
// that has none may have some.
func (f Feed) Room(cluster string) <-chan struct{} {
	for _, queue := range f.Queues {
		if room := queue.Room(cluster); room != nil {
			return room
		}
	}
	return nil
}

package federation

import (
	"context"
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

// Take implements Sink.
func (f Feed) Take(cluster string, r replica.Result) {
	for _, refused := range r.Refused {
		f.Warn(cluster, "Refused "+refused.Key.String()+" "+string(refused.Code), finding.Refused,
			fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, cluster, refused.Reason, refused.Code))
	}
	for _, h := range r.Retained {
		if h.Objects == h.Total { // those that follow belong to the same withdrawal
			kind := semaphorev1.KindName(h.Kind)
			f.Warn(cluster, "Retained "+kind, finding.Retained, fmt.Sprintf(
				"cluster %s withdrew so many %ss that the broker retains %d of %d %s",
				cluster, kind, h.Total, h.Peak, f.Brake.Until(cluster)))
		}
	}
	for _, queue := range f.Queues {
		queue.Push(cluster, r)
	}
}

// Room waits until all engines have room for more changes of a remote. It calls waits before a wait, and returns its
// error, or ctx's once ctx ends.
func (f Feed) Room(ctx context.Context, cluster string, waits func() error) error {
	for _, queue := range f.Queues {
		if !queue.Full(cluster) {
			continue
		}
		if err := waits(); err != nil {
			return err
		}
		if err := queue.WaitForRoom(ctx, cluster); err != nil {
			return err
		}
	}
	return nil
}

package broker

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/kinds"
	"github.com/kube-semaphore/semaphore/broker/propagation"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// addLag adds the propagation times to each kind of each remote.
func addLag(links []*semaphorev1.LinkStatus, tracker *propagation.Tracker) {
	for _, l := range links {
		for _, k := range l.GetKinds() {
			if times, ok := tracker.Times(l.GetCluster(), kinds.WrittenAs(k.GetKind())); ok {
				k.LastPropagation = durationpb.New(times.Last)
				k.MedianPropagation = durationpb.New(times.Median)
				k.HighPropagation = durationpb.New(times.High)
			}
		}
	}
}

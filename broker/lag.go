package broker

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/report"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// addLag adds the propagation times to each kind of each remote.
func addLag(links []*semaphorev1.LinkStatus, tracker *report.Tracker) {
	for _, l := range links {
		for _, k := range l.GetKinds() {
			if times, ok := tracker.Times(l.GetCluster(), writes.WrittenAs(k.GetKind())); ok {
				k.LastPropagation = durationpb.New(times.Last)
				k.MedianPropagation = durationpb.New(times.Median)
				k.HighPropagation = durationpb.New(times.High)
			}
		}
	}
}

package report

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// AddTo adds the times to each kind of each remote.
func (t *Tracker) AddTo(links []*semaphorev1.LinkStatus) {
	for _, l := range links {
		for _, k := range l.GetKinds() {
			if times, ok := t.Times(l.GetCluster(), writes.WrittenAs(k.GetKind())); ok {
				k.LastPropagation = durationpb.New(times.Last)
				k.MedianPropagation = durationpb.New(times.Median)
				k.HighPropagation = durationpb.New(times.High)
			}
		}
	}
}

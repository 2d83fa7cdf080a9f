package broker

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/propagation"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// writtenAs is the type that what a kind tells is written as, where it is another.
var writtenAs = map[string]string{
	semaphorev1.KindName(semaphorev1.Kind_KIND_SET_MEMBER): "globalnetworkset",
}

// addLag says with each kind of each remote how long its changes took.
func addLag(links []*semaphorev1.LinkStatus, tracker *propagation.Tracker) {
	for _, l := range links {
		for _, k := range l.GetKinds() {
			name, ok := writtenAs[k.GetKind()]
			if !ok {
				name = k.GetKind()
			}
			if times, ok := tracker.Times(l.GetCluster(), name); ok {
				k.LastPropagation = durationpb.New(times.Last)
				k.MedianPropagation = durationpb.New(times.Median)
				k.HighPropagation = durationpb.New(times.High)
			}
		}
	}
}

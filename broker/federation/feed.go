package federation

import "github.com/kube-semaphore/semaphore/broker/replica"

// Feed is the Sink of a broker: the changes of a remote's replica go into the queue of each engine.
type Feed []*replica.Queue

func (f Feed) Take(cluster string, r replica.Result) {
	for _, queue := range f {
		queue.Push(cluster, r)
	}
}

// Room returns nil if all engines have room for more changes of a remote; else a channel that is closed when the first
// that has none may have some.
func (f Feed) Room(cluster string) <-chan struct{} {
	for _, queue := range f {
		if room := queue.Room(cluster); room != nil {
			return room
		}
	}
	return nil
}

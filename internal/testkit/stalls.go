package testkit

import (
	"sync"
	"testing"
	"time"
)

// stallPause is the time between two looks at the clock.
const stallPause = 10 * time.Millisecond

// Stalls measures how long a machine that does other things too keeps this process waiting. A bound in time allows for
// several times that, as what is bounded waits as long in each of its steps.
type Stalls struct {
	ended   chan struct{}
	once    sync.Once
	done    chan struct{}
	longest time.Duration // read once done is closed
}

// MeasureStalls begins, until End or the end of the test.
func MeasureStalls(tb testing.TB) *Stalls {
	s := &Stalls{ended: make(chan struct{}), done: make(chan struct{})}
	tb.Cleanup(func() { s.End() })
	go func() {
		defer close(s.done)
		for last := false; !last; {
			began := time.Now()
			select {
			case <-time.After(stallPause):
			case <-s.ended:
				last = true
			}
			s.longest = max(s.longest, time.Since(began)-stallPause)
		}
	}()
	return s
}

// End returns the longest wait.
func (s *Stalls) End() time.Duration {
	s.once.Do(func() { close(s.ended) })
	<-s.done
	return s.longest
}

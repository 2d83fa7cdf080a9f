package report

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const ms = time.Millisecond

func TestTimes(t *testing.T) {
	upTo := func(n int) (all []time.Duration) {
		for i := range n {
			all = append(all, time.Duration(i+1)*ms)
		}
		return all
	}
	for name, test := range map[string]struct {
		observed []time.Duration
		want     Times
	}{
		"one":       {upTo(1), Times{1 * ms, 1 * ms, 1 * ms}},
		"two":       {upTo(2), Times{2 * ms, 1 * ms, 1 * ms}},
		"three":     {[]time.Duration{9 * ms, 1 * ms, 5 * ms}, Times{5 * ms, 5 * ms, 5 * ms}},
		"a hundred": {upTo(100), Times{100 * ms, 50 * ms, 99 * ms}},
		"the oldest goes": {append([]time.Duration{time.Hour, time.Hour}, upTo(100)...),
			Times{100 * ms, 50 * ms, 99 * ms}},
		"several rounds":       {upTo(350), Times{350 * ms, 300 * ms, 349 * ms}},
		"one that was late":    {append(upTo(50), time.Hour), Times{time.Hour, 26 * ms, 50 * ms}},
		"clocks that disagree": {[]time.Duration{-3 * ms, -2 * ms, -1 * ms}, Times{-1 * ms, -2 * ms, -2 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(prometheus.NewRegistry())
			for _, d := range test.observed {
				tracker.Observe("c2", "service", d)
			}
			if got, ok := tracker.Times("c2", "service"); !ok || got != test.want {
				t.Errorf("%v %v; want %v", got, ok, test.want)
			}
			for _, other := range []series{{"c3", "service"}, {"c2", "node"}} {
				if got, ok := tracker.Times(other.cluster, other.kind); ok {
					t.Errorf("%v has %v", other, got)
				}
			}
		})
	}
}

// The histogram's sum may not go back, whatever the clocks say.
func TestHistogram(t *testing.T) {
	reg := prometheus.NewRegistry()
	tracker := NewTracker(reg)
	tracker.Observe("c2", "node", 2*time.Second)
	tracker.Observe("c2", "node", -time.Hour)
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(len(families), err)
	}
	if h := families[0].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 2 {
		t.Errorf("%d observations, sum %v", h.GetSampleCount(), h.GetSampleSum())
	}
}

func TestConcurrent(t *testing.T) {
	tracker := NewTracker(prometheus.NewRegistry())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				tracker.Observe("c2", "service", ms)
				tracker.Times("c2", "service")
			}
		})
	}
	wg.Wait()
	if got, _ := tracker.Times("c2", "service"); got != (Times{ms, ms, ms}) {
		t.Errorf("%v", got)
	}
}

func TestNil(t *testing.T) {
	var tracker *Tracker
	tracker.Observe("c2", "service", ms)
	if _, ok := tracker.Times("c2", "service"); ok {
		t.Error("a nil tracker has times")
	}
}

package apply

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestEventsOfOneRemote: a remote that gets everything wrong keeps no other one's Event from being written, and what
// found no room is written when it is asked for again.
func TestEventsOfOneRemote(t *testing.T) {
	e := NewEvents(nil, "mirrors", []string{"c2", "c3"}, NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(io.Discard, nil)))
	for i := range 10_000 {
		e.Warn("c2", "Refused", fmt.Sprint("flood ", i))
	}
	e.Warn("c3", "HeldBack", "cluster c3 has withdrawn most")
	e.Warn("c9", "Refused", "of a cluster that is not configured")
	written, of := map[string]int{}, ""
	take := func() {
		for {
			p, cluster, _, ok := e.next(of)
			if !ok {
				return
			}
			of = cluster
			written[p.event.Note]++
			e.ended(p, true)
		}
	}
	take()
	if written["cluster c3 has withdrawn most"] != 1 || written["of a cluster that is not configured"] != 1 || len(written) != eventsBurst+2 {
		t.Errorf("written are %v", written)
	}
	if n := len(e.budgets); n != 3 {
		t.Errorf("there are %d budgets", n)
	}
	// The last of the flood found no room. There is some now.
	e.budgets["c2"].limiter.SetLimit(1e9)
	time.Sleep(time.Millisecond)
	take()
	e.Warn("c2", "Refused", "flood 9999")
	take()
	if written["flood 9999"] != 1 {
		t.Error("what found no room counts as told")
	}
}

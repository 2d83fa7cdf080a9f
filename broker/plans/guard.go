package plans

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// guard is the brake of a broker that has just started. While it runs, each replica holds back a withdrawal of
// most of what its remote exports; a broker that starts has nothing to compare a remote's first
// snapshot with, but what an earlier one wrote into the cluster. Objects of a remote that its first snapshot
// would take away, when they are most of the remote's, stay until a later snapshot says so too, or the operator.
type guard struct {
	brake config.Brake
	now   func() time.Time
	warn  Warn

	mu sync.Mutex
	// doubts by cluster and loop; a settled one stays, so that the question is asked once.
	doubts map[doubted]*doubt
}

type doubted struct{ cluster, kind string }

type doubt struct {
	settled bool
	// asked is how many snapshots of the remote had been taken over when the question was last asked.
	asked int
	// since is when objects were first held; withdrawn of all that the cluster has of the remote.
	since          time.Time
	withdrawn, all int
}

func newGuard(brake config.Brake, now func() time.Time, warn Warn) *guard {
	return &guard{brake: brake, now: now, warn: warn, doubts: map[doubted]*doubt{}}
}

// holds says whether what is not wanted of a cluster's objects of a kind has to stay nevertheless. snapshots is how
// many snapshots were taken over that the answer rests on, 0 while they are not all there; count says
// how many objects are there and how many of them are not wanted, ok being false while that is not known.
func (g *guard) holds(cluster, kind string, snapshots int, count func() (withdrawn, all int, ok bool)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.doubts[doubted{cluster, kind}]
	if d == nil {
		d = &doubt{}
		g.doubts[doubted{cluster, kind}] = d
	}
	switch {
	case d.settled:
		return false
	case snapshots == 0 || snapshots == d.asked:
		return true
	}
	withdrawn, all, ok := count()
	if !ok {
		return true
	}
	d.asked = snapshots
	confirmed := !d.since.IsZero() && g.now().Sub(d.since) >= g.brake.Hold.Duration
	if !g.brake.Brakes(withdrawn, all) || confirmed {
		d.settled = true
		return false
	}
	if d.since.IsZero() {
		d.since = g.now()
		g.warn(cluster, "HeldBack "+kind, "HeldBack", fmt.Sprintf("the first snapshot of cluster %s withdraws %d of %d objects (%s): they stay until a snapshot in %s or later says so too, or `semaphorectl brake release %s`",
			cluster, withdrawn, all, kind, g.brake.Hold, cluster))
	}
	d.withdrawn, d.all = withdrawn, all
	return true
}

// release settles what is held of a cluster, of the kinds that which says, and returns how many objects that lets go.
func (g *guard) release(cluster string, which func(kind string) bool) map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	let := map[string]int{}
	for key, d := range g.doubts {
		if key.cluster == cluster && which(key.kind) && !d.settled && !d.since.IsZero() {
			d.settled = true
			let[key.kind] = d.withdrawn
		}
	}
	return let
}

// due says whether something of a cluster has been held for long enough to be let go by another snapshot.
func (g *guard) due(cluster string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, d := range g.doubts {
		if key.cluster == cluster && !d.settled && !d.since.IsZero() && g.now().Sub(d.since) >= g.brake.Hold.Duration {
			return true
		}
	}
	return false
}

// problems are what is held, a line each.
func (g *guard) problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var lines []string
	for key, d := range g.doubts {
		if !d.settled && !d.since.IsZero() {
			lines = append(lines, fmt.Sprintf("held back since %s: cluster %s exports no more %d of the %d objects (%s) that an earlier broker wrote for it; they go when a snapshot says so again, or by `semaphorectl brake release %s`",
				d.since.UTC().Format(time.RFC3339), key.cluster, d.withdrawn, d.all, key.kind, key.cluster))
		}
	}
	slices.SortFunc(lines, cmp.Compare)
	return lines
}

//go:build ignore

package agent

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/desired"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// checkEvery is how often all is looked at, also what the looks at single devices leave out.
const checkEvery = 30 * time.Second

// healGap is the least time between two looks at a device that someone else changes: whoever fights us
// does not make us spin.
const healGap = 250 * time.Millisecond

// A device that fails is tried again after minRetry, then twice as long, up to maxRetry, with jitter.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// work is what waits to be done, by cluster.
type work struct {
	networks map[string]bool
	peers    map[string]map[string]bool
	// healing are networks to look at because of something the kernel told.
	healing map[string]bool
	node    nodeWork
	// guard says that the configured remotes are to be guarded.
	guard bool
	// looks are networks to look at because that is due.
	looks []string
	// observed is since when what of it is new has waited.
	observed observed
}

func newWork() work {
	return work{networks: map[string]bool{}, peers: map[string]map[string]bool{}, healing: map[string]bool{}, observed: observed{}}
}

func (w work) add(d desired.Dirty) {
	maps.Copy(w.networks, d.Networks)
	for cluster, nodes := range d.Peers {
		if w.peers[cluster] == nil {
			w.peers[cluster] = map[string]bool{}
		}
		maps.Copy(w.peers[cluster], nodes)
	}
}

// failure is what cannot be done for a cluster now.
type failure struct {
	problem string
	// partial says that the device works, and routes of it could not be made: they are tried again, and all else goes on. There may be
	// nothing that anybody can do about it, as on a node without IPv6.
	partial bool
	times   int
	retryAt time.Time
}

// broken says whether the device to a cluster cannot be set as wanted. It is called with mu held.
func (a *agent) broken(cluster string) bool {
	f := a.failing[cluster]
	return f != nil && !f.partial
}

// failed notes that something about a cluster's device cannot be done. It is called with mu held.
func (a *agent) failed(cluster, device, problem string, partial bool) {
	f := a.failing[cluster]
	if f == nil {
		f = &failure{}
		a.failing[cluster] = f
	}
	wait := min(minRetry<<min(f.times, 10), maxRetry)
	f.partial = partial
	f.problem, f.retryAt = problem, time.Now().Add(wait/2+rand.N(wait/2))
	f.times++
	a.metrics.requeues.WithLabelValues(device).Inc()
}

// mark is up to where the state was taken that a round carries out.
type mark struct {
	stream   int
	revision uint64
	// current says that the stream had said all of it.
	current bool
}

// program keeps the node as it is wanted, until ctx ends.
func (a *agent) program(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		everything := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		case <-later.C:
		case <-tick.C:
			everything = true
		}
		if next := a.round(ctx, everything); next.IsZero() {
			later.Stop()
		} else {
			later.Reset(time.Until(next))
		}
	}
}

// round does what is due. It returns when there is something to do again by itself; zero for never.
func (a *agent) round(ctx context.Context, everything bool) time.Time {
	todo, upTo := a.take(everything)
	if todo.guard {
		a.guardConfigured()
	}
	for _, cluster := range slices.Sorted(maps.Keys(todo.networks)) {
		a.whole(ctx, cluster)
	}
	for _, cluster := range slices.Sorted(maps.Keys(todo.peers)) {
		if !todo.networks[cluster] {
			a.single(ctx, cluster, todo.peers[cluster])
		}
	}
	for _, cluster := range todo.looks {
		a.inspect(ctx, cluster)
	}
	a.propagated(todo.observed)
	if todo.guard { // devices too have been guarded by now, and what no broker names any more is told
		a.guardConfigured()
	}
	if everything || todo.guard {
		a.lookForOrphans()
	}
	if todo.node.any() {
		a.lookAtNode(todo.node)
	}
	a.rotationsDue(ctx, upTo)
	a.tell(upTo)
	return a.next()
}

// take takes what is due of what waits.
func (a *agent) take(everything bool) (work, mark) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	waits := a.dirty
	todo := newWork()
	a.dirty = newWork()
	todo.observed.add(waits.observed)
	todo.guard = waits.guard
	if everything && a.configured.heard && !a.configured.guarded {
		todo.guard = true
	}
	// Whoever has been looked at only just now is not looked at again because of something that
	// can have been our own doing.
	early := func(cluster string) bool { return now.Before(a.rested(cluster, now)) }
	for cluster := range waits.networks {
		if a.broken(cluster) && early(cluster) {
			a.dirty.networks[cluster] = true
			continue
		}
		todo.networks[cluster] = true
	}
	for cluster, nodes := range waits.peers {
		if a.broken(cluster) && early(cluster) {
			a.dirty.peers[cluster] = nodes
			continue
		}
		todo.peers[cluster] = nodes
	}
	for cluster := range waits.healing {
		switch {
		case a.broken(cluster): // it is tried again anyway, and each attempt is told by the kernel
		case early(cluster):
			a.dirty.healing[cluster] = true
		default:
			todo.networks[cluster] = true
		}
	}
	for cluster, f := range a.failing {
		if everything || !now.Before(f.retryAt) {
			todo.networks[cluster] = true
		}
	}
	switch {
	case everything:
		a.listAgain(now)
		todo.node = nodeWork{true, true, true}
	case now.Sub(a.around.lookedAt) < healGap:
		a.dirty.node = waits.node
	default:
		todo.node = waits.node
	}
	if everything {
		for _, cluster := range a.state.Clusters() {
			todo.networks[cluster] = true
		}
	}
	for cluster := range a.networks {
		if at := a.nextLookAt(cluster, now); !at.IsZero() && !now.Before(at) && !todo.networks[cluster] && todo.peers[cluster] == nil {
			todo.looks = append(todo.looks, cluster)
		}
	}
	return todo, mark{a.streams, a.state.Revision(), a.state.Current()}
}

// next is when there is something to do again by itself; zero for never.
func (a *agent) next() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var next time.Time
	now := time.Now()
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for cluster := range a.dirty.healing {
		earlier(a.rested(cluster, now))
	}
	for cluster := range a.networks {
		if at := a.nextLookAt(cluster, now); !at.IsZero() {
			earlier(at)
		}
	}
	if at := a.keys.schedule.Next(a.rotatable); a.attached && a.state.Current() && !at.IsZero() {
		earlier(later(at, time.Now().Add(healGap))) // what is due and could not be done is not tried all the time
	}
	if a.dirty.guard {
		earlier(a.configured.tried.Add(minRetry))
	}
	if a.dirty.node.any() {
		earlier(a.around.lookedAt.Add(healGap))
	}
	for cluster, f := range a.failing {
		earlier(f.retryAt)
		if a.dirty.networks[cluster] || a.dirty.peers[cluster] != nil {
			earlier(a.rested(cluster, now))
		}
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// tell says to the broker how the devices stand, and what is done, where that is news. It says nothing
// to one that has not said yet what it wants: revisions of its predecessor mean nothing to it.
func (a *agent) tell(upTo mark) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.carriedOut()
	if !a.attached || !upTo.current || upTo.stream != a.streams {
		return
	}
	if report := a.report(); !proto.Equal(report, a.reported) {
		a.stream.Send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{Report: report}})
		a.reported = report
	}
	for cluster := range a.failing {
		if a.broken(cluster) {
			return
		}
	}
	a.programmed = true
	a.metrics.appliedRevision.Set(float64(upTo.revision))
	if a.applied == nil || *a.applied != upTo.revision {
		a.stream.Send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Applied{Applied: &semaphorev1.Applied{Revision: upTo.revision}}})
		a.applied = &upTo.revision
	}
}

// report is how the devices stand. It is called with mu held.
func (a *agent) report() *semaphorev1.AgentReport {
	r := &semaphorev1.AgentReport{Problems: a.around.problems, ClearPackets: a.around.clearPackets, Guarded: a.configured.guarded}
	for _, cluster := range slices.Sorted(maps.Keys(a.networks)) {
		d := a.reportPaths(a.networks[cluster].report)
		if a.permissive[cluster] != nil {
			d = proto.Clone(d).(*semaphorev1.DeviceReport)
			a.reportClear(d)
		}
		r.Devices = append(r.Devices, d)
	}
	for _, cluster := range slices.Sorted(maps.Keys(a.orphans)) {
		if a.networks[cluster] == nil {
			r.Devices = append(r.Devices, a.orphan(cluster))
		}
	}
	shorten(r)
	return r
}

const (
	// maxReport is under what a broker takes in one message, and maxProblems is how many problems it keeps.
	maxReport   = 192 << 10
	maxProblems = 64
)

// shorten leaves out of a report what a broker would not take: the silent peers beyond the first, which are counted all the
// same, and problems. Nodes that talk with nobody would have no broker either.
func shorten(r *semaphorev1.AgentReport) {
	r.Problems = r.Problems[:min(len(r.Problems), maxProblems)]
	for most := maxSilent / 2; proto.Size(r) > maxReport; most /= 2 {
		for i, d := range r.Devices {
			if len(d.Silent) > most || len(d.Problem) > maxReport/1024 {
				d = proto.CloneOf(d)
				d.Silent = d.Silent[:min(len(d.Silent), most)]
				d.Problem = strings.ToValidUTF8(d.Problem[:min(len(d.Problem), maxReport/1024)], "")
				r.Devices[i] = d
			}
		}
		if most == 0 {
			return
		}
	}
}

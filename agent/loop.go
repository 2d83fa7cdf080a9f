package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/plan"
	agentstatus "github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// queue has the devices to set in the next round, except those with a change of the broker: the session keeps these
// with its position. It is safe for concurrent use.
type queue struct {
	wake chan struct{}

	mu   sync.Mutex
	work plan.Work
	// orders of operators are executed at the end of a round, with whether a broker receives the report.
	orders []func(ctx context.Context, listens bool)
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), work: plan.NewWork()} }

func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) set(cluster string) {
	q.mu.Lock()
	q.work.Networks[cluster] = true
	q.mu.Unlock()
	q.poke()
}

// heal makes the next round that may heal check these devices.
func (q *queue) heal(clusters []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, cluster := range clusters {
		q.work.Heal[cluster] = true
	}
}

func (q *queue) order(do func(ctx context.Context, listens bool)) {
	q.mu.Lock()
	q.orders = append(q.orders, do)
	q.mu.Unlock()
	q.poke()
}

func (q *queue) takeOrders() []func(ctx context.Context, listens bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	orders := q.orders
	q.orders = nil
	return orders
}

func (q *queue) take() plan.Work {
	q.mu.Lock()
	defer q.mu.Unlock()
	work := q.work
	q.work = plan.NewWork()
	return work
}

func (q *queue) devices() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.work.Networks) > 0
}

// loop sets the node as desired, in rounds, until ctx ends. Only its goroutine changes the node.
func (a *agent) loop(ctx context.Context, round func(ctx context.Context, full bool) (next time.Time)) error {
	tick := time.NewTicker(plan.FullCheck)
	defer tick.Stop()
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		full := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.queue.wake:
		case <-later.C:
		case <-tick.C:
			full = true
		}
		if next := round(ctx, full); next.IsZero() {
			later.Stop()
		} else {
			later.Reset(time.Until(next))
		}
	}
}

// round does the due work, in this order: the guard of remotes without a device, devices, the guard again, orphans, the
// node, keys, the report. It returns when something is due next; zero for never.
func (a *agent) round(ctx context.Context, full bool) time.Time {
	changes, due, node := a.take(full)
	if node.Remotes {
		a.node.GuardRemotes()
	}
	for _, cluster := range due.Devices {
		a.devices.Set(ctx, cluster)
	}
	for _, cluster := range slices.Sorted(maps.Keys(due.Peers)) {
		a.devices.SetPeers(ctx, cluster, due.Peers[cluster])
	}
	for _, cluster := range due.Checks {
		a.devices.Check(ctx, cluster)
	}
	begin := a.peers.Begin()
	for _, cluster := range slices.Sorted(maps.Keys(begin)) {
		a.devices.BeginHandshakes(cluster, begin[cluster])
	}
	a.devices.Programmed(changes.Observed)
	if node.Remotes { // devices have their guards by now; a device that no broker names is reported
		a.node.GuardRemotes()
	}
	if full || node.Remotes {
		a.devices.FindOrphans()
	}
	a.node.Check(node)
	a.rotate(ctx, changes.Position)
	a.report(changes.Position)
	return a.next()
}

// take takes the due work. It takes the position together with the broker's changes: the position never covers a change
// that this round does not have.
func (a *agent) take(full bool) (stream.Changes, plan.Round, guard.Work) {
	work := a.queue.take()
	changes := a.session.Take()
	work.Add(changes.Dirty)
	now := time.Now()
	return changes, a.schedule.Take(now, work, full, a.session.Clusters()), a.node.Take(now, full)
}

func (a *agent) next() time.Time {
	now := time.Now()
	next := plan.Earlier(a.schedule.Next(now), a.node.Next())
	if a.session.Listens() {
		// A key that is due and could not be replaced must not start a round each time.
		if at := a.keys.Next(a.schedule.Set); !at.IsZero() {
			if earliest := now.Add(plan.HealGap); at.Before(earliest) {
				at = earliest
			}
			next = plan.Earlier(next, at)
		}
	}
	return next
}

// rotate replaces the keys that are due. Without a broker that receives the report no peer would get the new key, so
// due keys wait. An operator's order is refused in that case, unless it has force.
func (a *agent) rotate(ctx context.Context, at stream.Position) {
	listens := a.session.Attached(at)
	if listens {
		due, changed := a.keys.Due(a.schedule.Set)
		a.queue.heal(changed)
		for _, cluster := range due {
			_, _ = a.devices.Rotate(ctx, cluster) // it reports a failure itself, and the schedule retries
		}
	}
	for _, order := range a.queue.takeOrders() {
		order(ctx, listens)
	}
}

func (a *agent) replaceKeys(ctx context.Context, order *semaphorev1.RotateKeyRequest, listens bool,
) (keys []*semaphorev1.RotatedKey, err error) {
	if !listens && !order.GetForce() {
		return nil, status.Errorf(codes.FailedPrecondition,
			"not attached to the broker: no peer would get the new key, and traffic would end: %s",
			a.session.View(time.Now()).LastError)
	}
	all := a.session.Clusters()
	clusters := all
	if order.GetCluster() != "" {
		clusters = []string{order.GetCluster()}
	}
	if cluster, why := a.keys.Undelivered(clusters...); why != "" && !order.GetForce() {
		return nil, status.Errorf(codes.FailedPrecondition,
			"the nodes of %s would not get the new key, and traffic would end: %s", cluster, why)
	}
	if order.GetCluster() != "" && !slices.Contains(all, order.GetCluster()) {
		return nil, status.Errorf(codes.NotFound, "the broker desires no device to cluster %q on this node",
			order.GetCluster())
	}
	for _, cluster := range clusters {
		key, err := a.devices.Rotate(ctx, cluster)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		keys = append(keys, &semaphorev1.RotatedKey{
			Cluster: cluster, Interface: naming.Device(cluster), PublicKey: key[:],
		})
	}
	return keys, nil
}

// report sends the changes of a round, and the position up to which the node is as desired.
func (a *agent) report(at stream.Position) {
	broken := a.schedule.AnyBroken()
	if !broken && !a.queue.devices() && !a.schedule.Deferred() && a.session.RestoredTaken() {
		a.board.Update(func(v *agentstatus.View) { v.Programmed = true })
	}
	if !a.session.Attached(at) {
		return
	}
	report := agentstatus.Report(a.board.Get(), a.session.View(time.Now()), a.peers.Report)
	if a.session.Send(at, report, !broken) && !broken {
		a.board.Update(func(v *agentstatus.View) { v.Programmed = true })
		a.revision.Set(float64(at.Revision))
	}
}

// sample reads the subnets file and the peers of all devices until ctx ends.
func (a *agent) sample(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		tick := time.NewTicker(paths.SampleEvery)
		defer tick.Stop()
		closely := time.NewTicker(paths.CloseEvery)
		defer closely.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
				a.reloadSubnets()
				a.watchClock()
			case <-closely.C:
				if !a.peers.Often() {
					continue
				}
			case <-a.peers.Again():
			}
			for _, probe := range a.peers.Sample(a.session.Clusters()) {
				g.Go(func() error { return probe(ctx) })
			}
		}
	})
	return g.Wait()
}

// countEvery is the interval at which the kernel's counts by Service are read, and so reported.
const countEvery = 30 * time.Second

// countTraffic counts traffic by Service until ctx ends. A failure is logged once, until another follows or none.
func (a *agent) countTraffic(ctx context.Context) error {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	last := ""
	for {
		changed, err := a.traffic.Read()
		switch {
		case err != nil && err.Error() != last:
			last = err.Error()
			slog.Warn("traffic is not counted by Service; the agent retries", "error", err)
		case err == nil && last != "":
			last = ""
			slog.Info("traffic is counted by Service again")
		}
		if changed {
			report := a.traffic.Report()
			a.board.Update(func(v *agentstatus.View) { v.Traffic = report })
			a.queue.poke()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// reloadSubnets sets all devices if the subnets file changed, because it bounds them.
func (a *agent) reloadSubnets() {
	if !a.node.ReloadSubnets() {
		return
	}
	for _, cluster := range a.session.Clusters() {
		a.queue.set(cluster)
	}
	a.cache.Changed()
	a.queue.poke()
}

// kernelChanged handles an event of the kernel, which the agent itself may have caused.
func (a *agent) kernelChanged(e kernel.Event) {
	heal, due := a.node.Changed(e)
	a.queue.heal(heal)
	if due {
		a.queue.poke()
	}
}

// guardChanged handles the event that another program changed nftables rules.
func (a *agent) guardChanged() {
	a.node.Want(guard.Work{Guard: true}, false)
	a.queue.poke()
}

// eventsLost checks all devices after the kernel dropped events.
func (a *agent) eventsLost() {
	clusters := a.session.Clusters()
	a.devices.EventsLost(clusters)
	a.queue.heal(clusters)
	a.node.Want(guard.Work{Routes: true, Settings: true, Guard: true}, true)
	a.queue.poke()
}

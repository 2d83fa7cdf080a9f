// Package device sets the WireGuard devices of a node as its broker desires, and keeps them so.
//
// The Reconciler owns the applied state of each device and its observations of it: the last report, the routes that it
// added, peers that roamed, and which nodes of a permissive remote answer. It belongs to one goroutine and has no lock.
// In: the name of a cluster (Set, SetPeers, Check, Rotate), and as values the desired state, its bounds, its key and
// its MTU from session, guard, the Rotator and paths. Out: calls of the Kernel, events, the schedule, and views on the
// status.Board. Package plan, which is pure, decides what to change.
package device

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type Kernel interface {
	Device(name string) (*kernel.Device, error)
	Links() ([]kernel.Link, error)
	Create(ctx context.Context, name, alias string, mtu int) error
	Configure(name string, cfg wgtypes.Config) error
	SetLink(name, alias string, mtu int, up bool) error
	Delete(name string) error
	AddAddress(name string, addr netip.Addr) error
	DeleteAddress(name string, addr netip.Addr) error
	AddRoute(name string, prefix netip.Prefix, source netip.Addr) error
	ReplaceRoute(name string, prefix netip.Prefix, source netip.Addr) error
	DeleteRoute(name string, prefix netip.Prefix) error
	Strays(name string, subnets []netip.Prefix) ([]kernel.Route, error)
	DeleteStray(r kernel.Route) error
	EgressLinks(to []netip.Addr) ([]kernel.EgressLink, error)
	LoosenFilter(name string) error
	StrictFilters(links []string) ([]string, error)
}

// Parts are the owners that a Reconciler uses. None may be nil.
type Parts struct {
	Session  *stream.Session
	Node     *guard.Monitor
	Keys     *Rotator
	Peers    *paths.Monitor
	Schedule *plan.Scheduler
	Board    *status.Board
	Events   *events.Sink
}

// Reconciler sets the devices of a node as desired. One goroutine uses it.
type Reconciler struct {
	Parts
	cfg     *config.Agent
	kernel  Kernel
	metrics *metrics
	devices map[string]*device // by cluster
}

type device struct {
	cluster, name string
	// Device is the part that readers see. Its Report is nil until the agent has set the device, or tried to.
	status.Device
	// applied is the state last applied completely, except for lacking, and peers the same for changes of single peers;
	// nil if the device must be read first.
	applied *plan.Desired
	peers   *plan.AppliedPeers
	// lacking are routes that could not be added, and wrong the problems of the device except those of its peers, as of
	// applied.
	lacking []netip.Prefix
	wrong   []string
	// refused counts the routes and settings that bounds refuse, and conflicts are this node's obstacles to routes.
	refused   int
	conflicts []string
	// contested means that Problem includes another program that keeps changing the device.
	contested bool
	// claims are the routes that this agent added.
	claims  plan.Claims
	roaming plan.Roaming
	asking  *asking
	// candidates has the endpoints in use of the nodes that have several, and moved are the nodes that have another since
	// the last look. namesVersion says which addresses of names are in use, and remembered how much is remembered of
	// candidates since the last whole set.
	candidates   plan.Candidates
	moved        map[string]bool
	namesVersion int
	remembered   int
	// live are the peers with a live session, as of liveAt.
	live       []wgtypes.Peer
	liveAt     time.Time
	permissive *permissive
}

func New(cfg *config.Agent, k Kernel, parts Parts) *Reconciler {
	return &Reconciler{Parts: parts, cfg: cfg, kernel: k, metrics: newMetrics(), devices: map[string]*device{}}
}

func (r *Reconciler) device(cluster string) *device {
	d := r.devices[cluster]
	if d == nil {
		d = &device{cluster: cluster, name: naming.Device(cluster), asking: newAsking()}
		r.devices[cluster] = d
	}
	return d
}

func (r *Reconciler) publish(d *device) {
	if d.Report != nil {
		r.Schedule.Report(d.cluster, int(d.Report.GetPeers()), d.applied != nil)
	}
	r.Board.PutDevice(d.cluster, d.Device)
}

// Set reads a device and changes it to the desired state. It removes a device that is not desired.
func (r *Reconciler) Set(ctx context.Context, cluster string) { r.set(ctx, cluster, nil) }

// set is Set with a device that matchesApplied has just read; nil to read it.
func (r *Reconciler) set(ctx context.Context, cluster string, read *kernel.Device) {
	started := time.Now()
	d := r.device(cluster)
	want := r.Session.Network(cluster)
	if want == nil {
		r.remove(d)
		return
	}
	want.Device = withKeepalive(r.Node.Strictly(want.Device), r.Node.Calls(cluster))
	want.Device = r.Peers.WithMTU(want)
	bounds, sources, err := r.Node.Bounds()
	var done outcome
	if err == nil {
		done, err = r.apply(ctx, d, want, read, bounds, sources)
	}
	r.metrics.synced(d.cluster, d.name, "device", err, started)
	r.record(d, want, done, err)
}

type outcome struct {
	plan.Steps
	// replacesLive: the configuration replaces peers with a session.
	replacesLive bool
	// device is the device after the steps; nil if unknown.
	device *kernel.Device
	// failed are parts of the routing that could not be set, which delay nothing else; lacking are the routes among
	// them.
	failed  []error
	lacking []netip.Prefix
}

// apply sets a device as desired. An error is one of the device itself. read is that of set.
func (r *Reconciler) apply(
	ctx context.Context, d *device, want *plan.Desired, read *kernel.Device, bounds plan.Bounds,
	sources plan.Sources,
) (done outcome, err error) {
	if err := plan.Cluster(d.cluster); err != nil { // before the name is used
		return done, err
	}
	bounds, err = r.Node.Within(bounds, d.cluster)
	if err != nil {
		return done, err
	}
	existing := read
	if read == nil {
		existing, err = r.kernel.Device(d.name)
	}
	var adopts bool
	if err == nil {
		err = r.Node.Blocked(d.cluster)
	}
	if err == nil {
		adopts, err = plan.CheckOwner(d.cluster, existing, r.cfg.Adopts(config.SemaphoreWireGuard))
	}
	if err != nil { // the guard is set even if the device cannot be, or is not the agent's
		ours, _ := r.Node.InterfaceIsOurs(d.cluster)
		_ = r.Node.Protect(d.cluster, want.Device, bounds, !ours)
		return done, err
	}
	bounds.Existing = r.Node.RoutedSubnets(d.cluster, existing)
	_ = r.Node.Protect(d.cluster, want.Device, bounds, false)
	if existing != nil && read == nil { // matchesApplied has
		r.lookAtCandidates(ctx, d, existing.Peers)
	}
	endpoint := r.chooseAll(ctx, d, want, bounds, existing)
	if existing != nil && read == nil {
		r.leaveRoamed(d, existing, endpoint, bounds)
	}
	done.Steps, err = r.plan(d, want, bounds, sources, existing)
	if err != nil {
		return done, err
	}
	if !done.Empty() {
		if done.Config != nil && existing != nil {
			done.replacesLive = plan.TriggerHandshakes(done.Config, existing.Peers, time.Now())
		}
		err = r.execute(ctx, d, &done, want.Device.GetPermissive())
	}
	if err == nil {
		// Again, after the agent's routes exist: some may have replaced others.
		_ = r.Node.Protect(d.cluster, want.Device, bounds, false)
		r.retire(ctx, &done)
	}
	if adopts {
		r.adopt(d, errors.Join(append(done.failed, err)...))
	}
	if err != nil || done.Empty() {
		done.device = existing
		return done, err
	}
	done.device, err = r.kernel.Device(d.name)
	if err == nil && done.device == nil {
		err = fmt.Errorf("interface %s was deleted while the agent set it up", d.name)
	}
	if err == nil {
		d.claims.Record(done.device.Routes)
	}
	return done, err
}

func (r *Reconciler) plan(
	d *device, want *plan.Desired, bounds plan.Bounds, sources plan.Sources, existing *kernel.Device,
) (plan.Steps, error) {
	key, err := r.Keys.Key(d.cluster, want.Device.GetKeyMaxAge().AsDuration(), existing)
	if err != nil {
		return plan.Steps{}, err
	}
	var peers []wgtypes.Peer
	if existing != nil {
		peers = existing.Peers
	}
	want.Heard = r.nodesHeard(d, want, peers, plan.Endpoints(want))
	steps := plan.Network(d.cluster, want, bounds, key, existing)
	steps.SetSources(sources, existing, acceptsBeforeRoutes(want.Device))
	if existing != nil {
		d.claims.Record(existing.Routes)
	}
	d.claims.Forget(steps.DeleteRoutes)
	return steps, nil
}

// adopt records that a device of semaphore-wireguard was adopted; err names the changes that failed. The device has the
// agent's marks from then on, so this is reported once for each device.
func (r *Reconciler) adopt(d *device, err error) {
	detail := "from " + config.SemaphoreWireGuard
	if err != nil {
		detail += ", and not completely as desired: " + err.Error()
	}
	r.Events.Emit(events.Device(d.cluster, "adopt", detail).
		Info("adopted a device of semaphore-wireguard", "device", d.name, "how", detail))
	d.AdoptedFrom = config.SemaphoreWireGuard
}

// SetPeers sets single peers that changed. It does not read the others.
func (r *Reconciler) SetPeers(ctx context.Context, cluster string, nodes map[string]bool) {
	if r.setPeers(ctx, cluster, nodes) {
		for node := range nodes {
			r.Events.Emit(events.Peer(cluster, node, "apply", "on "+naming.Device(cluster)))
		}
	}
}

// setPeers reports whether it has set the peers, and not the device.
func (r *Reconciler) setPeers(ctx context.Context, cluster string, nodes map[string]bool) bool {
	started := time.Now()
	d := r.device(cluster)
	changed := r.Session.Peers(cluster, nodes)
	// A permissive remote has a route for each peer.
	if d.peers == nil || d.applied.Device.GetPermissive() || len(changed) == 0 ||
		d.remembers() > 2*d.remembered+spare {
		r.Set(ctx, cluster)
		return false
	}
	r.choose(ctx, d, changed, d.peers.Bounds(), d.peers.Endpoint)
	cfg := d.peers.Change(changed)
	if len(cfg.Peers) > 0 {
		live := r.triggerHandshakes(d, &cfg)
		err := r.configure(ctx, d.name, cfg, live)
		r.metrics.synced(d.cluster, d.name, "peers", err, started)
		if err != nil {
			d.peers = nil
			r.Set(ctx, cluster)
			return false
		}
	}
	for node, peer := range changed {
		if peer != nil {
			d.applied.Peers[node] = peer
		} else {
			delete(d.applied.Peers, node)
		}
	}
	d.Report = proto.CloneOf(d.Report)
	d.Report.Peers = uint32(d.peers.Peers())
	r.metrics.refused.WithLabelValues(d.cluster, d.name).Set(float64(d.refused + d.peers.RefusedCount()))
	r.describe(d, time.Now(), d.peers)
	r.publish(d)
	return true
}

// EventsLost counts lost events of the kernel for each of the devices. It is safe for concurrent use.
func (r *Reconciler) EventsLost(clusters []string) {
	for _, cluster := range clusters {
		r.metrics.queueFull.WithLabelValues(cluster, naming.Device(cluster)).Inc()
	}
}

// Programmed observes the propagation time of changes that a round programmed, and returns those that it did not.
func (r *Reconciler) Programmed(observed stream.Observed) {
	now := time.Now()
	for cluster, nodes := range observed {
		for node, at := range nodes {
			if r.Schedule.Failing(cluster) {
				r.Session.Observe(cluster, node, at)
				continue
			}
			// The clocks of two clusters differ: a change that was observed in the future counts as 0 s.
			r.metrics.propagation.WithLabelValues(cluster).Observe(max(0, now.Sub(at).Seconds()))
		}
	}
}

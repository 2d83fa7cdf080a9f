package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// network is a wanted device as it stands, as far as it is known.
type network struct {
	report *semaphorev1.DeviceReport
	// done is what was last carried out as a whole, but for lacking, and single the same for changes of single peers; nil
	// when a look at the device has to come first.
	done   *desired.Network
	single *plan.Programmed
	// lacking are routes that could not be made, and wrong what is wrong with the device besides its peers, both as of done.
	lacking []netip.Prefix
	wrong   []string
	// refused are how many routes and settings are, and conflicts what of this node is in the way of routes.
	refused   int
	conflicts []string
	// problem is what is not as wanted, failing or settled.
	problem string
	// contested says that the problem has it that someone else keeps changing the device.
	contested bool
}

// wanted is what is wanted for a cluster now; nil for nothing. Messages themselves never change.
func (a *agent) wanted(cluster string) *desired.Network {
	a.mu.Lock()
	n := a.state.Network(cluster)
	if n == nil {
		a.mu.Unlock()
		return nil
	}
	want := &desired.Network{Device: a.strictly(n.Device), Peers: maps.Clone(n.Peers), Restored: n.Restored}
	a.mu.Unlock()
	want.Device = knocking(want.Device)
	want.Device = a.paths.sized(want)
	return want
}

// whole looks at a network's device as a whole and puts right what differs.
func (a *agent) whole(ctx context.Context, cluster string) { a.wholeFrom(ctx, cluster, nil) }

// wholeFrom is whole with the device as asSet has read it just before; nil to read it.
func (a *agent) wholeFrom(ctx context.Context, cluster string, read *wireguard.Device) {
	started := time.Now()
	device := naming.Device(cluster)
	want := a.wanted(cluster)
	if want == nil {
		a.remove(cluster, device)
		return
	}
	bounds, sources, err := a.bounds()
	var done carriedOut
	if err == nil {
		done, err = a.standing(ctx, cluster, device, want, read, bounds, sources)
	}
	a.metrics.synced(device, "device", err, started)
	a.note(cluster, device, want, done, err)
}

// carriedOut is what became of the steps for a device.
type carriedOut struct {
	plan.Steps
	// stands is the device afterwards; nil where it is not known.
	stands *wireguard.Device
	// failed are parts of the device's routing that could not be made, and hold nothing else back; lacking are the routes among them.
	failed  []error
	lacking []netip.Prefix
}

// bounds are what may be routed to remotes, and the sources of routes, as of now: the node's addresses can change.
func (a *agent) bounds() (plan.Bounds, plan.Sources, error) {
	addresses, err := a.addresses()
	a.mu.Lock()
	local := slices.Clip(a.cfg.LocalPrefixes)
	if s := a.declared.subnets; s != nil {
		local = append(local, s.Local...)
	}
	a.mu.Unlock()
	return plan.Bounds{Allowed: a.cfg.AllowedPrefixes, Local: local, Own: addresses}, a.sources(addresses), err
}

// standing does the steps and returns what became of them. An error is one of the device itself. stands is that of wholeFrom.
func (a *agent) standing(ctx context.Context, cluster, device string, want *desired.Network, stands *wireguard.Device, bounds plan.Bounds, sources plan.Sources,
) (done carriedOut, err error) {
	// Before anything is done, or looked for, in that name.
	if err := plan.Cluster(cluster); err != nil {
		return done, err
	}
	bounds, err = a.within(bounds, cluster)
	if err != nil {
		return done, err
	}
	read := stands != nil
	if !read {
		stands, err = a.host.Device(device)
	}
	var adopts bool
	if err == nil {
		adopts, err = plan.CheckOwner(cluster, stands, a.cfg.Adopts(config.SemaphoreWireGuard))
	}
	// Whatever is wrong with the device, or whosever it is.
	if err != nil {
		ours, _ := a.interfaceIsOurs(cluster)
		_ = a.protect(cluster, want, bounds, !ours)
		return done, err
	}
	bounds.Standing = a.standingSubnets(cluster, stands)
	_ = a.protect(cluster, want, bounds, false)
	if stands != nil && !read { // asSet has
		a.leaveRoamed(cluster, device, stands, plan.Endpoints(want), bounds)
	}
	key, err := a.keyOf(cluster, device, want, stands)
	if err != nil {
		return done, err
	}
	var peers []wgtypes.Peer
	if stands != nil {
		peers = stands.Peers
	}
	want.Heard = a.hear(cluster, want, peers, nodesByKey(want))
	done.Steps = plan.Network(cluster, want, bounds, key, stands)
	done.SetSources(sources, stands, takesEarly(want.Device))
	claims := a.claims[cluster]
	if claims == nil {
		claims = &plan.Claims{}
		a.claims[cluster] = claims
	}
	if stands != nil {
		claims.Stand(stands.Routes)
	}
	claims.Forget(done.DeleteRoutes)
	if !done.Empty() {
		if done.Config != nil && stands != nil {
			plan.Rouse(done.Config, stands.Peers, time.Now())
		}
		err = a.do(ctx, &done, claims, want.Device.GetPermissive())
	}
	if err == nil {
		_ = a.protect(cluster, want, bounds, false) // now that routes of ours stand, of which some may have been elsewhere
		a.retire(&done)
	}
	if adopts {
		a.adopt(cluster, device, errors.Join(append(done.failed, err)...))
	}
	if err != nil || done.Empty() {
		done.stands = stands
		return done, err
	}
	done.stands, err = a.host.Device(device)
	if err == nil && done.stands == nil {
		err = fmt.Errorf("interface %s has gone while it was set up", device)
	}
	if err == nil {
		claims.Stand(done.stands.Routes)
	}
	return done, err
}

// standingSubnets are those of a remote that are routed or guarded, or were before this node booted: its device may have gone.
func (a *agent) standingSubnets(cluster string, stands *wireguard.Device) []netip.Prefix {
	subnets := slices.Concat(a.guard.Subnets(cluster), a.kept[cluster])
	if stands != nil {
		subnets = append(subnets, stands.Routes...)
	}
	return subnets
}

// do carries steps out. The device gets its keys and peers before it is up, and routes last. An error is one that leaves nothing
// that works; what fails besides is noted.
func (a *agent) do(ctx context.Context, s *carriedOut, claims *plan.Claims, permissive bool) error {
	if s.Create {
		if err := a.host.Create(ctx, s.Name, s.Alias, s.MTU); err != nil {
			return err
		}
	}
	// Before a handshake can be: until this node's routes lead into the device, a strict filter would drop what comes out of it.
	if permissive {
		if err := a.host.LoosenFilter(s.Name); err != nil {
			return err
		}
	}
	fails := func(err error) {
		if err != nil {
			s.failed = append(s.failed, err)
		}
	}
	// The source of a route must be an address of the node, and one that goes takes routes with it. A filter that is loose for all
	// interfaces drops what comes out of a device without an address.
	for _, at := range s.AddAddresses {
		fails(a.host.AddAddress(s.Name, at))
	}
	// Packets that may go in the clear do not go into the tunnel of a peer that is removed, and those that are in it leave it first.
	last := s.DeleteRoutes
	if permissive && s.Config != nil {
		last = nil
		for _, r := range s.DeleteRoutes {
			if slices.ContainsFunc(s.Routed(), r.Overlaps) {
				last = append(last, r)
				continue
			}
			fails(a.host.DeleteRoute(s.Name, r))
		}
		if len(last) < len(s.DeleteRoutes) {
			select {
			case <-time.After(drainTime):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if s.Config != nil {
		if err := a.configure(s.Name, *s.Config); err != nil {
			return err
		}
	}
	if s.SetLink {
		if err := a.host.SetLink(s.Name, s.Alias, s.MTU, true); err != nil {
			return err
		}
	}
	// A route that someone else's is in the way of holds no other back. What goes goes last: one route may stand in for others.
	for _, r := range slices.Concat(s.AddRoutes, s.ChangeRoutes) {
		if err := a.addRoute(claims, s.Steps, r); err != nil {
			fails(err)
			s.lacking = append(s.lacking, r)
		}
	}
	for _, r := range last {
		fails(a.host.DeleteRoute(s.Name, r))
	}
	for _, at := range s.DeleteAddresses {
		fails(a.host.DeleteAddress(s.Name, at))
	}
	return nil
}

// configure changes a device. Peers that others replace go in a second step: packets on their way through a peer that goes are lost, and none
// come after them once the other has its prefixes.
func (a *agent) configure(device string, cfg wgtypes.Config) error {
	if plan.Replaces(cfg) {
		goes := slices.IndexFunc(cfg.Peers, func(p wgtypes.PeerConfig) bool { return p.Remove }) // and all that follow, as plan sorts them
		replaced := wgtypes.Config{Peers: cfg.Peers[goes:]}
		cfg.Peers = cfg.Peers[:goes]
		if err := a.host.Configure(device, cfg); err != nil {
			return err
		}
		cfg = replaced
	}
	return a.host.Configure(device, cfg)
}

// retire takes out what stands in for our routes elsewhere, now that those stand: routes of an earlier version, and of semaphore-wireguard.
func (a *agent) retire(s *carriedOut) {
	strays, err := a.host.Strays(s.Name, s.Routed())
	if err != nil {
		s.failed = append(s.failed, err)
	}
	for _, r := range strays {
		if slices.Contains(s.lacking, r.Prefix) {
			continue
		}
		if err := r.Delete(); err != nil {
			s.failed = append(s.failed, err)
			continue
		}
		slog.Info("route taken out of the table where it was", "device", s.Name, "route", r.Prefix, "table", r.Table)
	}
}

// single sets single peers that changed, without a look at the others.
func (a *agent) single(ctx context.Context, cluster string, nodes map[string]bool) {
	started := time.Now()
	device := naming.Device(cluster)
	changed := map[string]*semaphorev1.Peer{}
	a.mu.Lock()
	n := a.networks[cluster]
	// The routes of a permissive remote are its peers'.
	known := n != nil && n.single != nil && !n.done.Device.GetPermissive()
	if want := a.state.Network(cluster); want != nil {
		for node := range nodes {
			changed[node] = want.Peers[node]
		}
	}
	a.mu.Unlock()
	if !known || len(changed) == 0 {
		a.whole(ctx, cluster)
		return
	}
	cfg := n.single.Change(changed)
	if len(cfg.Peers) > 0 {
		a.rouse(cluster, device, &cfg)
		err := a.configure(device, cfg)
		a.metrics.synced(device, "peers", err, started)
		if err != nil {
			n.single = nil
			a.whole(ctx, cluster)
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for node, peer := range changed {
		if peer != nil {
			n.done.Peers[node] = peer
		} else {
			delete(n.done.Peers, node)
		}
		a.recorder.Record(debug.Event{Source: cluster, Object: "peer " + cluster + "/" + node, Action: "apply", Detail: "on " + device})
	}
	report := cloneReport(n.report)
	report.Peers = uint32(n.single.Peers())
	n.report = report
	a.metrics.refused.WithLabelValues(device).Set(float64(n.refused + n.single.Outcasts()))
	a.describe(cluster, device, n, n.wrong, time.Now())
}

// describe says what is not as it should be with a device: what is wrong with it besides its peers, with these, with its key, and
// that someone else changes it. It is called with mu held.
func (a *agent) describe(cluster, device string, n *network, wrong []string, now time.Time) {
	lines := wrong
	if n.single != nil {
		lines = slices.Concat(wrong, n.single.Refused(), n.single.Settled())
	}
	contest := a.looksAt(cluster).contest.Problem(now)
	n.contested = contest != nil
	was := n.problem
	n.problem = withProblem(withProblem(problemOf(lines), contest), a.keyProblem(cluster))
	if n.problem != was && n.problem != "" {
		slog.Warn("device is not all as wanted", "device", device, "problem", n.problem)
	}
	if n.report.GetProblem() != n.problem {
		n.report = cloneReport(n.report)
		n.report.Problem = n.problem
	}
}

// note keeps what was done and how the device stands.
func (a *agent) note(cluster, device string, want *desired.Network, done carriedOut, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	looks := a.looksAt(cluster)
	looks.at = now
	n := a.networks[cluster]
	if n == nil {
		n = &network{report: &semaphorev1.DeviceReport{Cluster: cluster, Interface: device}}
		a.networks[cluster] = n
	}
	steps := done.Without(done.lacking)
	healed := err == nil && !steps.Empty() && !steps.OnlySources() && n.done != nil && n.done.Equal(want)
	if healed {
		looks.contest.Healed(now)
		a.metrics.heals.WithLabelValues(device).Inc()
	}
	n.single, n.lacking, n.wrong = nil, done.lacking, wrongOf(done, err)
	switch {
	case err != nil:
	case want.Restored:
		n.done = nil // only what was missing was added
	default:
		n.done, n.single = want, done.Programmed
	}
	wrong := n.wrong
	if n.single == nil {
		wrong = slices.Concat(wrong, done.RefusedPeers, done.Settled)
	}
	was := n.problem
	a.describe(cluster, device, n, wrong, now)
	// What is refused holds nothing up: all else is done, and it is told. Nor does a part of the routing that cannot be made; that is tried
	// again.
	switch {
	case err != nil || !a.keys.stored[cluster].Durable:
		a.failed(cluster, device, n.problem, false)
	case len(done.failed) > 0:
		a.failed(cluster, device, n.problem, true)
	default:
		delete(a.failing, cluster)
	}
	a.metrics.conflicts.WithLabelValues(device).Set(float64(len(done.Conflicts)))
	a.metrics.unrouted.WithLabelValues(device).Set(float64(len(done.lacking)))
	n.refused = len(done.Refused)
	a.metrics.refused.WithLabelValues(device).Set(float64(n.refused + len(done.RefusedPeers)))
	if done.stands != nil {
		report := cloneReport(n.report)
		describeReport(report, done.stands)
		a.reportKey(report)
		n.report = report
		a.paths.observe(cluster, want.Device.GetPersistentKeepalive().AsDuration(), done.stands.Peers)
	}
	a.tellConflicts(cluster, device, n, done.Conflicts)
	action, detail := "apply", describe(steps)
	switch {
	case (err != nil || len(done.failed) > 0) && n.problem != was:
		action, detail = "fail", n.problem
	case err != nil || steps.Empty():
		return
	case healed:
		action = "heal"
	}
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: action, Detail: detail})
	if err == nil && !steps.Empty() {
		slog.Info("device set", "device", device, "why", action, "what", detail)
	}
}

// tellConflicts tells of what of this node is in the way of a remote's subnets, when it begins and when it ends. It is called with mu held.
func (a *agent) tellConflicts(cluster, device string, n *network, conflicts []string) {
	for _, c := range conflicts {
		if !slices.Contains(n.conflicts, c) {
			a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "conflict", Detail: c})
		}
	}
	for _, c := range n.conflicts {
		if !slices.Contains(conflicts, c) {
			a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "conflict-ended", Detail: c})
		}
	}
	n.conflicts = conflicts
}

// maxLines is how many parts of a problem are told one by one.
const maxLines = 5

// wrongOf is what is wrong with a device besides its peers, a line each.
func wrongOf(done carriedOut, err error) []string {
	var lines []string
	for _, err := range append([]error{err}, done.failed...) {
		if err != nil {
			lines = append(lines, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	return slices.Concat(lines, done.Refused, done.Conflicts)
}

// problemOf is all lines in one, or as much as fits.
func problemOf(lines []string) string {
	if more := len(lines) - maxLines; more > 0 {
		lines = append(lines[:maxLines:maxLines], fmt.Sprintf("and %d more", more))
	}
	return tellable(strings.Join(lines, "; "))
}

// tellable cuts a text to what a report may hold.
func tellable(text string) string {
	const most = 500
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "")
}

func describe(s plan.Steps) string {
	var parts []string
	if s.Create {
		parts = append(parts, "made")
	}
	if s.Config != nil {
		parts = append(parts, fmt.Sprintf("%d peers changed", len(s.Config.Peers)))
	}
	for _, r := range s.AddRoutes {
		parts = append(parts, "route "+r.String())
	}
	for _, r := range s.DeleteRoutes {
		parts = append(parts, "no route "+r.String())
	}
	for _, r := range s.ChangeRoutes {
		parts = append(parts, fmt.Sprintf("source of route %s %s", r, s.SourceOf(r)))
	}
	for _, at := range s.AddAddresses {
		parts = append(parts, "address "+at.String())
	}
	for _, at := range s.DeleteAddresses {
		parts = append(parts, "no address "+at.String())
	}
	if s.SetLink {
		parts = append(parts, fmt.Sprintf("up, mtu %d", s.MTU))
	}
	return strings.Join(parts, ", ")
}

// remove takes a device out at the broker's word. Its key stays, unless the operator has said otherwise, and what guards the remote stays as long
// as the node's own configuration names the remote: a broker that is taken over must not have packets leave in the clear.
func (a *agent) remove(cluster, device string) {
	var stands bool
	var err error
	if plan.Cluster(cluster) == nil { // no other has ever had a device
		stands, err = a.deleteOurs(cluster, device)
		if err == nil {
			a.unwanted(cluster)
			delete(a.claims, cluster)
		}
		if err == nil && a.cfg.RemoveKeys {
			err = a.removeKey(device)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looksAt(cluster).at = time.Now()
	if err != nil {
		if n := a.networks[cluster]; n != nil {
			n.problem = tellable(err.Error())
			n.report = cloneReport(n.report)
			n.report.Problem = n.problem
		}
		slog.Warn("device is to go and does not", "device", device, "error", err)
		a.failed(cluster, device, tellable(err.Error()), false)
		return
	}
	delete(a.networks, cluster)
	delete(a.failing, cluster)
	delete(a.orphans, cluster)
	delete(a.looks, cluster)
	a.forgetKey(cluster)
	delete(a.adopted, cluster)
	delete(a.restored.confirmedAt, cluster)
	if a.declared.subnets == nil {
		delete(a.configured.remotes, cluster)
	}
	delete(a.permissive, cluster)
	delete(a.kept, cluster)
	a.metrics.forget(cluster, device)
	a.paths.forget(cluster)
	if stands {
		a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "remove", Detail: "the broker has no such remote any more"})
		slog.Info("device removed", "device", device)
	}
}

// removeKey takes the key of a device away that has gone.
func (a *agent) removeKey(device string) error {
	var gone strings.Builder
	err := removeKeys(&gone, a.cfg.WGKeyPath, func(of string) bool { return of == device })
	if gone.Len() > 0 {
		slog.Info("private key removed", "device", device)
	}
	return err
}

// deleteOurs returns whether there was a device.
func (a *agent) deleteOurs(cluster, device string) (bool, error) {
	stands, err := a.host.Device(device)
	if stands == nil || err != nil {
		return false, err
	}
	if _, err := plan.CheckOwner(cluster, stands, false); err != nil {
		return true, err
	}
	return true, a.host.Delete(device)
}

func newestHandshake(peers []wgtypes.Peer) *timestamppb.Timestamp {
	var newest time.Time
	for _, p := range peers {
		if p.LastHandshakeTime.After(newest) {
			newest = p.LastHandshakeTime
		}
	}
	return timestampOf(newest)
}

// timestampOf is unset for never.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() || t.Unix() == 0 {
		return nil
	}
	return timestamppb.New(t)
}

// describeReport fills in how the device stands.
func describeReport(r *semaphorev1.DeviceReport, stands *wireguard.Device) {
	// A copy: a part of stands would keep all of it, with its peers, for as long as the report is.
	r.PublicKey, r.ListenPort, r.Backend = slices.Clone(stands.PublicKey[:]), uint32(stands.ListenPort), stands.Backend
	r.Peers = uint32(len(stands.Peers))
	r.LastHandshake = newestHandshake(stands.Peers)
}

// cloneReport is a copy to change: the old one may be on its way to the broker.
func cloneReport(r *semaphorev1.DeviceReport) *semaphorev1.DeviceReport {
	return &semaphorev1.DeviceReport{
		Cluster: r.GetCluster(), Interface: r.GetInterface(), PublicKey: r.GetPublicKey(), ListenPort: r.GetListenPort(),
		Backend: r.GetBackend(), Peers: r.GetPeers(), Problem: r.GetProblem(), LastHandshake: r.GetLastHandshake(),
		KeyCreatedAt: r.GetKeyCreatedAt(),
	}
}

func boolNumber(b bool) int {
	if b {
		return 1
	}
	return 0
}

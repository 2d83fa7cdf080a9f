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
	// done is what was last carried out as a whole, and single the same for changes of single peers; nil
	// when a look at the device has to come first.
	done   *desired.Network
	single *plan.Programmed
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
	want := &desired.Network{Device: n.Device, Peers: maps.Clone(n.Peers), Restored: n.Restored}
	a.mu.Unlock()
	want.Device = a.paths.sized(want)
	return want
}

// whole looks at a network's device as a whole and puts right what differs.
func (a *agent) whole(ctx context.Context, cluster string) {
	started := time.Now()
	device := naming.Device(cluster)
	want := a.wanted(cluster)
	if want == nil {
		a.remove(cluster, device)
		return
	}
	bounds, sources, err := a.bounds()
	var stands *wireguard.Device
	var steps plan.Steps
	if err == nil {
		stands, steps, err = a.standing(ctx, cluster, device, want, bounds, sources)
	}
	a.metrics.synced(device, "device", err, started)
	a.note(cluster, device, want, bounds, stands, steps, err)
}

// bounds are what may be routed to remotes, and the sources of routes, as of now: the node's addresses can change.
func (a *agent) bounds() (plan.Bounds, plan.Sources, error) {
	addresses, err := a.host.Addresses()
	own := make([]netip.Prefix, len(addresses))
	for i := range addresses {
		own[i] = addresses[i].Prefix
	}
	return plan.Bounds{Allowed: a.cfg.AllowedPrefixes, Local: a.cfg.LocalPrefixes, Own: own}, a.sources(addresses), err
}

// standing does the steps and returns the device as it stands then.
func (a *agent) standing(ctx context.Context, cluster, device string, want *desired.Network, bounds plan.Bounds, sources plan.Sources) (*wireguard.Device, plan.Steps, error) {
	// Before anything is done, or looked for, in that name.
	if err := plan.Cluster(cluster); err != nil {
		return nil, plan.Steps{}, err
	}
	stands, err := a.host.Device(device)
	var adopts bool
	if err == nil {
		adopts, err = plan.CheckOwner(cluster, stands, a.cfg.Adopts(config.SemaphoreWireGuard))
	}
	// Whatever is wrong with the device, or whosever it is.
	if err != nil {
		ours, _ := a.interfaceIsOurs(cluster)
		_ = a.protect(cluster, want, bounds, !ours)
		return nil, plan.Steps{}, err
	}
	_ = a.protect(cluster, want, bounds, false)
	if stands != nil {
		a.leaveRoamed(cluster, device, stands, plan.Endpoints(want))
	}
	key, err := a.keyOf(cluster, device, want, stands)
	if err != nil {
		return nil, plan.Steps{}, err
	}
	steps := plan.Network(cluster, want, bounds, key, stands)
	steps.SetSources(sources, stands)
	claims := a.claims[cluster]
	if claims == nil {
		claims = &plan.Claims{}
		a.claims[cluster] = claims
	}
	if stands != nil {
		claims.Stand(stands.Routes)
	}
	claims.Forget(steps.DeleteRoutes)
	if steps.Empty() {
		return stands, steps, nil
	}
	if steps.Config != nil && stands != nil {
		plan.Rouse(steps.Config, stands.Peers, time.Now())
	}
	err = a.do(ctx, steps, claims)
	if adopts {
		a.adopt(cluster, device, err)
	}
	if err != nil {
		return stands, steps, err
	}
	stands, err = a.host.Device(device)
	if err == nil && stands == nil {
		err = fmt.Errorf("interface %s has gone while it was set up", device)
	}
	if err == nil {
		claims.Stand(stands.Routes)
	}
	return stands, steps, err
}

// do carries steps out. The device gets its keys and peers before it is up, and routes last.
func (a *agent) do(ctx context.Context, s plan.Steps, claims *plan.Claims) error {
	if s.Create {
		if err := a.host.Create(ctx, s.Name, s.Alias, s.MTU); err != nil {
			return err
		}
	}
	if s.Config != nil {
		if err := a.host.Configure(s.Name, *s.Config); err != nil {
			return err
		}
	}
	if s.SetLink {
		if err := a.host.SetLink(s.Name, s.Alias, s.MTU, true); err != nil {
			return err
		}
	}
	// A route that someone else's is in the way of holds no other back.
	var failed []error
	for _, r := range s.DeleteRoutes {
		failed = append(failed, a.host.DeleteRoute(s.Name, r))
	}
	for _, r := range slices.Concat(s.AddRoutes, s.ChangeRoutes) {
		failed = append(failed, a.addRoute(claims, s, r))
	}
	return errors.Join(failed...)
}

// single sets single peers that changed, without a look at the others.
func (a *agent) single(ctx context.Context, cluster string, nodes map[string]bool) {
	started := time.Now()
	device := naming.Device(cluster)
	changed := map[string]*semaphorev1.Peer{}
	a.mu.Lock()
	n := a.networks[cluster]
	known := n != nil && n.single != nil && a.failing[cluster] == nil
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
	cfg, ok := n.single.Change(changed)
	var err error
	if ok && len(cfg.Peers) > 0 {
		a.rouse(cluster, device, &cfg)
		err = a.host.Configure(device, cfg)
		a.metrics.synced(device, "peers", err, started)
	}
	if !ok || err != nil {
		n.single = nil
		a.whole(ctx, cluster)
		return
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
	report.Peers = uint32(len(n.done.Peers))
	n.report = report
}

// note keeps what was done and how the device stands.
func (a *agent) note(cluster, device string, want *desired.Network, bounds plan.Bounds, stands *wireguard.Device, steps plan.Steps, err error) {
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
	healed := err == nil && !steps.Empty() && !steps.OnlySources() && n.done != nil && n.done.Equal(want)
	if healed {
		looks.contest.Healed(now)
		a.metrics.heals.WithLabelValues(device).Inc()
	}
	contest := looks.contest.Problem(now)
	n.contested = contest != nil
	was := n.problem
	n.problem = withProblem(withProblem(problemOf(steps, err), contest), a.keyProblem(cluster))
	if n.problem != was && n.problem != "" {
		slog.Warn("device is not all as wanted", "device", device, "problem", n.problem)
	}
	// A peer that is refused holds nothing up: all others are done, and it is told.
	if err != nil || len(steps.Refused) > 0 || !a.keys.stored[cluster].Durable {
		a.failed(cluster, device, n.problem)
	} else {
		delete(a.failing, cluster)
	}
	a.metrics.refused.WithLabelValues(device).Set(float64(len(steps.Refused) + len(steps.RefusedPeers)))
	report := cloneReport(n.report)
	report.Problem = n.problem
	if err == nil {
		describeReport(report, stands)
		a.reportKey(report)
		a.paths.observe(cluster, want.Device.GetPersistentKeepalive().AsDuration(), stands.Peers)
	}
	n.report = report
	n.single = nil
	switch {
	case err != nil:
	case want.Restored:
		n.done = nil // only what was missing was added
	default:
		n.done = want
		if len(steps.Refused) == 0 && len(steps.Settled) == 0 {
			n.single = plan.Remember(want, bounds)
		}
	}
	action, detail := "apply", describe(steps)
	switch {
	case err != nil && n.problem != was:
		action, detail = "fail", n.problem
	case err != nil || steps.Empty():
		return
	case healed:
		action = "heal"
	}
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: action, Detail: detail})
	if err == nil {
		slog.Info("device set", "device", device, "why", action, "what", detail)
	}
}

// maxLines is how many parts of a problem are told one by one.
const maxLines = 5

// problemOf is what is not as wanted, in one line.
func problemOf(steps plan.Steps, err error) string {
	var lines []string
	if err != nil {
		lines = append(lines, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	lines = slices.Concat(lines, steps.Refused, steps.RefusedPeers, steps.Settled)
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
	if s.SetLink {
		parts = append(parts, fmt.Sprintf("up, mtu %d", s.MTU))
	}
	return strings.Join(parts, ", ")
}

// remove takes a device out at the broker's word. Its key stays, unless the operator has said otherwise.
func (a *agent) remove(cluster, device string) {
	var stands bool
	var err error
	if plan.Cluster(cluster) == nil { // no other has ever had a device
		stands, err = a.deleteOurs(cluster, device)
		if err == nil {
			a.unprotect(cluster)
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
		a.failed(cluster, device, tellable(err.Error()))
		return
	}
	delete(a.networks, cluster)
	delete(a.failing, cluster)
	delete(a.orphans, cluster)
	delete(a.looks, cluster)
	a.forgetKey(cluster)
	delete(a.adopted, cluster)
	delete(a.restored.confirmedAt, cluster)
	delete(a.configured.remotes, cluster)
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

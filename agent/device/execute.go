package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
)

// drainTime is how long a peer remains after no route leads to it or another has its allowed IPs, and a route after
// another replaced it: the device still encrypts packets for the peer, and lookups in progress still use the route.
const drainTime = 200 * time.Millisecond

// execute executes steps. The device gets its key and peers before it is up, and routes last. It returns an error if
// the device cannot work; other failures are recorded in done.
func (r *Reconciler) execute(ctx context.Context, d *device, done *outcome, permissive bool) error {
	if done.Create {
		if err := r.kernel.Create(ctx, done.Name, done.Alias, done.MTU); err != nil {
			return err
		}
	}
	// Before the first handshake: until this node's routes lead into the device, a strict filter would drop packets out of
	// it.
	if permissive {
		if err := r.kernel.LoosenFilter(done.Name); err != nil {
			return err
		}
	}
	// The source of a route must be an address of the node, and the removal of an address removes its routes. A filter
	// that is loose on all interfaces drops packets out of a device without an address.
	for _, at := range done.AddAddresses {
		done.fails(r.kernel.AddAddress(done.Name, at))
	}
	obsolete := done.DeleteRoutes
	if permissive && done.Config != nil {
		var err error
		if obsolete, err = r.drain(ctx, done); err != nil {
			return err
		}
	}
	if done.Config != nil {
		if err := r.configure(ctx, done.Name, *done.Config, done.replacesLive); err != nil {
			return err
		}
	}
	if done.SetLink {
		if err := r.kernel.SetLink(done.Name, done.Alias, done.MTU, true); err != nil {
			return err
		}
	}
	// A route that another program's route blocks does not delay the others. Routes are deleted last: until then they
	// can carry the packets of a route that could not be added.
	for _, prefix := range slices.Concat(done.AddRoutes, done.ChangeRoutes) {
		if err := r.addRoute(&d.claims, done.Steps, prefix); err != nil {
			done.fails(err)
			done.lacking = append(done.lacking, prefix)
		}
	}
	for _, prefix := range obsolete {
		done.fails(r.kernel.DeleteRoute(done.Name, prefix))
	}
	for _, at := range done.DeleteAddresses {
		done.fails(r.kernel.DeleteAddress(done.Name, at))
	}
	return nil
}

// configure changes a device. Peers that are replaced are removed in a second step, live ones after drainTime: packets
// on their way through a removed peer are lost, and no more follow once its successor has the allowed IPs.
func (r *Reconciler) configure(ctx context.Context, device string, cfg wgtypes.Config, live bool) error {
	if plan.Replaces(cfg) {
		// All that follow are removed too, as plan sorts them.
		first := slices.IndexFunc(cfg.Peers, func(p wgtypes.PeerConfig) bool { return p.Remove })
		removed := wgtypes.Config{Peers: cfg.Peers[first:]}
		cfg.Peers = cfg.Peers[:first]
		if err := r.kernel.Configure(device, cfg); err != nil {
			return err
		}
		cfg = removed
		if live {
			_ = waitForPackets(ctx) // if ctx ends, the rest is removed at once
		}
	}
	return r.kernel.Configure(device, cfg)
}

func (o *outcome) fails(err error) {
	if err != nil {
		o.failed = append(o.failed, err)
	}
}

// drain deletes the routes to peers that will be removed, and waits for packets on their way. Packets that may leave in
// the clear must not enter the tunnel of such a peer. It returns the routes to delete later.
func (r *Reconciler) drain(ctx context.Context, done *outcome) (later []netip.Prefix, err error) {
	for _, prefix := range done.DeleteRoutes {
		if slices.ContainsFunc(done.Routed, prefix.Overlaps) {
			later = append(later, prefix)
			continue
		}
		done.fails(r.kernel.DeleteRoute(done.Name, prefix))
	}
	if len(later) == len(done.DeleteRoutes) {
		return later, nil
	}
	return later, waitForPackets(ctx)
}

func waitForPackets(ctx context.Context) error {
	select {
	case <-time.After(drainTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// addRoute adds a route into a device, or sets its source. It restores a route of this agent that another program
// replaced.
func (r *Reconciler) addRoute(claims *plan.Claims, s plan.Steps, prefix netip.Prefix) error {
	err := r.kernel.AddRoute(s.Name, prefix, s.Sources.Of(prefix))
	now := time.Now()
	if !errors.Is(err, kernel.ErrTaken) || !claims.MayRetake(prefix, now) {
		return err
	}
	slog.Warn("another program replaced a route of the agent, which restores it", "device", s.Name, "route", err)
	claims.RecordRetake(prefix, now)
	return r.kernel.ReplaceRoute(s.Name, prefix, s.Sources.Of(prefix))
}

// retire deletes routes in other tables that this agent's own replace: those of an agent with another table, and of
// semaphore-wireguard. It waits for packets whose lookup began before the rule that leads to this agent's table
// existed. If ctx ends meanwhile, the next agent deletes them.
func (r *Reconciler) retire(ctx context.Context, done *outcome) {
	strays, err := r.kernel.Strays(done.Name, done.Routed)
	done.fails(err)
	strays = slices.DeleteFunc(strays, func(stray kernel.Route) bool {
		return slices.Contains(done.lacking, stray.Prefix)
	})
	if len(strays) == 0 || waitForPackets(ctx) != nil {
		return
	}
	for _, stray := range strays {
		if err := r.kernel.DeleteStray(stray); err != nil {
			done.fails(err)
			continue
		}
		slog.Info("deleted a route that one in the agent's table replaces",
			"device", done.Name, "route", stray.Prefix, "table", stray.Table)
	}
}

func describeSteps(s plan.Steps) string {
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
		parts = append(parts, fmt.Sprintf("source of route %s %s", r, s.Sources.Of(r)))
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

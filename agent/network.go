package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// whole looks at a network's device as a whole and puts right what differs. want is nil when the
// broker wants it gone.
func (a *agent) whole(ctx context.Context, cluster string, want *desired.Network) {
	started := time.Now()
	device := naming.Device(cluster)
	if want == nil {
		a.remove(cluster, device)
		return
	}
	stands, steps, err := a.standing(ctx, cluster, device, want)
	a.metrics.syncs.WithLabelValues(device, fmt.Sprint(boolNumber(err == nil))).Inc()
	a.metrics.applySeconds.WithLabelValues("device").Observe(time.Since(started).Seconds())
	a.note(cluster, device, want, stands, steps, err)
}

// standing does the steps and returns the device as it stands then.
func (a *agent) standing(ctx context.Context, cluster, device string, want *desired.Network) (*wireguard.Device, plan.Steps, error) {
	key, err := wireguard.Key(a.cfg.WGKeyPath, device)
	if err != nil {
		return nil, plan.Steps{}, err
	}
	stands, err := a.host.Device(device)
	if err != nil {
		return nil, plan.Steps{}, err
	}
	steps := plan.Network(cluster, want, key, stands)
	if steps.Empty() {
		return stands, steps, nil
	}
	if err := a.do(ctx, steps); err != nil {
		return stands, steps, err
	}
	stands, err = a.host.Device(device)
	if err == nil && stands == nil {
		err = fmt.Errorf("interface %s has gone while it was set up", device)
	}
	return stands, steps, err
}

// do carries steps out. The device gets its keys and peers before it is up, and routes last.
func (a *agent) do(ctx context.Context, s plan.Steps) error {
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
	for _, r := range s.DeleteRoutes {
		if err := a.host.DeleteRoute(s.Name, r); err != nil {
			return err
		}
	}
	for _, r := range s.AddRoutes {
		if err := a.host.AddRoute(s.Name, r); err != nil {
			return err
		}
	}
	return nil
}

// single sets single peers that changed, without a look at the others.
func (a *agent) single(ctx context.Context, cluster string, want *desired.Network, nodes map[string]bool) {
	started := time.Now()
	device := naming.Device(cluster)
	a.mu.Lock()
	n := a.networks[cluster]
	a.mu.Unlock()
	if n == nil || n.applied == nil || n.problem != "" {
		a.whole(ctx, cluster, want) // it is not known what stands
		return
	}
	var was, is []*semaphorev1.Peer
	for node := range nodes {
		was, is = append(was, n.applied[node]), append(is, want.Peers[node])
	}
	cfg, refused := plan.Peers(was, is)
	if keepalive := want.Device.GetPersistentKeepalive(); keepalive != nil {
		plan.Keepalive(&cfg, keepalive.AsDuration())
	}
	// A key that another node has by now stays.
	cfg.Peers = slices.DeleteFunc(cfg.Peers, func(p wgtypes.PeerConfig) bool { return p.Remove && hasKey(want, p.PublicKey) })
	if len(refused) > 0 {
		a.whole(ctx, cluster, want) // which says what is refused
		return
	}
	err := a.host.Configure(device, cfg)
	a.metrics.syncs.WithLabelValues(device, fmt.Sprint(boolNumber(err == nil))).Inc()
	a.metrics.applySeconds.WithLabelValues("peers").Observe(time.Since(started).Seconds())
	if err != nil {
		a.whole(ctx, cluster, want)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for node := range nodes {
		if p := want.Peers[node]; p != nil {
			n.applied[node] = p
		} else {
			delete(n.applied, node)
		}
		a.recorder.Record(debug.Event{Source: cluster, Object: "peer " + cluster + "/" + node, Action: "apply", Detail: "on " + device})
	}
	report := cloneReport(n.report)
	report.Peers = uint32(len(n.applied))
	n.report = report
}

func hasKey(want *desired.Network, key wgtypes.Key) bool {
	for _, p := range want.Peers {
		if string(p.GetWireguard().GetPublicKey()) == string(key[:]) {
			return true
		}
	}
	return false
}

// note keeps what was done and how the device stands.
func (a *agent) note(cluster, device string, want *desired.Network, stands *wireguard.Device, steps plan.Steps, err error) {
	problem := strings.Join(steps.Refused, "; ")
	if err != nil {
		problem = err.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.networks[cluster]
	if n == nil {
		n = &network{report: &semaphorev1.DeviceReport{Cluster: cluster, Interface: device}}
		a.networks[cluster] = n
	}
	if problem != n.problem && problem != "" {
		slog.Warn("device is not as wanted; trying again", "device", device, "problem", problem)
	}
	n.problem, n.lookedAt = problem, time.Now()
	report := cloneReport(n.report)
	report.Problem = problem
	n.applied = nil
	if err == nil {
		n.applied = maps.Clone(want.Peers)
		n.mtu = stands.MTU
		report.PublicKey, report.ListenPort, report.Backend = stands.PublicKey[:], uint32(stands.ListenPort), stands.Backend
		report.Peers = uint32(len(stands.Peers))
		report.LastHandshake = newestHandshake(stands.Peers)
	}
	n.report = report
	if steps.Empty() {
		return
	}
	if !steps.Create {
		a.metrics.heals.WithLabelValues(device).Inc()
	}
	detail := describe(steps)
	if err != nil {
		detail = err.Error()
	}
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "apply", Detail: detail})
	slog.Info("device set", "device", device, "what", detail)
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
	if s.SetLink {
		parts = append(parts, fmt.Sprintf("up, mtu %d", s.MTU))
	}
	return strings.Join(parts, ", ")
}

// remove takes a device out at the broker's word. Its key stays.
func (a *agent) remove(cluster, device string) {
	err := a.host.Delete(device)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		slog.Warn("device is to go and does not; trying again", "device", device, "error", err)
		a.dirty.networks[cluster] = true // at the next round, at the latest that of the clock
		return
	}
	delete(a.networks, cluster)
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "remove", Detail: "the broker has no such remote any more"})
	slog.Info("device removed", "device", device)
}

func newestHandshake(peers []wgtypes.Peer) *timestamppb.Timestamp {
	var newest time.Time
	for _, p := range peers {
		if p.LastHandshakeTime.After(newest) {
			newest = p.LastHandshakeTime
		}
	}
	if newest.IsZero() || newest.Unix() == 0 {
		return nil
	}
	return timestamppb.New(newest)
}

// cloneReport is a copy to change: the old one may be on its way to the broker.
func cloneReport(r *semaphorev1.DeviceReport) *semaphorev1.DeviceReport {
	return &semaphorev1.DeviceReport{
		Cluster: r.GetCluster(), Interface: r.GetInterface(), PublicKey: r.GetPublicKey(), ListenPort: r.GetListenPort(),
		Backend: r.GetBackend(), Peers: r.GetPeers(), Problem: r.GetProblem(), LastHandshake: r.GetLastHandshake(),
	}
}

func boolNumber(b bool) int {
	if b {
		return 1
	}
	return 0
}

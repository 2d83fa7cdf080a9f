//go:build ignore

package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/mtu"
	"github.com/kube-semaphore/semaphore/agent/talk"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxNamed is how many silent peers are named in the log.
const maxNamed = 5

func (a *agent) tellSilent(device string, want *desired.Network, silent []talk.Quiet, counts talk.Counts) {
	if counts.Silent == 0 {
		a.recorder.Record(debug.Event{Source: want.Device.GetCluster(), Object: "device " + device, Action: "talk", Detail: "no peer is silent any more"})
		slog.Info("no peer is silent any more", "device", device)
		return
	}
	names := nodesOf(want, silent)
	var parts []string
	for i, q := range silent {
		parts = append(parts, names[i]+" ("+reasonOf(q)+")")
	}
	detail := fmt.Sprintf("%d peers do not answer: %s", counts.Silent, strings.Join(parts, ", "))
	if more := counts.Silent - len(silent); more > 0 {
		detail += fmt.Sprintf(" and %d more", more)
	}
	a.recorder.Record(debug.Event{Source: want.Device.GetCluster(), Object: "device " + device, Action: "silence", Detail: detail})
	slog.Warn("peers do not answer", "device", device, "peers", counts.Silent, "which", strings.Join(parts, ", "))
}

// nodesOf names the nodes of peers, which are known by their keys.
func nodesOf(want *desired.Network, peers []talk.Quiet) []string {
	out := make([]string, len(peers))
	byKey := make(map[string]int, len(peers))
	for i := range peers {
		byKey[string(peers[i].Key[:])] = i
		out[i] = "a peer that is not wanted"
	}
	if len(peers) > 0 {
		for node, peer := range want.Peers {
			if i, ok := byKey[string(peer.GetWireguard().GetPublicKey())]; ok {
				out[i] = node
			}
		}
	}
	return out
}

func reasonOf(q talk.Quiet) string {
	endpoint := "no endpoint is known"
	if q.Endpoint.IsValid() {
		endpoint = "endpoint " + q.Endpoint.String()
	}
	if q.Handshake.IsZero() {
		return "no answer to handshakes; " + endpoint
	}
	return fmt.Sprintf("no answer since the session of %s; %s", q.Handshake.UTC().Format(time.TimeOnly), endpoint)
}

func reasonOfMTU(want *desired.Network, v mtu.Verdict) string {
	switch {
	case want.Device.GetMtu() != 0:
		return "as configured"
	case v.Limit != nil:
		node := nodesOf(want, []talk.Quiet{{Key: *v.Limit}})[0]
		if v.Carries == 0 {
			return fmt.Sprintf("the path to %s carries less than fits this, the least", node)
		}
		return fmt.Sprintf("the path to %s carries no more", node)
	case v.MTU < v.Base:
		return "a path carried no more until lately, or may not; " + v.Why
	}
	return v.Why
}

// pathsReport is what the broker is told of a device's peers.
type pathsReport struct {
	at     time.Time
	counts talk.Counts
	newest time.Time
	silent []talk.Quiet
}

const (
	// maxSilent is how many silent peers the broker is told of.
	maxSilent = 50
	// tellSilentEvery and tellCountsEvery are how often the broker is told that other peers are silent, and that only numbers
	// have changed: thousands of agents tell it.
	tellSilentEvery = 5 * time.Second
	tellCountsEvery = 30 * time.Second
)

// due says whether there is something to tell of a device. It is called with mu held.
func (d *devicePaths) due(now time.Time) bool {
	passed := now.Sub(d.told.at)
	if d.told.counts == d.talk.Counts() && d.told.newest.Equal(d.talk.Newest()) || passed < tellSilentEvery {
		return false
	}
	return passed >= tellCountsEvery || d.told.counts.Silent != d.talk.Counts().Silent || !slices.EqualFunc(d.told.silent, d.talk.Silent(maxSilent), sameQuiet)
}

func sameQuiet(a, b talk.Quiet) bool {
	return a.Key == b.Key && a.Since.Equal(b.Since) && a.Endpoint == b.Endpoint
}

// pathsNews says whether there is something to tell the broker of any device.
func (a *agent) pathsNews(now time.Time) bool {
	a.paths.mu.Lock()
	defer a.paths.mu.Unlock()
	for _, d := range a.paths.devices {
		if d.due(now) {
			return true
		}
	}
	return false
}

// reportPaths adds to a report of a device what its peers are like: as they were told, or as they are when that is
// due. It is called with the agent's mu held.
func (a *agent) reportPaths(r *semaphorev1.DeviceReport) *semaphorev1.DeviceReport {
	a.paths.mu.Lock()
	defer a.paths.mu.Unlock()
	d := a.paths.devices[r.GetCluster()]
	want := a.state.Network(r.GetCluster())
	if d == nil || want == nil {
		return r
	}
	if now := time.Now(); d.due(now) {
		d.told = pathsReport{now, d.talk.Counts(), d.talk.Newest(), d.talk.Silent(maxSilent)}
	}
	r = cloneReport(r)
	r.LastHandshake = timestampOf(d.told.newest)
	r.PeersTalking, r.PeersSilent, r.PeersIdle = uint32(d.told.counts.Talking), uint32(d.told.counts.Silent), uint32(d.told.counts.Idle)
	names := nodesOf(want, d.told.silent)
	for i, q := range d.told.silent {
		r.Silent = append(r.Silent, &semaphorev1.SilentPeer{Node: names[i], Since: timestampOf(q.Since), Reason: reasonOf(q)})
	}
	return r
}

// statusPaths is the status of a wanted device's paths; nil for one of which nothing is known. It is called with the agent's
// mu held.
func (a *agent) statusPaths(want *desired.Network) *semaphorev1.PathsStatus {
	a.paths.mu.Lock()
	defer a.paths.mu.Unlock()
	if want == nil || a.paths.devices[want.Device.GetCluster()] == nil {
		return nil
	}
	d := a.paths.devices[want.Device.GetCluster()]
	c := d.talk.Counts()
	out := &semaphorev1.PathsStatus{
		Talking: uint32(c.Talking), Silent: uint32(c.Silent), Idle: uint32(c.Idle),
		MtuReason: reasonOfMTU(want, d.verdict), Measured: uint32(d.verdict.Measured), Unanswered: uint32(d.verdict.Unanswered),
	}
	if a.paths.problem != "" {
		out.MtuReason += "; probes of other nodes are not answered: " + a.paths.problem
	}
	silent := d.talk.Silent(maxSilent)
	names := nodesOf(want, silent)
	for i, q := range silent {
		out.SilentPeers = append(out.SilentPeers, &semaphorev1.SilentPair{
			Cluster: want.Device.GetCluster(), RemoteNode: names[i], Since: timestampOf(q.Since), Reason: reasonOf(q),
		})
	}
	return out
}

var (
	peersDesc = prometheus.NewDesc("semaphore_agent_peers", "Peers of a device by state: talking (with a session that works), silent (sent to, and no answer) or idle.", []string{"device", "state"}, nil)
	mtuDesc   = prometheus.NewDesc("semaphore_agent_mtu_bytes", "The MTU that was derived for a device; absent where it is configured.", []string{"device"}, nil)
)

// Describe implements prometheus.Collector.
func (p *paths) Describe(ch chan<- *prometheus.Desc) {
	ch <- peersDesc
	ch <- mtuDesc
	p.measurements.Describe(ch)
}

// Collect implements prometheus.Collector.
func (p *paths) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cluster, d := range p.devices {
		device := naming.Device(cluster)
		c := d.talk.Counts()
		for state, n := range map[talk.State]int{talk.Talking: c.Talking, talk.Silent: c.Silent, talk.Idle: c.Idle} {
			ch <- prometheus.MustNewConstMetric(peersDesc, prometheus.GaugeValue, float64(n), device, state.String())
		}
		if d.verdict.MTU > 0 {
			ch <- prometheus.MustNewConstMetric(mtuDesc, prometheus.GaugeValue, float64(d.verdict.MTU), device)
		}
	}
	p.measurements.Collect(ch)
}

package broker

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/presence"
	"github.com/kube-semaphore/semaphore/internal/debug"
)

// watch follows which remotes are gone, by what exporters and agents say, and tells the plans.
func (b *broker) watch(registry *prometheus.Registry, recorder *debug.Recorder, log *slog.Logger) *presence.Watch {
	var names []string
	for _, r := range b.cfg.Remotes {
		names = append(names, r.Name)
	}
	b.services.Await(names...)
	w := presence.New(presence.Options{
		Clusters: names, SilentAfter: b.cfg.GlobalServices.SilentAfter.Duration,
		Look: b.signals, Tell: b.services.SetGone, Warn: func(reason, note string) { b.events.Warn("", reason, note) }, Recorder: recorder, Log: log,
	})
	registry.MustRegister(w)
	return w
}

// signals are what is known now of each remote.
func (b *broker) signals() map[string]presence.Signals {
	spoke := b.federation.Spoke()
	out := map[string]presence.Signals{}
	for cluster, tunnels := range b.peering.Tunnels() {
		out[cluster] = presence.Signals{Heard: spoke[cluster], Agents: tunnels.Nodes, Talking: tunnels.Talking}
	}
	return out
}

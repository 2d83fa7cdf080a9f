package broker

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// watch adds a watch that reports which remotes are gone, from the reports of exporters and agents.
func (b *broker) watch(registry *prometheus.Registry, recorder *debug.Recorder, log *slog.Logger) {
	cfg := b.cfg.Load()
	w := federation.NewPresence(federation.PresenceOptions{
		Clusters: cfg.Names(), SilentAfter: cfg.GlobalServices.SilentAfter.Duration,
		Heard: b.Federation.LastPayload, Tunnels: b.signals, Probe: b.Peering.ProbePeers,
		Unknown: b.services.MarkLivenessUnknown, OnChange: b.services.SetGone,
		Warn:     func(reason finding.Code, note string) bool { return b.options.Events.Warn("", reason, note) },
		Recorder: recorder, Log: log,
	})
	registry.MustRegister(w)
	b.runs, b.finders = append(b.runs, w.Run), append(b.finders, w.Findings)
	b.followers = append(b.followers, func(cfg *config.Broker) { w.Follow(cfg.Names()) })
}

func (b *broker) signals(remotes []string) map[string]federation.Signals {
	out := map[string]federation.Signals{}
	for cluster, tunnels := range b.Peering.TunnelsTo(remotes) {
		out[cluster] = federation.Signals{Agents: tunnels.Nodes, Talking: tunnels.Talking, Unanswered: tunnels.Unanswered}
	}
	return out
}

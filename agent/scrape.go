package agent

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/singleflight"

	"github.com/kube-semaphore/semaphore/agent/devicemetrics"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// scrapes are what Prometheus servers get: the metrics of a registry, and those of the devices, which are read once for
// all that ask at the same time.
type scrapes struct {
	agent    *agent
	registry *prometheus.Registry
	reads    singleflight.Group
}

// register registers all metrics but those of the devices themselves.
func (a *agent) register(reg prometheus.Registerer) {
	reg.MustRegister(a.metrics.all()...)
	reg.MustRegister(a.cache.Collectors()...)
	reg.MustRegister(a, a.paths)
}

// pages are what the agent's HTTP listener serves. It is on the node's addresses, which nodes of other clusters reach: who may see
// keys and addresses of peers asks from this node, or from the subnets that the configuration names
// (docs/adr/0016-metrics-of-peers.md).
func (a *agent) pages(reg *prometheus.Registry) program.Pages {
	return program.Pages{
		Metrics: reg, Private: &scrapes{agent: a, registry: reg},
		Trusted: func(local, remote netip.Addr) bool {
			return remote.IsLoopback() || remote.IsValid() && remote == local ||
				slices.ContainsFunc(a.cfg.PeerMetricsPrefixes, func(p netip.Prefix) bool { return p.Contains(remote) })
		},
		Ready: func() (string, error) { return a.remarks(), a.ready() },
	}
}

// Gather implements prometheus.Gatherer.
func (s *scrapes) Gather() ([]*dto.MetricFamily, error) {
	families, err := s.registry.Gather()
	devices, _, _ := s.reads.Do("", func() (any, error) { return s.agent.readDevices(), nil })
	return append(families, devicemetrics.Families(devices.([]*wireguard.Device), s.agent.cfg.PeerMetrics == config.PeerMetricsAll)...), err
}

// readDevices reads all devices that are wanted or stand. One that cannot be read is told by what is missing, and by the problem
// in the status.
func (a *agent) readDevices() []*wireguard.Device {
	var devices []*wireguard.Device
	for _, name := range a.deviceNames() {
		if d, err := a.host.Device(name); err == nil && d != nil {
			devices = append(devices, d)
		}
	}
	return devices
}

package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/singleflight"

	"github.com/kube-semaphore/semaphore/agent/devicemetrics"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// scrapes are what Prometheus servers get: the metrics of a registry, and those of the devices, which are read once for
// all that ask at the same time.
type scrapes struct {
	agent    *agent
	registry *prometheus.Registry
	reads    singleflight.Group
}

// register registers all metrics but those of the devices themselves.
func (a *agent) register(reg prometheus.Registerer) { reg.MustRegister(a.collectors()...) }

func (a *agent) collectors() []prometheus.Collector {
	own := []prometheus.Collector{
		a.revision, a.peers, &status.Metrics{Board: a.board, Session: a.session, Counts: a.guard.Counts},
	}
	return slices.Concat(a.devices.Collectors(), a.keys.Collectors(), a.cache.Collectors(), own)
}

// pages are what the agent's HTTP listener serves. It is on the node's addresses, which nodes of other clusters reach:
// who may see keys and addresses of peers asks from this node, or from the subnets that the configuration names
// (docs/adr/0016-metrics-of-peers.md).
func (a *agent) pages(reg *prometheus.Registry) program.Pages {
	return program.Pages{
		Metrics: reg, Private: &scrapes{agent: a, registry: reg},
		Trusted: func(local, remote netip.Addr) bool {
			return remote.IsLoopback() || remote.IsValid() && remote == local ||
				slices.ContainsFunc(a.cfg.PeerMetricsPrefixes, func(p netip.Prefix) bool { return p.Contains(remote) })
		},
		Ready: func() (string, error) {
			now := time.Now()
			return status.Remarks(a.board.Get(), a.session.View(now), now), a.ready()
		},
	}
}

// ready is nil once the node is as desired; see status.Ready.
func (a *agent) ready() error { return status.Ready(a.board.Get(), a.session.View(time.Now())) }

// status is the agent's part of DebugService.
func (a *agent) status() *semaphorev1.GetStatusResponse {
	stream := a.session.View(time.Now())
	s := status.Status(a.board.Get(), stream, a.peers.Status)
	s.Links = append(s.Links, status.Link(stream, a.cfg.Cluster, a.cfg.Broker.Address))
	if problem := a.cache.Problem(); problem != "" {
		s.Problems = append(s.Problems, problem)
	}
	status.AddKernel(s, a.kernel.Device)
	return s
}

// Gather implements prometheus.Gatherer.
func (s *scrapes) Gather() ([]*dto.MetricFamily, error) {
	families, err := s.registry.Gather()
	devices, _, _ := s.reads.Do("", func() (any, error) { return s.agent.readDevices(), nil })
	all := s.agent.cfg.PeerMetrics == config.PeerMetricsAll
	return append(families, devicemetrics.Families(devices.([]*wireguard.Device), all)...), err
}

// readDevices reads all devices that are desired or exist. One that cannot be read is absent, and a problem in the
// status.
func (a *agent) readDevices() []*wireguard.Device {
	var devices []*wireguard.Device
	for _, name := range status.Devices(a.board.Get(), a.session.View(time.Now())) {
		if d, err := a.kernel.Device(name); err == nil && d != nil {
			devices = append(devices, d)
		}
	}
	return devices
}

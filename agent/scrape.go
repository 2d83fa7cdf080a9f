package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/singleflight"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// scrapes gathers the metrics for Prometheus servers: those of a registry, and those of the devices, which are read
// once for all scrapes at the same time.
type scrapes struct {
	agent    *agent
	registry *prometheus.Registry
	reads    singleflight.Group
}

func (a *agent) register(reg prometheus.Registerer) { reg.MustRegister(a.collectors()...) }

func (a *agent) collectors() []prometheus.Collector {
	own := []prometheus.Collector{
		a.revision, a.peers, &status.Metrics{Board: a.board, Session: a.session, Counts: a.guard.Counts},
		debug.Findings(a.found),
	}
	return slices.Concat(a.devices.Collectors(), a.keys.Collectors(), a.cache.Collectors(), own)
}

// pages returns the pages of the agent's HTTP listener. It listens on the node's addresses, which nodes of other
// clusters reach: keys and addresses of peers are shown only to this node and to the subnets that the configuration
// names (docs/metrics.md).
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
		Found: a.found,
	}
}

func (a *agent) ready() error { return status.Ready(a.board.Get(), a.session.View(time.Now())) }

func (a *agent) status() *semaphorev1.GetStatusResponse {
	s := a.describe()
	finding.Judge(s, append(status.AddKernel(s, a.kernel.Device), a.findings()...)...)
	return s
}

func (a *agent) describe() *semaphorev1.GetStatusResponse {
	stream := a.session.View(time.Now())
	s := status.Status(a.board.Get(), stream, a.peers.Status)
	s.Links = append(s.Links, status.Link(stream, a.cfg.Cluster, a.cfg.Broker.Address))
	s.Part, s.Now = "agent", timestamppb.Now() // which the judgement needs
	return s
}

// found returns the findings for a scrape, from a status without the kernel's part: a scrape reads the devices once.
func (a *agent) found() []finding.Finding {
	s := a.describe()
	for _, d := range s.Devices {
		d.PeersPresent = d.PeersDesired // not known here
	}
	return finding.Found(s, a.findings()...)
}

// findings returns the faults, except those that follow from the fields of the status.
func (a *agent) findings() []finding.Finding {
	return append(a.board.Get().Found(a.session.View(time.Now())),
		slices.Concat(finding.Line(finding.StateFileFailed, "", cmp.Or(a.cache.Problem(), a.unreadState())),
			finding.Line(finding.ClockSetBack, "", a.clockProblem()))...)
}

// unreadState returns why the state of an earlier agent is not known; empty once a broker has sent one, which replaces
// it.
func (a *agent) unreadState() string {
	if a.session.Current() {
		return ""
	}
	return a.unread
}

// lookup returns the source of answers to semaphorectl's questions about paths.
func (a *agent) lookup() *paths.Lookup {
	return &paths.Lookup{
		Peers: a.peers, Calls: a.node.Calls,
		Confirmed: func(cluster string) time.Time {
			r, _ := a.session.View(time.Now()).Remote(cluster)
			return r.ConfirmedAt
		},
		Problem: func(cluster string) string { return a.board.Get().Devices[cluster].Problem },
		Dropped: func() uint64 { return a.board.Get().Node.ClearPackets() },
	}
}

func (s *scrapes) Gather() ([]*dto.MetricFamily, error) {
	families, err := s.registry.Gather()
	devices, _, _ := s.reads.Do("", func() (any, error) { return s.agent.readDevices(), nil })
	all := s.agent.cfg.PeerMetrics == config.PeerMetricsAll
	return append(families, status.DeviceFamilies(devices.([]*kernel.Device), all)...), err
}

// readDevices reads all devices that are desired or exist. One that cannot be read is absent, and a problem in the
// status.
func (a *agent) readDevices() []*kernel.Device {
	var devices []*kernel.Device
	for _, cluster := range status.Clusters(a.board.Get(), a.session.View(time.Now())) {
		if d, err := a.kernel.Device(naming.Device(cluster)); err == nil && d != nil {
			devices = append(devices, d)
		}
	}
	return devices
}

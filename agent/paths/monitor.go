// Package paths monitors the paths to the peers of the node's devices: which peers answer, and the MTU that paths to
// them carry.
//
// The Monitor owns that state under a lock that it never holds during a call to another package. In: samples of
// devices, results of probes. Out, as values: the MTU of a device, its silent peers, its part of the report and of the
// status. It reads devices and never changes one. Liveness decides from a device's counters which peers answer.
// MeasurePath sends probes, and a Responder answers those of other nodes. Peers that only get keepalives are asked
// through the tunnel.
package paths

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// SampleEvery is the interval at which Sample reads the devices. It reads a device only if no other caller has read it
	// for twice as long.
	SampleEvery = 5 * time.Second
	// CloseEvery is how often while the peers are watched closely, and maxClosely the longest time for that without
	// another order.
	CloseEvery = time.Second
	maxClosely = time.Minute
	// linksFor is how long Sample does not look up the links to the peers of a device again, which is most of its cost: it
	// is called for all devices each CloseEvery, too, and after each probe, of which there may be several a second.
	linksFor = SampleEvery - CloseEvery
	// Each device has a budget of probes: a burst at the beginning, then one every probeInterval.
	probeInterval = 2 * time.Second
	probeBurst    = 16
	// maxProbes is how many probes of all devices run at a time.
	maxProbes = 8
	// listenRetry is how long after a failure the responder tries to listen again.
	listenRetry = time.Minute
)

type Kernel interface {
	Device(name string) (*kernel.Device, error)
	EgressLinks(to []netip.Addr) ([]kernel.EgressLink, error)
	RouteTo(to, from netip.Addr) (link string, err error)
}

// Desired is the broker's desired state of a device. Its results are nil for a cluster without one, and immutable.
type Desired interface {
	Clusters() []string
	Network(cluster string) *plan.Desired
	Device(cluster string) *semaphorev1.Device
	// Endpoints returns the addresses of some peers, and Nodes the names of the nodes with these public keys, "" for no
	// peer.
	Endpoints(cluster string, most int) []netip.Addr
	Nodes(cluster string, keys []wgtypes.Key) []string
}

type Monitor struct {
	kernel  Kernel
	desired Desired
	events  *events.Sink
	// resize sets a device again because its MTU changed, and report requests a round: a report to the broker, and
	// handshakes.
	resize func(cluster string)
	report func()
	// note returns a cause of silence that applies to all peers; empty for none.
	note func() string

	mu      sync.Mutex
	devices map[string]*device // by cluster
	probes  int                // under way
	// closely is until when the peers are watched closely.
	closely time.Time
	// begin are the peers with which the device to a cluster must begin a handshake now.
	begin map[string][]wgtypes.Key
	// problem is why the node does not answer probes; empty if it does.
	problem string

	// again requests a call of Sample before its interval, because a probe ended.
	again chan struct{}

	measurements *prometheus.CounterVec
}

type device struct {
	liveness Liveness
	// changed means that the silent peers differ from those in the log.
	changed bool
	// mtu is nil if the MTU is configured.
	mtu     *plan.MTU
	verdict plan.MTUVerdict
	pace    *rate.Limiter
	sent    sent
	// linksAt is when Sample last looked up the links to its peers.
	linksAt time.Time
}

// New returns a Monitor. resize and report must not block; any goroutine may call them. note returns a cause of silence
// that applies to all peers; empty for none.
func New(
	k Kernel, desired Desired, sink *events.Sink, resize func(cluster string), report func(), note func() string,
) *Monitor {
	return &Monitor{
		kernel: k, desired: desired, events: sink, resize: resize, report: report, note: note,
		devices: map[string]*device{}, again: make(chan struct{}, 1),
		measurements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_path_measurements_total",
			Help: "Measured paths to peers, by result: whole (as wide as the link), narrow, unanswered (no responder) " +
				"or failed.",
		}, []string{"cluster", "device", "result"}),
	}
}

// device returns the state of a cluster's device, which exists from here until Forget: only the caller of that may call
// this. It must be called with mu held.
func (m *Monitor) device(cluster string) *device {
	d := m.devices[cluster]
	if d == nil {
		d = &device{pace: rate.NewLimiter(rate.Every(probeInterval), probeBurst)}
		m.devices[cluster] = d
	}
	return d
}

func (m *Monitor) Forget(cluster string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.devices, cluster)
	delete(m.begin, cluster)
	m.measurements.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
}

// known reports whether a peer of any device has an endpoint at the address. The responder answers no other address.
func (m *Monitor) known(at netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.devices {
		if d.liveness.Known(at) {
			return true
		}
	}
	return false
}

func (m *Monitor) Silent(cluster string) func(wgtypes.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	silent := map[plan.PeerKey]bool{}
	if d := m.devices[cluster]; d != nil {
		for _, q := range d.liveness.Silent(d.liveness.Counts()[Silent]) {
			silent[q.Key] = true
		}
	}
	return func(key wgtypes.Key) bool { return silent[key] }
}

// Observe records the peers of a desired device as the caller has just read them. It ignores a device that was removed
// meanwhile.
func (m *Monitor) Observe(cluster string, keepalive time.Duration, peers []wgtypes.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, now := m.devices[cluster], time.Now()
	if d == nil {
		return
	}
	d.liveness.Closely(m.isClose(now))
	d.changed = d.liveness.Observe(now, keepalive, samplesOf(peers)) || d.changed
}

func samplesOf(peers []wgtypes.Peer) iter.Seq[PeerSample] {
	return func(yield func(PeerSample) bool) {
		for i := range peers {
			w := &peers[i]
			s := PeerSample{Key: w.PublicKey, Sent: w.TransmitBytes, Received: w.ReceiveBytes,
				Keepalive: w.PersistentKeepaliveInterval}
			for j := 0; j < len(w.AllowedIPs) && !s.Inside.Is4(); j++ { // of IPv6 only if it has no other: nodes may lack it
				if prefix := kernel.PrefixOf(&w.AllowedIPs[j]); j == 0 || prefix.Addr().Is4() {
					s.Inside = prefix.Addr()
				}
			}
			if w.LastHandshakeTime.Unix() > 0 {
				s.Handshake = w.LastHandshakeTime
			}
			s.Endpoint = kernel.EndpointOf(w)
			if !yield(s) {
				return
			}
		}
	}
}

// WithMTU returns the desired device with the MTU that the paths carry, if the broker leaves the MTU to the node.
func (m *Monitor) WithMTU(want *plan.Desired) *semaphorev1.Device {
	cluster := want.Device.GetCluster()
	if want.Device.GetMtu() != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		d := m.device(cluster)
		d.mtu, d.verdict = nil, plan.MTUVerdict{}
		return want.Device
	}
	m.mu.Lock()
	unknown := m.device(cluster).mtu == nil
	m.mu.Unlock()
	var current, base int
	var why string
	if unknown { // without the lock: it reads the device, and up to plan.FewPeers routes, from the kernel
		is, err := m.kernel.Device(naming.Device(cluster))
		if err != nil {
			slog.Warn("cannot read the MTU of the device; the agent derives it again", "error", err)
		} else if is != nil {
			current = is.MTU
		}
		base, why = m.linksTo(cluster, plan.Addresses(want.Peers, plan.FewPeers))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.device(cluster)
	if d.mtu == nil {
		d.mtu = plan.NewMTU(current)
		d.mtu.Links(base, why)
		d.verdict = d.mtu.Decide(time.Now())
	}
	out := proto.CloneOf(want.Device)
	out.Mtu = uint32(d.verdict.MTU)
	return out
}

// linksTo returns the MTU that fits the links to some peers of a cluster, and why.
func (m *Monitor) linksTo(cluster string, to []netip.Addr) (int, string) {
	egress, err := m.kernel.EgressLinks(to)
	if err != nil {
		slog.Warn("cannot look up the links to the peers; the MTU is derived without them", "cluster", cluster, "error", err)
	}
	return plan.MTUFromLinks(egress)
}

// linksDue reports whether the caller must look up the links to the peers of a cluster now.
func (m *Monitor) linksDue(cluster string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, now := m.devices[cluster], time.Now()
	if d == nil || now.Sub(d.linksAt) < linksFor {
		return false
	}
	d.linksAt = now
	return true
}

func (m *Monitor) WatchClosely(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closely = time.Now().Add(min(d, maxClosely))
}

// ProbePeers has some peers of clusters probed for a time from now on, as long as no peer of the cluster answers.
func (m *Monitor) ProbePeers(clusters []string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, cluster := range clusters {
		if known := m.devices[cluster]; known != nil {
			known.liveness.OrderProbes(now, now.Add(min(d, maxClosely)))
		}
	}
}

// Often reports whether Sample is to be called each CloseEvery: the peers are watched closely, or some are probed.
func (m *Monitor) Often() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	often := m.isClose(now)
	for _, d := range m.devices {
		often = often || d.liveness.Probing(now)
	}
	return often
}

// Begin returns the peers with which devices must begin a handshake now, by cluster.
func (m *Monitor) Begin() map[string][]wgtypes.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	begin := m.begin
	m.begin = nil
	return begin
}

// isClose reports whether the peers are watched closely. It must be called with mu held.
func (m *Monitor) isClose(now time.Time) bool { return now.Before(m.closely) }

// Again receives a value when Sample must be called before SampleEvery has passed.
func (m *Monitor) Again() <-chan struct{} { return m.again }

// Sample observes the peers of some devices, and returns the due probes and questions, each to be run in a goroutine.
func (m *Monitor) Sample(clusters []string) []func(context.Context) error {
	var due []func(context.Context) error
	for _, cluster := range clusters {
		due = append(due, m.sample(cluster)...)
	}
	if m.reportDue(time.Now()) {
		m.report()
	}
	return due
}

// sample is Sample for one device.
func (m *Monitor) sample(cluster string) (run []func(context.Context) error) {
	want := m.desired.Device(cluster)
	if want == nil || !m.fresh(cluster, want) {
		return nil
	}
	var base int
	var why string
	if want.GetMtu() == 0 && m.linksDue(cluster) {
		base, why = m.linksTo(cluster, m.desired.Endpoints(cluster, plan.FewPeers))
	}

	now := time.Now()
	m.mu.Lock()
	d := m.devices[cluster]
	if d == nil { // it was removed meanwhile
		m.mu.Unlock()
		return nil
	}
	changed := d.changed
	d.changed = false
	var due []plan.MTUTarget
	was, is := d.verdict, d.verdict
	if d.mtu != nil && want.GetMtu() == 0 {
		if base != 0 {
			d.mtu.Links(base, why)
		}
		candidates, n := d.liveness.Talking, min(int(d.pace.TokensAt(now)), maxProbes-m.probes)
		if want.GetProbePort() == 0 {
			candidates = func(func(plan.PeerKey, netip.AddrPort) bool) {}
		}
		due = d.mtu.Due(now, max(n, 0), candidates, d.liveness.Has)
		d.pace.AllowN(now, len(due))
		m.probes += len(due)
		d.verdict = d.mtu.Decide(now)
		is = d.verdict
	}
	silent, counts := d.liveness.Silent(maxNamed), d.liveness.Counts()
	for _, key := range d.liveness.Probe(now) {
		if m.begin == nil {
			m.begin = map[string][]wgtypes.Key{}
		}
		m.begin[cluster] = append(m.begin[cluster], key)
	}
	unheard := d.liveness.Unheard(now)
	m.mu.Unlock()

	if changed || is.MTU != was.MTU {
		m.reportChanges(cluster, changed, silent, counts, was, is)
	}
	for _, t := range due {
		to := netip.AddrPortFrom(t.Endpoint.Addr(), uint16(want.GetProbePort()))
		run = append(run, func(ctx context.Context) error { return m.probe(ctx, cluster, t, to, is.Base) })
	}
	if len(unheard) > 0 {
		run = append(run, func(ctx context.Context) error { return m.ask(ctx, naming.Device(cluster), unheard) })
	}
	return run
}

// fresh reads the device if that was not done for a while, and reports whether its peers are known.
func (m *Monitor) fresh(cluster string, want *semaphorev1.Device) bool {
	m.mu.Lock()
	now, oldest := time.Now(), 2*SampleEvery
	if m.isClose(now) {
		oldest = CloseEvery / 2
	}
	known := m.devices[cluster]
	stale := known != nil && now.Sub(known.liveness.At()) >= oldest
	m.mu.Unlock()
	if !stale {
		return known != nil
	}
	d, err := m.kernel.Device(naming.Device(cluster))
	if err != nil || d == nil {
		return false // the device's reconciler reports it
	}
	m.Observe(cluster, want.GetPersistentKeepalive().AsDuration(), d.Peers)
	return true
}

// reportChanges reports a change of the silent peers. It reports a changed MTU and requests that the device is set.
func (m *Monitor) reportChanges(
	cluster string, changed bool, silent []SilentPeer, counts PeerCounts, was, is plan.MTUVerdict,
) {
	want := m.desired.Device(cluster)
	if want == nil {
		return
	}
	if changed {
		m.events.Emit(silence(cluster, silent, m.names(cluster, silent), counts, m.note()))
	}
	if is.MTU == was.MTU {
		return
	}
	why := m.reasonOfMTU(want, is)
	m.events.Emit(events.Device(cluster, "mtu", fmt.Sprintf("%d, was %d: %s", is.MTU, was.MTU, why)).
		Info("the MTU changed", "device", naming.Device(cluster), "from", was.MTU, "to", is.MTU, "why", why))
	m.resize(cluster)
}

func (m *Monitor) probe(ctx context.Context, cluster string, of plan.MTUTarget, to netip.AddrPort, most int) error {
	r, err := MeasurePath(ctx, to, plan.LeastMTU, most)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	result := "narrow"
	switch {
	case err != nil:
		result = "failed"
		slog.Debug("cannot measure a path", "to", to, "error", err)
	case !r.Answered:
		result = "unanswered"
	case r.Carries == most:
		result = "whole"
	}
	m.mu.Lock()
	m.probes--
	d := m.devices[cluster]
	if d != nil {
		m.measurements.WithLabelValues(cluster, naming.Device(cluster), result).Inc()
	}
	if d != nil && d.mtu != nil {
		d.mtu.Measured(time.Now(), of, r.MTUResult)
	}
	m.mu.Unlock()
	select {
	case m.again <- struct{}{}:
	default:
	}
	return nil
}

// AnswerProbes answers the probes of other nodes on a UDP address until ctx ends. If it cannot listen it reports that
// and tries again: tunnels do not depend on it. It returns only ctx's error.
func (m *Monitor) AnswerProbes(ctx context.Context, address string) error {
	for {
		r, err := NewResponder(ctx, address, m.known)
		if err == nil {
			m.setProblem("")
			err = r.Run(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if m.setProblem(err.Error()) {
			slog.Warn("cannot answer probes of paths; nodes of other clusters derive the MTU from their links", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(listenRetry):
		}
	}
}

func (m *Monitor) setProblem(problem string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := m.problem != problem
	m.problem = problem
	return changed
}

// names returns the names of the peers' nodes, which the kernel identifies by their keys. It must be called without mu.
func (m *Monitor) names(cluster string, peers []SilentPeer) []string {
	if len(peers) == 0 {
		return nil
	}
	keys := make([]wgtypes.Key, len(peers))
	for i := range peers {
		keys[i] = peers[i].Key
	}
	names := m.desired.Nodes(cluster, keys)
	for i := range names {
		if names[i] == "" {
			names[i] = "a peer that the broker does not desire"
		}
	}
	return names
}

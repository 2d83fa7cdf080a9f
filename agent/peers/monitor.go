//go:build ignore

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/mtu"
	"github.com/kube-semaphore/semaphore/agent/probe"
	"github.com/kube-semaphore/semaphore/agent/talk"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// sampleEvery is how often what is known of the peers of every device is gone through. Their device is read for that only if
	// nobody else has for twice as long.
	sampleEvery = 5 * time.Second
	// A device's paths are measured at this pace: at once for a few, then one every so often.
	measureEvery = 2 * time.Second
	measureAtOne = 16
	// measuring is how many are measured at a time, of all devices.
	measuring = 8
	// maxWays is how many peers are asked the way to: the MTU of links does not differ by peer but in strange networks.
	maxWays = 64
	// probeRetry is when a responder that could not listen tries again.
	probeRetry = time.Minute
)

// paths is what is known of the paths to the peers of each device: who talks, and what fits. It has a lock of its own, which may
// be taken with the agent's held, and not the other way round.
type paths struct {
	mu      sync.Mutex
	devices map[string]*devicePaths // by cluster
	busy    int
	// again wakes who looks after the paths before the next look is due.
	again chan struct{}
	// samples are room for what observe takes, of which nothing is kept.
	samples []talk.Sample
	// problem is why no probes are answered, if so.
	problem string

	measurements *prometheus.CounterVec
}

type devicePaths struct {
	talk talk.Device
	// changed says that silent peers are others than were last told of in the log.
	changed bool
	// mtu is nil while the MTU is configured.
	mtu     *mtu.Device
	verdict mtu.Verdict
	pace    *rate.Limiter
	told    pathsReport
}

func newPaths() *paths {
	return &paths{
		devices: map[string]*devicePaths{}, again: make(chan struct{}, 1),
		measurements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_path_measurements_total",
			Help: "Paths to peers that were measured, by result: whole (as wide as the link), narrow, unanswered (no responder there) or failed.",
		}, []string{"device", "result"}),
	}
}

// of is what is known of a cluster's device. It is called with mu held.
func (p *paths) of(cluster string) *devicePaths {
	d := p.devices[cluster]
	if d == nil {
		d = &devicePaths{pace: rate.NewLimiter(rate.Every(measureEvery), measureAtOne)}
		p.devices[cluster] = d
	}
	return d
}

func (p *paths) forget(cluster string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.devices, cluster)
	p.measurements.DeletePartialMatch(prometheus.Labels{"device": naming.Device(cluster)})
}

// known says whether any peer of any device is at an address.
func (p *paths) known(at netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.devices {
		if d.talk.Known(at) {
			return true
		}
	}
	return false
}

// silent says of peers of a cluster's device whether they are sent to and do not answer.
func (p *paths) silent(cluster string) func(wgtypes.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := map[talk.Key]bool{}
	if d := p.devices[cluster]; d != nil && d.talk.Counts().Silent > 0 {
		for _, q := range d.talk.Silent(d.talk.Counts().Silent) {
			silent[q.Key] = true
		}
	}
	return func(key wgtypes.Key) bool { return silent[talk.Key(key)] }
}

// observe takes what somebody has read of a wanted device.
func (p *paths) observe(cluster string, keepalive time.Duration, peers []wgtypes.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples = p.samples[:0]
	for i := range peers {
		w := &peers[i]
		s := talk.Sample{Key: w.PublicKey, Sent: w.TransmitBytes, Received: w.ReceiveBytes}
		if w.LastHandshakeTime.Unix() > 0 {
			s.Handshake = w.LastHandshakeTime
		}
		if w.Endpoint != nil {
			at := w.Endpoint.AddrPort()
			s.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		p.samples = append(p.samples, s)
	}
	d := p.of(cluster)
	d.changed = d.talk.Observe(time.Now(), keepalive, p.samples) || d.changed
}

// sized is a device as the broker wants it with the MTU that was found, where the broker leaves it to the node.
func (p *paths) sized(want *desired.Network) *semaphorev1.Device {
	cluster := want.Device.GetCluster()
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.of(cluster)
	if want.Device.GetMtu() != 0 {
		d.mtu, d.verdict = nil, mtu.Verdict{}
		return want.Device
	}
	if d.mtu == nil {
		standing, err := wireguard.MTU(naming.Device(cluster))
		if err != nil {
			slog.Warn("the MTU of the device is taken for unknown", "error", err)
		}
		d.mtu = mtu.New(standing)
		d.mtu.Links(linksTo(cluster, endpoints(want.Peers)))
		d.verdict = d.mtu.Decide(time.Now())
	}
	out := proto.Clone(want.Device).(*semaphorev1.Device)
	out.Mtu = uint32(d.verdict.MTU)
	return out
}

// endpoints are the addresses of the first peers, by name.
func endpoints(peers map[string]*semaphorev1.Peer) (to []netip.Addr) {
	for _, node := range slices.Sorted(maps.Keys(peers)) {
		if len(to) == maxWays {
			break
		}
		if at, err := netip.ParseAddrPort(peers[node].GetWireguard().GetAddress()); err == nil {
			to = append(to, at.Addr())
		}
	}
	return to
}

// linksTo is the MTU that fits the links to some peers of a cluster, and why.
func linksTo(cluster string, to []netip.Addr) (int, string) {
	ways, err := wireguard.Ways(to)
	if err != nil {
		slog.Warn("the links to the peers cannot be found", "cluster", cluster, "error", err)
	}
	links := make([]mtu.Link, len(ways))
	for i, w := range ways {
		links[i] = mtu.Link{Endpoint: w.To, Name: w.Link, MTU: w.MTU}
	}
	return mtu.FromLinks(links)
}

// watchPaths looks after the paths of all devices until ctx ends.
func (a *agent) watchPaths(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			case <-a.paths.again:
			}
			a.mu.Lock()
			clusters := slices.Collect(maps.Keys(a.networks))
			a.mu.Unlock()
			slices.Sort(clusters)
			for _, cluster := range clusters {
				for _, m := range a.look(cluster) {
					g.Go(func() error { return a.measure(ctx, m) })
				}
			}
			if a.pathsNews(time.Now()) {
				a.poke()
			}
		}
	})
	return g.Wait()
}

// measurement is a path to measure.
type measurement struct {
	cluster string
	target  mtu.Target
	port    uint16
	most    int
}

// look looks at the peers of one device, and returns the paths to measure now.
func (a *agent) look(cluster string) []measurement {
	device := naming.Device(cluster)
	a.mu.Lock()
	state := a.state.Network(cluster)
	if state == nil || a.networks[cluster] == nil {
		a.mu.Unlock()
		return nil
	}
	want := state.Device
	derived := want.GetMtu() == 0
	var to []netip.Addr
	if derived {
		to = endpoints(state.Peers)
	}
	a.mu.Unlock()
	keepalive := want.GetPersistentKeepalive().AsDuration()

	p := a.paths
	p.mu.Lock()
	stale := time.Since(p.of(cluster).talk.At()) >= 2*sampleEvery
	p.mu.Unlock()
	if stale {
		stands, err := a.host.Device(device)
		if err != nil || stands == nil {
			return nil // which is told by those who set it
		}
		p.observe(cluster, keepalive, stands.Peers)
	}
	var base int
	var why string
	if derived {
		base, why = linksTo(cluster, to)
	}

	now := time.Now()
	p.mu.Lock()
	d := p.of(cluster)
	told := d.changed
	d.changed = false
	var due []mtu.Target
	was, is := d.verdict, d.verdict
	if d.mtu != nil && base != 0 {
		d.mtu.Links(base, why)
		candidates, n := d.talk.Talking, min(int(d.pace.TokensAt(now)), measuring-p.busy)
		if want.GetProbePort() == 0 {
			candidates = func(func(talk.Key, netip.AddrPort) bool) {}
		}
		due = d.mtu.Due(now, max(n, 0), candidates, d.talk.Has)
		d.pace.AllowN(now, len(due))
		p.busy += len(due)
		d.verdict = d.mtu.Decide(now)
		is = d.verdict
	}
	silent, counts := d.talk.Silent(maxNamed), d.talk.Counts()
	p.mu.Unlock()

	if told || is.MTU != was.MTU {
		a.tellPaths(cluster, device, told, silent, counts, was, is)
	}
	out := make([]measurement, len(due))
	for i, t := range due {
		out[i] = measurement{cluster, t, uint16(want.GetProbePort()), base}
	}
	return out
}

// tellPaths tells of peers that are silent, or are no more, and of an MTU that has changed.
func (a *agent) tellPaths(cluster, device string, told bool, silent []talk.Quiet, counts talk.Counts, was, is mtu.Verdict) {
	want := a.wanted(cluster) // with the names of peers, which are of no use otherwise
	if want == nil {
		return
	}
	if told {
		a.tellSilent(device, want, silent, counts)
	}
	if is.MTU != was.MTU {
		a.tellMTU(cluster, device, want, was, is)
	}
}

// tellMTU has a device set to an MTU that has changed.
func (a *agent) tellMTU(cluster, device string, want *desired.Network, was, is mtu.Verdict) {
	why := reasonOfMTU(want, is)
	slog.Info("the MTU changes", "device", device, "from", was.MTU, "to", is.MTU, "why", why)
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "mtu", Detail: fmt.Sprintf("%d, was %d: %s", is.MTU, was.MTU, why)})
	a.mu.Lock()
	a.dirty.networks[cluster] = true
	a.mu.Unlock()
	a.poke()
}

// measure measures one path.
func (a *agent) measure(ctx context.Context, m measurement) error {
	to := netip.AddrPortFrom(m.target.Endpoint.Addr(), m.port)
	r, err := probe.Measure(ctx, to, mtu.Least, m.most)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	result := "narrow"
	switch {
	case err != nil:
		result = "failed"
		slog.Debug("a path cannot be measured", "to", to, "error", err)
	case !r.Answered:
		result = "unanswered"
	case r.Carries == m.most:
		result = "whole"
	}
	a.paths.measurements.WithLabelValues(naming.Device(m.cluster), result).Inc()
	p := a.paths
	p.mu.Lock()
	p.busy--
	if d := p.devices[m.cluster]; d != nil && d.mtu != nil {
		d.mtu.Measured(time.Now(), m.target, mtu.Result{Answered: r.Answered, Carries: r.Carries})
	}
	p.mu.Unlock()
	select {
	case p.again <- struct{}{}:
	default:
	}
	return nil
}

// answerProbes answers the probes of other nodes until ctx ends. Where it cannot listen it says so and tries again: tunnels do not
// depend on it.
func (a *agent) answerProbes(ctx context.Context) error {
	if a.cfg.Listen.Probe == config.NoProbe {
		return nil
	}
	for {
		r, err := probe.Listen(ctx, a.cfg.Listen.Probe, a.paths.known)
		if err == nil {
			a.paths.setProblem("")
			err = r.Run(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if a.paths.setProblem(err.Error()) {
			slog.Warn("probes of paths are not answered; nodes of other clusters go by their links", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(probeRetry):
		}
	}
}

// setProblem returns whether it is news.
func (p *paths) setProblem(problem string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.problem != problem
	p.problem = problem
	return news
}

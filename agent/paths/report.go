package paths

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxNamed is how many silent peers the log names.
	maxNamed = 5
	// maxSilent is how many silent peers a report names.
	maxSilent = 50
	// minSilentInterval and minCountInterval are the minimal times between two reports that differ in their silent
	// peers, and in their counts alone: thousands of agents report to one broker.
	minSilentInterval = 5 * time.Second
	minCountInterval  = 30 * time.Second
)

func silence(cluster string, silent []SilentPeer, names []string, counts PeerCounts, note string) events.Event {
	device := naming.Device(cluster)
	if counts[Silent] == 0 {
		return events.Device(cluster, "talk", "all peers answer again").
			Info("all peers answer again", "device", device)
	}
	var parts []string
	for i, q := range silent {
		parts = append(parts, names[i]+" ("+reasonOf(q, note)+")")
	}
	which := strings.Join(parts, ", ")
	detail := fmt.Sprintf("%d peers do not answer: %s", counts[Silent], which)
	if more := counts[Silent] - len(silent); more > 0 {
		detail += fmt.Sprintf(" and %d more", more)
	}
	return events.Device(cluster, "silence", detail).
		Warn("peers do not answer; semaphorectl explain finds the broken link", "device", device, "peers", counts[Silent],
			"which", which)
}

// reasonOf returns why a peer is silent, as far as this node knows. note is a cause that applies to all peers.
func reasonOf(q SilentPeer, note string) string {
	endpoint := "no endpoint is known"
	if q.Endpoint.IsValid() {
		endpoint = "endpoint " + q.Endpoint.String()
	}
	if note != "" {
		endpoint += "; " + note
	}
	if q.Handshake.IsZero() {
		return "no answer to handshakes; " + endpoint
	}
	return fmt.Sprintf("no answer since the session of %s; %s", q.Handshake.UTC().Format(time.TimeOnly), endpoint)
}

// reasonOfMTU must be called without mu.
func (m *Monitor) reasonOfMTU(want *semaphorev1.Device, v plan.MTUVerdict) string {
	switch {
	case want.GetMtu() != 0:
		return "as configured"
	case v.Limit != nil:
		node := m.names(want.GetCluster(), []SilentPeer{{Key: *v.Limit}})[0]
		if v.Carries == 0 {
			return fmt.Sprintf("the path to %s carries less than fits this, the least", node)
		}
		return fmt.Sprintf("the path to %s carries no more", node)
	case v.MTU < v.Base:
		return "a path carried no more until lately, or may not; " + v.Why
	}
	return v.Why
}

// sent is the content of the last report about a device's peers.
type sent struct {
	at     time.Time
	counts PeerCounts
	newest time.Time
	silent []SilentPeer
	// unanswered is the number of probed peers that did not answer.
	unanswered int
	// bytes are those sent and received until then, and rates their rate since the report before.
	bytes, rates traffic
}

type traffic struct{ sent, received int64 }

// leastRate is the traffic in bytes per second below which a change of the rate causes no report: an idle device has
// keepalives and handshakes.
const leastRate = 1 << 10

// ratesSince returns the bytes per second since the last report; zero if there was none.
func (d *device) ratesSince(now time.Time) (t traffic) {
	seconds := now.Sub(d.sent.at).Seconds()
	if d.sent.at.IsZero() || seconds <= 0 {
		return t
	}
	sent, received := d.liveness.Traffic()
	was := d.sent.bytes
	return traffic{int64(float64(sent-was.sent) / seconds), int64(float64(received-was.received) / seconds)}
}

// differs reports whether a rate differs by more than a tenth.
func (t traffic) differs(from traffic) bool {
	other := func(a, b int64) bool { return max(a, b) >= leastRate && max(a, b)-min(a, b) > max(a, b)/10 }
	return other(t.sent, from.sent) || other(t.received, from.received)
}

// reportDue reports whether a new report would differ and enough time has passed since the last one. It must be called
// with the Monitor's mu held.
func (d *device) reportDue(now time.Time, closely bool) bool {
	passed := now.Sub(d.sent.at)
	counts := d.liveness.Counts()
	if passed >= minCountInterval && d.ratesSince(now).differs(d.sent.rates) {
		return true
	}
	least := minSilentInterval
	if closely {
		least = CloseEvery / 2
	}
	answers := d.sent.unanswered != d.liveness.Unanswered()
	if d.sent.counts == counts && d.sent.newest.Equal(d.liveness.Newest()) && !answers || passed < least {
		return false
	}
	return passed >= minCountInterval || answers || d.sent.counts[Silent] != counts[Silent] ||
		!slices.EqualFunc(d.sent.silent, d.liveness.Silent(maxSilent), sameQuiet)
}

func (d *device) takeReport(now time.Time) {
	rates := d.ratesSince(now)
	if passed := now.Sub(d.sent.at); passed < minCountInterval && !d.sent.at.IsZero() {
		rates = d.sent.rates // too short a time for a rate
	}
	next := sent{at: now, counts: d.liveness.Counts(), newest: d.liveness.Newest(), silent: d.liveness.Silent(maxSilent),
		unanswered: d.liveness.Unanswered(), rates: rates}
	next.bytes.sent, next.bytes.received = d.liveness.Traffic()
	d.sent = next
}

func sameQuiet(a, b SilentPeer) bool {
	return a.Key == b.Key && a.Since.Equal(b.Since) && a.Endpoint == b.Endpoint
}

// reportDue reports whether a round has something to do: a report to the broker, or handshakes to begin.
func (m *Monitor) reportDue(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.begin) > 0 {
		return true
	}
	for _, d := range m.devices {
		if d.reportDue(now, m.isClose(now)) {
			return true
		}
	}
	return false
}

// Report adds the state of its peers to the report of a desired device: as in the last report, or as of now if a new
// one is due.
func (m *Monitor) Report(r *semaphorev1.DeviceReport) *semaphorev1.DeviceReport {
	m.mu.Lock()
	d := m.devices[r.GetCluster()]
	if d == nil {
		m.mu.Unlock()
		return r
	}
	if now := time.Now(); d.reportDue(now, m.isClose(now)) {
		d.takeReport(now)
	}
	sent := d.sent
	m.mu.Unlock()
	r = proto.CloneOf(r)
	r.LastHandshake = semaphorev1.Time(sent.newest)
	r.SentPerSecond, r.ReceivedPerSecond = uint64(max(0, sent.rates.sent)), uint64(max(0, sent.rates.received))
	c := sent.counts
	r.PeersUnanswered = uint32(sent.unanswered)
	r.PeersTalking, r.PeersSilent, r.PeersIdle = uint32(c[Talking]), uint32(c[Silent]), uint32(c[Idle])
	names := m.names(r.GetCluster(), sent.silent)
	for i, q := range sent.silent {
		r.Silent = append(r.Silent, &semaphorev1.SilentPeer{
			Node: names[i], Since: semaphorev1.Time(q.Since), Reason: reasonOf(q, m.note()),
		})
	}
	return r
}

// Session returns the state of the session with a peer, and for a silent peer since when and why; "" for a peer that
// the device did not have when it was last read.
func (m *Monitor) Session(cluster string, key plan.PeerKey) (state string, since time.Time, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[cluster]
	if d == nil {
		return "", time.Time{}, ""
	}
	is, q, ok := d.liveness.Peer(key)
	switch {
	case !ok:
		return "", time.Time{}, ""
	case is == Silent:
		return is.String(), q.Since, reasonOf(q, m.note())
	}
	return is.String(), time.Time{}, ""
}

// Status returns the status of the paths of a desired device; nil if nothing is known of them.
func (m *Monitor) Status(cluster string) *semaphorev1.PathsStatus {
	m.mu.Lock()
	d := m.devices[cluster]
	if d == nil {
		m.mu.Unlock()
		return nil
	}
	c, verdict, silent, problem := d.liveness.Counts(), d.verdict, d.liveness.Silent(maxSilent), m.problem
	m.mu.Unlock()
	want := m.desired.Device(cluster)
	if want == nil {
		return nil
	}
	out := &semaphorev1.PathsStatus{
		Talking: uint32(c[Talking]), Silent: uint32(c[Silent]), Idle: uint32(c[Idle]),
		MtuReason: m.reasonOfMTU(want, verdict),
		Measured:  uint32(verdict.Measured), Unanswered: uint32(verdict.Unanswered),
	}
	if problem != "" {
		out.MtuReason += "; probes of other nodes are not answered: " + problem
	}
	names := m.names(cluster, silent)
	for i, q := range silent {
		out.SilentPeers = append(out.SilentPeers, &semaphorev1.SilentPair{
			Cluster: cluster, RemoteNode: names[i], Since: semaphorev1.Time(q.Since), Reason: reasonOf(q, m.note()),
		})
	}
	return out
}

var (
	peersDesc = prometheus.NewDesc("semaphore_agent_peers",
		"Peers of a device by state: talking (with a working session), silent (packets were sent, none received) or idle.",
		[]string{"cluster", "device", "state"}, nil)
	mtuDesc = prometheus.NewDesc("semaphore_agent_mtu_bytes",
		"The MTU that the agent derived for a device; absent if it is configured.", []string{"cluster", "device"}, nil)
)

func (m *Monitor) Describe(ch chan<- *prometheus.Desc) {
	ch <- peersDesc
	ch <- mtuDesc
	m.measurements.Describe(ch)
}

// Collect implements prometheus.Collector. It sends nothing while it holds the lock, because a scrape may be slow.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) {
	var out []prometheus.Metric
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
	}
	m.mu.Lock()
	for cluster, d := range m.devices {
		device := naming.Device(cluster)
		for state, n := range d.liveness.Counts() {
			gauge(peersDesc, float64(n), cluster, device, PeerState(state).String())
		}
		if d.verdict.MTU > 0 {
			gauge(mtuDesc, float64(d.verdict.MTU), cluster, device)
		}
	}
	m.mu.Unlock()
	for _, metric := range out {
		ch <- metric
	}
	m.measurements.Collect(ch)
}

package status

import (
	"encoding/base64"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type DeviceMetric struct {
	Name, Help string
	Type       dto.MetricType
	// Labels are in alphabetical order.
	Labels []string
	// Peer means that the metric has a series for each peer.
	Peer bool
}

// The metrics, in the order of their names.
const (
	metricBackend = iota
	metricApplied
	metricDevice
	metricAllowedIPs
	metricPeer
	metricHandshake
	metricReceived
	metricSent
	metricCount
)

// Names of labels, for pointers to them.
var (
	labelAllowed, labelBackend, labelCluster = "allowed_ips", "backend", "cluster"
	labelDevice, labelEndpoint, labelKey     = "device", "endpoint", "public_key"
)

var DeviceMetrics = [metricCount]DeviceMetric{
	metricBackend: {"semaphore_agent_device_backend_info", "Always 1; the backend of a device, kernel or userspace.",
		dto.MetricType_GAUGE, []string{labelBackend, labelCluster, labelDevice}, false},
	metricApplied: {"semaphore_agent_peers_applied", "Peers that a device has.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice}, false},
	metricDevice: {"semaphore_wg_device_info", "Always 1; a WireGuard device of this node.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice, labelKey}, false},
	metricAllowedIPs: {"semaphore_wg_peer_allowed_ips_info", "Always 1; an allowed IP of a peer.", dto.MetricType_GAUGE,
		[]string{labelAllowed, labelCluster, labelDevice, labelKey}, true},
	metricPeer: {"semaphore_wg_peer_info", "Always 1; a peer of a device.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice, labelEndpoint, labelKey}, true},
	metricHandshake: {"semaphore_wg_peer_last_handshake_seconds", "Last handshake with a peer, Unix time; 0 for never.",
		dto.MetricType_GAUGE, []string{labelCluster, labelDevice, labelKey}, true},
	metricReceived: {"semaphore_wg_peer_receive_bytes_total", "Bytes received from a peer.", dto.MetricType_COUNTER,
		[]string{labelCluster, labelDevice, labelKey}, true},
	metricSent: {"semaphore_wg_peer_transmit_bytes_total", "Bytes sent to a peer.", dto.MetricType_COUNTER,
		[]string{labelCluster, labelDevice, labelKey}, true},
}

// DeviceFamilies returns the metrics of devices, with those of their peers if peers is set.
func DeviceFamilies(devices []*kernel.Device, peers bool) []*dto.MetricFamily {
	b := newFamilyBuilder(devices, peers)
	for _, d := range devices {
		cluster, name := pair(&labelCluster, clusterOf(d)), pair(&labelDevice, d.Name)
		b.gauge(metricBackend, 1, pair(&labelBackend, d.Backend), cluster, name)
		b.gauge(metricApplied, float64(len(d.Peers)), cluster, name)
		b.gauge(metricDevice, 1, cluster, name, pair(&labelKey, d.PublicKey.String()))
		if peers {
			for i := range d.Peers {
				b.peer(cluster, name, &d.Peers[i])
			}
		}
	}
	var out []*dto.MetricFamily
	for i := range b.series {
		if len(b.series[i]) > 0 {
			m := &DeviceMetrics[i]
			out = append(out, &dto.MetricFamily{Name: &m.Name, Help: &m.Help, Type: &m.Type, Metric: b.series[i]})
		}
	}
	return out
}

// clusterOf returns the remote cluster of a device, which its alias names. A device that is not the agent's yet has
// none, and its own name.
func clusterOf(d *kernel.Device) string {
	if cluster, ok := strings.CutPrefix(d.Alias, naming.DeviceAlias("")); ok {
		return cluster
	}
	cluster, _ := strings.CutPrefix(d.Name, naming.DeviceAlias(""))
	return cluster
}

// familyBuilder allocates from slabs of one type each. A device has thousands of peers with five or more series each,
// which are most of the cost of a scrape: a constant metric of client_golang takes several allocations, and a Registry
// checks each series, although no other code uses these names and labels.
type familyBuilder struct {
	series   [metricCount][]*dto.Metric
	metrics  slab[dto.Metric]
	labels   []*dto.LabelPair
	gauges   slab[dto.Gauge]
	counters slab[dto.Counter]
	values   slab[float64]
	pairs    slab[dto.LabelPair]
	texts    slab[string]
	// page has the bytes of texts, and scratch those of the next one.
	page    *strings.Builder
	scratch []byte
}

// slab is a supply of values, allocated about a thousand at a time.
type slab[T any] []T

func (s *slab[T]) put(v T) *T {
	if len(*s) == cap(*s) {
		*s = make([]T, 0, 1024)
	}
	*s = append(*s, v)
	return &(*s)[len(*s)-1]
}

// maxLabelText is larger than any label of a peer, and pageSize holds many of them, both in bytes.
const maxLabelText, pageSize = 64, 64 << 10

// text moves the content of scratch to the page, and returns it.
func (b *familyBuilder) text(appended []byte) *string {
	b.scratch = appended[:0]
	if b.page == nil || b.page.Cap()-b.page.Len() < len(appended) {
		b.page = &strings.Builder{}
		b.page.Grow(pageSize)
	}
	from := b.page.Len()
	b.page.Write(appended)
	return b.texts.put(b.page.String()[from:])
}

func newFamilyBuilder(devices []*kernel.Device, peers bool) *familyBuilder {
	b := &familyBuilder{scratch: make([]byte, 0, maxLabelText)}
	n := 0
	for _, d := range devices {
		n += len(d.Peers)
	}
	if peers {
		for i := range DeviceMetrics {
			if DeviceMetrics[i].Peer {
				b.series[i] = make([]*dto.Metric, 0, n)
			}
		}
	}
	return b
}

func pair(name *string, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: name, Value: &value}
}

var oneMetric = &dto.Gauge{Value: proto.Float64(1)}

func (b *familyBuilder) peer(cluster, name *dto.LabelPair, p *wgtypes.Peer) {
	label := func(name *string, appended []byte) *dto.LabelPair {
		return b.pairs.put(dto.LabelPair{Name: name, Value: b.text(appended)})
	}
	key := label(&labelKey, base64.StdEncoding.AppendEncode(b.scratch, p.PublicKey[:]))
	for i := range p.AllowedIPs {
		prefix := kernel.PrefixOf(&p.AllowedIPs[i])
		b.add(metricAllowedIPs, label(&labelAllowed, prefix.AppendTo(b.scratch)), cluster, name, key).Gauge = oneMetric
	}
	endpoint := b.scratch
	if p.Endpoint != nil {
		endpoint = kernel.EndpointOf(p).AppendTo(endpoint)
	}
	b.add(metricPeer, cluster, name, label(&labelEndpoint, endpoint), key).Gauge = oneMetric
	last := int64(0)
	if p.LastHandshakeTime.Unix() > 0 {
		last = p.LastHandshakeTime.Unix()
	}
	b.gauge(metricHandshake, float64(last), cluster, name, key)
	b.counter(metricReceived, p.ReceiveBytes, cluster, name, key)
	b.counter(metricSent, p.TransmitBytes, cluster, name, key)
}

func (b *familyBuilder) gauge(metric int, v float64, labels ...*dto.LabelPair) {
	b.add(metric, labels...).Gauge = b.gauges.put(dto.Gauge{Value: b.values.put(v)})
}

func (b *familyBuilder) counter(metric int, v int64, labels ...*dto.LabelPair) {
	b.add(metric, labels...).Counter = b.counters.put(dto.Counter{Value: b.values.put(float64(v))})
}

// add adds a series. The labels are in the order of the metric's.
func (b *familyBuilder) add(metric int, labels ...*dto.LabelPair) *dto.Metric {
	if len(b.labels)+len(labels) > cap(b.labels) {
		b.labels = make([]*dto.LabelPair, 0, 1024)
	}
	from := len(b.labels)
	b.labels = append(b.labels, labels...)
	m := b.metrics.put(dto.Metric{Label: b.labels[from:len(b.labels):len(b.labels)]})
	b.series[metric] = append(b.series[metric], m)
	return m
}

package status

import (
	"strings"

	dto "github.com/prometheus/client_model/go"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type DeviceMetric struct {
	Name, Help string
	Type       dto.MetricType
	// Labels are in alphabetical order.
	Labels []string
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

var (
	labelAllowed, labelBackend, labelCluster = "allowed_ips", "backend", "cluster"
	labelDevice, labelEndpoint, labelKey     = "device", "endpoint", "public_key"
)

var DeviceMetrics = [metricCount]DeviceMetric{
	metricBackend: {"semaphore_agent_device_backend_info", "Always 1; the backend of a device, kernel or userspace.",
		dto.MetricType_GAUGE, []string{labelBackend, labelCluster, labelDevice}},
	metricApplied: {"semaphore_agent_peers_applied", "Peers that a device has.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice}},
	metricDevice: {"semaphore_wg_device_info", "Always 1; a WireGuard device of this node.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice, labelKey}},
	metricAllowedIPs: {"semaphore_wg_peer_allowed_ips_info", "Always 1; an allowed IP of a peer.", dto.MetricType_GAUGE,
		[]string{labelAllowed, labelCluster, labelDevice, labelKey}},
	metricPeer: {"semaphore_wg_peer_info", "Always 1; a peer of a device.", dto.MetricType_GAUGE,
		[]string{labelCluster, labelDevice, labelEndpoint, labelKey}},
	metricHandshake: {"semaphore_wg_peer_last_handshake_seconds", "Last handshake with a peer, Unix time; 0 for never.",
		dto.MetricType_GAUGE, []string{labelCluster, labelDevice, labelKey}},
	metricReceived: {"semaphore_wg_peer_receive_bytes_total", "Bytes received from a peer.", dto.MetricType_COUNTER,
		[]string{labelCluster, labelDevice, labelKey}},
	metricSent: {"semaphore_wg_peer_transmit_bytes_total", "Bytes sent to a peer.", dto.MetricType_COUNTER,
		[]string{labelCluster, labelDevice, labelKey}},
}

type families [metricCount][]*dto.Metric

// DeviceFamilies returns the metrics of devices, with those of their peers if peers is set. They are not constant
// metrics of client_golang, because a Registry checks each of them, although no other code uses these names and labels:
// a device has thousands of peers with five or more series each, which are most of the cost of a scrape.
func DeviceFamilies(devices []*kernel.Device, peers bool) []*dto.MetricFamily {
	var all families
	for _, d := range devices {
		cluster, name := pair(&labelCluster, clusterOf(d)), pair(&labelDevice, d.Name)
		all.add(metricBackend, 1, pair(&labelBackend, d.Backend), cluster, name)
		all.add(metricApplied, float64(len(d.Peers)), cluster, name)
		all.add(metricDevice, 1, cluster, name, pair(&labelKey, d.PublicKey.String()))
		if peers {
			for i := range d.Peers {
				all.peer(cluster, name, &d.Peers[i])
			}
		}
	}
	var out []*dto.MetricFamily
	for i := range all {
		if len(all[i]) > 0 {
			m := &DeviceMetrics[i]
			out = append(out, &dto.MetricFamily{Name: &m.Name, Help: &m.Help, Type: &m.Type, Metric: all[i]})
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

func pair(name *string, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: name, Value: &value}
}

func (f *families) peer(cluster, name *dto.LabelPair, p *wgtypes.Peer) {
	key := pair(&labelKey, p.PublicKey.String())
	for i := range p.AllowedIPs {
		prefix, _ := kernel.PrefixOf(&p.AllowedIPs[i])
		f.add(metricAllowedIPs, 1, pair(&labelAllowed, prefix.String()), cluster, name, key)
	}
	endpoint := ""
	if p.Endpoint != nil {
		endpoint = kernel.EndpointOf(p).String()
	}
	f.add(metricPeer, 1, cluster, name, pair(&labelEndpoint, endpoint), key)
	f.add(metricHandshake, float64(max(0, p.LastHandshakeTime.Unix())), cluster, name, key)
	f.add(metricReceived, float64(p.ReceiveBytes), cluster, name, key)
	f.add(metricSent, float64(p.TransmitBytes), cluster, name, key)
}

// add adds a series. The labels are in the order of the metric's.
func (f *families) add(metric int, v float64, labels ...*dto.LabelPair) {
	m := &dto.Metric{Label: labels}
	if DeviceMetrics[metric].Type == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &v}
	} else {
		m.Gauge = &dto.Gauge{Value: &v}
	}
	f[metric] = append(f[metric], m)
}

package config

import (
	"reflect"
	"strings"
)

// Limits bound what one remote may export. Objects over a limit are refused one by one. Numbers count objects unless
// said otherwise.
type Limits struct {
	// Size is that from which unset limits come.
	Size Size `json:"-"`

	Nodes int `json:"nodes"`
	// PodCIDRs bounds those of all nodes, PodCIDRsPerNode those of one: each is an allowed IP of a peer on every node
	// of this cluster.
	PodCIDRs        int `json:"podCIDRs"`
	PodCIDRsPerNode int `json:"podCIDRsPerNode"`
	Services        int `json:"services"`
	// PortsPerService bounds those of one Service, and of one EndpointSlice.
	PortsPerService int `json:"portsPerService"`
	// ClusterIPs bounds the Services with a ClusterIP that the broker creates for Services of the remote: one for each
	// mirror, each global service and each imported Service; headless ones need none.
	ClusterIPs int `json:"clusterIPs"`
	// Exports bounds the Services with a ServiceExport.
	Exports        int `json:"exports"`
	EndpointSlices int `json:"endpointSlices"`
	// Endpoints bounds the addresses in all EndpointSlices, EndpointsPerService those in the slices of one Service.
	Endpoints           int `json:"endpoints"`
	EndpointsPerService int `json:"endpointsPerService"`
	SetMembers          int `json:"setMembers"`
	// SetIPs bounds the addresses of all SetMembers, IPsPerSet those of one set.
	SetIPs    int `json:"setIPs"`
	IPsPerSet int `json:"ipsPerSet"`
	// MebibytesPerKind bounds the size of all objects of a kind, as they are encoded on the wire.
	MebibytesPerKind int `json:"mebibytesPerKind"`
	// KibibytesPerSecond bounds the uncompressed bytes that the broker reads from a remote's streams, and the bytes
	// that it writes to the apiserver for the remote. The burst is ByteBurst seconds' worth.
	KibibytesPerSecond int `json:"kibibytesPerSecond"`
	// ChangesPerSecond bounds the changes read from a stream. A snapshot does not count up to the limit of objects.
	// Heartbeats and messages that cannot be parsed count like changes. The burst is ten seconds' worth.
	ChangesPerSecond int `json:"changesPerSecond"`
	// StreamsPerMinute bounds how often the exporter may open a stream.
	StreamsPerMinute int `json:"streamsPerMinute"`
}

// Size names the limits of a remote.
type Size string

// The three sizes: limits above what a cluster of 50, 500 and 5,000 nodes exports.
const (
	Small  Size = "small"
	Medium Size = "medium"
	Large  Size = "large"
)

// maxSetIPs bounds the addresses of all remotes together. A policy's selector may select all sets, and Felix writes
// their addresses to one ipset of at most 1,048,576; with more, calico-node does not start.
const maxSetIPs = 1_000_000

// LimitsOf returns the limits of a size; ok is false if there is no such size. remotes is the number of remotes that
// share the common bounds.
func LimitsOf(size Size, remotes int) (l Limits, ok bool) {
	switch size {
	case Small:
		l = Limits{Nodes: 100, PodCIDRs: 1_000, PodCIDRsPerNode: 64, Services: 200, PortsPerService: 100,
			ClusterIPs: 200, Exports: 200, EndpointSlices: 1_000, Endpoints: 10_000, EndpointsPerService: 1_000,
			SetMembers: 10_000, SetIPs: 20_000, MebibytesPerKind: 8, KibibytesPerSecond: 256, ChangesPerSecond: 200,
			StreamsPerMinute: 30}
	case Medium:
		l = Limits{Nodes: 1_000, PodCIDRs: 10_000, PodCIDRsPerNode: 64, Services: 2_000, PortsPerService: 100,
			ClusterIPs: 1_000, Exports: 1_000, EndpointSlices: 10_000, Endpoints: 100_000, EndpointsPerService: 10_000,
			SetMembers: 100_000, SetIPs: 200_000, MebibytesPerKind: 64, KibibytesPerSecond: 1024, ChangesPerSecond: 1_000,
			StreamsPerMinute: 30}
	case Large:
		l = Limits{Nodes: 10_000, PodCIDRs: 100_000, PodCIDRsPerNode: 64, Services: 10_000, PortsPerService: 100,
			ClusterIPs: 4_000, Exports: 4_000, EndpointSlices: 20_000, Endpoints: 200_000, EndpointsPerService: 10_000,
			SetMembers: 200_000, SetIPs: 400_000, MebibytesPerKind: 128, KibibytesPerSecond: 4096, ChangesPerSecond: 4_000,
			StreamsPerMinute: 30}
	default:
		return l, false
	}
	l.Size, l.SetIPs = size, min(l.SetIPs, maxSetIPs/max(1, remotes))
	l.IPsPerSet = l.SetIPs
	return l, true
}

// complete fills in absent limits by the size of the remote, whose default is Medium.
func (l *Limits) complete(p *problems, field string, size Size, remotes int) {
	orDefault(&size, Medium)
	standard, ok := LimitsOf(size, remotes)
	if !ok {
		p.add(strings.TrimSuffix(field, "limits")+"size", "%q: use small, medium or large", size)
	}
	l.Size = size
	given, absent := reflect.ValueOf(l).Elem(), reflect.ValueOf(standard)
	for i := range given.NumField() {
		value := given.Field(i)
		if !value.CanInt() {
			continue
		}
		if value.IsZero() {
			value.Set(absent.Field(i))
		}
		checkLimit(p, field, given, i)
	}
}

func checkLimit(p *problems, field string, limits reflect.Value, i int) {
	if n := limits.Field(i).Int(); n < 1 || n > maxLimit {
		p.add(field+"."+limits.Type().Field(i).Tag.Get("json"), "%d: use a number from 1 to %d", n, maxLimit)
	}
}

// ByteBurst is the burst of KibibytesPerSecond in seconds. It covers all exports of a cluster of 500 nodes.
const ByteBurst = 64

// maxLimit keeps sums of limits within a 32-bit int.
const maxLimit = 100_000_000

package config

// Limits bound what one remote may export. The defaults are above what a cluster of 500 nodes exports, and below what
// would harm this one; objects over a limit are refused one by one. Numbers count objects unless said otherwise.
type Limits struct {
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

// maxSetIPs bounds the addresses of all remotes together. A policy's selector may select all sets, and Felix writes
// their addresses to one ipset of at most 1,048,576; with more, calico-node does not start.
const maxSetIPs = 1_000_000

// complete fills in absent limits. remotes is the number of remotes that share the common bounds.
func (l *Limits) complete(p *problems, field string, remotes int) {
	setIPs := min(200_000, maxSetIPs/max(1, remotes))
	for _, v := range []struct {
		name     string
		value    *int
		standard int
	}{
		{"nodes", &l.Nodes, 1_000},
		{"podCIDRs", &l.PodCIDRs, 10_000},
		{"podCIDRsPerNode", &l.PodCIDRsPerNode, 64},
		{"services", &l.Services, 2_000},
		{"portsPerService", &l.PortsPerService, 100},
		{"clusterIPs", &l.ClusterIPs, 1_000},
		{"exports", &l.Exports, 1_000},
		{"endpointSlices", &l.EndpointSlices, 10_000},
		{"endpoints", &l.Endpoints, 100_000},
		{"endpointsPerService", &l.EndpointsPerService, 10_000},
		{"setMembers", &l.SetMembers, 100_000},
		{"setIPs", &l.SetIPs, setIPs},
		{"ipsPerSet", &l.IPsPerSet, setIPs},
		{"mebibytesPerKind", &l.MebibytesPerKind, 64},
		{"kibibytesPerSecond", &l.KibibytesPerSecond, 1024},
		{"changesPerSecond", &l.ChangesPerSecond, 1_000},
		{"streamsPerMinute", &l.StreamsPerMinute, 30},
	} {
		if *v.value == 0 {
			*v.value = v.standard
		}
		if *v.value < 0 || *v.value > maxLimit {
			p.add(field+"."+v.name, "%d: use a number from 1 to %d", *v.value, maxLimit)
		}
	}
}

// ByteBurst is the burst of KibibytesPerSecond in seconds. It covers all exports of a cluster of 500 nodes.
const ByteBurst = 64

// maxLimit keeps sums of limits within a 32-bit int.
const maxLimit = 100_000_000

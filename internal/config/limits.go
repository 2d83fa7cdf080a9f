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
	// ClusterIPs bounds the Services with a ClusterIP that are created here for Services of the remote: one for a
	// mirror, one for a global service, one for what a ServiceExport exports, none for headless ones.
	ClusterIPs int `json:"clusterIPs"`
	// Exports bounds the Services that ServiceExports export.
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
	// KibibytesPerSecond bounds the bytes read from a remote's streams, uncompressed, and the bytes written to the
	// apiserver for it; the burst is a minute's worth.
	KibibytesPerSecond int `json:"kibibytesPerSecond"`
	// ChangesPerSecond bounds the changes read from a stream, without those of snapshots up to the limit of objects;
	// the burst is ten seconds' worth. Heartbeats and messages that cannot be parsed count like changes.
	ChangesPerSecond int `json:"changesPerSecond"`
	// StreamsPerMinute bounds how often the exporter may open a stream.
	StreamsPerMinute int `json:"streamsPerMinute"`
}

// maxSetIPs bounds the addresses of all remotes together. A policy's selector may select every set, and Felix writes
// all of them to one ipset of at most 1,048,576 addresses; calico-node does not start with more.
const maxSetIPs = 1_000_000

// complete fills in what is absent; remotes is the number that share the common bounds.
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

// ByteBurst is how many seconds' worth of KibibytesPerSecond may come at one time: all that a cluster of 500 nodes
// exports.
const ByteBurst = 64

// maxLimit keeps sums of limits within an int of 32 bits.
const maxLimit = 100_000_000

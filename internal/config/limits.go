package config

// Limits are the most that is taken of one remote. The defaults are above what a cluster of 500 nodes exports, and
// below what would harm this one; what is over them is refused object by object. Numbers are of objects unless said
// otherwise.
type Limits struct {
	Nodes int `json:"nodes"`
	// PodCIDRs are those of all nodes, PodCIDRsPerNode those of one: each is an allowed IP of a peer on every node of this cluster.
	PodCIDRs        int `json:"podCIDRs"`
	PodCIDRsPerNode int `json:"podCIDRsPerNode"`
	Services        int `json:"services"`
	// PortsPerService are those of one Service, and of one EndpointSlice.
	PortsPerService int `json:"portsPerService"`
	// ClusterIPs are the Services with a ClusterIP that are made here for Services of the remote: one for a mirror, one for a
	// global service, none where they are headless.
	ClusterIPs     int `json:"clusterIPs"`
	EndpointSlices int `json:"endpointSlices"`
	// Endpoints are the addresses in all EndpointSlices, EndpointsPerService those in the slices of one Service.
	Endpoints           int `json:"endpoints"`
	EndpointsPerService int `json:"endpointsPerService"`
	SetMembers          int `json:"setMembers"`
	// SetIPs are the addresses of all SetMembers, IPsPerSet those of one set.
	SetIPs    int `json:"setIPs"`
	IPsPerSet int `json:"ipsPerSet"`
	// MebibytesPerKind is the size of all objects of a kind, as they are encoded on the wire.
	MebibytesPerKind int `json:"mebibytesPerKind"`
	// KibibytesPerSecond is how many bytes are read of a remote's streams, unpacked, and how many are written to the apiserver for it;
	// a minute's worth may come at once.
	KibibytesPerSecond int `json:"kibibytesPerSecond"`
	// ChangesPerSecond is how fast changes are read from a stream, those of snapshots aside as far as they may be held;
	// ten seconds' worth may come at once. Heartbeats, and messages that are not understood, count like changes.
	ChangesPerSecond int `json:"changesPerSecond"`
	// StreamsPerMinute is how often the exporter may begin a stream.
	StreamsPerMinute int `json:"streamsPerMinute"`
}

// maxSetIPs bounds the addresses of all remotes together. A policy's selector may take in every set, which Felix
// puts into one ipset of at most 1,048,576 addresses; calico-node does not start with more.
const maxSetIPs = 1_000_000

// complete fills in what is absent; remotes is how many share what all may have together.
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

// ByteBurst is how many seconds' worth of KibibytesPerSecond may come at once: the whole of what a cluster of 500 nodes exports.
const ByteBurst = 64

// maxLimit keeps sums of limits within an int of 32 bits.
const maxLimit = 100_000_000

package check

import (
	"fmt"
	"math"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Mesh is the size of a mesh. All but Clusters count in each cluster, and Services, Endpoints and Members are those
// that it exports.
type Mesh struct {
	Clusters  int `json:"clusters"`
	Nodes     int `json:"nodes"`
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	Members   int `json:"members"`
	// Changes are those of endpoints and members in a second.
	Changes int `json:"changes"`
	Ports   int `json:"ports"`
}

// Part is the cost of one replica: memory in bytes, processor in cores, traffic of the control plane in bytes a second.
type Part struct {
	Name     string  `json:"name"`
	Replicas int     `json:"replicas"`
	Memory   float64 `json:"memory"`
	Cores    float64 `json:"cores"`
	Receives float64 `json:"receives"`
	Sends    float64 `json:"sends"`
}

// Count is how many there are of something.
type Count struct {
	Of    string `json:"of"`
	Count int    `json:"count"`
}

// Raise is a limit that the mesh exceeds, with the setting and its value. An Impossible one cannot be raised.
type Raise struct {
	Limit      string `json:"limit"`
	What       string `json:"what"`
	Impossible bool   `json:"impossible,omitempty"`
}

// Plan has the counts and costs of each cluster in a Mesh. Size is the spec.size that suffices for each remote.
type Plan struct {
	Mesh    Mesh     `json:"mesh"`
	Size    string   `json:"size"`
	Parts   []Part   `json:"parts"`
	Counts  []Count  `json:"counts"`
	Raise   []Raise  `json:"raise"`
	Figures []Figure `json:"figures"`
}

// ReadMesh returns the mesh that numbers by name describe; a name is that of a field in JSON. It fails for an unknown
// name, for a number that is negative or above ten million, and for fewer than two clusters.
func ReadMesh(given map[string]int) (Mesh, error) {
	m := Mesh{Ports: 1}
	fields := map[string]*int{"clusters": &m.Clusters, "nodes": &m.Nodes, "services": &m.Services,
		"endpoints": &m.Endpoints, "members": &m.Members, "changes": &m.Changes, "ports": &m.Ports}
	for name, value := range given {
		field, ok := fields[name]
		switch {
		case !ok:
			return m, fmt.Errorf("%q: use clusters, nodes, services, endpoints, members, changes or ports", name)
		case value < 0 || value > 10_000_000:
			return m, fmt.Errorf("%s=%d: use a number from 0 to 10000000", name, value)
		}
		*field = value
	}
	if m.Clusters < 2 || m.Clusters > math.MaxUint16 {
		return m, fmt.Errorf("clusters=%d: use a number from 2 to %d", m.Clusters, math.MaxUint16)
	}
	return m, nil
}

func PlanOf(m Mesh) Plan {
	p := Plan{Mesh: m, Figures: Figures}
	p.Size = string(m.size())
	p.parts()
	p.counts()
	p.limits()
	return p
}

func (m Mesh) remotes() int { return m.Clusters - 1 }

// slices and sets are the objects that the broker makes of one remote's endpoints and members: members are taken to be
// in as few sets as their number allows.
func (m Mesh) slices() int {
	return max(min(m.Services, m.Endpoints), divided(m.Endpoints, sliceSize.Value))
}

func (m Mesh) sets() int { return divided(m.Members, setSize.Value) }

func divided(n int, by float64) int { return int(math.Ceil(float64(n) / by)) }

// exported are the objects and endpoints of one cluster.
func (m Mesh) exported() int { return m.Nodes + m.Services + m.slices() + m.Endpoints + m.Members }

// change is how many bytes a change has: of an endpoint, its whole slice.
func (m Mesh) change() float64 {
	return objectWire.Value + endpointWire.Value*float64(m.Endpoints)/float64(max(1, m.slices()))
}

// size is the smallest whose limits hold a cluster of the mesh; large if none does. The share of a remote in the
// addresses of all sets is another limit.
func (m Mesh) size() config.Size {
	for _, size := range []config.Size{config.Small, config.Medium} {
		if limits, _ := config.LimitsOf(size, 1); len(m.exceeded(limits)) == 0 {
			return size
		}
	}
	return config.Large
}

// exceeded are the limits of a remote that a cluster of the mesh exceeds, with the value that it needs.
func (m Mesh) exceeded(l config.Limits) (out []Count) {
	each := float64(m.Endpoints) / float64(max(1, m.Services))
	bytes := max(endpointWire.Value*float64(m.Endpoints)+objectWire.Value*float64(m.slices()),
		objectWire.Value*float64(max(m.Nodes, m.Services, m.Members)))
	for _, one := range []struct {
		name    string
		has, at int
	}{
		{"nodes", m.Nodes, l.Nodes}, {"podCIDRs", m.Nodes, l.PodCIDRs}, {"services", m.Services, l.Services},
		{"portsPerService", m.Ports, l.PortsPerService}, {"clusterIPs", m.Services, l.ClusterIPs},
		{"endpointSlices", m.slices(), l.EndpointSlices}, {"endpoints", m.Endpoints, l.Endpoints},
		{"endpointsPerService", int(math.Ceil(each)), l.EndpointsPerService}, {"setMembers", m.Members, l.SetMembers},
		{"setIPs", m.Members, l.SetIPs}, {"mebibytesPerKind", divided(int(bytes), mib), l.MebibytesPerKind},
		{"kibibytesPerSecond", divided(int(float64(m.Changes)*m.change()), kib), l.KibibytesPerSecond},
		{"changesPerSecond", m.Changes, l.ChangesPerSecond},
	} {
		if one.has > one.at {
			out = append(out, Count{one.name, one.has})
		}
	}
	return out
}

func (p *Plan) parts() {
	m, remotes := p.Mesh, float64(p.Mesh.remotes())
	changes, held, peers := float64(m.Changes), float64(m.exported()), remotes*float64(m.Nodes)
	stream := remotes * (changes*m.change() + heartbeat.Value/5)
	// Nodes are once for each remote in the exporter, because they have a key for each.
	own := held + float64(m.Nodes)*(remotes-1)
	written := perObject.Value*held + (perMirror.Value-2*perObject.Value)*float64(m.Services)
	p.Parts = []Part{
		{"exporter", 1, standby.Value + perObject.Value*own, remotes * changes * perSend.Value, 0, stream},
		{"exporter, waiting", 1, standby.Value, 0, 0, 0},
		{"broker", 1, standby.Value + written*remotes, remotes * changes * perWrite.Value, stream, 0},
		{"broker, waiting", 1, standby.Value, 0, 0, 0},
		{"agent", m.Nodes, agentBase.Value + perPeer.Value*peers, idlePeer.Value * peers, 0, 0},
	}
}

func (p *Plan) counts() {
	m, remotes := p.Mesh, p.Mesh.remotes()
	ports := remotes * m.Services * m.Ports
	p.Counts = []Count{
		{"Services that the broker writes", remotes * m.Services},
		{"EndpointSlices that the broker writes", remotes * m.slices()},
		{"network sets that the broker writes", remotes * m.sets()},
		{"writes a second, while changes are apart", remotes * m.Changes},
		{"seconds of a first sync", divided(remotes*(m.Services+m.slices()+m.sets()), writeRate.Value)},
		{"connections of agents to the broker", m.Nodes},
		{"annotations of a node", 3 * remotes},
		{"devices and UDP ports of a node", remotes},
		{"peers of a node", remotes * m.Nodes},
		{"bytes of a scrape of a node's agent", int(peerSeries.Value) * remotes * m.Nodes},
		{"kube-proxy: ports of Services on a node", ports},
		// KUBE-SERVICES and one for the masquerade; for an endpoint one to choose it, one to masquerade, one to translate.
		{"kube-proxy: rules, if it uses iptables", 2*ports + 3*remotes*m.Endpoints*m.Ports},
		{"Felix: members of the ipset of a selector of all sets", remotes * m.Members},
	}
}

func (p *Plan) limits() {
	m, remotes := p.Mesh, p.Mesh.remotes()
	never := 0 // how many that are impossible are before the others
	add := func(impossible bool, limit, what string, args ...any) {
		at := len(p.Raise)
		if impossible {
			at, never = never, never+1
		}
		p.Raise = slices.Insert(p.Raise, at, Raise{limit, fmt.Sprintf(what, args...), impossible})
	}
	if p.Size == string(config.Large) {
		add(false, "spec.size", "large, in each RemoteCluster; the default is medium")
	}
	limits, _ := config.LimitsOf(config.Size(p.Size), remotes)
	for _, one := range m.exceeded(limits) {
		if one.Of == "setIPs" && remotes*one.Count > int(allSets.Value) {
			add(true, "addresses of all sets", "%d, and an ipset holds no more than %.0f: use fewer members",
				remotes*one.Count, allSets.Value)
			continue
		}
		add(false, "spec.limits."+one.Of, "at least %d, in each RemoteCluster", one.Count)
	}
	if remotes > int(portRange.Value) {
		last := int(defaultPorts.First) + remotes - 1
		add(last > math.MaxUint16, "wireguard.portRange", "%d-%d, in exporter and broker", defaultPorts.First, last)
	}
	if remotes > int(annotated.Value) {
		add(true, "remotes with encryption", "%d, and the annotations of a node have room for %.0f", remotes,
			annotated.Value)
	}
	if remotes > int(inConfigMap.Value) {
		add(true, "RemoteClusters", "%d, and a ConfigMap holds about %.0f", remotes, inConfigMap.Value)
	}
	if m.Nodes > int(connections.Value) {
		add(true, "connections of agents", "%d, and a broker serves %.0f", m.Nodes, connections.Value)
	}
	broker := p.Parts[slices.IndexFunc(p.Parts, func(part Part) bool { return part.Name == "broker" })]
	if twice := 2 * broker.Memory; twice > brokerLimit.Value { // the collector lets the heap double
		add(false, "memory of the broker", "GOMEMLIMIT %.0fMiB and a limit of %.0fMi, in deploy/broker/deployment.yaml",
			math.Ceil(twice/mib), math.Ceil(twice/0.9/mib))
	}
	if remotes*m.Changes > int(qps.Value) {
		add(false, "kube.qps", "at least %d, in the broker", remotes*m.Changes)
	}
	if addresses := remotes * m.Services; addresses > 0 {
		bits := 32 - int(math.Ceil(math.Log2(float64(addresses+2))))
		if bits < 20 {
			add(bits < 12, "service range", "a /%d at least: %d cluster IPs beside the own Services", max(bits, 0), addresses)
		}
	}
}

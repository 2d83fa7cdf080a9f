package check

import (
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// Figure is a measured cost of one of something, or a fixed bound. Everything that a plan computes with is in figures,
// so a new measurement changes one line.
type Figure struct {
	Of     string  `json:"of"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Source string  `json:"source"`
}

const (
	kib = 1024.0
	mib = 1024 * kib
)

// The costs. Sources are pages of docs/, or the code that has the bound.
var (
	standby = Figure{"a replica that waits, and the base of one that leads", 40 * mib, "B",
		"scale.md, What it costs"}
	perObject = Figure{"an object or endpoint in exporter and broker", kib, "B",
		"scale.md, What make scale measures: 0.4 KiB in an exporter, 0.8 KiB in a broker"}
	perMirror = Figure{"a Service with its slice in a broker", 10 * kib, "B",
		"scale.md, What make scale measures: 374 MiB with 200 Services of each remote, 232 with 50"}
	agentBase = Figure{"an agent without peers", 16 * mib, "B", "speed.md, What bounds it"}
	perPeer   = Figure{"a peer in an agent", (41.8*mib - 16*mib) / 5_000, "B", "speed.md, Results: 41.8 MiB with 5,000"}
	perWrite  = Figure{"the broker's processor for a change that it writes", 2.5e-3, "s",
		"rules.md, R18: an upper bound"}
	perSend  = Figure{"a sender's processor for a change and receiver", 40e-6, "s", "speed.md, Results: 40 ms for 1,000"}
	idlePeer = Figure{"an agent's processor for a peer while nothing changes", 0.012 / 5_000, "cores",
		"speed.md, Results: 1.2 % with 5,000"}
	objectWire   = Figure{"an object on the wire, without endpoints", 100, "B", "rules.md, R7, R15 and R21: 73 to 101"}
	endpointWire = Figure{"an endpoint on the wire", 25, "B", "TestSizesOnTheWire (ctl/check)"}
	heartbeat    = Figure{"a heartbeat and its answer, every 5 s", 50, "B", "TestSizesOnTheWire (ctl/check)"}
	peerSeries   = Figure{"a peer in a scrape of an agent", 740, "B", "metrics.md, What a scrape costs"}
	writeRate    = Figure{"writes a second of a first sync, on two cores with the apiservers", 10_000 / 69.9, "1/s",
		"speed.md, Results: 5,000 Services with their slices in 69.9 s"}

	setSize   = Figure{"addresses in one network set", 1_000, "", "sets.maxSize"}
	sliceSize = Figure{"endpoints in one slice of a mirror", 100, "", "slices.maxEndpoints"}

	defaultPorts = config.DefaultPorts()
	portRange    = Figure{"UDP ports for remotes", float64(defaultPorts.Last-defaultPorts.First) + 1, "",
		"wireguard.portRange"}
	annotated = Figure{"remotes whose annotations a node may have", remotes.MaxEncrypted, "",
		"deploy/broker/node-writes.yaml"}
	inConfigMap = Figure{"RemoteClusters in a ConfigMap", remotes.MaxStored / (1.5 * kib), "", "remotes.md, Cost"}
	connections = Figure{"connections of agents to a broker", 16_384, "", "broker/listener.go"}
	brokerLimit = Figure{"GOMEMLIMIT of the broker", 3_600 * mib, "B", "deploy/broker/deployment.yaml"}
	qps         = Figure{"requests a second of the broker", 1_000, "", "kube.qps"}
	allSets     = Figure{"addresses of all sets", 1_000_000, "", "configuration.md, Limits: an ipset"}
)

var Figures = []Figure{standby, perObject, perMirror, agentBase, perPeer, perWrite, perSend, idlePeer, objectWire,
	endpointWire, heartbeat, peerSeries, writeRate, setSize, sliceSize, portRange, annotated, inConfigMap, connections,
	brokerLimit, qps, allSets}

package config

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
)

// NoProbe is the value of listen.probe for no responder. ("off" is YAML for false.)
const NoProbe = "none"

// Values of peerMetrics, which selects the agent's series about peers.
const (
	PeerMetricsAll  = "all"
	PeerMetricsNone = "none"
)

// Defaults of the agent's routing table, of the priority of its rules, and of the priority of the rule for the main
// table; see ip-rule(8).
const (
	defaultTable        = 7394
	defaultRulePriority = 94
	mainPriority        = 32766
)

// defaultKeyPath is the directory of semaphore-wireguard, too.
const defaultKeyPath = "/var/lib/semaphore-wireguard"

// NoSubnets is the value of subnetsFile for no file.
const NoSubnets = "none"

// defaultSubnetsFile is where agents and exporters have the broker's file.
const defaultSubnetsFile = "/etc/semaphore/subnets/broker.yaml"

// Agent is the configuration of semaphore-agent. Devices, peers and routes come from its broker.
type Agent struct {
	// Cluster is the name of the agent's own cluster.
	Cluster string `json:"cluster"`
	Broker  struct {
		// Address is host:port of the broker's peering listener.
		Address string `json:"address"`
		// BundleFile holds the roots of the own cluster; the broker must be spiffe://CLUSTER/broker under them.
		BundleFile string `json:"bundleFile"`
		// WorkloadAPI is the source of the roots in place of BundleFile, as in TLS.
		WorkloadAPI string `json:"workloadAPI"`
		// TokenFile holds the projected ServiceAccount token; read again at every dial.
		TokenFile string `json:"tokenFile"`
	} `json:"broker"`
	// SubnetsFile is the broker's configuration file as the operator wrote it. Its subnets bound the broker's orders on
	// this node. NoSubnets for none.
	SubnetsFile string `json:"subnetsFile"`
	// AllowedSubnets, if set, must contain all pod subnets of remotes that the agent routes, whatever the broker sends.
	// If empty, the agent routes all that are not forbidden.
	AllowedSubnets []string `json:"allowedSubnets"`
	// LocalSubnets are subnets of the own cluster, in addition to those of SubnetsFile. The agent never routes them to
	// a remote.
	LocalSubnets []string `json:"localSubnets"`
	// WGKeyPath is the directory of the private keys.
	WGKeyPath string `json:"wgKeyPath"`
	// RemoveKeys makes the agent delete the key of a remote's device together with the device, when the broker no
	// longer has the remote.
	RemoveKeys bool `json:"removeKeys"`
	// StateFile stores the desired state that the broker last sent, so that the agent can start without a broker.
	StateFile string `json:"stateFile"`
	// AdoptFrom are the tools whose devices are adopted.
	AdoptFrom []string `json:"adoptFrom"`
	// Backend is auto (the kernel's WireGuard if it has one, else wireguard-go), kernel or userspace.
	Backend string `json:"backend"`
	// GuardInbound makes the node drop packets with a remote pod's source address that enter by another interface than
	// the remote's device. The node always drops packets to a remote pod that would leave by another one.
	GuardInbound bool `json:"guardInbound"`
	// RouteSource is the source address of the node's own packets to remote pods: auto (an address of the node among
	// its pod CIDRs), none, or an address.
	RouteSource string `json:"routeSource"`
	// Routing is the agent's own routing table, and the priority of the rules that look it up.
	Routing struct {
		Table        int `json:"table"`
		RulePriority int `json:"rulePriority"`
	} `json:"routing"`
	// PeerMetrics is all, for series about each peer of each device, or none.
	PeerMetrics string `json:"peerMetrics"`
	// ServiceTraffic makes the node count bytes and connections by ClusterIP of what passes its devices.
	ServiceTraffic bool `json:"serviceTraffic"`
	// PeerMetricsFrom contain the hosts, besides the node itself, that may read series with keys and addresses, such as
	// a Prometheus server of the own cluster.
	PeerMetricsFrom []string `json:"peerMetricsFrom"`
	Listen          struct {
		HTTP        string `json:"http"`
		DebugSocket string `json:"debugSocket"`
		// Probe is the UDP address on which the agent answers path probes of other nodes; NoProbe to answer none.
		Probe string `json:"probe"`
	} `json:"listen"`

	// UserspaceSocket is where the agent requests processes of userspace devices, so that they outlive the agent's
	// container. If empty, the agent starts them itself. It is a flag and not a key of the file, because the pod
	// defines its containers.
	UserspaceSocket string `json:"-"`

	// AllowedPrefixes, LocalPrefixes and PeerMetricsPrefixes are the subnets, parsed.
	AllowedPrefixes     []netip.Prefix `json:"-"`
	LocalPrefixes       []netip.Prefix `json:"-"`
	PeerMetricsPrefixes []netip.Prefix `json:"-"`
}

// SemaphoreWireGuard is the tool whose devices an agent can adopt.
const SemaphoreWireGuard = "semaphore-wireguard"

func (c *Agent) Adopts(tool string) bool { return slices.Contains(c.AdoptFrom, tool) }

// PartOfAgent returns, of a file that cannot be used, the keys by which an agent finds and sets the guard of an earlier
// one: guardInbound, routing, stateFile, wgKeyPath. A key that cannot be read has its default.
func PartOfAgent(data []byte) *Agent {
	c := &Agent{}
	c.setDefaults()
	keys, _ := Keys(data)
	part := *c
	for key, to := range map[string]any{"guardInbound": &part.GuardInbound, "routing": &part.Routing,
		"stateFile": &part.StateFile, "wgKeyPath": &part.WGKeyPath} {
		_ = DecodeKey(keys, key, to)
	}
	var p problems
	if part.checkRouting(&p); len(p) > 0 {
		part.Routing = c.Routing
	}
	orDefault(&part.WGKeyPath, defaultKeyPath)
	orDefault(&part.StateFile, filepath.Join(part.WGKeyPath, "agent.state"))
	return &part
}

func (c *Agent) setDefaults() {
	c.GuardInbound = true
	c.Routing.Table, c.Routing.RulePriority = defaultTable, defaultRulePriority
}

func (c *Agent) complete(p *problems) {
	checkCluster(p, "cluster", c.Cluster)
	c.completeBroker(p)
	orDefault(&c.WGKeyPath, defaultKeyPath)
	orDefault(&c.Backend, "auto")
	orDefault(&c.RouteSource, "auto")
	orDefault(&c.PeerMetrics, PeerMetricsAll)
	orDefault(&c.Listen.HTTP, ":7773")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/agent.sock")
	checkListen(p, "listen.http", c.Listen.HTTP)
	if orDefault(&c.Listen.Probe, fmt.Sprintf(":%d", defaultProbePort)); c.Listen.Probe != NoProbe {
		checkListen(p, "listen.probe", c.Listen.Probe)
	}
	c.completeSubnets(p)
	if !filepath.IsAbs(c.WGKeyPath) {
		p.add("wgKeyPath", "%q: use an absolute path", c.WGKeyPath)
	}
	if c.StateFile == "" {
		c.StateFile = filepath.Join(c.WGKeyPath, "agent.state")
	} else if !filepath.IsAbs(c.StateFile) {
		p.add("stateFile", "%q: use an absolute path", c.StateFile)
	}
	for i, tool := range c.AdoptFrom {
		if tool != SemaphoreWireGuard {
			p.add(fmt.Sprintf("adoptFrom[%d]", i), "%q: the agent adopts devices of %s only", tool, SemaphoreWireGuard)
		}
	}
	c.checkRouting(p)
	if c.PeerMetrics != PeerMetricsAll && c.PeerMetrics != PeerMetricsNone {
		p.add("peerMetrics", "%q: use all or none", c.PeerMetrics)
	}
	if !slices.Contains([]string{"auto", "kernel", "userspace"}, c.Backend) {
		p.add("backend", "%q: use auto, kernel or userspace", c.Backend)
	}
	if _, err := netip.ParseAddr(c.RouteSource); err != nil && c.RouteSource != "auto" && c.RouteSource != "none" {
		p.add("routeSource", "%q: use auto, none or an IP address", c.RouteSource)
	}
}

// completeBroker completes how the agent reaches and authenticates its broker.
func (c *Agent) completeBroker(p *problems) {
	orDefault(&c.Broker.Address, "semaphore-broker.semaphore.svc:8444")
	if c.Broker.WorkloadAPI == "" {
		orDefault(&c.Broker.BundleFile, "/etc/semaphore/bundles/"+c.Cluster+".pem")
	} else {
		checkWorkloadAPI(p, "broker.workloadAPI", c.Broker.WorkloadAPI)
		refuseReplaced(p, "broker.bundleFile", c.Broker.BundleFile, "broker.workloadAPI")
	}
	orDefault(&c.Broker.TokenFile, "/var/run/secrets/semaphore/token")
	checkDial(p, "broker.address", c.Broker.Address)
}

// completeSubnets completes the bounds of the routes that the broker may order.
func (c *Agent) completeSubnets(p *problems) {
	if orDefault(&c.SubnetsFile, defaultSubnetsFile); c.SubnetsFile == NoSubnets {
		if len(c.LocalSubnets) == 0 {
			p.add("localSubnets", "none, and no subnetsFile: name the pod, service and node subnets of this cluster")
		}
		if len(c.AllowedSubnets) == 0 {
			p.add("allowedSubnets", "none, and no subnetsFile: name the pod subnets of all remotes")
		}
	} else if !filepath.IsAbs(c.SubnetsFile) {
		p.add("subnetsFile", "%q: use an absolute path, or %s", c.SubnetsFile, NoSubnets)
	}
	c.AllowedPrefixes = parsePrefixes(p, "allowedSubnets", c.AllowedSubnets)
	c.LocalPrefixes = parsePrefixes(p, "localSubnets", c.LocalSubnets)
	c.PeerMetricsPrefixes = parsePrefixes(p, "peerMetricsFrom", c.PeerMetricsFrom)
	for _, allowed := range c.AllowedPrefixes {
		for _, local := range c.LocalPrefixes {
			// An allowed subnet may contain one of the own cluster, and is then allowed without that part. An allowed
			// subnet inside of a local one would allow nothing.
			if local.Bits() <= allowed.Bits() && local.Overlaps(allowed) {
				p.add("allowedSubnets", "%s is inside %s (localSubnets), which is never a remote's", allowed, local)
			}
		}
	}
}

// checkRouting refuses a table and priorities that the kernel or other programs use.
func (c *Agent) checkRouting(p *problems) {
	// Tables 253 to 255 belong to the kernel, and daemons use lower ones.
	if c.Routing.Table < 256 || c.Routing.Table > math.MaxInt32 {
		p.add("routing.table", "%d: use a number from 256 to %d that nobody else on the nodes uses", c.Routing.Table,
			math.MaxInt32)
	}
	if c.Routing.RulePriority < 1 || c.Routing.RulePriority >= mainPriority {
		p.add("routing.rulePriority",
			"%d: use a number from 1 to %d: after the local table (0), and before the main one (%d)",
			c.Routing.RulePriority, mainPriority-1, mainPriority)
	}
}

package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Broker is the configuration of semaphore-broker.
type Broker struct {
	// Cluster is the name of the broker's own cluster.
	Cluster string `json:"cluster"`
	// Features to carry out; all when absent.
	Features Features `json:"features"`
	// Encryption is that of remotes that say nothing: strict, permissive or clear.
	Encryption Strictness `json:"encryption"`
	// LocalSubnets are the pod, service and node subnets of the own cluster: nothing of a
	// remote may overlap them. Nodes that share a subnet with those of a remote are left out.
	LocalSubnets []string `json:"localSubnets"`
	// Remotes are the clusters whose exports are taken.
	Remotes []Remote `json:"remotes"`
	// MirrorNamespace is where mirrors are written.
	MirrorNamespace string `json:"mirrorNamespace"`
	// LabelDomain is that of the labels of sets.
	LabelDomain string `json:"labelDomain"`
	// LabelDomains are several in place of it; of those that a pod has, the first counts, and sets have the labels of all.
	LabelDomains []string `json:"labelDomains"`
	// Sets says how sets are written.
	Sets Sets `json:"sets"`
	// Services says whose services are taken over.
	Services Mirrors `json:"services"`
	// Slices says how endpoints are written.
	Slices Slices `json:"slices"`
	// GlobalServices says how services that several clusters offer are put together.
	GlobalServices GlobalServices `json:"globalServices"`
	// ManageIPPools makes a disabled Calico IPPool for each remote pod subnet, so that Calico takes
	// traffic to and from it for pod traffic and does not SNAT it.
	ManageIPPools bool `json:"manageIPPools"`
	// ReserveTunnelAddresses reserves an address for the devices of each node in Calico's IPAM, for nodes that have none
	// in their pod network.
	ReserveTunnelAddresses bool `json:"reserveTunnelAddresses"`
	// AllowedIPs says where the IPs of an own node's pods are, for its agent: what the exporter of this cluster has.
	AllowedIPs AllowedIPs `json:"allowedIPs"`
	// Brake on the withdrawal of most of what a remote exports.
	Brake  Brake  `json:"brake"`
	Agents Agents `json:"agents"`
	// LeaderElection among the broker's replicas.
	LeaderElection LeaderElection `json:"leaderElection"`
	TLS            TLS            `json:"tls"`
	Kube           Kube           `json:"kube"`
	Listen         struct {
		// Federation serves exporters, and DebugService to semaphorectl, over mTLS.
		Federation string `json:"federation"`
		// Peering serves agents, over TLS and with tokens.
		Peering     string `json:"peering"`
		HTTP        string `json:"http"`
		DebugSocket string `json:"debugSocket"`
		// Services are those that lead to the leader; the first one for the agents.
		Services []string `json:"services"`
	} `json:"listen"`
	// Pod is this replica; a test sets it. Programs learn it from their environment.
	Pod Pod `json:"-"`

	// LocalPrefixes is LocalSubnets, parsed.
	LocalPrefixes []netip.Prefix `json:"-"`
}

// Pod is a replica as the kubelet describes it.
type Pod struct {
	Namespace, Name, Node string
	UID                   types.UID
	IPs                   []netip.Addr
}

// DefaultListenPort is that of the device for a remote that names none. It is nobody else's, as far as is known (Calico's own
// WireGuard and flannel's have 51820 and 51821, Cilium's 51871, Submariner 4500, 4490 and 4800), and the kernel gives it to no
// socket that asks for any port (32768 and up).
const DefaultListenPort = 7775

// Remote is one remote cluster.
type Remote struct {
	Name string `json:"name"`
	// PodSubnets hold the IPs of the remote's pods, all of them; nothing else is taken from it.
	PodSubnets []string `json:"podSubnets"`
	// NodeSubnets hold the addresses of the remote's nodes, at which its tunnels end; required with encryption.
	NodeSubnets []string `json:"nodeSubnets"`
	// ServicePrefix begins the names of its mirrors; its name when empty.
	ServicePrefix string    `json:"servicePrefix"`
	WireGuard     WireGuard `json:"wireguard"`
	// Encryption is strict, permissive or clear; that of the whole when empty.
	Encryption Strictness `json:"encryption"`
	// Limits on what is taken of it.
	Limits Limits `json:"limits"`

	// PodPrefixes and NodePrefixes are the subnets, parsed.
	PodPrefixes  []netip.Prefix `json:"-"`
	NodePrefixes []netip.Prefix `json:"-"`
}

// Strictness says what becomes of packets to and from a remote's pods that are not encrypted.
type Strictness string

// The three kinds.
const (
	// Strict drops them.
	Strict Strictness = "strict"
	// Permissive lets them pass and counts them, while encryption is being turned on.
	Permissive Strictness = "permissive"
	// Clear lets them pass and sends none that is encrypted, while encryption is being turned off. What the remote still encrypts is decrypted.
	Clear Strictness = "clear"
)

func (s Strictness) check(p *problems, field string) {
	if s != Strict && s != Permissive && s != Clear {
		p.add(field, "%q: use strict; permissive while encryption is being turned on or off; clear before it is taken away", string(s))
	}
}

// Passes says whether packets that are not encrypted pass.
func (s Strictness) Passes() bool { return s == Permissive || s == Clear }

// WireGuard is how the nodes' device for a remote is set.
type WireGuard struct {
	// ListenPort is the UDP port of the device; one for each remote.
	ListenPort uint16 `json:"listenPort"`
	// MTU in bytes; 0 has each node derive it from its links and from what the paths carry.
	MTU int `json:"mtu"`
	// ProbePort is the UDP port on which the remote's nodes answer probes of the path; 0 for none. It is set once
	// defaults are filled in.
	ProbePort *uint16 `json:"probePort"`
	// AddressFamily is that of the addresses by which the nodes of this cluster and of the remote reach each other.
	AddressFamily Family `json:"addressFamily"`
	// PersistentKeepalive between packets that keep a NAT open; 0 for off, as the network is flat.
	PersistentKeepalive Duration `json:"persistentKeepalive"`
	// KeyMaxAge is the age before which each node replaces its key for this remote; 0 for never.
	KeyMaxAge Duration `json:"keyMaxAge"`
}

// minKeyMaxAge keeps a typing error from having keys replaced all the time.
const minKeyMaxAge = time.Hour

// defaultProbePort is that of listen.probe of agents.
const defaultProbePort = 7774

// Agents says which agents a broker takes.
type Agents struct {
	// Namespace and ServiceAccount the agents run under.
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Audience of their tokens; this cluster's broker only: "semaphore-broker.CLUSTER" when empty.
	Audience string `json:"audience"`
}

// Remote returns the remote of that name.
func (c *Broker) Remote(name string) (*Remote, bool) {
	for i := range c.Remotes {
		if c.Remotes[i].Name == name {
			return &c.Remotes[i], true
		}
	}
	return nil, false
}

// AgentAudience is the audience of the tokens that agents of cluster show to its broker, where
// nothing else is configured. It differs by cluster so that a token stolen by one broker is worth
// nothing at another.
func AgentAudience(cluster string) string { return "semaphore-broker." + cluster }

func (c *Broker) setDefaults() {
	c.LeaderElection = leaderElection("semaphore-broker-leader")
	c.GlobalServices.setDefaults()
}

func (c *Broker) complete(p *problems) {
	c.AllowedIPs.complete(p, "allowedIPs")
	checkCluster(p, "cluster", c.Cluster)
	c.Features.complete(p, "features")
	if c.Encryption == "" {
		c.Encryption = Strict
	}
	c.Encryption.check(p, "encryption")
	orDefault(&c.MirrorNamespace, "semaphore")
	completeLabelDomains(p, &c.LabelDomain, &c.LabelDomains)
	orDefault(&c.Agents.Namespace, "semaphore")
	orDefault(&c.Agents.ServiceAccount, "semaphore-agent")
	orDefault(&c.Agents.Audience, AgentAudience(c.Cluster))
	orDefault(&c.Listen.Federation, ":8443")
	orDefault(&c.Listen.Peering, ":8444")
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/broker.sock")
	if c.Listen.Services == nil {
		c.Listen.Services = []string{"semaphore-broker", "semaphore-broker-federation"}
	}
	for i, name := range c.Listen.Services {
		for _, e := range validation.IsDNS1035Label(name) {
			p.add(fmt.Sprintf("listen.services[%d]", i), "%q is no name of a Service: %s", name, e)
		}
	}
	for _, l := range []struct{ field, address string }{
		{"listen.federation", c.Listen.Federation}, {"listen.peering", c.Listen.Peering}, {"listen.http", c.Listen.HTTP},
	} {
		checkListen(p, l.field, l.address)
	}
	for _, e := range validation.IsDNS1123Label(c.MirrorNamespace) {
		p.add("mirrorNamespace", "%q: %s", c.MirrorNamespace, e)
	}
	c.TLS.complete(p, "tls")
	c.Kube.complete(p, "kube")
	c.LeaderElection.complete(p, "leaderElection")
	c.Brake.complete(p, "brake")
	c.Sets.complete(p, "sets")
	c.Services.complete(p, "services")
	c.Slices.complete(p, "slices")
	if len(c.LocalSubnets) == 0 {
		// R9: without them a remote could be given the addresses of this cluster's own pods and apiserver.
		p.add("localSubnets", "none: name the pod, service and node subnets of this cluster")
	}
	c.LocalPrefixes = parsePrefixes(p, "localSubnets", c.LocalSubnets)
	c.completeRemotes(p)
	c.GlobalServices.complete(p, "globalServices", c)
}

func (c *Broker) completeRemotes(p *problems) {
	names := map[string]bool{}
	ports := map[uint16]string{}
	prefixes := map[string]string{}
	devices := map[string]string{}
	type claim struct {
		field  string
		prefix netip.Prefix
	}
	var claims []claim
	for i, l := range c.LocalPrefixes {
		claims = append(claims, claim{fmt.Sprintf("localSubnets[%d]", i), l})
	}
	for i := range c.Remotes {
		r := &c.Remotes[i]
		field := fmt.Sprintf("remotes[%d]", i)
		checkCluster(p, field+".name", r.Name)
		if names[r.Name] {
			p.add(field+".name", "%q is listed twice", r.Name)
		}
		if r.Name == c.Cluster {
			p.add(field+".name", "%q is this cluster itself", r.Name)
		}
		if r.Name == naming.GlobalCluster && c.Features.Has(Services) {
			p.add(field+".name", "%q stands for all clusters in the names of global services, such as echo.shop.svc.cluster.%s: use another", r.Name, r.Name)
		}
		names[r.Name] = true

		orDefault(&r.ServicePrefix, r.Name)
		for _, e := range validation.IsDNS1035Label(r.ServicePrefix) {
			p.add(field+".servicePrefix", "%q begins the names of Services: %s", r.ServicePrefix, e)
		}
		if r.ServicePrefix == naming.GlobalPrefix || strings.HasPrefix(r.ServicePrefix, naming.GlobalPrefix+"-") {
			p.add(field+".servicePrefix", "%q begins the names of global services: use another", r.ServicePrefix)
		}
		if other, ok := prefixes[r.ServicePrefix]; ok {
			p.add(field+".servicePrefix", "%q is also that of %s: their mirrors would bear the same names", r.ServicePrefix, other)
		}
		// A mirror is PREFIX-NAMESPACE-73736d-NAME, and a namespace may be called as the rest of the longer prefix begins: whoever
		// may make a namespace in one of the two could have the names of the other's mirrors.
		for prefix, other := range prefixes {
			if strings.HasPrefix(prefix, r.ServicePrefix+"-") || strings.HasPrefix(r.ServicePrefix, prefix+"-") {
				p.add(field+".servicePrefix", "%q and %q of %s: one is the other with \"-…\" behind it, so that their mirrors could bear the same names; "+
					"give one of them a servicePrefix that is not, such as %q", r.ServicePrefix, prefix, other, strings.ReplaceAll(r.ServicePrefix, "-", ""))
			}
		}
		prefixes[r.ServicePrefix] = r.Name
		if other, ok := devices[naming.Device(r.Name)]; ok && other != r.Name {
			p.add(field+".name", "%q and %q have devices of one name, %s", r.Name, other, naming.Device(r.Name))
		}
		devices[naming.Device(r.Name)] = r.Name

		if len(r.PodSubnets) == 0 {
			p.add(field+".podSubnets", "none: name the subnets that the pods of %q have", r.Name)
		}
		r.PodPrefixes = parsePrefixes(p, field+".podSubnets", r.PodSubnets)
		if len(r.NodeSubnets) == 0 && c.Features.Has(Encryption) {
			// R11: without them a remote could have the nodes of this cluster send packets to any address.
			p.add(field+".nodeSubnets", "none: name the subnets that the nodes of %q have their InternalIPs from (kubectl get nodes -o wide, there)", r.Name)
		}
		r.NodePrefixes = parsePrefixes(p, field+".nodeSubnets", r.NodeSubnets)
		for _, prefix := range r.PodPrefixes {
			for _, other := range claims {
				if prefix.Overlaps(other.prefix) {
					p.add(field+".podSubnets", "%s overlaps %s (%s): clusters can be connected only when their subnets are apart", prefix, other.prefix, other.field)
				}
			}
			claims = append(claims, claim{field + ".podSubnets", prefix})
		}

		if r.Encryption == "" {
			r.Encryption = c.Encryption
		} else {
			r.Encryption.check(p, field+".encryption")
		}
		r.Limits.complete(p, field+".limits", len(c.Remotes))
		if r.WireGuard.ListenPort == 0 {
			r.WireGuard.ListenPort = DefaultListenPort
		}
		if other, ok := ports[r.WireGuard.ListenPort]; ok && c.Features.Has(Encryption) {
			p.add(field+".wireguard.listenPort", "%d is also that of %s: each remote has a device, and each device a port", r.WireGuard.ListenPort, other)
		}
		ports[r.WireGuard.ListenPort] = r.Name
		if r.WireGuard.ProbePort == nil {
			port := uint16(defaultProbePort)
			r.WireGuard.ProbePort = &port
		}
		if m := r.WireGuard.MTU; m != 0 && (m < 1280 || m > 65455) {
			p.add(field+".wireguard.mtu", "%d: use 1280 to 65455 bytes, or 0 to have it derived", m)
		}
		r.WireGuard.PersistentKeepalive.check(p, field+".wireguard.persistentKeepalive")
		if k := r.WireGuard.PersistentKeepalive.Duration; k < 0 || k.Seconds() > 65535 || k%time.Second != 0 {
			p.add(field+".wireguard.persistentKeepalive", "%s: use 0 to 65535 whole seconds", k)
		}
		r.WireGuard.KeyMaxAge.check(p, field+".wireguard.keyMaxAge")
		if k := r.WireGuard.KeyMaxAge.Duration; k != 0 && k < minKeyMaxAge {
			p.add(field+".wireguard.keyMaxAge", "%s: use %s or more, or 0 for never", k, minKeyMaxAge)
		}
	}
	c.checkNodeSubnets(p)
	c.completeFamilies(p)
	setIPs := 0
	for i := range c.Remotes {
		setIPs += c.Remotes[i].Limits.SetIPs
	}
	if setIPs > maxSetIPs {
		p.add("remotes[].limits.setIPs", "%d of all remotes together: %d is the most, as a policy that selects all sets has one ipset, and an ipset holds 1048576 addresses", setIPs, maxSetIPs)
	}
	if len(c.Remotes) == 0 {
		p.add("remotes", "none: name at least one remote cluster")
	}
}

// checkNodeSubnets refuses subnets in which no end of a tunnel can be. Nodes of several clusters may share a
// subnet.
func (c *Broker) checkNodeSubnets(p *problems) {
	for i := range c.Remotes {
		field := fmt.Sprintf("remotes[%d].nodeSubnets", i)
		for _, nodes := range c.Remotes[i].NodePrefixes {
			for j, l := range c.LocalPrefixes {
				if l.Bits() <= nodes.Bits() && l.Contains(nodes.Addr()) {
					p.add(field, "%s is inside of %s (localSubnets[%d]), of which nothing is taken: where nodes of both clusters share a subnet, leave it out of localSubnets", nodes, l, j)
				}
			}
			for j := range c.Remotes {
				for _, pods := range c.Remotes[j].PodPrefixes {
					if pods.Overlaps(nodes) {
						p.add(field, "%s overlaps %s (remotes[%d].podSubnets): packets for a tunnel would go into a tunnel", nodes, pods, j)
					}
				}
			}
		}
	}
}

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
	// Features to run; all if absent.
	Features Features `json:"features"`
	// Encryption of remotes without their own value: strict, permissive or clear.
	Encryption Strictness `json:"encryption"`
	// LocalSubnets are the pod, service and node subnets of the own cluster, which nothing of a remote may overlap.
	// Omit node subnets that are shared with a remote.
	LocalSubnets []string `json:"localSubnets"`
	// WireGuard has the options that the devices of all remotes share.
	WireGuard DevicePorts `json:"wireguard"`
	// NodeEndpoints are the kinds of addresses at which other clusters reach the own nodes, in order.
	NodeEndpoints   []EndpointKind `json:"nodeEndpoints"`
	MirrorNamespace string         `json:"mirrorNamespace"`
	// LabelDomains are the domains of the labels of sets. A set has the labels of all.
	LabelDomains []string `json:"labelDomains"`
	// Sets says how sets are written.
	Sets Sets `json:"sets"`
	// Services says how mirrors are written, and which Services are adopted.
	Services Mirrors `json:"services"`
	// Slices says how endpoints are written.
	Slices Slices `json:"slices"`
	// GlobalServices says how services that several clusters offer are combined.
	GlobalServices GlobalServices `json:"globalServices"`
	// MCS is the Multi-Cluster Services API.
	MCS BrokerMCS `json:"mcs"`
	// ManageIPPools makes the broker write a disabled Calico IPPool for each remote pod subnet, so that Calico treats
	// traffic to and from it as pod traffic and applies no SNAT.
	ManageIPPools bool `json:"manageIPPools"`
	// ManageCoreDNS makes the broker keep the server blocks that semaphorectl wired into CoreDNS current.
	ManageCoreDNS bool `json:"manageCoreDNS"`
	// ReserveTunnelAddresses makes the broker reserve an address in Calico's IPAM for the devices of each node that has
	// no address in its pod network.
	ReserveTunnelAddresses bool `json:"reserveTunnelAddresses"`
	// AllowedIPs is the source of the own nodes' pod prefixes, for their agents: the same as in this cluster's
	// exporter.
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
		// Dashboard, if set, serves the page with the live state, on an address of loopback.
		Dashboard string `json:"dashboard"`
		// Services names the Services that route to the leader. Agents use the first one.
		Services []string `json:"services"`
	} `json:"listen"`
	// Pod describes this replica. Tests set it; programs read it from their environment.
	Pod Pod `json:"-"`

	// LocalPrefixes is LocalSubnets, parsed.
	LocalPrefixes []netip.Prefix `json:"-"`
	// Remotes are the clusters whose exports are imported, as RemoteClusters describe them; see WithRemotes. No file
	// has them.
	Remotes []Remote `json:"-"`
}

// Pod describes a replica, as the downward API does.
type Pod struct {
	Namespace, Name, Node string
	UID                   types.UID
	IPs                   []netip.Addr
}

// defaultListenPort is the device port of a remote that sets none. No other known program uses it (Calico's WireGuard
// and flannel use 51820 and 51821, Cilium 51871, Submariner 4500, 4490 and 4800), and it is below the range from which
// the kernel assigns ephemeral ports (32768 and up).
const defaultListenPort = 7775

type Remote struct {
	Name string `json:"name"`
	// PodSubnets contain the IPs of all of the remote's pods; nothing outside of them is accepted from it.
	PodSubnets []string `json:"podSubnets"`
	// NodeSubnets contain the addresses of the remote's nodes, which are the endpoints of its tunnels; required with
	// encryption.
	NodeSubnets []string `json:"nodeSubnets"`
	// ServicePrefix is the prefix of the names of its mirrors; the remote's name if empty.
	ServicePrefix string    `json:"servicePrefix"`
	WireGuard     WireGuard `json:"wireguard"`
	// Encryption is strict, permissive or clear; Broker.Encryption if empty.
	Encryption Strictness `json:"encryption"`
	// Size has the Limits that are not set; Medium if empty.
	Size Size `json:"size"`
	// Limits on what it may export.
	Limits Limits `json:"limits"`

	// PodPrefixes and NodePrefixes are the subnets, parsed.
	PodPrefixes  []netip.Prefix `json:"-"`
	NodePrefixes []netip.Prefix `json:"-"`
}

// Strictness says how unencrypted packets to and from a remote's pods are handled.
type Strictness string

const (
	// Strict drops them.
	Strict Strictness = "strict"
	// Permissive passes and counts them, while encryption is being turned on.
	Permissive Strictness = "permissive"
	// Clear passes them and encrypts nothing, while encryption is being turned off. The agent still decrypts what the
	// remote encrypts.
	Clear Strictness = "clear"
)

func (s Strictness) check(p *problems, field string) {
	if s != Strict && s != Permissive && s != Clear {
		p.add(field, "%q: use strict; permissive while encryption is being turned on or off; clear before it is taken away",
			string(s))
	}
}

func (s Strictness) Passes() bool { return s == Permissive || s == Clear }

// WireGuard has the options of the nodes' device for a remote.
type WireGuard struct {
	// ListenPort is the UDP port of the device; each remote needs its own.
	ListenPort uint16 `json:"listenPort"`
	// MTU in bytes; with 0 each node derives it from its links and from the measured paths.
	MTU int `json:"mtu"`
	// ProbePort is the UDP port on which the remote's nodes answer path probes; 0 for none. It is set once defaults are
	// filled in.
	ProbePort *uint16 `json:"probePort"`
	// AddressFamily is the family of the endpoints of this cluster's and the remote's nodes.
	AddressFamily Family `json:"addressFamily"`
	// PersistentKeepalive is the interval of packets that keep a NAT open; 0 for off, except on nodes that nothing
	// reaches (EndpointKind), which have 25 s.
	PersistentKeepalive Duration `json:"persistentKeepalive"`
	// KeyMaxAge is the age at which each node replaces its key for this remote; 0 for never.
	KeyMaxAge Duration `json:"keyMaxAge"`
}

// minKeyMaxAge prevents a mistyped value from rotating keys continuously.
const minKeyMaxAge = time.Hour

// defaultProbePort is the port of listen.probe of agents.
const defaultProbePort = 7774

// Agents configures which agents a broker accepts.
type Agents struct {
	// Namespace and ServiceAccount the agents run under.
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Audience of their tokens; "semaphore-broker.CLUSTER" if empty. It must differ from the audiences of other
	// clusters.
	Audience string `json:"audience"`
}

func (c *Broker) Remote(name string) (*Remote, bool) {
	for i := range c.Remotes {
		if c.Remotes[i].Name == name {
			return &c.Remotes[i], true
		}
	}
	return nil, false
}

func (c *Broker) setDefaults() {
	c.LeaderElection = leaderElection("semaphore-broker-leader")
	c.Kube.QPS, c.Brake = defaultQPS, defaultBrake()
	c.Sets.MaxSize, c.Slices.MaxEndpoints = defaultSetSize, defaultSliceEndpoints
	c.GlobalServices.setDefaults()
	c.MCS.setDefaults()
}

func (c *Broker) complete(p *problems) {
	c.AllowedIPs.complete(p, "allowedIPs")
	checkCluster(p, "cluster", c.Cluster)
	c.Features.complete(p, "features")
	orDefault(&c.Encryption, Strict)
	c.Encryption.check(p, "encryption")
	completeNodeEndpoints(p, &c.NodeEndpoints)
	orDefault(&c.MirrorNamespace, "semaphore")
	completeLabelDomains(p, &c.LabelDomains)
	orDefault(&c.Agents.Namespace, "semaphore")
	orDefault(&c.Agents.ServiceAccount, "semaphore-agent")
	// Each cluster has its own, so that a token stolen at one broker is useless at another.
	orDefault(&c.Agents.Audience, "semaphore-broker."+c.Cluster)
	orDefault(&c.Listen.Federation, ":8443")
	orDefault(&c.Listen.Peering, ":8444")
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/broker.sock")
	if c.Listen.Services == nil {
		c.Listen.Services = []string{"semaphore-broker", "semaphore-broker-federation"}
	}
	for i, name := range c.Listen.Services {
		p.addEach(fmt.Sprintf("listen.services[%d]", i), validation.IsDNS1035Label(name), "%q is no name of a Service",
			name)
	}
	for _, l := range []struct{ field, address string }{
		{"listen.federation", c.Listen.Federation}, {"listen.peering", c.Listen.Peering}, {"listen.http", c.Listen.HTTP},
	} {
		checkListen(p, l.field, l.address)
	}
	checkLoopback(p, "listen.dashboard", c.Listen.Dashboard)
	p.addEach("mirrorNamespace", validation.IsDNS1123Label(c.MirrorNamespace), "%q", c.MirrorNamespace)
	c.TLS.complete(p, "tls")
	c.Kube.complete(p, "kube")
	c.LeaderElection.complete(p, "leaderElection")
	c.Brake.complete(p, "brake")
	c.Sets.complete(p, "sets")
	c.Services.complete(p, "services")
	c.Slices.complete(p, "slices")
	if len(c.LocalSubnets) == 0 {
		// R9: without them, a remote could claim the addresses of this cluster's own pods and apiserver.
		p.add("localSubnets", "none: name the pod, service and node subnets of this cluster")
	}
	c.LocalPrefixes = parsePrefixes(p, "localSubnets", c.LocalSubnets)
	c.WireGuard.complete(p, "wireguard")
	c.GlobalServices.complete(p, "globalServices", c)
	c.MCS.complete(p, "mcs", c)
	if c.ManageCoreDNS && !c.Features.Has(Services) {
		p.add("manageCoreDNS", "true: names lead to mirrors: use it with the feature services")
	}
}

// remotesSeen collects what earlier remotes use and a further remote must not use as well.
type remotesSeen struct {
	names map[string]bool
	// Prefixes of mirrors, short names, device names and device ports, each with the cluster that uses it.
	prefixes, labels, devices map[string]string
	ports                     map[uint16]string
	// Pod subnets of the remotes, and the subnets of the own cluster.
	subnets []subnetClaim
}

// subnetClaim is a subnet and the configuration field that contains it.
type subnetClaim struct {
	field  string
	prefix netip.Prefix
}

func (c *Broker) completeRemotes(p *problems) {
	seen := &remotesSeen{names: map[string]bool{}, prefixes: map[string]string{}, devices: map[string]string{},
		labels: map[string]string{naming.ClusterLabel(c.Cluster): c.Cluster}, ports: map[uint16]string{}}
	for i, l := range c.LocalPrefixes {
		seen.subnets = append(seen.subnets, subnetClaim{fmt.Sprintf("localSubnets[%d]", i), l})
	}
	for i := range c.Remotes {
		r := &c.Remotes[i]
		field := fmt.Sprintf("remotes[%d]", i)
		c.checkName(p, field, r, seen)
		r.completePrefix(p, field, seen)
		if c.MCS.Enabled && begins(r.ServicePrefix, naming.ImportPrefix) {
			p.add(field+".servicePrefix", "%q begins the names of imported services: use another", r.ServicePrefix)
		}
		c.completeSubnets(p, field, r, seen)
		if r.Encryption == "" {
			r.Encryption = c.Encryption
		} else {
			r.Encryption.check(p, field+".encryption")
		}
		r.Limits.complete(p, field+".limits", r.Size, len(c.Remotes))
		c.completeDevice(p, field+".wireguard", r, seen)
	}
	c.checkNodeSubnets(p)
	c.completeFamilies(p)
	setIPs := 0
	for i := range c.Remotes {
		setIPs += c.Remotes[i].Limits.SetIPs
	}
	if setIPs > maxSetIPs {
		p.add("remotes[].limits.setIPs", "%d of all remotes together: %d is the most, as a policy that selects all sets "+
			"has one ipset, and an ipset holds 1048576 addresses", setIPs, maxSetIPs)
	}
}

// checkName refuses a name that another cluster has, or whose device name another cluster has.
func (c *Broker) checkName(p *problems, field string, r *Remote, seen *remotesSeen) {
	checkCluster(p, field+".name", r.Name)
	if seen.names[r.Name] {
		p.add(field+".name", "%q is listed twice", r.Name)
	}
	if r.Name == c.Cluster {
		p.add(field+".name", "%q is this cluster itself", r.Name)
	}
	if r.Name == naming.GlobalCluster && c.Features.Has(Services) {
		p.add(field+".name", "%q stands for all clusters in the names of global services, such as "+
			"echo.shop.svc.cluster.%s: use another", r.Name, r.Name)
	}
	seen.names[r.Name] = true
	label := naming.ClusterLabel(r.Name)
	if other := seen.labels[label]; other != "" && other != r.Name {
		p.add(field+".name", "%q and %q have one short name, %s: give one of the clusters another", r.Name, other, label)
	}
	seen.labels[label] = r.Name
	if other, ok := seen.devices[naming.Device(r.Name)]; ok && other != r.Name {
		p.add(field+".name", "%q and %q have devices of one name, %s", r.Name, other, naming.Device(r.Name))
	}
	seen.devices[naming.Device(r.Name)] = r.Name
}

// begins reports whether names with the prefix can begin like names with the other prefix.
func begins(prefix, other string) bool {
	return prefix == other || strings.HasPrefix(prefix, other+"-")
}

// completePrefix refuses prefixes with which mirrors of two remotes could get the same name.
func (r *Remote) completePrefix(p *problems, field string, seen *remotesSeen) {
	orDefault(&r.ServicePrefix, naming.ClusterLabel(r.Name))
	p.addEach(field+".servicePrefix", validation.IsDNS1035Label(r.ServicePrefix), "%q begins the names of Services",
		r.ServicePrefix)
	if begins(r.ServicePrefix, naming.GlobalPrefix) {
		p.add(field+".servicePrefix", "%q begins the names of global services: use another", r.ServicePrefix)
	}
	if other, ok := seen.prefixes[r.ServicePrefix]; ok {
		p.add(field+".servicePrefix", "%q is also that of %s: their mirrors would have the same names",
			r.ServicePrefix, other)
	}
	// The name of a mirror is PREFIX-NAMESPACE-73736d-NAME, and a namespace may begin with the rest of the longer
	// prefix. A user who may create a namespace in one of the two clusters could then take the names of the other
	// cluster's mirrors.
	for prefix, other := range seen.prefixes {
		if strings.HasPrefix(prefix, r.ServicePrefix+"-") || strings.HasPrefix(r.ServicePrefix, prefix+"-") {
			p.add(field+".servicePrefix",
				"%q and %q of %s: one begins with the other and a \"-\", so that their mirrors could have the same names; "+
					"give one of them another servicePrefix, such as %q", r.ServicePrefix, prefix, other,
				strings.ReplaceAll(r.ServicePrefix, "-", ""))
		}
	}
	seen.prefixes[r.ServicePrefix] = r.Name
}

// completeSubnets parses the pod and node subnets of a remote, and refuses those that another cluster uses.
func (c *Broker) completeSubnets(p *problems, field string, r *Remote, seen *remotesSeen) {
	if len(r.PodSubnets) == 0 {
		p.add(field+".podSubnets", "none: name the subnets that the pods of %q have", r.Name)
	}
	r.PodPrefixes = parsePrefixes(p, field+".podSubnets", r.PodSubnets)
	if len(r.NodeSubnets) == 0 && c.Features.Has(Encryption) {
		// R11: without them, a remote could make the nodes of this cluster send packets to any address.
		p.add(field+".nodeSubnets",
			"none: name the subnets that the nodes of %q have their InternalIPs from (kubectl get nodes -o wide, there)",
			r.Name)
	}
	r.NodePrefixes = parsePrefixes(p, field+".nodeSubnets", r.NodeSubnets)
	for _, prefix := range r.PodPrefixes {
		for _, other := range seen.subnets {
			if prefix.Overlaps(other.prefix) {
				p.add(field+".podSubnets", "%s overlaps %s (%s): clusters can be connected only when their subnets are apart",
					prefix, other.prefix, other.field)
			}
		}
		seen.subnets = append(seen.subnets, subnetClaim{field + ".podSubnets", prefix})
	}
}

func (c *Broker) completeDevice(p *problems, field string, r *Remote, seen *remotesSeen) {
	orDefault(&r.WireGuard.ListenPort, defaultListenPort)
	if other, ok := seen.ports[r.WireGuard.ListenPort]; ok && c.Features.Has(Encryption) {
		p.add(field+".listenPort", "%d is also that of %s: each remote has a device, and each device a port",
			r.WireGuard.ListenPort, other)
	}
	seen.ports[r.WireGuard.ListenPort] = r.Name
	if r.WireGuard.ProbePort == nil {
		r.WireGuard.ProbePort = new(uint16(defaultProbePort))
	}
	if m := r.WireGuard.MTU; m != 0 && (m < 1280 || m > 65455) {
		p.add(field+".mtu", "%d: use 1280 to 65455 bytes, or 0 to have it derived", m)
	}
	k := r.WireGuard.PersistentKeepalive.Duration
	r.WireGuard.PersistentKeepalive.check(p, field+".persistentKeepalive",
		k >= 0 && k.Seconds() <= 65535 && k%time.Second == 0, "0 to 65535 whole seconds")
	age := r.WireGuard.KeyMaxAge.Duration
	r.WireGuard.KeyMaxAge.check(p, field+".keyMaxAge", age == 0 || age >= minKeyMaxAge, "%s or more, or 0 for never",
		minKeyMaxAge)
}

// checkNodeSubnets refuses subnets that cannot contain the endpoint of a tunnel. Nodes of several clusters may share a
// subnet.
func (c *Broker) checkNodeSubnets(p *problems) {
	for i := range c.Remotes {
		field := fmt.Sprintf("remotes[%d].nodeSubnets", i)
		for _, nodes := range c.Remotes[i].NodePrefixes {
			for j, l := range c.LocalPrefixes {
				if l.Bits() <= nodes.Bits() && l.Contains(nodes.Addr()) {
					p.add(field, "%s is inside of %s (localSubnets[%d]), where no endpoint is accepted: if nodes of both clusters "+
						"share a subnet, leave it out of localSubnets", nodes, l, j)
				}
			}
			for j := range c.Remotes {
				for _, pods := range c.Remotes[j].PodPrefixes {
					if pods.Overlaps(nodes) {
						p.add(field, "%s overlaps %s (remotes[%d].podSubnets): packets for a tunnel would go into a tunnel",
							nodes, pods, j)
					}
				}
			}
		}
	}
}

package config

import (
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Exporter is the configuration of semaphore-exporter.
type Exporter struct {
	// Cluster is the name of the cluster whose objects are exported, the same in the
	// configuration of every cluster that knows it.
	Cluster string `json:"cluster"`
	// Features to export for; all if absent.
	Features Features `json:"features"`
	// LocalBroker is the broker in the cluster in which the exporter runs: the own one, which receives the Services of
	// global services, or, for an exporter that reads another cluster, the only one to publish to. RemoteClusters name
	// the others. Without an address there is none.
	LocalBroker ExporterBroker `json:"localBroker"`
	// MirrorSelector and GlobalSelector select the Services that are offered.
	MirrorSelector string `json:"mirrorSelector"`
	GlobalSelector string `json:"globalSelector"`
	// ServiceLabels are the labels of offered Services that other clusters receive.
	ServiceLabels LabelKeys `json:"serviceLabels"`
	// MCS configures the export of Services by ServiceExports.
	MCS ExporterMCS `json:"mcs"`
	// LabelDomains are the domains of the label DOMAIN/name, which puts a pod into a set. The first one that a pod has a
	// label of determines its set.
	LabelDomains []string `json:"labelDomains"`
	// Events makes the exporter write Events about the results of the export to offered Services.
	Events bool `json:"events"`
	// AnnotateServices makes the exporter also write the results to an annotation of offered Services.
	AnnotateServices bool `json:"annotateServices"`
	// AllowedIPs is the source of the nodes' pod prefixes: auto, nodePodCIDRs or calicoBlocks.
	AllowedIPs AllowedIPs `json:"allowedIPs"`
	// PodSubnets contain the IPs of the cluster's pods; nothing outside them is exported. Empty for any.
	PodSubnets []string `json:"podSubnets"`
	// Restores counts how often the cluster's etcd was restored to an earlier state, after which resourceVersions
	// repeat.
	Restores int `json:"restores"`
	// SubnetsFile is the configuration file of the own cluster's broker, as agents have it: RemoteClusters are judged
	// with it as the broker judges them. Without the file they are judged without the own subnets. NoSubnets for none.
	SubnetsFile string `json:"subnetsFile"`
	// WireGuard has the options that the devices of all remotes share, as in the broker's configuration.
	WireGuard DevicePorts `json:"wireguard"`
	// LeaderElection among the exporter's replicas.
	LeaderElection LeaderElection `json:"leaderElection"`
	TLS            TLS            `json:"tls"`
	Kube           Kube           `json:"kube"`
	Listen         struct {
		// HTTP serves /healthz, /readyz and /metrics.
		HTTP string `json:"http"`
		// Debug serves DebugService over mTLS; empty for not at all.
		Debug string `json:"debug"`
		// DebugSocket serves DebugService on a unix socket.
		DebugSocket string `json:"debugSocket"`
	} `json:"listen"`

	// PodPrefixes is PodSubnets, and Mirror and Global are the selectors, parsed.
	PodPrefixes    []netip.Prefix  `json:"-"`
	Mirror, Global labels.Selector `json:"-"`
}

// Foreign reports whether the exporter reads a cluster in which nothing of semaphore runs: it publishes to LocalBroker
// alone, of the cluster in which it runs, and reads no RemoteClusters.
func (c *Exporter) Foreign() bool { return c.LocalBroker.Cluster != c.Cluster }

// AllowedIPs is the source of the IPs of a node's pods, and so of the allowed IPs that peers configure for the node.
type AllowedIPs string

const (
	// AutoAllowedIPs uses a node's blocks if it has any, otherwise its spec.podCIDRs.
	AutoAllowedIPs AllowedIPs = "auto"
	// NodePodCIDRs is spec.podCIDRs of the Node, as with host-local IPAM.
	NodePodCIDRs AllowedIPs = "nodePodCIDRs"
	// CalicoBlocks are the blocks that Calico's IPAM assigned to the node.
	CalicoBlocks AllowedIPs = "calicoBlocks"
)

func (a *AllowedIPs) complete(p *problems, field string) {
	orDefault(a, AutoAllowedIPs)
	if !slices.Contains([]AllowedIPs{AutoAllowedIPs, NodePodCIDRs, CalicoBlocks}, *a) {
		p.add(field, "%q: use auto; nodePodCIDRs; or calicoBlocks, where pods get their IPs from Calico's IPAM", *a)
	}
}

type ExporterBroker struct {
	// OtherAddresses lead to the same broker, and are tried in turn. Only a RemoteCluster has them.
	OtherAddresses []string `json:"-"`
	// Cluster is the broker's cluster; the own one if empty. The broker must present a certificate with the ID
	// spiffe://CLUSTER/broker.
	Cluster string `json:"cluster"`
	// Address is host:port.
	Address string `json:"address"`
}

func (c *Exporter) setDefaults() {
	c.LeaderElection = leaderElection("semaphore-exporter-leader")
	c.Kube.QPS, c.Events = defaultQPS, true
}

func (c *Exporter) complete(p *problems) {
	checkCluster(p, "cluster", c.Cluster)
	c.Features.complete(p, "features")
	orDefault(&c.MirrorSelector, naming.DefaultMirrorSelector)
	orDefault(&c.GlobalSelector, naming.DefaultGlobalSelector)
	completeLabelDomains(p, &c.LabelDomains)
	c.ServiceLabels.complete(p, "serviceLabels")
	if c.MCS.Enabled && !c.Features.Has(Services) {
		p.add("mcs.enabled", "needs the feature services: add it to features")
	}
	if c.MCS.Enabled && c.Kube.RemoteAPIURL != "" {
		p.add("mcs.enabled", "kube.remoteAPIURL reads another cluster, in which this exporter writes no conditions of "+
			"ServiceExports: take mcs out, or install an exporter in that cluster")
	}
	if orDefault(&c.SubnetsFile, defaultSubnetsFile); c.SubnetsFile != NoSubnets && !filepath.IsAbs(c.SubnetsFile) {
		p.add("subnetsFile", "%q: use an absolute path, or %s", c.SubnetsFile, NoSubnets)
	}
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/exporter.sock")
	c.AllowedIPs.complete(p, "allowedIPs")
	c.Mirror = parseSelector(p, "mirrorSelector", c.MirrorSelector)
	c.Global = parseSelector(p, "globalSelector", c.GlobalSelector)
	checkListen(p, "listen.http", c.Listen.HTTP)
	checkListen(p, "listen.debug", c.Listen.Debug)
	c.TLS.complete(p, "tls")
	c.WireGuard.complete(p, "wireguard")
	c.Kube.complete(p, "kube")
	c.LeaderElection.complete(p, "leaderElection")
	c.completeBroker(p)
	if len(c.PodSubnets) > 0 {
		c.PodPrefixes = parsePrefixes(p, "podSubnets", c.PodSubnets)
	}
	if c.Restores < 0 {
		p.add("restores", "%d: use the number of times that the cluster's etcd was restored, 0 or more", c.Restores)
	}
}

func (c *Exporter) completeBroker(p *problems) {
	b := &c.LocalBroker
	if b.Cluster == "" {
		b.Cluster = c.Cluster
	} else {
		checkCluster(p, "localBroker.cluster", b.Cluster)
	}
	if b.Address != "" || c.Foreign() {
		checkDial(p, "localBroker.address", b.Address)
	}
	if c.Foreign() && c.Kube.KubeConfigPath == "" && c.Kube.RemoteAPIURL == "" {
		p.add("localBroker.cluster", "%q is another cluster: make a RemoteCluster for it; only an exporter that reads "+
			"another cluster than the one in which it runs, by kube.remoteAPIURL or kube.kubeConfigPath, names that one "+
			"here", b.Cluster)
	}
	if b.Address != "" && !c.Foreign() && !c.Features.Has(Services) {
		p.add("localBroker.address", "the broker of this cluster itself receives global services only, and features has no "+
			"services")
	}
}

func parseSelector(p *problems, field, text string) labels.Selector {
	selector, err := labels.Parse(text)
	if err != nil {
		p.add(field, "%v; use a label selector such as %q", err, naming.DefaultMirrorSelector)
	}
	return selector
}

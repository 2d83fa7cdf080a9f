package config

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Exporter is the configuration of semaphore-exporter.
type Exporter struct {
	// Cluster is the name of the cluster whose objects are exported, the same in the
	// configuration of every cluster that knows it.
	Cluster string `json:"cluster"`
	// Features to export for; all if absent.
	Features Features `json:"features"`
	// Brokers to publish to: those of other clusters, and the own one, which receives the Services of global services.
	Brokers []ExporterBroker `json:"brokers"`
	// MirrorSelector and GlobalSelector select the Services that are offered.
	MirrorSelector string `json:"mirrorSelector"`
	GlobalSelector string `json:"globalSelector"`
	// ServiceLabels are the labels of offered Services that other clusters receive.
	ServiceLabels LabelKeys `json:"serviceLabels"`
	// MCS configures the export of Services by ServiceExports.
	MCS ExporterMCS `json:"mcs"`
	// LabelDomain is the domain of the label <labelDomain>/name, which puts a pod into a set.
	LabelDomain string `json:"labelDomain"`
	// LabelDomains lists several domains, in place of LabelDomain. The first one that a pod has a label of determines
	// its set; a set has the labels of all domains.
	LabelDomains []string `json:"labelDomains"`
	// ExportRules select the clusters that receive some Services and pods. The first rule that matches applies. Every
	// cluster receives an object that no rule matches.
	ExportRules []ExportRule `json:"exportRules"`
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
	// WireGuard has the options that the devices of all remotes share, as in the broker's configuration.
	WireGuard DevicePorts `json:"wireguard"`
	// LeaderElection among the exporter's replicas.
	LeaderElection LeaderElection `json:"leaderElection"`
	// Tracing of changes by OpenTelemetry.
	Tracing Tracing `json:"tracing"`
	TLS     TLS     `json:"tls"`
	Kube    Kube    `json:"kube"`
	Listen  struct {
		// HTTP serves /healthz, /readyz and /metrics.
		HTTP string `json:"http"`
		// Debug serves DebugService over mTLS; empty for not at all.
		Debug string `json:"debug"`
		// DebugSocket serves DebugService on a unix socket.
		DebugSocket string `json:"debugSocket"`
	} `json:"listen"`

	// PodPrefixes is PodSubnets, parsed.
	PodPrefixes []netip.Prefix `json:"-"`
	// Follows is true if the brokers come from RemoteClusters instead of the file.
	Follows bool `json:"-"`
}

// AllowedIPs is the source of the IPs of a node's pods, and so of the allowed IPs that peers configure for the node.
type AllowedIPs string

// The sources.
const (
	// AutoAllowedIPs uses a node's blocks if it has any, otherwise its spec.podCIDRs.
	AutoAllowedIPs AllowedIPs = "auto"
	// NodePodCIDRs is spec.podCIDRs of the Node, as with host-local IPAM.
	NodePodCIDRs AllowedIPs = "nodePodCIDRs"
	// CalicoBlocks are the blocks that Calico's IPAM assigned to the node.
	CalicoBlocks AllowedIPs = "calicoBlocks"
)

func (a *AllowedIPs) complete(p *problems, field string) {
	if *a == "" {
		*a = AutoAllowedIPs
	}
	if !slices.Contains([]AllowedIPs{AutoAllowedIPs, NodePodCIDRs, CalicoBlocks}, *a) {
		p.add(field, "%q: use auto; nodePodCIDRs; or calicoBlocks, where pods get their IPs from Calico's IPAM", *a)
	}
}

// ExportRule selects the clusters that receive some Services, with their EndpointSlices, and some pods of sets.
type ExportRule struct {
	// Kinds are the features whose objects the rule matches: services, policy; both if empty.
	Kinds Features `json:"kinds"`
	// Namespaces that the rule matches; all if empty.
	Namespaces []string `json:"namespaces"`
	// Selector matches labels of Services and pods; all if empty.
	Selector string `json:"selector"`
	// Clusters with brokers that receive them; an empty list for none.
	Clusters []string `json:"clusters"`
}

// ExporterBroker is the broker of one cluster.
type ExporterBroker struct {
	// Cluster is the broker's cluster. The broker must present a certificate with the ID spiffe://CLUSTER/broker.
	Cluster string `json:"cluster"`
	// Address is host:port.
	Address string `json:"address"`
}

func (c *Exporter) setDefaults() {
	c.LeaderElection = leaderElection("semaphore-exporter-leader")
	c.Events = true
}

func (c *Exporter) complete(p *problems) {
	checkCluster(p, "cluster", c.Cluster)
	c.Features.complete(p, "features")
	orDefault(&c.MirrorSelector, naming.DefaultMirrorSelector)
	orDefault(&c.GlobalSelector, naming.DefaultGlobalSelector)
	completeLabelDomains(p, &c.LabelDomain, &c.LabelDomains)
	c.ServiceLabels.complete(p, "serviceLabels")
	if c.MCS.Enabled && !c.Features.Has(Services) {
		p.add("mcs.enabled", "needs the feature services: add it to features")
	}
	if c.MCS.Enabled && c.Kube.RemoteAPIURL != "" {
		p.add("mcs.enabled", "kube.remoteAPIURL reads another cluster, in which this exporter writes no conditions of "+
			"ServiceExports: take mcs out, or install an exporter in that cluster")
	}
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/exporter.sock")
	c.AllowedIPs.complete(p, "allowedIPs")
	checkSelector(p, "mirrorSelector", c.MirrorSelector)
	checkSelector(p, "globalSelector", c.GlobalSelector)
	checkListen(p, "listen.http", c.Listen.HTTP)
	checkListen(p, "listen.debug", c.Listen.Debug)
	c.Tracing.complete(p, "tracing")
	c.TLS.complete(p, "tls")
	c.WireGuard.complete(p, "wireguard")
	c.Kube.complete(p, "kube")
	c.LeaderElection.complete(p, "leaderElection")
	seen := map[string]bool{}
	for i, b := range c.Brokers {
		field := fmt.Sprintf("brokers[%d]", i)
		checkCluster(p, field+".cluster", b.Cluster)
		checkDial(p, field+".address", b.Address)
		if seen[b.Cluster] {
			p.add(field+".cluster", "%q is listed twice", b.Cluster)
		}
		if b.Cluster == c.Cluster && !c.Features.Has(Services) {
			p.add(field+".cluster", "%q is this cluster itself, whose broker receives global services only, and features "+
				"has no services", b.Cluster)
		}
		seen[b.Cluster] = true
	}
	c.Follows = !slices.ContainsFunc(c.Brokers, func(b ExporterBroker) bool { return b.Cluster != c.Cluster })
	if c.Follows && len(c.ExportRules) > 0 {
		p.add(
			"exportRules",
			"there are some, and no brokers of other clusters: each RemoteCluster has its own rules, in spec.export",
		)
	}
	if len(c.PodSubnets) > 0 {
		c.PodPrefixes = parsePrefixes(p, "podSubnets", c.PodSubnets)
	}
	if c.Restores < 0 {
		p.add("restores", "%d: use the number of times that the cluster's etcd was restored, 0 or more", c.Restores)
	}
	for i, r := range c.ExportRules {
		r.check(p, fmt.Sprintf("exportRules[%d]", i), c.Cluster, seen)
	}
}

func (r ExportRule) check(p *problems, field, own string, brokers map[string]bool) {
	for i, kind := range r.Kinds {
		if kind != Services && kind != Policy {
			p.add(fmt.Sprintf("%s.kinds[%d]", field, i),
				"%q: use services, policy; every cluster receives every node, with its own end of the tunnel only", kind)
		}
	}
	for i, n := range r.Namespaces {
		for _, e := range validation.IsDNS1123Label(n) {
			p.add(fmt.Sprintf("%s.namespaces[%d]", field, i), "%q is no namespace: %s", n, e)
		}
	}
	if r.Selector != "" {
		checkSelector(p, field+".selector", r.Selector)
	}
	if r.Clusters == nil {
		p.add(field+".clusters", "missing: name clusters of brokers, or write [] for none")
	}
	for i, cluster := range r.Clusters {
		if cluster == own {
			p.add(fmt.Sprintf("%s.clusters[%d]", field, i),
				"%q is this cluster itself, from which nothing is kept: take it out", cluster)
		} else if !brokers[cluster] {
			p.add(fmt.Sprintf("%s.clusters[%d]", field, i), "%q: brokers has no such cluster", cluster)
		}
	}
}

func checkSelector(p *problems, field, selector string) {
	if _, err := labels.Parse(selector); err != nil {
		p.add(field, "%v; use a label selector such as %q", err, naming.DefaultMirrorSelector)
	}
}

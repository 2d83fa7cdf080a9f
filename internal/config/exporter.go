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
	// Features to export for; all when absent.
	Features Features `json:"features"`
	// Brokers to publish to: those of other clusters, and the own one, which is told of global services.
	Brokers []ExporterBroker `json:"brokers"`
	// MirrorSelector and GlobalSelector select the Services that are offered.
	MirrorSelector string `json:"mirrorSelector"`
	GlobalSelector string `json:"globalSelector"`
	// ServiceLabels are the labels of offered Services that other clusters are told.
	ServiceLabels LabelKeys `json:"serviceLabels"`
	// LabelDomain is that of the label <labelDomain>/name, which puts a pod into a set.
	LabelDomain string `json:"labelDomain"`
	// LabelDomains are several in place of it; of those that a pod has, the first counts, and sets have the labels of all.
	LabelDomains []string `json:"labelDomains"`
	// ExportRules say for which clusters some Services and pods are; of several that match, the first. An object
	// that none matches is for every cluster.
	ExportRules []ExportRule `json:"exportRules"`
	// Events says whether what becomes of offered Services is written as Events on them.
	Events bool `json:"events"`
	// AnnotateServices says whether it is written as an annotation on them, too.
	AnnotateServices bool `json:"annotateServices"`
	// AllowedIPs says where the IPs of a node's pods are: auto, nodePodCIDRs or calicoBlocks.
	AllowedIPs AllowedIPs `json:"allowedIPs"`
	// PodSubnets hold the IPs of the cluster's pods; nothing outside them is exported. Empty for any.
	PodSubnets []string `json:"podSubnets"`
	// Restores is how often the cluster's etcd was put back to an earlier state, after which resourceVersions begin anew from there.
	Restores int `json:"restores"`
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

	// PodPrefixes is PodSubnets, parsed.
	PodPrefixes []netip.Prefix `json:"-"`
}

// AllowedIPs is where it is written which IPs the pods of a node have, and so which its peers let it send from.
type AllowedIPs string

// The places.
const (
	// AutoAllowedIPs are the blocks of a node that has some, and else its spec.podCIDRs.
	AutoAllowedIPs AllowedIPs = "auto"
	// NodePodCIDRs is spec.podCIDRs of the Node, as with host-local IPAM.
	NodePodCIDRs AllowedIPs = "nodePodCIDRs"
	// CalicoBlocks are the blocks that Calico's IPAM has given the node.
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

// ExportRule says for which clusters some Services, with their EndpointSlices, and pods of sets are.
type ExportRule struct {
	// Kinds are the features whose objects it is about: services, policy; both when empty.
	Kinds Features `json:"kinds"`
	// Namespaces that it is about; all when empty.
	Namespaces []string `json:"namespaces"`
	// Selector of labels of the Services and pods that it is about; all when empty.
	Selector string `json:"selector"`
	// Clusters with brokers that may see them; an empty list for none.
	Clusters []string `json:"clusters"`
}

// ExporterBroker is the broker of one cluster.
type ExporterBroker struct {
	// Cluster is the broker's cluster; the certificate it shows must be spiffe://CLUSTER/broker.
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
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/exporter.sock")
	c.AllowedIPs.complete(p, "allowedIPs")
	checkSelector(p, "mirrorSelector", c.MirrorSelector)
	checkSelector(p, "globalSelector", c.GlobalSelector)
	checkListen(p, "listen.http", c.Listen.HTTP)
	checkListen(p, "listen.debug", c.Listen.Debug)
	c.TLS.complete(p, "tls")
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
			p.add(field+".cluster", "%q is this cluster itself, whose broker is told of global services only, and features has no services", b.Cluster)
		}
		seen[b.Cluster] = true
	}
	if len(c.Brokers) == 0 {
		p.add("brokers", "none: name the broker of at least one cluster")
	}
	if len(c.PodSubnets) > 0 {
		c.PodPrefixes = parsePrefixes(p, "podSubnets", c.PodSubnets)
		if c.Restores < 0 {
			p.add("restores", "%d: use how often the cluster's etcd was put back, 0 or more", c.Restores)
		}
	}
	for i, r := range c.ExportRules {
		r.check(p, fmt.Sprintf("exportRules[%d]", i), c.Cluster, seen)
	}
}

func (r ExportRule) check(p *problems, field, own string, brokers map[string]bool) {
	for i, kind := range r.Kinds {
		if kind != Services && kind != Policy {
			p.add(fmt.Sprintf("%s.kinds[%d]", field, i), "%q: use services, policy; every node is for every cluster, which is told its own end of the tunnel only", kind)
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
			p.add(fmt.Sprintf("%s.clusters[%d]", field, i), "%q is this cluster itself, from which nothing is kept: take it out", cluster)
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

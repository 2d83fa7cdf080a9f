package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Exporter is the configuration of semaphore-exporter.
type Exporter struct {
	// Cluster is the name of the cluster whose objects are exported, the same in the
	// configuration of every cluster that knows it.
	Cluster string `json:"cluster"`
	// Features to export for; all when absent.
	Features Features `json:"features"`
	// Brokers to publish to.
	Brokers []ExporterBroker `json:"brokers"`
	// MirrorSelector and GlobalSelector select the Services that are offered.
	MirrorSelector string `json:"mirrorSelector"`
	GlobalSelector string `json:"globalSelector"`
	// LabelDomain is that of the label <labelDomain>/name, which puts a pod into a set.
	LabelDomain string `json:"labelDomain"`
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
}

// ExporterBroker is the broker of one remote cluster.
type ExporterBroker struct {
	// Cluster is the broker's cluster; the certificate it shows must be spiffe://CLUSTER/broker.
	Cluster string `json:"cluster"`
	// Address is host:port.
	Address string `json:"address"`
}

func (c *Exporter) setDefaults() { c.LeaderElection = leaderElection("semaphore-exporter") }

func (c *Exporter) complete(p *problems) {
	checkCluster(p, "cluster", c.Cluster)
	c.Features.complete(p, "features")
	orDefault(&c.MirrorSelector, naming.DefaultMirrorSelector)
	orDefault(&c.GlobalSelector, naming.DefaultGlobalSelector)
	orDefault(&c.LabelDomain, naming.DefaultLabelDomain)
	orDefault(&c.Listen.HTTP, ":8080")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/exporter.sock")
	checkSelector(p, "mirrorSelector", c.MirrorSelector)
	checkSelector(p, "globalSelector", c.GlobalSelector)
	checkLabelDomain(p, "labelDomain", c.LabelDomain)
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
		if b.Cluster == c.Cluster {
			p.add(field+".cluster", "%q is this cluster itself", b.Cluster)
		}
		seen[b.Cluster] = true
	}
	if len(c.Brokers) == 0 {
		p.add("brokers", "none: name the broker of at least one remote cluster")
	}
}

func checkSelector(p *problems, field, selector string) {
	if _, err := labels.Parse(selector); err != nil {
		p.add(field, "%v; use a label selector such as %q", err, naming.DefaultMirrorSelector)
	}
}

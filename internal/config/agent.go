package config

import "path/filepath"

// Agent is the configuration of semaphore-agent. What it programs comes from its broker.
type Agent struct {
	// Cluster is the name of the agent's own cluster.
	Cluster string `json:"cluster"`
	Broker  struct {
		// Address is host:port of the broker's peering listener.
		Address string `json:"address"`
		// BundleFile holds the roots of the own cluster; the broker must be spiffe://CLUSTER/broker under them.
		BundleFile string `json:"bundleFile"`
		// TokenFile holds the projected ServiceAccount token; read again at every dial.
		TokenFile string `json:"tokenFile"`
	} `json:"broker"`
	// WGKeyPath is the directory of the private keys.
	WGKeyPath string `json:"wgKeyPath"`
	// Backend is auto (the kernel's WireGuard where there is one, else wireguard-go), kernel or userspace.
	Backend string `json:"backend"`
	Listen  struct {
		HTTP        string `json:"http"`
		DebugSocket string `json:"debugSocket"`
	} `json:"listen"`
}

func (c *Agent) complete(p *problems) {
	checkCluster(p, "cluster", c.Cluster)
	orDefault(&c.Broker.Address, "semaphore-broker.semaphore.svc:8444")
	orDefault(&c.Broker.BundleFile, "/etc/semaphore/bundles/"+c.Cluster+".pem")
	orDefault(&c.Broker.TokenFile, "/var/run/secrets/semaphore/token")
	orDefault(&c.WGKeyPath, "/var/lib/semaphore-wireguard")
	orDefault(&c.Backend, "auto")
	orDefault(&c.Listen.HTTP, ":7773")
	orDefault(&c.Listen.DebugSocket, "/run/semaphore/agent.sock")
	checkDial(p, "broker.address", c.Broker.Address)
	checkListen(p, "listen.http", c.Listen.HTTP)
	if !filepath.IsAbs(c.WGKeyPath) {
		p.add("wgKeyPath", "%q: use an absolute path", c.WGKeyPath)
	}
	switch c.Backend {
	case "auto", "kernel", "userspace":
	default:
		p.add("backend", "%q: use auto, kernel or userspace", c.Backend)
	}
}

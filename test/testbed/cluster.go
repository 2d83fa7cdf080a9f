package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// Cluster is one cluster of a testbed.
type Cluster struct {
	Name string
	// Server is the URL of the apiserver, reachable on the fabric.
	Server string
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string
	// PodCIDR, ServiceCIDR and NodeSubnet are the cluster's prefixes. The fields that end in 6 are valid only in a
	// dual-stack cluster.
	PodCIDR, ServiceCIDR, NodeSubnet netip.Prefix
	PodCIDR6, ServiceCIDR6           netip.Prefix
	// Nodes are in the order in which they joined. AddNode replaces the slice.
	Nodes []*Node

	// REST connects this process to the apiserver as an administrator. Client and Dynamic use it.
	REST    *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	kinds   *restmapper.DeferredDiscoveryRESTMapper

	tb           *Testbed
	place        int // position in Options.Clusters, from 1
	dir          string
	addresses    addresses
	access       *access
	controlPlane *netns.Namespace
	cniTemplate  string

	nodesMu sync.Mutex
	joined  int // how many nodes have ever joined; guarded by nodesMu

	processesMu sync.Mutex
	processes   []*Process
}

func newCluster(tb *Testbed, spec ClusterSpec, place int) *Cluster {
	a := planCluster(place, tb.options.dual())
	dir := filepath.Join(tb.state.path, spec.Name)
	c := &Cluster{
		Name: spec.Name, Server: "https://" + hostPort(a.controlPlane, apiPort),
		Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
		PodCIDR:    a.pods, ServiceCIDR: a.services, NodeSubnet: a.nodes, PodCIDR6: a.pods6, ServiceCIDR6: a.services6,
		tb: tb, place: place, dir: dir, addresses: a, joined: spec.Nodes,
	}
	for k := 1; k <= spec.Nodes; k++ {
		c.Nodes = append(c.Nodes, c.newNode(k))
	}
	return c
}

func (c *Cluster) newNode(number int) *Node {
	ip, ip6 := planNode(c.place, number, c.tb.options.dual())
	name := nodeName(number)
	return &Node{Name: name, IP: ip, IP6: ip6, cluster: c, disk: filepath.Join(c.dir, "nodes", name)}
}

// up starts the cluster and returns when all of it is ready. Steps without a dependency run in parallel: nodes boot
// while the apiserver starts.
func (c *Cluster) up(ctx context.Context) error {
	if err := os.MkdirAll(c.logs(), 0o755); err != nil {
		return err
	}
	done := c.tb.times.span(c.Name, "certificates")
	if err := c.makePKI(); err != nil {
		return err
	}
	done()
	g, ctx := errgroup.WithContext(ctx)
	apiserver, calico := newGate(), newGate()
	g.Go(func() error {
		if err := c.startControlPlane(ctx); err != nil {
			return err
		}
		apiserver.open()
		if c.tb.options.CNI == CNICalico {
			if err := c.installCalico(ctx); err != nil {
				return err
			}
		}
		calico.open()
		return c.installDNS(ctx)
	})
	g.Go(func() error {
		ready, readyCtx := errgroup.WithContext(ctx)
		for _, n := range c.Nodes {
			ready.Go(func() error {
				if err := n.start(readyCtx, apiserver.wait, calico.wait); err != nil {
					return fmt.Errorf("node %s of %s: %w", n.Name, c.Name, err)
				}
				return nil
			})
		}
		if err := ready.Wait(); err != nil {
			return err
		}
		if err := c.routePods(ctx); err != nil {
			return err
		}
		if err := c.waitMesh(ctx); err != nil {
			return err
		}
		// Only now: each answer that a missing route loses makes the patience with the next one longer.
		return c.waitDNS(ctx, c.Nodes[0])
	})
	return g.Wait()
}

// gate is an event that several goroutines wait for. It happens once.
type gate chan struct{}

func newGate() gate { return make(gate) }

func (g gate) open() { close(g) }

func (g gate) wait(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// prepare creates a component of the cluster without starting it; keep starts it.
func (c *Cluster) prepare(name, logFile string, start func() (*spawn.Process, error)) *Process {
	return newProcess(name, logFile, start, c.tb.log.With("cluster", c.Name), func(err error) {
		if !c.tb.settled.Load() {
			c.tb.fail(fmt.Errorf("%s: %w", c.Name, err))
		}
	})
}

// keep runs a process until the testbed goes down.
func (c *Cluster) keep(ctx context.Context, p *Process) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	c.processesMu.Lock()
	c.processes = append(c.processes, p)
	c.processesMu.Unlock()
	c.tb.background(func(ctx context.Context) error {
		p.run(ctx)
		return nil
	})
	return nil
}

func (c *Cluster) logs() string { return filepath.Join(c.tb.state.path, "logs", c.Name) }

func (c *Cluster) describe() ClusterState {
	s := ClusterState{
		Name: c.Name, Server: c.Server, Kubeconfig: c.Kubeconfig, Pods: c.PodCIDR.String(), Services: c.ServiceCIDR.String(),
		Logs: c.logs(),
	}
	c.nodesMu.Lock()
	defer c.nodesMu.Unlock()
	for _, n := range c.Nodes {
		node := NodeState{Name: n.Name, IP: n.IP.String(), Daemons: c.tb.cgroups.FilesInside(n.daemons())}
		node.PID, _ = n.PID() // 0 while the node is powered off
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/kubelet"
	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// Cluster is one cluster of a testbed.
type Cluster struct {
	Name string
	// Server is the URL of the apiserver, for those on the fabric.
	Server string
	// Kubeconfig is the file of an administrator.
	Kubeconfig string
	// PodCIDR, ServiceCIDR and NodeSubnet are the cluster's addresses.
	PodCIDR, ServiceCIDR, NodeSubnet netip.Prefix
	// Nodes in the order of their names.
	Nodes []*Node

	// REST reaches the apiserver from this process, as an administrator; Client and Dynamic are made of it.
	REST    *rest.Config
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	tb           *Testbed
	dir          string
	addresses    addresses
	access       *access
	controlPlane *netns.Namespace
	kubelet      *kubelet.Kubelet

	processesMu sync.Mutex
	processes   []*Process
}

func newCluster(tb *Testbed, spec ClusterSpec, place int) *Cluster {
	a := planCluster(place)
	dir := filepath.Join(tb.state.path, spec.Name)
	c := &Cluster{
		Name: spec.Name, Server: "https://" + hostPort(a.controlPlane, apiPort),
		Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
		PodCIDR:    a.pods, ServiceCIDR: a.services, NodeSubnet: a.nodes,
		tb: tb, dir: dir, addresses: a,
	}
	for k := 1; k <= spec.Nodes; k++ {
		ip, pods := planNode(place, k)
		c.Nodes = append(c.Nodes, &Node{
			Name: nodeName(k), IP: ip, PodCIDR: pods, cluster: c, Root: filepath.Join(dir, "nodes", nodeName(k)),
		})
	}
	return c
}

// up starts the cluster and returns when all of it is ready. The kubelet's images need programs, which are there when
// built is closed.
func (c *Cluster) up(ctx context.Context, built <-chan struct{}) error {
	if err := os.MkdirAll(c.logs(), 0o755); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	nodesMade := make(chan struct{})
	g.Go(func() error {
		defer close(nodesMade)
		for _, n := range c.Nodes {
			if err := c.createNode(n); err != nil {
				return fmt.Errorf("node %s of %s: %w", n.Name, c.Name, err)
			}
		}
		return nil
	})
	g.Go(func() error {
		if err := c.startControlPlane(ctx); err != nil {
			return err
		}
		select {
		case <-nodesMade:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := c.routeToPods(); err != nil {
			return err
		}
		return c.startNodes(ctx, built)
	})
	return g.Wait()
}

// routeToPods gives the control plane and each node routes to the pods of the other nodes, as BIRD does under Calico. An
// apiserver calls webhooks and answers pods by them.
func (c *Cluster) routeToPods() error {
	for _, n := range c.Nodes {
		if err := addRoute(c.controlPlane, n.PodCIDR, n.IP); err != nil {
			return err
		}
		for _, other := range c.Nodes {
			if other == n {
				continue
			}
			if err := addRoute(n.Netns, other.PodCIDR, other.IP); err != nil {
				return err
			}
		}
	}
	return nil
}

// startNodes starts what runs on nodes, once the apiserver answers and the nodes' namespaces are there.
func (c *Cluster) startNodes(ctx context.Context, built <-chan struct{}) error {
	if err := c.createYAML(ctx, manifest("felix.yaml")); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.register(ctx); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := c.installDNS(ctx); err != nil {
			return err
		}
		select {
		case <-built:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := c.startKubelet(); err != nil {
			return err
		}
		return c.waitDNS(ctx, c.Nodes[0])
	})
	for _, n := range c.Nodes {
		g.Go(func() error { return n.startKubeProxy(ctx) })
	}
	g.Go(func() error {
		if err := c.installCalico(ctx); err != nil {
			return err
		}
		felix, ctx := errgroup.WithContext(ctx)
		for _, n := range c.Nodes {
			felix.Go(func() error { return n.startFelix(ctx) })
		}
		return felix.Wait()
	})
	return g.Wait()
}

// startKubelet starts the stand-in for the kubelets of all nodes.
func (c *Cluster) startKubelet() error {
	config := kubelet.Config{
		Cluster: c.Name, REST: c.REST, Images: c.images(), Dir: c.kubeletDir(),
		ClusterDNS: c.addresses.dns, ClusterDomain: clusterDomain,
		APIServer:   netip.AddrPortFrom(c.addresses.apiService, 443),
		NetnsPrefix: c.tb.namespace(c.Name, "p-"),
		Log:         c.tb.log,
	}
	for _, n := range c.Nodes {
		config.Nodes = append(config.Nodes, kubelet.Node{Name: n.Name, Netns: n.Netns, IP: n.IP, PodCIDR: n.PodCIDR, Root: n.Root})
	}
	k, err := kubelet.New(config)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	c.kubelet = k
	c.tb.background(func(ctx context.Context) error {
		err := k.Run(ctx)
		if ctx.Err() == nil {
			err = fmt.Errorf("%s: the kubelet has ended: %w", c.Name, errors.Join(err))
			c.tb.log.Error("kubelet", "err", err)
			c.tb.fail(err)
		}
		return err
	})
	return nil
}

// images are what pods can run.
func (c *Cluster) images() map[string]kubelet.Image {
	const bin = "/usr/local/bin/"
	product := map[string]string{}
	for name, path := range c.tb.programs {
		if strings.HasPrefix(name, "semaphore") {
			product[bin+name] = path
		}
	}
	images := map[string]kubelet.Image{
		"semaphore": {Binaries: product},
		"coredns":   {Entrypoint: []string{"/coredns"}, Binaries: map[string]string{"/coredns": c.tb.paths.CoreDNS}},
	}
	if path := c.tb.programs["testbed"]; path != "" {
		images["testbed"] = kubelet.Image{Binaries: map[string]string{bin + "testbed": path}}
	}
	return images
}

// supervise starts a process and keeps it running as long as the testbed lives.
func (c *Cluster) supervise(ctx context.Context, name string, spec container.Spec) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p := newProcess(name, spec, c.tb.log.With("cluster", c.Name), func(err error) {
		if !c.tb.settled.Load() {
			c.tb.fail(fmt.Errorf("%s: %w", c.Name, err))
		}
	})
	c.processesMu.Lock()
	c.processes = append(c.processes, p)
	c.processesMu.Unlock()
	c.tb.background(func(ctx context.Context) error {
		p.run(ctx)
		return nil
	})
	return nil
}

func (c *Cluster) logs() string       { return filepath.Join(c.tb.state.path, "logs", c.Name) }
func (c *Cluster) kubeletDir() string { return filepath.Join(c.dir, "kubelet") }

func (c *Cluster) describe() ClusterState {
	s := ClusterState{
		Name: c.Name, Server: c.Server, Kubeconfig: c.Kubeconfig, Pods: c.PodCIDR.String(), Services: c.ServiceCIDR.String(),
		KubeletDir: c.kubeletDir(), Logs: c.logs(),
	}
	for _, n := range c.Nodes {
		node := NodeState{Name: n.Name, Netns: n.Netns.Name(), IP: n.IP.String(), Root: n.Root}
		if n.holder != nil {
			node.PID = n.holder.PID()
		}
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

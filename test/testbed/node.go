package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed/images"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// Node is one node of a cluster: network, mount, PID, IPC and UTS namespaces in which containerd, kubelet, kube-proxy
// and Calico run.
type Node struct {
	Name string
	IP   netip.Addr
	// IP6 is valid only in a dual-stack cluster.
	IP6 netip.Addr
	// PodCIDR is the node's spec.podCIDR, set when the node has joined. Pods have addresses from it only with
	// IPAMHostLocal; with IPAMCalico they have addresses from the node's BlockAffinities.
	PodCIDR netip.Prefix
	// Netns is the node's network namespace. A reboot replaces it by a new one of the same name.
	Netns *netns.Namespace
	// BootCommands run in order on each boot before containerd and kubelet start, like systemd units that are ordered
	// before kubelet. The boot fails if one of them fails.
	BootCommands [][]string

	cluster *Cluster
	// kubeletFlags are additional flags for the kubelet of this node.
	kubeletFlags []string
	disk         string // directory on the machine; it outlives a reboot

	mu        sync.Mutex
	init      *spawn.Process // the node's first process; nil while the node is powered off
	processes []*Process     // in start order
}

// Default ports of the health servers on each node's loopback interface.
const (
	felixHealthPort = 9099
	proxyHealthPort = 10256
)

// containerdSocket is the path on the node where kubelet connects to containerd.
const containerdSocket = "/run/containerd/containerd.sock"

// cgroup returns the node's control group. kubelet creates kubepods below it for pods; everything else is in daemons.
func (n *Node) cgroup() string {
	return cgroupName(n.cluster.tb.ID) + "/" + n.cluster.Name + "-" + n.Name
}

// daemons returns the control group of the node's processes that are not in pods.
func (n *Node) daemons() string { return n.cgroup() + "/daemons" }

// powerOn creates the node's namespaces, starts containerd in them and waits until it answers.
func (n *Node) powerOn(ctx context.Context) error {
	c := n.cluster
	done := c.tb.times.span(c.Name, "containerd/"+n.Name+" answers")
	defer done()
	if err := n.connect(); err != nil {
		return err
	}
	// Remove the groups of dead containers: cAdvisor spends seconds on each before kubelet starts pods.
	groups := c.tb.cgroups
	if err := errors.Join(groups.Kill(n.cgroup()), groups.Remove(n.cgroup()), groups.Create(n.daemons())); err != nil {
		return err
	}
	if err := n.writeFiles(); err != nil {
		return err
	}
	mounts, err := n.mounts()
	if err != nil {
		return err
	}
	first, err := spawn.Start(spawn.Spec{
		Name: c.Name + "/" + n.Name, Netns: n.Netns, Root: c.tb.emptyDir(), Mounts: mounts,
		Init: true, Hostname: n.hostname(), Groups: groups.Files(n.daemons()),
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.init = first
	n.mu.Unlock()
	for _, command := range n.BootCommands {
		if _, err := n.Exec(ctx, command...); err != nil {
			return err
		}
	}
	if err := n.daemon(ctx, "containerd", nil, "containerd", "--config", n.file("containerd.toml")); err != nil {
		return err
	}
	return poll(ctx, patience, "containerd of "+n.Name+" of "+c.Name, func(ctx context.Context) error {
		return serves(ctx, n.path(containerdSocket))
	})
}

// hostname includes the cluster's name, so that a shell prompt shows which cluster the node belongs to.
func (n *Node) hostname() string { return n.cluster.Name + "-" + n.Name }

func (n *Node) connect() error {
	c := n.cluster
	var err error
	if n.Netns, err = connect(c.tb.fabric, c.tb.namespace(c.Name, n.Name), n.hostname(), n.IP, n.IP6); err != nil {
		return err
	}
	sysctls := map[string]string{
		"ipv4/ip_forward": "1",
		// Accept asymmetric routes: loose reverse path filtering, as Calico's documentation requires.
		"ipv4/conf/all/rp_filter": "2", "ipv4/conf/default/rp_filter": "2",
	}
	if n.IP6.IsValid() {
		sysctls["ipv6/conf/all/forwarding"] = "1"
	}
	return setSysctls(n.Netns, sysctls)
}

// daemon starts a program on the node and restarts it while the node has power. On a later boot it starts the program
// with the arguments of the first one.
func (n *Node) daemon(ctx context.Context, name string, env []string, args ...string) error {
	_, err := n.supervise(ctx, name, n.daemons(), 0, env, args...)
	return err
}

func (n *Node) supervise(ctx context.Context, name, group string, retries int, env []string,
	args ...string) (*Process, error) {
	c := n.cluster
	if p := c.Process(name + "/" + n.Name); p != nil {
		p.Start()
		return p, nil
	}
	args = append(slices.Clone(args), c.tb.options.Flags[name]...)
	logFile := filepath.Join(c.logs(), name+"-"+n.Name+".log")
	p := c.prepare(name+"/"+n.Name, logFile, func() (*spawn.Process, error) {
		pid, err := n.PID()
		if err != nil {
			return nil, err
		}
		return spawn.StartIn(pid, spawn.Spec{
			Name: c.Name + "/" + n.Name + "/" + name, Args: args, Env: append(nodeEnv(), env...),
			Groups: c.tb.cgroups.FilesInside(group), Output: logFile,
		})
	})
	p.retries = retries
	if group != n.daemons() {
		p.clean = func() error { return c.tb.cgroups.Kill(group) }
	}
	n.mu.Lock()
	n.processes = append(n.processes, p)
	n.mu.Unlock()
	return p, c.keep(ctx, p)
}

func nodeEnv() []string { return []string{"PATH=" + searchPath, "HOME=/root", "LANG=C.UTF-8"} }

// loadImages gives the node's containerd the testbed's images before its first start.
func (n *Node) loadImages(ctx context.Context) error {
	tb := n.cluster.tb
	root := filepath.Join(n.disk, "var/lib/containerd")
	if _, err := os.Stat(root); err == nil {
		return nil
	}
	if err := tb.imagesMade.wait(ctx); err != nil {
		return err
	}
	defer tb.times.span(n.cluster.Name, "images/"+n.Name)()
	return images.Clone(ctx, tb.imagesDir(), root)
}

// join starts kube-proxy and kubelet, and waits until the node has a Node object with a podCIDR. The apiserver must be
// ready before.
func (n *Node) join(ctx context.Context) error {
	c := n.cluster
	done := c.tb.times.span(c.Name, "kubelet/"+n.Name+" registers")
	defer done()
	if err := n.startKubeProxy(ctx); err != nil {
		return err
	}
	ips := n.IP.String()
	if n.IP6.IsValid() {
		ips += "," + n.IP6.String()
	}
	began := time.Now()
	args := append([]string{
		"kubelet", "--config", n.file("kubelet.yaml"), "--kubeconfig", n.file("kubelet.kubeconfig"),
		"--root-dir", "/var/lib/kubelet", "--cert-dir", "/var/lib/kubelet/pki", "--hostname-override", n.Name, "--node-ip",
		ips, "--v=1",
	}, n.kubeletFlags...)
	if err := n.daemon(ctx, "kubelet", nil, args...); err != nil {
		return err
	}
	return poll(ctx, patience, "kubelet of "+n.Name+" of "+c.Name+" to register", func(ctx context.Context) error {
		object, err := c.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if object.Spec.PodCIDR == "" {
			return errors.New("it has no podCIDR")
		}
		n.PodCIDR, err = netip.ParsePrefix(object.Spec.PodCIDR)
		if err != nil {
			return err
		}
		if !object.CreationTimestamp.Time.Before(began.Truncate(time.Second)) {
			return nil
		}
		// After a reboot the Node object exists already. A renewed Lease shows that the new kubelet runs.
		lease, err := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(began) {
			return errors.New("kubelet has not renewed the node's Lease yet")
		}
		return nil
	})
}

// waitReady waits until kube-proxy has programmed the node and the node is Ready.
func (n *Node) waitReady(ctx context.Context, since time.Time) error {
	c := n.cluster
	done := c.tb.times.span(c.Name, n.Name+" is Ready")
	defer done()
	if err := poll(ctx, patience, "kube-proxy on "+n.Name+" of "+c.Name, func(ctx context.Context) error {
		return get(ctx, n.Netns, fmt.Sprintf("http://127.0.0.1:%d/healthz", proxyHealthPort))
	}); err != nil {
		return err
	}
	return poll(ctx, patience, "node "+n.Name+" of "+c.Name+" to be Ready", func(ctx context.Context) error {
		object, err := c.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			// Times in the API have whole seconds. After a reboot the condition of the earlier boot is still there.
			if condition.Status != corev1.ConditionTrue || condition.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
				return fmt.Errorf("condition Ready is %s since %s: %s", condition.Status, condition.LastHeartbeatTime,
					condition.Message)
			}
			for _, taint := range object.Spec.Taints {
				if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeNetworkUnavailable {
					return fmt.Errorf("it has taint %s", taint.Key)
				}
			}
			return nil
		}
		return errors.New("it has no condition Ready")
	})
}

// start brings a node up and returns when it is Ready. apiserver and calico are functions that wait for the apiserver
// and Calico's resources. start does everything that needs neither of them first.
func (n *Node) start(ctx context.Context, apiserver, calico func(context.Context) error) error {
	began := time.Now()
	for _, step := range []func(context.Context) error{
		n.loadImages, n.powerOn, apiserver, n.join, calico, n.startCalico,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	// The CNI configuration makes the node Ready, and the scheduler then assigns pods to it.
	if err := n.installCNI(ctx); err != nil {
		return err
	}
	return n.waitReady(ctx, began)
}

// Boot starts a node that is powered off and returns when it is Ready. kubelet restarts the earlier containers
// afterwards.
func (n *Node) Boot(ctx context.Context) error {
	if _, err := n.PID(); err == nil {
		return fmt.Errorf("boot %s of %s: it runs", n.Name, n.cluster.Name)
	}
	at := func(context.Context) error { return nil }
	if err := n.start(ctx, at, at); err != nil {
		return fmt.Errorf("boot %s of %s: %w", n.Name, n.cluster.Name, err)
	}
	return errors.Join(n.cluster.routePods(ctx), n.cluster.tb.writeState())
}

// PowerOff ends everything that runs on the node at once, like a loss of power. Its /run and its network namespace,
// with all interfaces, routes, rules and sets, are lost; its disk stays.
func (n *Node) PowerOff() error {
	n.mu.Lock()
	first, processes := n.init, n.processes
	n.init = nil
	n.mu.Unlock()
	if first == nil {
		return nil
	}
	for _, p := range processes {
		p.unwant()
	}
	errs := []error{first.Stop(0), n.cluster.tb.cgroups.Kill(n.cgroup())}
	for _, p := range processes {
		errs = append(errs, p.stop(0))
	}
	errs = append(errs, disconnect(n.cluster.tb.fabric, n.hostname()), n.Netns.Delete())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("power off %s of %s: %w", n.Name, n.cluster.Name, err)
	}
	return nil
}

// Reboot calls PowerOff and Boot.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.PowerOff(); err != nil {
		return err
	}
	return n.Boot(ctx)
}

// PID returns the node's first process, which is in the node's namespaces. It returns an error while the node is
// powered off.
func (n *Node) PID() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.init == nil {
		return 0, fmt.Errorf("node %s of %s is without power", n.Name, n.cluster.Name)
	}
	return n.init.PID(), nil
}

// path returns the path at which this process can open a file of the node.
func (n *Node) path(inside string) string {
	pid, err := n.PID()
	if err != nil {
		return filepath.Join(n.disk, "without-power", inside)
	}
	return fmt.Sprintf("/proc/%d/root%s", pid, inside)
}

// Path returns the path at which this process can open a file of the node, such as Path("/run/x"), while the node has
// power.
func (n *Node) Path(inside string) string { return n.path(inside) }

// AddNode adds a node with the next free name to the cluster and returns when it is Ready. kubeletFlags are additional
// flags for its kubelet, such as --register-with-taints.
func (c *Cluster) AddNode(ctx context.Context, kubeletFlags ...string) (*Node, error) {
	c.nodesMu.Lock()
	c.joined++
	number := c.joined
	c.nodesMu.Unlock()
	if number > maxNodes {
		return nil, fmt.Errorf("add a node to %s: the address plan has room for %d", c.Name, maxNodes)
	}
	n := c.newNode(number)
	n.kubeletFlags = kubeletFlags
	at := func(context.Context) error { return nil }
	if err := n.start(ctx, at, at); err != nil {
		return nil, errors.Join(fmt.Errorf("add node %s to %s: %w", n.Name, c.Name, err), n.PowerOff())
	}
	c.nodesMu.Lock()
	c.Nodes = append(c.Nodes, n)
	c.nodesMu.Unlock()
	return n, errors.Join(c.routePods(ctx), c.tb.writeState())
}

func (n *Node) startKubeProxy(ctx context.Context) error {
	c := n.cluster
	cidr := c.PodCIDR.String()
	if c.PodCIDR6.IsValid() {
		cidr += "," + c.PodCIDR6.String()
	}
	// The file is JSON, which is valid YAML. The conntrack limits are zero, because they belong to the machine and cannot
	// be set from a node.
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": c.tb.options.KubeProxyMode, "hostnameOverride": n.Name, "clusterCIDR": cidr,
		"clientConnection": map[string]any{"kubeconfig": filepath.Join(c.dir, "kube-proxy.kubeconfig"), "qps": 500,
			"burst": 1000},
		"healthzBindAddress": hostPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}), proxyHealthPort),
		"metricsBindAddress": "127.0.0.1:10249",
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s",
			"tcpCloseWaitTimeout": "0s"},
		"iptables": map[string]any{"localhostNodePorts": false},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.file("kube-proxy.json"), config, 0o644); err != nil {
		return err
	}
	return n.daemon(ctx, "kube-proxy", nil, "kube-proxy", "--config="+n.file("kube-proxy.json"), "--v=1")
}

// Exec runs a command on the node in the environment of a login there, and returns its stdout. The error includes its
// stderr.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return n.ExecInput(ctx, nil, args...)
}

// ExecInput is Exec with stdin for the command.
func (n *Node) ExecInput(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	pid, err := n.PID()
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	err = spawn.Join(ctx, pid, spawn.JoinSpec{
		Args: args, Env: nodeEnv(), Groups: n.cluster.tb.cgroups.FilesInside(n.daemons()),
		Stdin: stdin, Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return stdout.String(), fmt.Errorf("%s on %s of %s: %w%s", strings.Join(args, " "), n.Name, n.cluster.Name, err,
			errorOutput(&stderr))
	}
	return stdout.String(), nil
}

// errorOutput formats a command's stderr as a suffix for an error.
func errorOutput(stderr *bytes.Buffer) string {
	if text := strings.TrimSpace(stderr.String()); text != "" {
		return ": " + text
	}
	return ""
}

func powerOffAll(nodes []*Node) error {
	var g errgroup.Group
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		g.Go(func() error {
			errs[i] = n.PowerOff()
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// Node is one node of a cluster: a network namespace, and a root filesystem for what runs there.
type Node struct {
	Name    string
	IP      netip.Addr
	PodCIDR netip.Prefix
	Netns   *netns.Namespace
	// Root is the directory that stands for the node's disk: its /var is Root/var and its /run Root/run.
	Root string

	cluster *Cluster
	holder  *container.Process // lives in the node's namespaces for others to join
	mounts  []container.Mount
}

// ports of the health servers on each node's loopback, as they are by default.
const (
	felixHealthPort = 9099
	proxyHealthPort = 10256
)

// createNode makes a node's namespace and disk.
func (c *Cluster) createNode(n *Node) error {
	var err error
	if n.Netns, err = connect(c.tb.fabric, c.tb.namespace(c.Name, n.Name), c.Name+"-"+n.Name, n.IP); err != nil {
		return err
	}
	if err := setSysctls(n.Netns, map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		// Answers may come back another way than requests went, as Calico's documentation asks for.
		"ipv4/conf/all/rp_filter": "2", "ipv4/conf/default/rp_filter": "2",
	}); err != nil {
		return err
	}
	if err := nodeDisk(n.Root); err != nil {
		return err
	}
	if n.mounts, err = systemMounts(); err != nil {
		return err
	}
	n.mounts = append(n.mounts, legacyIPTables()...)
	n.mounts = append(n.mounts, programMounts(c.tb.paths.KubeProxy, c.tb.paths.Felix)...)
	n.mounts = append(n.mounts,
		container.Mount{Source: filepath.Join(n.Root, "var"), Target: "/var"},
		container.Mount{Source: filepath.Join(n.Root, "run"), Target: "/run"},
		// ip-netns(8) finds the node's own namespace, and no other.
		container.Mount{Source: n.Netns.Path(), Target: n.Netns.Path()},
		container.Mount{Source: c.tb.state.path, Target: c.tb.state.path},
	)
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		n.mounts = append(n.mounts, container.Mount{Source: "/dev/net/tun", Target: "/dev/net/tun"})
	}
	n.holder, err = container.Start(n.spec("node", "sleep", "infinity"))
	return err
}

// spec describes a process on the node.
func (n *Node) spec(name string, args ...string) container.Spec {
	return container.Spec{
		Name: n.cluster.Name + "/" + n.Name + "/" + name, Netns: n.Netns, Args: args,
		Env:  []string{"PATH=" + searchPath, "HOME=/", "LANG=C.UTF-8"},
		Root: n.cluster.tb.emptyDir(), Mounts: n.mounts, Hostname: n.cluster.Name + "-" + n.Name,
	}
}

// register makes the Node object, with the status that a kubelet would give it.
func (n *Node) register(ctx context.Context) error {
	nodes := n.cluster.Client.CoreV1().Nodes()
	now := metav1.Now()
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name,
			Labels: map[string]string{
				corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: n.PodCIDR.String(), PodCIDRs: []string{n.PodCIDR.String()}},
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("250"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	status := corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: n.IP.String()}, {Type: corev1.NodeHostName, Address: n.Name},
		},
		Capacity: room, Allocatable: room,
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			Message: "the testbed's stand-in for a kubelet serves the node", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem: "linux", Architecture: runtime.GOARCH, KubeletVersion: "v0.0.0-testbed", OSImage: "testbed",
			ContainerRuntimeVersion: "testbed://0",
		},
	}
	created, err := nodes.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("register node %s of %s: %w", n.Name, n.cluster.Name, err)
	}
	created.Status = status
	if _, err := nodes.UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of node %s of %s: %w", n.Name, n.cluster.Name, err)
	}
	return nil
}

// startKubeProxy starts kube-proxy on the node and returns when it has programmed the node.
func (n *Node) startKubeProxy(ctx context.Context) error {
	c := n.cluster
	done := c.tb.times.span(c.Name, "kube-proxy/"+n.Name+" has programmed")
	defer done()
	// JSON, which is YAML. Limits of connection tracking belong to the machine and cannot be set from a node.
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": c.tb.options.KubeProxyMode, "hostnameOverride": n.Name, "clusterCIDR": c.PodCIDR.String(),
		"clientConnection":   map[string]any{"kubeconfig": filepath.Join(c.dir, "kube-proxy.kubeconfig"), "qps": 500, "burst": 1000},
		"bindAddress":        n.IP.String(),
		"healthzBindAddress": hostPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}), proxyHealthPort),
		"metricsBindAddress": "127.0.0.1:10249",
		"conntrack":          map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"iptables":           map[string]any{"localhostNodePorts": false},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(c.dir, "kube-proxy-"+n.Name+".conf")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	spec := n.spec("kube-proxy", "kube-proxy", "--config="+file, "--v=1")
	spec.Output = filepath.Join(c.logs(), "kube-proxy-"+n.Name+".log")
	if err := c.supervise(ctx, "kube-proxy/"+n.Name, spec); err != nil {
		return err
	}
	return poll(ctx, 60*time.Second, "kube-proxy on "+n.Name+" of "+c.Name, func(ctx context.Context) error {
		return get(ctx, n.Netns, fmt.Sprintf("http://127.0.0.1:%d/healthz", proxyHealthPort))
	})
}

// startFelix starts Felix on the node and returns when it is in sync.
func (n *Node) startFelix(ctx context.Context) error {
	c := n.cluster
	done := c.tb.times.span(c.Name, "felix/"+n.Name+" is in sync")
	defer done()
	spec := n.spec("felix", "calico-felix")
	spec.Output = filepath.Join(c.logs(), "felix-"+n.Name+".log")
	spec.Env = append(spec.Env,
		"KUBECONFIG="+filepath.Join(c.dir, "felix.kubeconfig"),
		"FELIX_DATASTORETYPE=kubernetes", "FELIX_FELIXHOSTNAME="+n.Name,
		"FELIX_IPV6SUPPORT=false", "FELIX_BPFENABLED=false", "FELIX_XDPENABLED=false",
		"FELIX_IPTABLESBACKEND=legacy",
		// As in Calico's own manifests: pods may talk to their node.
		"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT",
		"FELIX_LOGFILEPATH=none", "FELIX_LOGSEVERITYSYS=none", "FELIX_LOGSEVERITYSCREEN=Warning",
		"FELIX_USAGEREPORTINGENABLED=false",
		"FELIX_HEALTHENABLED=true", "FELIX_HEALTHHOST=127.0.0.1", fmt.Sprintf("FELIX_HEALTHPORT=%d", felixHealthPort),
	)
	if err := c.supervise(ctx, "felix/"+n.Name, spec); err != nil {
		return err
	}
	return poll(ctx, 60*time.Second, "Felix on "+n.Name+" of "+c.Name, func(ctx context.Context) error {
		return get(ctx, n.Netns, fmt.Sprintf("http://127.0.0.1:%d/readiness", felixHealthPort))
	})
}

// Exec runs a command on the node, as a login there would, and returns what it wrote to stdout. The error has what it
// wrote to stderr.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := n.holder.Exec(ctx, container.ExecSpec{Args: args, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return stdout.String(), fmt.Errorf("%s on %s of %s: %w%s", strings.Join(args, " "), n.Name, n.cluster.Name, err, said(&stderr))
	}
	return stdout.String(), nil
}

// said is what a command wrote to stderr, for the end of an error.
func said(stderr *bytes.Buffer) string {
	if text := strings.TrimSpace(stderr.String()); text != "" {
		return ": " + text
	}
	return ""
}

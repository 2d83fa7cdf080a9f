package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bridgeConfig returns the CNI configuration of a node without Calico. The reference plugins bridge and host-local give
// each pod an address from the node's podCIDRs; routePods adds static routes between the nodes. The plugin's ipMasq
// stays off: it would masquerade all traffic that leaves the node, and pods of other nodes would not see the source
// address of a pod.
func bridgeConfig(podCIDRs []netip.Prefix) ([]byte, error) {
	var ranges []any
	for _, p := range podCIDRs {
		ranges = append(ranges, []any{map[string]any{"subnet": p.String()}})
	}
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": "bridge",
		"plugins": []any{
			map[string]any{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": map[string]any{"type": "host-local", "ranges": ranges,
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}, "", "  ")
}

// notMasqueraded is the destination range that pods reach with their own source addresses. It is a default of
// ip-masq-agent (https://kubernetes.io/docs/tasks/administer-cluster/ip-masq-agent/). The control plane is outside this
// range, because it has no routes to pods.
const notMasqueraded = "10.0.0.0/8"

// installBridge writes the CNI configuration. kubelet then reports the node as Ready.
func (n *Node) installBridge(ctx context.Context) error {
	c := n.cluster
	// Without this sysctl, packets between pods on the same node bypass kube-proxy's rules.
	if err := setSysctls(n.Netns, map[string]string{"bridge/bridge-nf-call-iptables": "1"}); err != nil {
		return err
	}
	if _, err := n.Exec(ctx, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", c.PodCIDR.String(), "!", "-d",
		notMasqueraded, "-j", "MASQUERADE"); err != nil {
		return err
	}
	blocks, err := n.PodBlocks(ctx)
	if err != nil {
		return err
	}
	config, err := bridgeConfig(blocks)
	if err != nil {
		return err
	}
	return os.WriteFile(n.path("/etc/cni/net.d/10-bridge.conflist"), config, 0o644)
}

// routePods adds routes on each node to the podCIDRs of all other nodes. With Calico, BIRD does this.
func (c *Cluster) routePods(ctx context.Context) error {
	if c.tb.options.CNI != CNIBridge {
		return nil
	}
	objects, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	c.nodesMu.Lock()
	nodes := slices.Clone(c.Nodes)
	c.nodesMu.Unlock()
	for _, n := range nodes {
		if _, err := n.PID(); err != nil {
			continue // the node is powered off
		}
		for _, other := range objects.Items {
			for _, a := range other.Status.Addresses {
				if other.Name == n.Name || a.Type != corev1.NodeInternalIP {
					continue
				}
				for _, cidr := range other.Spec.PodCIDRs {
					if _, err := n.Exec(ctx, "ip", "route", "replace", cidr, "via", a.Address); err != nil {
						return fmt.Errorf("route of %s of %s to the pods of %s: %w", n.Name, c.Name, other.Name, err)
					}
				}
			}
		}
	}
	return nil
}

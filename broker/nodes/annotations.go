package nodes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// annotations returns the annotations that a node with these tunnels should have. err names each tunnel without one
// because the node has no address for its remote.
func annotations(node *corev1.Node, tunnels map[string]Tunnel,
	families map[string]config.Family) (out map[string]string, err error) {
	out = map[string]string{}
	var errs []error
	for _, cluster := range slices.Sorted(maps.Keys(tunnels)) {
		t := tunnels[cluster]
		ip, err := address(node, families[cluster])
		if err != nil {
			errs = append(errs, fmt.Errorf("the tunnel to %s: %w", cluster, err))
			continue
		}
		out[naming.PubKeyAnnotation(cluster)] = base64.StdEncoding.EncodeToString(t.PublicKey[:])
		out[naming.EndpointAnnotation(cluster)] = netip.AddrPortFrom(ip, t.ListenPort).String()
	}
	return out, errors.Join(errs...)
}

// address returns the address at which peers reach a node: its first InternalIP, or the first of a family.
func address(node *corev1.Node, family config.Family) (netip.Addr, error) {
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type != corev1.NodeInternalIP || err != nil {
			continue
		}
		if family == config.AnyFamily || (family == config.IPv4) == ip.Unmap().Is4() {
			return ip.Unmap(), nil
		}
	}
	if family == config.AnyFamily {
		return netip.Addr{}, errors.New(
			"the node has no InternalIP in status.addresses, so the broker cannot publish its endpoint",
		)
	}
	return netip.Addr{}, fmt.Errorf(
		"the node has no InternalIP of %s in status.addresses, the family of "+
			"that cluster's endpoints (wireguard.addressFamily, or nodeSubnets, of the remote)",
		family,
	)
}

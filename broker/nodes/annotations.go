package nodes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// annotations returns the annotations that a node with these tunnels should have; empty for one that it should not
// have. err names each tunnel without one because the node has no address for its remote, and each invalid address.
func (e endpoints) annotations(node *corev1.Node, tunnels map[string]Tunnel) (out map[string]string, err error) {
	out = map[string]string{}
	var errs []error
	for _, cluster := range slices.Sorted(maps.Keys(tunnels)) {
		t := tunnels[cluster]
		all, err := e.candidates(node, cluster, t.ListenPort)
		if err != nil {
			errs = append(errs, fmt.Errorf("the tunnel to %s: %w", cluster, err))
		}
		if err != nil && len(all) == 0 {
			continue
		}
		out[naming.PubKeyAnnotation(cluster)] = base64.StdEncoding.EncodeToString(t.PublicKey[:])
		first := "" // exporters of the last version, and semaphore-wireguard, read addresses only
		for _, one := range slices.Backward(all) {
			if _, err := netip.ParseAddrPort(one); err == nil {
				first = one
			}
		}
		set := func(key, value string) {
			if _, there := node.Annotations[key]; value != "" || there {
				out[key] = value
			}
		}
		set(naming.EndpointAnnotation(cluster), first)
		switch {
		case e.onlyInternal():
			set(naming.CandidatesAnnotation(cluster), "")
		case len(all) == 0:
			set(naming.CandidatesAnnotation(cluster), naming.Nowhere)
		default:
			set(naming.CandidatesAnnotation(cluster), strings.Join(all, ","))
		}
	}
	return out, errors.Join(errs...)
}

// published returns the address of the endpoint that a node has in its annotation for a remote; invalid for none.
func published(node *corev1.Node, cluster string) netip.Addr {
	at, err := netip.ParseAddrPort(node.Annotations[naming.EndpointAnnotation(cluster)])
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// address returns the address at which peers reach a node: one of its InternalIPs, of a family. The order of
// InternalIPs means nothing: it changes with a second network card, and a load balancer's VIP may come first. So the
// published address stays while it is one of them. An address inside the own cluster's subnets precedes others, as
// remote clusters take endpoints only from the subnets of its nodes.
func address(node *corev1.Node, family config.Family, published netip.Addr, local []netip.Prefix) (netip.Addr, error) {
	var best netip.Addr
	rank := func(ip netip.Addr) (n int) {
		if ip == published {
			n = 1
		}
		if slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			n += 2
		}
		return n
	}
	for _, ip := range addresses(node, corev1.NodeInternalIP, family) {
		if !best.IsValid() || rank(ip) > rank(best) {
			best = ip
		}
	}
	switch {
	case best.IsValid():
		return best, nil
	case family == config.AnyFamily:
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

// moved describes the endpoints of a node that change to another of its addresses; empty for none.
func moved(node *corev1.Node, changed map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(changed)) {
		cluster, _ := naming.WireGuardAnnotationCluster(key)
		was := published(node, cluster)
		is, err := netip.ParseAddrPort(changed[key])
		if key == naming.EndpointAnnotation(cluster) && err == nil && was.IsValid() && was != is.Addr().Unmap() {
			parts = append(parts, fmt.Sprintf("for %s from %s to %s", cluster, was, is.Addr()))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("the endpoint of node %s changes %s: the node no longer has the earlier address, or has one "+
		"inside localSubnets", node.Name, strings.Join(parts, ", "))
}

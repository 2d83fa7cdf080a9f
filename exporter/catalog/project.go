package catalog

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// outside are the addresses that lie in none of the subnets, where there are any, or are no addresses.
type outside struct {
	first string
	n     int
}

// keep is addresses without those that are outside.
func (o *outside) keep(addresses []string, subnets []netip.Prefix) []string {
	if len(subnets) == 0 {
		return addresses
	}
	kept := make([]string, 0, len(addresses))
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil && podcidr.Within(netip.PrefixFrom(a, a.BitLen()), subnets) {
			kept = append(kept, text)
			continue
		}
		if o.n++; o.n == 1 {
			o.first = text
		}
	}
	return kept
}

// problem is in words; empty for none.
func (o *outside) problem() string {
	switch o.n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("IP %.64q lies outside podSubnets and is not exported", o.first)
	}
	return fmt.Sprintf("%d IPs lie outside podSubnets and are not exported, the first is %.64q", o.n, o.first)
}

// projectEnd is a node's end of the tunnel to cluster, nil for none. An end that makes no sense is
// not exported, and problem says why.
func projectEnd(n *corev1.Node, cluster string) (end *semaphorev1.WireGuardEndpoint, problem string) {
	key, hasKey := n.Annotations[naming.PubKeyAnnotation(cluster)]
	endpoint, hasEndpoint := n.Annotations[naming.EndpointAnnotation(cluster)]
	if !hasKey || !hasEndpoint {
		return nil, "" // it has not published its end yet
	}
	public, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(public) != 32 {
		return nil, fmt.Sprintf("annotation %s: %.200q is no WireGuard public key (32 bytes in base64)", naming.PubKeyAnnotation(cluster), key)
	}
	address, err := netip.ParseAddrPort(endpoint)
	if err != nil || address.Port() == 0 || address.Addr().Zone() != "" {
		return nil, fmt.Sprintf("annotation %s: %.200q is no IP:port", naming.EndpointAnnotation(cluster), endpoint)
	}
	return &semaphorev1.WireGuardEndpoint{PublicKey: public, Address: address.String()}, ""
}

// projectSlice is nil for a slice that is no Service's, or holds no IPs. Of endpoints, only addresses in subnets
// are exported; problem tells of others. at are those that are exported, by node.
func projectSlice(s *discoveryv1.EndpointSlice, subnets []netip.Prefix) (slice *semaphorev1.EndpointSlice, at map[string][]netip.Addr, problem string) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || mirrored(s.Labels) || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil, ""
	}
	slice = &semaphorev1.EndpointSlice{Service: service, AddressType: string(s.AddressType)}
	for _, p := range s.Ports {
		if p.Port == nil {
			continue // it is for consumers that know the ports otherwise: kube-proxy and CoreDNS pass it over too
		}
		port := &semaphorev1.EndpointPort{Name: value(p.Name), Protocol: string(value(p.Protocol)), Port: value(p.Port), AppProtocol: value(p.AppProtocol)}
		if port.Protocol == "" {
			port.Protocol = string(corev1.ProtocolTCP) // the API's default
		}
		slice.Ports = append(slice.Ports, port)
	}
	at = map[string][]netip.Addr{}
	var out outside
	for _, e := range s.Endpoints {
		kept := out.keep(e.Addresses, subnets)
		if len(kept) == 0 {
			continue
		}
		if node := value(e.NodeName); node != "" {
			at[node] = append(at[node], addresses(kept)...)
		}
		slice.Endpoints = append(slice.Endpoints, &semaphorev1.Endpoint{
			Addresses:   kept,
			Ready:       e.Conditions.Ready,
			Serving:     e.Conditions.Serving,
			Terminating: e.Conditions.Terminating,
			Hostname:    value(e.Hostname),
			Zone:        value(e.Zone),
		})
	}
	return slice, at, out.problem()
}

// projectPod is nil for a pod that is in no set. In are pods with an IP that may still send, also
// while they are being deleted; out are those that have ended, whose IP may be another's by now, and
// those on the host network, whose IP is the node's. Only IPs in subnets are exported; problem tells of others.
func projectPod(p *corev1.Pod, domains []string, subnets []netip.Prefix) (member *semaphorev1.SetMember, problem string) {
	set := ""
	for _, domain := range domains {
		if set = p.Labels[domain+"/name"]; set != "" {
			break
		}
	}
	if set == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil, ""
	}
	member = &semaphorev1.SetMember{PodUid: string(p.UID), SetName: set}
	for _, ip := range p.Status.PodIPs {
		member.Ips = append(member.Ips, ip.IP)
	}
	if len(member.Ips) == 0 && p.Status.PodIP != "" {
		member.Ips = []string{p.Status.PodIP}
	}
	var out outside
	if member.Ips = out.keep(member.Ips, subnets); len(member.Ips) == 0 {
		return nil, out.problem()
	}
	slices.Sort(member.Ips)
	return member, out.problem()
}

// otherSets says what other sets the labels of a pod name, of which none counts; empty for none.
func otherSets(p *corev1.Pod, domains []string, member *semaphorev1.SetMember) string {
	if member == nil {
		return ""
	}
	for _, domain := range domains {
		if other := p.Labels[domain+"/name"]; other != "" && other != member.GetSetName() {
			return fmt.Sprintf("label %s/name: %q does not count: the pod is in set %q by the label of a domain that comes before in labelDomains", domain, other, member.GetSetName())
		}
	}
	return ""
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

package catalog

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// outside counts texts that are no IP in the subnets.
type outside struct {
	first string
	n     int
}

// keep returns the addresses inside the subnets, and counts the others. Without subnets it returns all.
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

// problem describes the counted parts; empty for none.
func (o *outside) problem() string {
	switch o.n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("IP %.64q lies outside podSubnets and is not exported", o.first)
	}
	return fmt.Sprintf("%d IPs lie outside podSubnets and are not exported, the first is %.64q", o.n, o.first)
}

// projectTunnelEndpoint returns a node's endpoint of the tunnel to cluster, nil for none. An invalid endpoint is not
// exported, and problem reports why.
func projectTunnelEndpoint(n *corev1.Node, cluster string) (end *semaphorev1.WireGuardEndpoint, problem string) {
	key, hasKey := n.Annotations[naming.PubKeyAnnotation(cluster)]
	endpoint, hasEndpoint := n.Annotations[naming.EndpointAnnotation(cluster)]
	candidates := n.Annotations[naming.CandidatesAnnotation(cluster)]
	if !hasKey || !hasEndpoint && candidates == "" {
		return nil, "" // it is not published yet
	}
	public, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(public) != 32 {
		return nil, fmt.Sprintf("annotation %s: %.200q is not a WireGuard public key (32 bytes in base64)",
			naming.PubKeyAnnotation(cluster), key)
	}
	if candidates != "" {
		return projectCandidates(public, candidates, naming.CandidatesAnnotation(cluster))
	}
	address, err := netip.ParseAddrPort(endpoint)
	if err != nil || address.Port() == 0 || address.Addr().Zone() != "" {
		return nil, fmt.Sprintf("annotation %s: %.200q is not an IP:port", naming.EndpointAnnotation(cluster), endpoint)
	}
	return &semaphorev1.WireGuardEndpoint{PublicKey: public, Address: address.String()}, ""
}

// projectCandidates returns the endpoint of a node with these candidates. Their broker has judged them, but anybody may
// write an annotation: those that are no host and port are left out, and problem names them.
func projectCandidates(key []byte, text, annotation string) (end *semaphorev1.WireGuardEndpoint, problem string) {
	end = &semaphorev1.WireGuardEndpoint{PublicKey: key}
	if text == naming.Nowhere {
		end.Calls = true
		return end, ""
	}
	for _, one := range strings.Split(text, ",") {
		at, _, ok := naming.Candidate(one)
		if !ok || at.Port() == 0 || len(end.Candidates) == naming.MaxCandidates {
			problem = fmt.Sprintf("annotation %s: %.80q is not an IP:port or name:port, or more than %d of them", annotation,
				one, naming.MaxCandidates)
			continue
		}
		end.Candidates = append(end.Candidates, one)
		if at.IsValid() && at.Addr().Zone() == "" && end.GetAddress() == "" {
			end.Address = at.String()
		}
	}
	if len(end.GetCandidates()) == 0 {
		return nil, problem
	}
	if len(end.GetCandidates()) == 1 && end.GetAddress() != "" {
		end.Candidates = nil
	}
	return end, problem
}

// projectSlice returns nil for a slice without a Service or IPs. It exports only addresses in subnets; problem names
// the others. at are the exported addresses by node.
func projectSlice(s *discoveryv1.EndpointSlice, subnets []netip.Prefix) (slice *semaphorev1.EndpointSlice,
	at map[string][]netip.Addr, problem string) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || isImported(s.Labels) || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil, ""
	}
	slice = &semaphorev1.EndpointSlice{Service: service, AddressType: string(s.AddressType)}
	for _, p := range s.Ports {
		if p.Port == nil {
			continue // such a port is for consumers that know the number otherwise: kube-proxy and CoreDNS skip it too
		}
		port := &semaphorev1.Port{Name: value(p.Name), Protocol: string(value(p.Protocol)), Port: value(p.Port),
			AppProtocol: value(p.AppProtocol)}
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

// projectPod returns nil for a pod that is in no set. A pod in deletion remains in its set, as it may still send. A
// pod that ended is not, as its IP may belong to another pod, and neither is a pod on the host network, whose IP is
// the node's. It exports only IPs in subnets; problem names the others.
func projectPod(p *corev1.Pod, domains []string, subnets []netip.Prefix) (member *semaphorev1.SetMember,
	problem string) {
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

// otherSets describes labels that would put the pod into another set, which are ignored; empty for none.
func otherSets(p *corev1.Pod, domains []string, member *semaphorev1.SetMember) string {
	if member == nil {
		return ""
	}
	for _, domain := range domains {
		if other := p.Labels[domain+"/name"]; other != "" && other != member.GetSetName() {
			return fmt.Sprintf("label %s/name: %q is ignored: the pod is in set %q by the label of an earlier domain in "+
				"labelDomains", domain, other, member.GetSetName())
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

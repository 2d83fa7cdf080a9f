package nodes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// maxCandidatesText is the length of the annotation of candidates that node-writes.yaml permits.
const maxCandidatesText = 256

type endpoints struct {
	kinds    []config.EndpointKind
	families map[string]config.Family
	// local are the own cluster's subnets.
	local []netip.Prefix
}

// onlyInternal reports whether a node has one candidate, its InternalIP, so that no annotation but that of the endpoint
// is needed.
func (e endpoints) onlyInternal() bool {
	return slices.Equal(e.kinds, []config.EndpointKind{config.InternalIP})
}

// candidates returns the endpoints of a node for a remote in order, each "IP:port" or "name:port"; none for a node that
// nothing reaches. An error names each missing or invalid part; the other candidates are valid nevertheless. port is
// the one on which the node listens.
func (e endpoints) candidates(node *corev1.Node, cluster string, port uint16) (all []string, err error) {
	var errs []error
	add := func(candidate string) {
		if !slices.Contains(all, candidate) {
			all = append(all, candidate)
		}
	}
	at := func(ip netip.Addr) string { return netip.AddrPortFrom(ip, port).String() }
	family := e.families[cluster]
	for _, kind := range e.kinds {
		switch kind {
		case config.InternalIP:
			ip, err := address(node, family, published(node, cluster), e.local)
			if err == nil {
				add(at(ip))
			} else if e.onlyInternal() {
				return nil, err
			}
		case config.ExternalIP:
			for _, ip := range addresses(node, corev1.NodeExternalIP, family) {
				add(at(ip))
			}
		case config.ByAnnotation:
			reachable, nowhere, err := reachableAt(node, cluster, port, family)
			if nowhere {
				return nil, nil
			}
			for _, candidate := range reachable {
				add(candidate)
			}
			errs = append(errs, err)
		}
	}
	if len(all) > naming.MaxCandidates || len(strings.Join(all, ",")) > maxCandidatesText {
		n := min(len(all), naming.MaxCandidates)
		for len(strings.Join(all[:n], ",")) > maxCandidatesText {
			n--
		}
		errs = append(errs, fmt.Errorf("the node has %d endpoints, and %d is the most (in %d characters): %s and what "+
			"follows is not published", len(all), naming.MaxCandidates, maxCandidatesText, all[n]))
		all = all[:n]
	}
	return all, errors.Join(errs...)
}

// reachableAt returns the addresses in the operator's annotation of a node; nowhere means that nothing reaches it.
func reachableAt(node *corev1.Node, cluster string, port uint16, family config.Family) (all []string, nowhere bool,
	err error) {
	key := naming.ReachableAtAnnotation(cluster)
	text, there := node.Annotations[key]
	if !there {
		key = naming.ReachableAt
		text = node.Annotations[key]
	}
	if strings.TrimSpace(text) == naming.Nowhere {
		return nil, true, nil
	}
	var errs []error
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		candidate, err := parseCandidate(one, port)
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", key, err))
			continue
		}
		if ap, err := netip.ParseAddrPort(candidate); err == nil && !isOf(ap.Addr(), family) {
			continue
		}
		all = append(all, candidate)
	}
	return all, false, errors.Join(errs...)
}

// parseCandidate returns a candidate in the form in which it is published. Without a port it has the node's own.
func parseCandidate(text string, port uint16) (string, error) {
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		if ip.Zone() != "" {
			return "", fmt.Errorf("%.80q has a zone, which other clusters do not know", text)
		}
		return netip.AddrPortFrom(ip.Unmap(), port).String(), nil
	}
	full := text
	if _, portText, err := net.SplitHostPort(text); err != nil {
		full = net.JoinHostPort(text, strconv.Itoa(int(port)))
	} else if n, err := strconv.ParseUint(portText, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%.80q: the port is not a number from 1 to 65535", text)
	}
	at, name, ok := naming.Candidate(full)
	switch {
	case !ok || at.Addr().Zone() != "":
		return "", fmt.Errorf("%.80q: use an address or a DNS name, with or without a port, or %q", text, naming.Nowhere)
	case name == "":
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String(), nil
	}
	return net.JoinHostPort(name, strconv.Itoa(int(at.Port()))), nil
}

func isOf(ip netip.Addr, family config.Family) bool {
	return family == config.AnyFamily || (family == config.IPv4) == ip.Unmap().Is4()
}

// addresses returns the addresses of a node of a type and family, in the order of its status.
func addresses(node *corev1.Node, of corev1.NodeAddressType, family config.Family) (all []netip.Addr) {
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == of && err == nil && isOf(ip, family) {
			all = append(all, ip.Unmap())
		}
	}
	return all
}

// Calls returns the remotes for which a node publishes that nothing reaches it, sorted.
func Calls(node *corev1.Node) (calls []string) {
	for key, value := range node.Annotations {
		if cluster, ours := naming.WireGuardAnnotationCluster(key); ours && value == naming.Nowhere &&
			key == naming.CandidatesAnnotation(cluster) {
			calls = append(calls, cluster)
		}
	}
	slices.Sort(calls)
	return calls
}

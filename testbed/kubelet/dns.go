//go:build linux

package kubelet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// resolvConf is a pod's /etc/resolv.conf for its dnsPolicy and dnsConfig, as described in "DNS for Services and Pods" of
// the Kubernetes documentation. node is the node's own resolv.conf.
func resolvConf(pod *corev1.Pod, clusterDNS netip.Addr, clusterDomain, node string) string {
	var servers, searches, options []string
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		for line := range strings.Lines(node) {
			switch fields := strings.Fields(line); {
			case len(fields) < 2:
			case fields[0] == "nameserver":
				servers = append(servers, fields[1])
			case fields[0] == "search":
				searches = fields[1:] // the last line counts, resolv.conf(5)
			case fields[0] == "options":
				options = append(options, fields[1:]...)
			}
		}
	default:
		servers = []string{clusterDNS.String()}
		searches = []string{pod.Namespace + ".svc." + clusterDomain, "svc." + clusterDomain, clusterDomain}
		options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		servers = appendNew(servers, c.Nameservers...)
		searches = appendNew(searches, c.Searches...)
		for _, o := range c.Options {
			// An option of the pod replaces one of the same name.
			options = slices.DeleteFunc(options, func(have string) bool {
				name, _, _ := strings.Cut(have, ":")
				return name == o.Name
			})
			if o.Value != nil && *o.Value != "" {
				options = append(options, o.Name+":"+*o.Value)
			} else {
				options = append(options, o.Name)
			}
		}
	}
	var b strings.Builder
	if len(searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(searches, " "))
	}
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.String()
}

func appendNew(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// hostname is a pod's host name.
func hostname(pod *corev1.Pod, node string) string {
	name := pod.Name
	switch {
	case pod.Spec.HostNetwork:
		return node
	case pod.Spec.Hostname != "":
		name = pod.Spec.Hostname
	}
	// The kernel's limit is 64 bytes, and a label of DNS has 63.
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// hosts is a pod's /etc/hosts.
func hosts(pod *corev1.Pod, ip netip.Addr, node, clusterDomain string) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	name := hostname(pod, node)
	if pod.Spec.Subdomain != "" && !pod.Spec.HostNetwork {
		fmt.Fprintf(&b, "%s\t%s.%s.%s.svc.%s\t%s\n", ip, name, pod.Spec.Subdomain, pod.Namespace, clusterDomain, name)
	} else {
		fmt.Fprintf(&b, "%s\t%s\n", ip, name)
	}
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

package testbed

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
)

// Options configure Up. The zero value creates clusters c1 and c2 with two nodes each.
type Options struct {
	// Clusters defaults to c1 and c2.
	Clusters []ClusterSpec
	// ID distinguishes the testbeds of a machine: one to eight lower case letters and digits. The default is random.
	ID string
	// CNI selects the pod network: CNICalico, the default, or CNIBridge.
	CNI string
	// IPAM selects the plugin that assigns pod addresses: IPAMCalico, the default, or IPAMHostLocal, the only one with
	// CNIBridge.
	IPAM string
	// IPFamilies are the families of nodes, pods and Services: FamiliesIPv4, the default, or FamiliesDual.
	IPFamilies string
	// KubeProxyMode is "iptables", the default, "nftables" or "ipvs". Up fails immediately if the kernel does not support
	// the mode.
	KubeProxyMode string
	// CgroupMount is the cgroup mount point for the nodes, /sys/fs/cgroup by default. On a machine with both versions, the
	// mount point of the unified hierarchy below it gives nodes that see only version 2, with the controllers that are not
	// bound to version 1.
	CgroupMount string
	// Flags are additional flags of components, by the component's name without its node: "kube-apiserver", "kubelet".
	Flags map[string][]string
	// Repository is the checkout from which tools/ and cmd/ are built. The default is the one around the working
	// directory.
	Repository string
	// Programs maps names to paths: semaphore's programs, for the image "semaphore", and "testbed", for the image of that
	// name. If nil, Up builds them from the repository.
	Programs map[string]string
	// Progress receives human-readable lines, and a table of times at the end of Up. It may be nil.
	Progress io.Writer
	// Log receives the events of processes and pods. The default is a file in the testbed's logs directory.
	Log *slog.Logger
}

// Values of Options.CNI.
const (
	CNICalico = "calico"
	// CNIBridge is the reference plugin bridge, with static routes between nodes. The cluster has neither Calico nor
	// network policies.
	CNIBridge = "bridge"
)

// Values of Options.IPAM.
const (
	// IPAMCalico is Calico's IPAM: pods have addresses from the node's BlockAffinities, with strict affinity.
	IPAMCalico = "calico"
	// IPAMHostLocal is the plugin host-local: pods have addresses from the node's podCIDRs.
	IPAMHostLocal = "host-local"
)

// Values of Options.IPFamilies.
const (
	FamiliesIPv4 = "ipv4"
	FamiliesDual = "dual" // IPv4 first
)

// ClusterSpec configures one cluster.
type ClusterSpec struct {
	// Name begins with a letter and has at most ten lower case letters, digits and dashes. It does not end with a dash.
	Name string
	// Nodes is the number of nodes, 2 by default. Their names are n1, n2, …
	Nodes int
}

// The limits follow from the address plan: pods of cluster I have 10.I.0.0/16, its Services 10.(100+I).0.0/16, and its
// node K has 172.18.I.(10+K).
const (
	maxClusters = 99
	maxNodes    = 200
)

// clusterDomain is the DNS domain of every cluster: the default of Kubernetes.
const clusterDomain = "cluster.local"

// fabricPrefix and fabricPrefix6 are the networks of all nodes. The first address of each is the nodes' default
// gateway, which forwards nothing.
var fabricPrefix, fabricPrefix6 = netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fd00:172:18::/48")

// addresses is the address plan of one cluster. The IPv6 fields are invalid in a cluster without IPv6.
type addresses struct {
	pods, services, nodes netip.Prefix
	pods6, services6      netip.Prefix
	controlPlane          netip.Addr // where the apiserver listens
	controlPlane6         netip.Addr
	apiService            netip.Addr // ClusterIP of the Service kubernetes
	dns                   netip.Addr // ClusterIP of the Service kube-dns
}

// planCluster returns the addresses of the cluster at a place, from 1. IPv6 addresses repeat the digits of the IPv4
// ones.
func planCluster(place int, dual bool) addresses {
	i := byte(place)
	a := addresses{
		pods:         netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16),
		services:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + i, 0, 0}), 16),
		nodes:        netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, i, 0}), 24),
		controlPlane: netip.AddrFrom4([4]byte{172, 18, i, 10}),
		apiService:   netip.AddrFrom4([4]byte{10, 100 + i, 0, 1}),
		dns:          netip.AddrFrom4([4]byte{10, 100 + i, 0, 10}),
	}
	if dual {
		a.pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/48", place))
		a.services6 = netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/112", 100+place))
		a.controlPlane6 = netip.MustParseAddr(fmt.Sprintf("fd00:172:18:%d::10", place))
	}
	return a
}

// planNode returns the addresses of a node. Clusters and nodes count from 1.
func planNode(cluster, node int, dual bool) (ip, ip6 netip.Addr) {
	if dual {
		ip6 = netip.MustParseAddr(fmt.Sprintf("fd00:172:18:%d::%d", cluster, 10+node))
	}
	return netip.AddrFrom4([4]byte{172, 18, byte(cluster), byte(10 + node)}), ip6
}

// podMask and podMask6 are the prefix lengths of the podCIDRs that kube-controller-manager assigns to nodes.
const podMask, podMask6 = 24, 64

var (
	clusterName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,8}[a-z0-9]$|^[a-z]$`)
	idPattern   = regexp.MustCompile(`^[a-z0-9]{1,8}$`)
)

func (o *Options) dual() bool { return o.IPFamilies == FamiliesDual }

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	if len(o.Clusters) == 0 {
		o.Clusters = []ClusterSpec{{Name: "c1"}, {Name: "c2"}}
	}
	o.KubeProxyMode = cmp.Or(o.KubeProxyMode, "iptables")
	o.CNI = cmp.Or(o.CNI, CNICalico)
	if o.CNI == CNIBridge {
		o.IPAM = cmp.Or(o.IPAM, IPAMHostLocal)
	}
	o.IPAM = cmp.Or(o.IPAM, IPAMCalico)
	o.IPFamilies = cmp.Or(o.IPFamilies, FamiliesIPv4)
	o.CgroupMount = cmp.Or(o.CgroupMount, cgroup.Mount)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	var errs []error
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"KubeProxyMode", o.KubeProxyMode, []string{"iptables", "nftables", "ipvs"}},
		{"CNI", o.CNI, []string{CNICalico, CNIBridge}},
		{"IPAM", o.IPAM, []string{IPAMCalico, IPAMHostLocal}},
		{"IPFamilies", o.IPFamilies, []string{FamiliesIPv4, FamiliesDual}},
	} {
		if !slices.Contains(f.known, f.value) {
			errs = append(errs, fmt.Errorf("%s %q: want %s", f.name, f.value, strings.Join(f.known, " or ")))
		}
	}
	if o.CNI == CNIBridge && o.IPAM != IPAMHostLocal {
		errs = append(errs, fmt.Errorf("IPAM %q: CNI %s has %s", o.IPAM, CNIBridge, IPAMHostLocal))
	}
	if o.CNI == CNIBridge && o.dual() {
		errs = append(errs, fmt.Errorf("IPFamilies %q: CNI %s has %s", o.IPFamilies, CNIBridge, FamiliesIPv4))
	}
	if o.ID != "" && !idPattern.MatchString(o.ID) {
		errs = append(errs, fmt.Errorf("ID %q: want one to eight lower case letters and digits", o.ID))
	}
	if n := len(o.Clusters); n > maxClusters {
		errs = append(errs, fmt.Errorf("Clusters: %d of them, the address plan has room for %d", n, maxClusters))
	}
	seen := map[string]bool{}
	clusters := make([]ClusterSpec, len(o.Clusters)) // the caller's slice stays as it is
	for i, c := range o.Clusters {
		if c.Nodes == 0 {
			c.Nodes = 2
		}
		if !clusterName.MatchString(c.Name) {
			errs = append(
				errs,
				fmt.Errorf(
					"Clusters[%d].Name %q: want at most ten lower case letters, digits and dashes, a letter first",
					i,
					c.Name,
				),
			)
		}
		if seen[c.Name] {
			errs = append(errs, fmt.Errorf("Clusters[%d].Name %q: is there already", i, c.Name))
		}
		if c.Nodes < 0 || c.Nodes > maxNodes {
			errs = append(errs, fmt.Errorf("Clusters[%d].Nodes %d: want 1 to %d", i, c.Nodes, maxNodes))
		}
		seen[c.Name] = true
		clusters[i] = c
	}
	o.Clusters = clusters
	return errors.Join(errs...)
}

// namespacePrefix is the name prefix of all network namespaces of a testbed.
func namespacePrefix(id string) string { return "sb-" + id + "-" }

// cgroupName is the root control group of a testbed.
func cgroupName(id string) string { return "sb-" + id }

// namespaceID returns the ID of the testbed that owns a network namespace.
func namespaceID(namespace string) (string, bool) {
	m := namespaceName.FindStringSubmatch(namespace)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var namespaceName = regexp.MustCompile(`^sb-([a-z0-9]{1,8})-.+$`)

func nodeName(k int) string { return "n" + strconv.Itoa(k) }

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

	"github.com/kube-semaphore/semaphore/testbed/cgroup"
)

// Options say what Up makes. The zero value gives clusters c1 and c2 with two nodes each.
type Options struct {
	// Clusters; c1 and c2 when empty.
	Clusters []ClusterSpec
	// ID tells testbeds of one machine apart: one to eight lower case letters and digits; random when empty.
	ID string
	// CNI says what connects pods: CNICalico, which is the default, or CNIBridge.
	CNI string
	// IPAM says which plugin gives addresses to pods: IPAMCalico, which is the default, or IPAMHostLocal, which is all
	// that CNIBridge has.
	IPAM string
	// IPFamilies are those of nodes, pods and Services: FamiliesIPv4, which is the default, or FamiliesDual.
	IPFamilies string
	// KubeProxyMode is kube-proxy's mode: "iptables", which is the default, "nftables" or "ipvs". Up fails at once where
	// the kernel lacks what the mode needs.
	KubeProxyMode string
	// CgroupMount is where nodes have their control groups; /sys/fs/cgroup when empty. On a machine with both versions,
	// the unified hierarchy's own directory there makes nodes that know version 2 alone, as far as its controllers are
	// not bound to version 1.
	CgroupMount string
	// Flags are further flags of components, by their names without a node's: "kube-apiserver", "kubelet".
	Flags map[string][]string
	// Repository is the checkout whose tools/ and cmd/ are built; the one around the working directory when empty.
	Repository string
	// Programs are the product's programs by name, for the image "semaphore", and "testbed" for the image of that name.
	// When nil they are built from the repository.
	Programs map[string]string
	// ImageNames are further references by which pods may name the image Image.
	ImageNames []string
	// Progress gets lines for a person to read, and a table of times at the end of Up. May be nil.
	Progress io.Writer
	// Log gets what happens to processes and pods; a file in the testbed's logs directory when nil.
	Log *slog.Logger
}

// Values of Options.CNI.
const (
	CNICalico = "calico"
	// CNIBridge is the reference plugin bridge, with static routes between nodes. There is nothing of Calico, nor are
	// there network policies.
	CNIBridge = "bridge"
)

// Values of Options.IPAM.
const (
	// IPAMCalico is Calico's own: a node's pods have addresses of its blocks (BlockAffinities), with strict affinity.
	IPAMCalico = "calico"
	// IPAMHostLocal is the plugin host-local: a node's pods have addresses of the node's podCIDRs.
	IPAMHostLocal = "host-local"
)

// Values of Options.IPFamilies.
const (
	FamiliesIPv4 = "ipv4"
	FamiliesDual = "dual" // IPv4 first
)

// ClusterSpec is one cluster to make.
type ClusterSpec struct {
	// Name begins with a letter and has at most ten lower case letters, digits and dashes.
	Name string
	// Nodes is how many nodes the cluster has; 2 when 0. Their names are n1, n2, …
	Nodes int
}

// The limits come from the addresses: 10.I.0.0/16 is for pods and 10.(100+I).0.0/16 for Services, nodes are
// 172.18.I.(10+K).
const (
	maxClusters = 99
	maxNodes    = 200
)

// clusterDomain is the DNS domain of every cluster, as it is by default everywhere.
const clusterDomain = "cluster.local"

// fabricPrefix and fabricPrefix6 are the networks between all nodes; the first address of each is the default route of
// nodes, and leads nowhere.
var fabricPrefix, fabricPrefix6 = netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fd00:172:18::/48")

// addresses is the address plan of one cluster. What is for IPv6 is invalid in a cluster that has none.
type addresses struct {
	pods, services, nodes netip.Prefix
	pods6, services6      netip.Prefix
	controlPlane          netip.Addr // where the apiserver listens
	controlPlane6         netip.Addr
	apiService            netip.Addr // ClusterIP of the Service kubernetes
	dns                   netip.Addr // ClusterIP of the Service kube-dns
}

// planCluster gives the addresses of the cluster at a place, from 1. In IPv6 the digits are those of IPv4.
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

// planNode gives the addresses of a cluster's node, both counted from 1.
func planNode(cluster, node int, dual bool) (ip, ip6 netip.Addr) {
	if dual {
		ip6 = netip.MustParseAddr(fmt.Sprintf("fd00:172:18:%d::%d", cluster, 10+node))
	}
	return netip.AddrFrom4([4]byte{172, 18, byte(cluster), byte(10 + node)}), ip6
}

// podMask and podMask6 are how long the prefixes are that kube-controller-manager gives to nodes.
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

// namespacePrefix begins the name of each network namespace of a testbed.
func namespacePrefix(id string) string { return "sb-" + id + "-" }

// cgroupName is the control group of everything that belongs to a testbed.
func cgroupName(id string) string { return "sb-" + id }

// namespaceID is the ID of the testbed that a network namespace belongs to.
func namespaceID(namespace string) (string, bool) {
	m := namespaceName.FindStringSubmatch(namespace)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var namespaceName = regexp.MustCompile(`^sb-([a-z0-9]{1,8})-.+$`)

func nodeName(k int) string { return "n" + strconv.Itoa(k) }

package testbed

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"regexp"
	"strconv"
)

// Options say what Up makes. The zero value gives clusters c1 and c2 with two nodes each.
type Options struct {
	// Clusters; c1 and c2 when empty.
	Clusters []ClusterSpec
	// ID tells testbeds of one machine apart: one to eight lower case letters and digits; random when empty.
	ID string
	// KubeProxyMode is kube-proxy's mode, "iptables" when empty.
	KubeProxyMode string
	// Repository is the checkout whose tools/ and cmd/ are built; the one around the working directory when empty.
	Repository string
	// Programs are the product's programs by name, for the image "semaphore", and "testbed" for the image of that name.
	// When nil they are built from the repository.
	Programs map[string]string
	// Progress gets lines for a person to read, and a table of times at the end of Up. May be nil.
	Progress io.Writer
	// Log gets what happens to processes and pods; a file in the testbed's logs directory when nil.
	Log *slog.Logger
}

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

// fabricPrefix is the network between all nodes; its first address is the default route of nodes, and leads nowhere.
var fabricPrefix = netip.MustParsePrefix("172.18.0.0/16")

// addresses is the address plan of one cluster.
type addresses struct {
	pods, services, nodes netip.Prefix
	controlPlane          netip.Addr // where the apiserver listens
	apiService            netip.Addr // ClusterIP of the Service kubernetes
	dns                   netip.Addr // ClusterIP of the Service kube-dns
}

// planCluster gives the addresses of the cluster at a place, from 1.
func planCluster(place int) addresses {
	i := byte(place)
	return addresses{
		pods:         netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, 0, 0}), 16),
		services:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + i, 0, 0}), 16),
		nodes:        netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, i, 0}), 24),
		controlPlane: netip.AddrFrom4([4]byte{172, 18, i, 10}),
		apiService:   netip.AddrFrom4([4]byte{10, 100 + i, 0, 1}),
		dns:          netip.AddrFrom4([4]byte{10, 100 + i, 0, 10}),
	}
}

// planNode gives the address and the pod CIDR of a cluster's node, both from 1.
func planNode(cluster, node int) (netip.Addr, netip.Prefix) {
	i, k := byte(cluster), byte(node)
	return netip.AddrFrom4([4]byte{172, 18, i, 10 + k}), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, i, k, 0}), 24)
}

var (
	clusterName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,8}[a-z0-9]$|^[a-z]$`)
	idPattern   = regexp.MustCompile(`^[a-z0-9]{1,8}$`)
)

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	if len(o.Clusters) == 0 {
		o.Clusters = []ClusterSpec{{Name: "c1"}, {Name: "c2"}}
	}
	if o.KubeProxyMode == "" {
		o.KubeProxyMode = "iptables"
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	var errs []error
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
			errs = append(errs, fmt.Errorf("Clusters[%d].Name %q: want at most ten lower case letters, digits and dashes, a letter first", i, c.Name))
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

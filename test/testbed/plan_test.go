package testbed

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestOptionsComplete(t *testing.T) {
	var o Options
	testkit.Must(t, o.complete())
	if len(o.Clusters) != 2 || o.Clusters[0] != (ClusterSpec{"c1", 2}) || o.Clusters[1] != (ClusterSpec{"c2", 2}) {
		t.Errorf("default clusters: %v", o.Clusters)
	}
	for _, c := range []struct {
		name    string
		options Options
		want    string // part of the error
	}{
		{"upper case", Options{Clusters: []ClusterSpec{{Name: "C1"}}}, `Clusters[0].Name "C1"`},
		{"no name", Options{Clusters: []ClusterSpec{{}}}, `Clusters[0].Name ""`},
		{"long name", Options{Clusters: []ClusterSpec{{Name: "abcdefghijk"}}}, "at most ten"},
		{"ends with a dash", Options{Clusters: []ClusterSpec{{Name: "c-"}}}, `Clusters[0].Name "c-"`},
		{"twice", Options{Clusters: []ClusterSpec{{Name: "a"}, {Name: "a"}}}, `Clusters[1].Name "a": is there already`},
		{"many nodes", Options{Clusters: []ClusterSpec{{Name: "a", Nodes: 201}}}, "Clusters[0].Nodes 201"},
		{"negative nodes", Options{Clusters: []ClusterSpec{{Name: "a", Nodes: -1}}}, "Clusters[0].Nodes -1"},
		{"many clusters", Options{Clusters: make([]ClusterSpec, 100)}, "100 of them"},
		{"ID", Options{ID: "../x"}, `ID "../x"`},
		{"kube-proxy mode", Options{KubeProxyMode: "nonsense"},
			`KubeProxyMode "nonsense": want iptables or nftables or ipvs`},
		{"IPAM", Options{IPAM: "dhcp"}, `IPAM "dhcp": want calico or host-local`},
		{"CNI", Options{CNI: "flannel"}, `CNI "flannel": want calico or bridge`},
		{"IPAM of another CNI", Options{CNI: CNIBridge, IPAM: IPAMCalico}, `IPAM "calico": CNI bridge has host-local`},
		{"families of a CNI", Options{CNI: CNIBridge, IPFamilies: FamiliesDual}, `IPFamilies "dual": CNI bridge has ipv4`},
		{"families", Options{IPFamilies: "ipv6"}, `IPFamilies "ipv6": want ipv4 or dual`},
	} {
		if err := c.options.complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// TestAddressesAreDisjoint: whatever the number of clusters and nodes, no address is given twice.
func TestAddressesAreDisjoint(t *testing.T) {
	var prefixes []netip.Prefix
	seen := map[netip.Addr]bool{fabricPrefix.Addr().Next(): true}
	add := func(ip netip.Addr) {
		if seen[ip] {
			t.Errorf("%s is given twice", ip)
		}
		seen[ip] = true
	}
	for i := 1; i <= maxClusters; i++ {
		a := planCluster(i, true)
		prefixes = append(prefixes, a.pods, a.services, a.nodes, a.pods6, a.services6)
		add(a.controlPlane)
		add(a.controlPlane6)
		for k := 1; k <= maxNodes; k++ {
			ip, ip6 := planNode(i, k, true)
			add(ip)
			add(ip6)
			if !a.nodes.Contains(ip) || !fabricPrefix.Contains(ip) || !fabricPrefix6.Contains(ip6) {
				t.Errorf("cluster %d node %d: %s, %s are not inside %s, %s", i, k, ip, ip6, a.nodes, fabricPrefix6)
			}
		}
	}
	prefixes = append(prefixes, fabricPrefix6)
	if a := planCluster(1, false); a.pods6.IsValid() || a.services6.IsValid() || a.controlPlane6.IsValid() {
		t.Errorf("IPv6 in a cluster with IPv4 alone: %v", a)
	}
	for i, p := range prefixes {
		for _, q := range prefixes[:i] {
			if p.Overlaps(q) {
				t.Errorf("%s overlaps %s", p, q)
			}
		}
	}
}

func TestNamespaceID(t *testing.T) {
	for name, want := range map[string]string{
		namespacePrefix("a1b2") + "fabric": "a1b2", "sb-x-c1-p-default.web": "x",
		"sb-": "", "sb-toolongid0-x": "", "kubelet-test-1-n1": "", "sb-UP-x": "", "sb-a1b2-": "",
	} {
		if id, ok := namespaceID(name); id != want || ok != (want != "") {
			t.Errorf("%q belongs to testbed %q, %v; want %q", name, id, ok, want)
		}
	}
}

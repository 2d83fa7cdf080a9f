package preflight

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func prefixes(texts ...string) Subnets { return Subnets{Prefixes: testkit.Prefixes(texts...)} }

// well returns a cluster that can be linked to others with a different n.
func well(name, n string) *Cluster {
	return &Cluster{
		Context: name, Names: []string{name}, Version: "v1.33.2", CNI: "Calico",
		Calico: &Calico{IPAM: fleet.IPAM{Strict: true, Blocks: true}, NATOutgoing: true, Pools: []fleet.Pool{
			{Name: "own", CIDR: netip.MustParsePrefix("10." + n + ".0.0/16"), NATOutgoing: true},
			{Name: "others", CIDR: netip.MustParsePrefix("10.0.0.0/8"), Disabled: true, DisableBGPExport: true}}},
		Pods: prefixes("10." + n + ".0.0/16"), Services: prefixes("10.96.0.0/12"), IPs: prefixes("192.0.2.0/24"),
		Nodes: []Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Kernel: "6.12.1"}},
		DNS:   DNS{ConfigMap: "kube-system/coredns"}, Clock: new(time.Duration),
	}
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(a, b *Cluster)
		want  string // codes other than OK, sorted
	}{
		"well":   {func(a, b *Cluster) {}, ""},
		"old":    {func(a, b *Cluster) { a.Version = "v1.29.9-eks" }, "ERROR:KubernetesOld"},
		"rights": {func(a, b *Cluster) { a.Lacks = []string{"create namespaces"} }, "ERROR:RightMissing"},
		"unread": {func(a, b *Cluster) { a.Unread = []Unread{{FactNodes, "nodes: forbidden"}} }, "WARNING:NotRead"},
		// A fact that could not be read is not absent.
		"Calico that is not known": {func(a, b *Cluster) { a.Calico, a.Unread = nil, []Unread{{FactCalico, "Calico: 503"}} },
			"WARNING:NotRead"},
		"blocks that are not known": {func(a, b *Cluster) {
			a.Calico.Blocks, a.Unread = false, []Unread{{FactBlocks, "BlockAffinities: 429"}}
		}, "WARNING:NotRead"},
		"strictness that is not known": {func(a, b *Cluster) {
			a.Calico.Strict, a.Unread = false, []Unread{{FactStrict, "IPAMConfig: 429"}}
		}, "WARNING:NotRead"},
		"CoreDNS that is not known": {func(a, b *Cluster) {
			a.DNS, a.Unread = DNS{}, []Unread{{FactCoreDNS, "configmaps kube-system/coredns: 403"}}
		}, "WARNING:NotRead"},
		"a CNI that is excluded, beside a Calico that is not known": {func(a, b *Cluster) {
			a.Calico, a.CNI, a.Excluded, a.Unread = nil, "Cilium", "Cilium: eBPF", []Unread{{FactCalico, "Calico: 503"}}
		}, "ERROR:CNIExcluded WARNING:NotRead"},
		"flannel": {func(a, b *Cluster) { a.Calico, a.CNI = nil, "flannel"; a.Nodes[0].PodCIDRs = a.Pods.Prefixes },
			"WARNING:NoCalico"},
		"Cilium, of what Calico left": {func(a, b *Cluster) { a.CNI, a.Excluded = "Cilium", "Cilium: eBPF" },
			"ERROR:CNIExcluded"},
		"policies of Calico on the VPC CNI": {func(a, b *Cluster) { a.Excluded, a.Calico.Blocks = "aws: own IPAM", false },
			"ERROR:CNIExcluded ERROR:NoPodCIDRs"},
		"Calico's network, with what the VPC CNI left": {func(a, b *Cluster) { a.Excluded = "aws: own IPAM" }, ""},
		"no podCIDR": {func(a, b *Cluster) { a.Calico.Blocks = false }, "ERROR:NoPodCIDRs"},
		"borrowed":   {func(a, b *Cluster) { b.Calico.Strict = false }, "WARNING:AffinityNotStrict"},
		"eBPF":       {func(a, b *Cluster) { a.Calico.BPF = true }, "WARNING:CalicoEBPF"},
		"eBPF with another pattern": {func(a, b *Cluster) {
			a.Calico.BPF, a.Calico.BPFL3Interfaces = true, `^wireguard\.`
		}, "WARNING:CalicoEBPF"},
		"eBPF that is no pattern": {func(a, b *Cluster) { a.Calico.BPF, a.Calico.BPFL3Interfaces = true, "(" },
			"WARNING:CalicoEBPF"},
		"a pattern without eBPF": {func(a, b *Cluster) { a.Calico.BPFL3Interfaces = "(" }, ""},
		"old kernel": {func(a, b *Cluster) { a.Nodes[0].Kernel = "5.4.0-150-generic" },
			"WARNING:KernelWithoutWireGuard"},
		"RHEL 8": {func(a, b *Cluster) { a.Nodes[0].Kernel = "4.18.0-553.el8.x86_64" },
			"WARNING:KernelWithoutWireGuard"},
		"no InternalIP":  {func(a, b *Cluster) { a.Nodes[0].InternalIPs = nil }, "ERROR:NoInternalIP"},
		"one side calls": {func(a, b *Cluster) { a.Nodes[0].Calls = []string{"*"} }, ""},
		"both call, but not each other": {func(a, b *Cluster) {
			a.Nodes[0].Calls, b.Nodes[0].Calls = []string{"c3"}, []string{"c1"}
		}, ""},
		"both call": {func(a, b *Cluster) {
			a.Nodes[0].Calls, b.Nodes[0].Calls = []string{"*"}, []string{"c1"}
		}, "ERROR:BothUnreachable"},
		"unknown pods": {func(a, b *Cluster) { a.Pods.Prefixes = nil }, "ERROR:SubnetsUnknown"},
		"no CoreDNS":   {func(a, b *Cluster) { a.DNS = DNS{} }, "WARNING:NoCoreDNS"},
		"clock":        {func(a, b *Cluster) { a.Clock = ptr.To(-time.Hour) }, "WARNING:ClocksDiffer WARNING:ClocksDiffer"},
		"slow clocks": {func(a, b *Cluster) { a.Clock, b.Clock = ptr.To(-90*time.Second), ptr.To(90*time.Second) },
			"WARNING:ClocksDiffer"},
		// The one that is not known is not as far from the other as this machine is.
		"a clock that is not known": {func(a, b *Cluster) { a.Clock, b.Clock = nil, ptr.To(3*time.Minute) },
			"WARNING:ClocksDiffer"},
		"one name":         {func(a, b *Cluster) { b.Names = a.Names }, "ERROR:ClusterNameTaken"},
		"same pods":        {func(a, b *Cluster) { b.Pods = prefixes("10.1.128.0/17") }, "ERROR:SubnetsOverlap"},
		"pods in Services": {func(a, b *Cluster) { b.Pods = prefixes("10.100.0.0/16") }, "ERROR:SubnetsOverlap"},
		"pods in nodes":    {func(a, b *Cluster) { b.IPs = prefixes("10.1.7.0/24") }, "ERROR:SubnetsOverlap"},
		"no pool":          {func(a, b *Cluster) { a.Calico.Pools = a.Calico.Pools[:1] }, "WARNING:PoolMissing"},
		"announced":        {func(a, b *Cluster) { a.Calico.Pools[1].DisableBGPExport = false }, "WARNING:PoolExported"},
		"announces its own": {func(a, b *Cluster) {
			a.Calico.Pools = append(a.Calico.Pools, fleet.Pool{Name: "more", CIDR: a.Pods.Prefixes[0]})
		}, ""},
		"no pool, no NAT": {func(a, b *Cluster) { a.Calico.Pools, a.Calico.NATOutgoing = nil, false }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := well("c1", "1"), well("c2", "2")
			test.spoil(a, b)
			var codes []string
			for _, f := range Judge([]*Cluster{a, b}) {
				if f.Code == "" || f.Subject == "" || f.Evidence == "" || strings.Contains(f.Evidence, "%!") ||
					(f.Level != finding.OK) != (f.Fix != "") {
					t.Errorf("incomplete: %+v", f)
				}
				if f.Level != finding.OK {
					codes = append(codes, strings.ToUpper(string(f.Level))+":"+string(f.Code))
				}
			}
			slices.Sort(codes)
			if got := strings.Join(codes, " "); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestCover(t *testing.T) {
	for text, want := range map[string]string{
		"172.18.0.2": "172.18.0.0/24", "172.18.0.2 172.18.0.250": "172.18.0.0/24", "172.18.0.2 172.18.3.1": "172.18.0.0/22",
		"10.0.1.7 fd00:1::7 fd00:1::8": "10.0.1.0/24 fd00:1::/64", "": "",
		"192.168.0.1 10.0.0.1 10.0.0.9": "10.0.0.0/24 192.168.0.0/24",
	} {
		var all []netip.Addr
		for _, a := range strings.Fields(text) {
			all = append(all, netip.MustParseAddr(a))
		}
		if got := (Subnets{Prefixes: Cover(all)}).String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestNameOf(t *testing.T) {
	for text, want := range map[string]string{
		"c1": "c1", "kubernetes-admin@prod-1": "prod-1", "arn:aws:eks:eu-west-1:123456789012:cluster/Prod": "prod",
		"kind-c2":                      "kind-c2",
		"gke_proj_europe-west1-b_shop": "gke-proj-europe-west1-b-shop",
		"remote.aws.us-west-2.k8s.testing.example.com": "remote-aws-us-west-2-k8s-testing", "@": "", "a@": "a",
	} {
		if got := NameOf(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

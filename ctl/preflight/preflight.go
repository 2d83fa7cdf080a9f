// Package preflight finds the obstacles to connecting clusters, before anything is installed in them.
//
// survey.go reads facts about each cluster; preflight.go and pin.go turn them into findings, and have no effects.
package preflight

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Subnets are addresses that a cluster uses for one purpose, with their source.
type Subnets struct {
	Prefixes []netip.Prefix `json:"prefixes"`
	// From is a text such as "IPPools of Calico"; a guess says so.
	From string `json:"from,omitempty"`
}

// String returns a text such as "10.1.0.0/16 fd00:1::/48".
func (s Subnets) String() string {
	return strings.Join(show.Texts(s.Prefixes), " ")
}

// Prefixes returns the networks among texts, without white space around them. It fails, beside them, for the first that
// is none.
func Prefixes[T ~string](texts []T) (out []netip.Prefix, err error) {
	for _, text := range texts {
		if p, bad := netip.ParsePrefix(strings.TrimSpace(string(text))); bad == nil {
			out = append(out, p)
		} else if err == nil {
			err = fmt.Errorf("%q is no network, such as 10.1.0.0/16", text)
		}
	}
	return out, err
}

type Node struct {
	Name        string         `json:"name"`
	InternalIPs []netip.Addr   `json:"internalIPs"`
	PodCIDRs    []netip.Prefix `json:"podCIDRs,omitempty"`
	// Calls are the clusters whose nodes have no address of it; "*" for all.
	Calls  []string `json:"calls,omitempty"`
	Kernel string   `json:"kernel"`
	OS     string   `json:"os"`
	// ControlPlane says that it is a node of the control plane, and Created since when there is the node: which of them
	// are likely to stay.
	ControlPlane bool      `json:"controlPlane,omitempty"`
	Created      time.Time `json:"created"`
}

type Calico struct {
	fleet.IPAM
	// WireGuard is set if Calico itself encrypts between the nodes of the cluster.
	WireGuard bool `json:"wireguard"`
	// BPF is set if Calico's eBPF dataplane handles packets, and BPFL3Interfaces is its setting bpfL3IfacePattern: the
	// devices without link layer, beside Calico's own, at which it does.
	BPF             bool   `json:"bpf,omitempty"`
	BPFL3Interfaces string `json:"bpfL3IfacePattern,omitempty"`
	// NATOutgoing is set if a pool makes Calico rewrite the source of packets from pods to addresses outside of all
	// pools.
	NATOutgoing bool `json:"natOutgoing"`
	// Encapsulation of the pools: none, ipip, vxlan or several.
	Encapsulation string `json:"encapsulation"`
	// Pools are all of them, also of other clusters' pods, and PoolResource is kubectl's name of them.
	Pools        []fleet.Pool `json:"pools"`
	PoolResource string       `json:"poolResource,omitempty"`
}

type DNS struct {
	// ConfigMap of CoreDNS, NAMESPACE/NAME; empty if there is none.
	ConfigMap string `json:"configMap,omitempty"`
	// Import is a pattern of files that its Corefile imports; empty for none.
	Import    string `json:"import,omitempty"`
	NodeLocal bool   `json:"nodeLocal"`
}

// Fact is a property of a cluster. One that could not be read is in Cluster.Unread: it is not known, and not absent.
type Fact string

// The facts by which findings and settings are decided. Unread.Fact is empty for the rest, such as the clock.
const (
	FactNodes       Fact = "nodes"
	FactCNI         Fact = "the CNI"
	FactCalico      Fact = "Calico"
	FactBlocks      Fact = "whether Calico's IPAM has blocks"
	FactStrict      Fact = "whether it is strict"
	FactPods        Fact = "pod subnets"
	FactServices    Fact = "service subnets"
	FactCoreDNS     Fact = "CoreDNS"
	FactMCS         Fact = "the Multi-Cluster Services API"
	FactPodMonitors Fact = "PodMonitors"
	FactRights      Fact = "your rights"
)

// Unread is an object that could not be read, and the fact that it has.
type Unread struct {
	Fact Fact
	Why  string
}

func (u Unread) MarshalText() ([]byte, error) { return []byte(u.Why), nil }

type Cluster struct {
	Context string `json:"context"`
	// Names are proposals for the cluster's name, the best first.
	Names    []string `json:"names"`
	Version  string   `json:"kubernetes"`
	Provider string   `json:"provider,omitempty"`
	CNI      string   `json:"cni"`
	// Excluded names a CNI, and why tunnels cannot work beside it.
	Excluded            string  `json:"excluded,omitempty"`
	Calico              *Calico `json:"calico,omitempty"`
	Pods, Services, IPs Subnets `json:"-"`
	Nodes               []Node  `json:"nodes"`
	KubeProxy           string  `json:"kubeProxy,omitempty"`
	DNS                 DNS     `json:"dns"`
	// MCS and PodMonitors are set if the cluster serves the Multi-Cluster Services API and the Prometheus Operator's type.
	MCS         bool `json:"multiClusterServices"`
	PodMonitors bool `json:"podMonitors"`
	// Clock is how far the apiserver's clock is ahead of ours, with an error of up to a second; nil if it could not be
	// read.
	Clock *time.Duration `json:"clock,omitempty"`
	// Lacks are the rights to install that the caller does not have.
	Lacks  []string `json:"lacks,omitempty"`
	Unread []Unread `json:"unread,omitempty"`
}

// Knows reports whether all of the facts could be read.
func (c *Cluster) Knows(facts ...Fact) bool {
	return !slices.ContainsFunc(c.Unread, func(u Unread) bool { return slices.Contains(facts, u.Fact) })
}

func (c *Cluster) Name() string {
	if len(c.Names) == 0 {
		return c.Context
	}
	return c.Names[0]
}

// OldKernels are the nodes whose kernels come without WireGuard, such as "n1 (5.4.0-42)".
func (c *Cluster) OldKernels() []string {
	var out []string
	for _, n := range c.Nodes {
		if olderThan("5.6", n.Kernel) { // which comes with WireGuard
			out = append(out, n.Name+" ("+n.Kernel+")")
		}
	}
	return out
}

// AllowedIPs is the exporter's setting for the source of pods' addresses.
func (c *Cluster) AllowedIPs() string {
	switch {
	case c.Calico != nil && c.Calico.Blocks:
		return "calicoBlocks"
	case !c.Knows(FactCalico, FactBlocks):
		return notKnown
	}
	return "nodePodCIDRs"
}

// clocks may differ by this: certificates are valid from five minutes before they are issued.
const clocks = 2 * time.Minute

func Judge(clusters []*Cluster) []show.Finding {
	var all []show.Finding
	for _, c := range clusters {
		all = append(all, one(c)...)
	}
	for i, a := range clusters {
		for _, b := range clusters[i+1:] {
			all = append(all, JudgePair(a, b)...)
		}
	}
	return all
}

type judged struct {
	*Cluster
	all []show.Finding
}

func (c *judged) add(code finding.Code, subject, fix, evidence string, args ...any) {
	c.all = append(c.all, show.Found(code, c.Context, c.Context+": "+subject, fix, evidence, args...))
}

// one returns the faults of a cluster by itself, by subject.
func one(cluster *Cluster) []show.Finding {
	c := &judged{Cluster: cluster}
	c.apiserver()
	c.calico()
	c.nodes()
	for what, s := range map[string]Subnets{"pod subnets": c.Pods, "service subnets": c.Services,
		"addresses of nodes": c.IPs} {
		if len(s.Prefixes) == 0 {
			c.add(finding.SubnetsUnknown, what, "name them in the configuration", "none were found")
		}
	}
	switch {
	case c.DNS.ConfigMap == "" && c.Knows(FactCoreDNS):
		c.add(finding.NoCoreDNS, "DNS", "see docs/services.md for other servers",
			"there is no ConfigMap coredns: names of remote services are by CoreDNS")
	case c.DNS.NodeLocal:
		c.add(finding.NodeLocalDNS, "DNS", "",
			"NodeLocal DNSCache runs: it must forward the names of remotes to CoreDNS, see docs/services.md")
	}
	slices.SortStableFunc(c.all, func(a, b show.Finding) int { return strings.Compare(a.Subject, b.Subject) })
	return c.all
}

// apiserver judges the version, the rights, the unread objects, and the clock.
func (c *judged) apiserver() {
	if olderThan("1.30", c.Version) {
		c.add(finding.KubernetesOld, "Kubernetes", "upgrade to 1.30 or later",
			"it is %s, and admission policies by CEL are of 1.30", c.Version)
	}
	for _, right := range c.Lacks {
		c.add(finding.RightMissing, "your rights", "install as an administrator of the cluster",
			"you may not %s", right)
	}
	c.all = append(c.all, NotRead(c.Cluster)...)
	if c.Clock != nil && c.Clock.Abs() > clocks {
		c.add(finding.ClocksDiffer, "the apiserver's clock", "synchronise the clocks of its nodes, or of this machine",
			"it differs from this machine's by %s", c.Clock.Round(time.Second))
	}
}

func NotRead(c *Cluster) (all []show.Finding) {
	for _, u := range c.Unread {
		all = append(all, show.Found(finding.NotRead, c.Context, c.Context+": unread objects",
			"look again, with more rights if need be", "%s", u.Why))
	}
	return all
}

// calico begins the names of CNIs whose network is Calico's.
const calico = "Calico"

func (c *judged) calico() {
	// With blocks the pods' IPs are Calico's, and so is their network. Where that is not known, this is not ruled out.
	if c.Excluded != "" && (c.Calico == nil || !c.Calico.Blocks || !strings.HasPrefix(c.CNI, calico)) {
		c.add(finding.CNIExcluded, "CNI", "use Calico's networking, or another CNI of docs/platforms.md#other-cnis", "%s",
			c.Excluded)
	}
	if c.Calico == nil {
		if c.Knows(FactCalico) {
			c.add(finding.NoCalico, "CNI", "leave the feature policy out",
				"it is %s: policies by sets of remote pods need Calico", c.CNI)
		}
		return
	}
	if c.Calico.Blocks && !c.Calico.Strict && c.Knows(FactStrict) {
		c.add(finding.AffinityNotStrict, "Calico's IPAM", c.Calico.BeStrict(c.Context),
			"a node may borrow addresses from blocks of others: packets of such pods are dropped by remote nodes")
	}
	c.bpf()
	if c.Calico.WireGuard {
		c.add(finding.CalicoWireGuard, "Calico's WireGuard", "",
			"Calico encrypts between the nodes of this cluster; semaphore's devices and ports are its own")
	}
}

const devices = `^(wireguard|wg)[.].*`

// bpf judges whether Calico's eBPF programs see the packets of tunnels. At a device that its pattern does not match
// they do not: packets are dropped, or pass without policies.
func (c *judged) bpf() {
	if !c.Calico.BPF {
		return
	}
	says := fmt.Sprintf("the eBPF dataplane is on (bpfEnabled), and bpfL3IfacePattern is %q", c.Calico.BPFL3Interfaces)
	fix := fmt.Sprintf(`kubectl --context %s patch felixconfiguration default --type merge -p `+
		`'{"spec":{"bpfL3IfacePattern":"%s"}}'`, c.Context, devices)
	pattern, err := regexp.Compile(c.Calico.BPFL3Interfaces)
	switch {
	case err != nil:
		c.add(finding.CalicoEBPF, "Calico's eBPF dataplane", fix, "%s, which is no pattern: %v", says, err)
	case c.Calico.BPFL3Interfaces == "" || !pattern.MatchString(naming.Device("c2")) ||
		!pattern.MatchString(naming.Device(strings.Repeat("c", naming.MaxClusterName))):
		c.add(finding.CalicoEBPF, "Calico's eBPF dataplane", fix,
			"%s, which does not match semaphore's devices, such as %s: Calico drops packets of tunnels, or lets them pass "+
				"without its policies. This dataplane is not tested with semaphore", says, naming.Device("c2"))
	default:
		c.add(finding.CalicoEBPF, "Calico's eBPF dataplane",
			"try it before you rely on it: semaphorectl check --traffic",
			"%s, which matches semaphore's devices; this dataplane is not tested with semaphore", says)
	}
}

func (c *judged) nodes() {
	var without []string
	for _, n := range c.Nodes {
		if len(n.InternalIPs) == 0 {
			c.add(finding.NoInternalIP, "node "+n.Name, "have the kubelet or the cloud provider set it",
				"it has no InternalIP, at which tunnels end")
		}
		if len(n.PodCIDRs) == 0 {
			without = append(without, n.Name)
		}
	}
	if old := c.OldKernels(); len(old) > 0 {
		c.add(finding.KernelWithoutWireGuard, "kernels",
			"add the component features/userspace-wireguard, which is slower, or a kernel of 5.6 or later",
			"%s: Linux before 5.6 has WireGuard only where it was added", shortened(old))
	}
	if len(without) > 0 && c.AllowedIPs() == "nodePodCIDRs" {
		c.add(finding.NoPodCIDRs, "nodes",
			"have kube-controller-manager allocate them (--allocate-node-cidrs), or use Calico's IPAM",
			"%s: no spec.podCIDRs, and no IPAM of Calico's: nothing says which addresses a node's pods have",
			shortened(without))
	}
}

// callers returns the nodes that have no address for another cluster.
func (c *Cluster) callers(other *Cluster) (nodes []string) {
	for _, n := range c.Nodes {
		if slices.Contains(n.Calls, "*") || slices.Contains(n.Calls, other.Name()) {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes
}

func JudgePair(a, b *Cluster) []show.Finding {
	var all []show.Finding
	between := a.Context + " and " + b.Context
	add := func(code finding.Code, subject, fix, evidence string, args ...any) {
		all = append(all, show.Found(code, "both", between+": "+subject, fix, evidence, args...))
	}
	if a.Name() == b.Name() {
		add(finding.ClusterNameTaken, "names", "name one of them otherwise", "both would be %q", a.Name())
	}
	type kind struct {
		what string
		of   []netip.Prefix
	}
	kinds := func(c *Cluster) []kind {
		return []kind{{"pods", c.Pods.Prefixes}, {"Services", c.Services.Prefixes}, {"nodes", c.IPs.Prefixes}}
	}
	apart := true
	for _, x := range kinds(a) {
		for _, y := range kinds(b) {
			// Clusters do not reach each other's Services by address, and may share a network of nodes.
			if x.what != "pods" && y.what != "pods" {
				continue
			}
			for _, p := range x.of {
				for _, q := range y.of {
					if p.Overlaps(q) {
						apart = false
						add(finding.SubnetsOverlap, "subnets",
							"give one of the clusters other subnets: semaphore does not translate addresses",
							"%s (%s of %s) overlaps %s (%s of %s)", p, x.what, a.Context, q, y.what, b.Context)
					}
				}
			}
		}
	}
	if apart && len(a.Pods.Prefixes) > 0 && len(b.Pods.Prefixes) > 0 {
		add(finding.SubnetsDisjoint, "subnets", "", "%s and %s are apart", a.Pods, b.Pods)
	}
	for _, way := range [][2]*Cluster{{a, b}, {b, a}} {
		here, there := way[0], way[1]
		if here.Calico == nil {
			continue
		}
		remote := Remote{Name: there.Context, Pods: there.Pods.Prefixes}
		for _, f := range JudgePools(here.Calico.Pools, here.Calico.PoolResource, here.Context, remote) {
			if f.Code != finding.PoolEnabled { // the subnets overlap, as was said
				f.Side, f.Subject = here.Context, here.Context+": "+f.Subject
				all = append(all, f)
			}
		}
	}
	if here, there := a.callers(b), b.callers(a); len(here) > 0 && len(there) > 0 {
		add(finding.BothUnreachable, "nodes", "give the nodes of one side an address that the other reaches: "+
			"annotation "+naming.ReachableAt, "%s of %s and %s of %s have no address at which the others could reach them: no "+
			"packet passes between them", shortened(here), a.Context, shortened(there), b.Context)
	}
	if a.Clock == nil || b.Clock == nil {
		return all
	}
	if apart := (*a.Clock - *b.Clock).Abs(); apart > clocks {
		add(finding.ClocksDiffer, "clocks",
			"synchronise them: a certificate of one is not valid yet, or no longer, for the other", "they differ by %s",
			apart.Round(time.Second))
	}
	return all
}

// JudgePools judges whether the pools of a cluster's Calico leave the IPs of a remote's pods alone. resource is
// kubectl's name of the pools, and context is empty for the current one.
func JudgePools(pools []fleet.Pool, resource, context string, remote Remote) (all []show.Finding) {
	masquerades := slices.ContainsFunc(pools, func(p fleet.Pool) bool { return !p.Disabled && p.NATOutgoing })
	if context != "" {
		context = "--context " + context + " "
	}
	for _, subnet := range remote.Pods {
		covered := false
		for _, p := range pools {
			covered = covered || p.CIDR.Bits() <= subnet.Bits() && p.CIDR.Contains(subnet.Addr())
			if p.CIDR.Overlaps(subnet) {
				all = append(all, judgePool(p, remote.Name, subnet,
					fmt.Sprintf("kubectl %spatch %s %s --type merge -p ", context, resource, p.Name))...)
			}
		}
		if !covered && masquerades {
			all = append(all, show.Found(finding.PoolMissing, "here", fmt.Sprintf("pods of %s, %s", remote.Name, subnet),
				"nothing before semaphorectl install, which does it: manageIPPools: true of the broker, with the component "+
					"features/ippools; or make a disabled pool as docs/overlays.md has it",
				"no IPPool has them, so that Calico replaces the pods' IPs by those of their nodes (SNAT)"))
		}
	}
	return all
}

// judgePool judges a pool that overlaps a subnet of a remote. patch is the command that changes it, but for the patch.
func judgePool(p fleet.Pool, remote string, subnet netip.Prefix, patch string) []show.Finding {
	bad := func(code finding.Code, fix, evidence string, args ...any) []show.Finding {
		return []show.Finding{show.Found(code, "here", fmt.Sprintf("IPPool %s, %s", p.Name, p.CIDR), fix, evidence, args...)}
	}
	switch {
	case !p.Disabled && p.CIDR.Bits() < subnet.Bits():
		return bad(finding.PoolEnabled, "put pools in its place that do not overlap the subnet, or give the clusters other "+
			"subnets: two pods must not have one IP",
			"Calico gives pods of this cluster IPs of it, and %s of it are those of pods of %s", subnet, remote)
	case !p.Disabled:
		return bad(finding.PoolEnabled, patch+`'{"spec":{"disabled":true,"disableBGPExport":true}}'`,
			"Calico gives pods of this cluster IPs of it, and they are those of pods of %s (%s)", remote, subnet)
	case !p.DisableBGPExport:
		return bad(finding.PoolExported, patch+`'{"spec":{"disableBGPExport":true}}'`, "it has no disableBGPExport, so that "+
			"where Calico speaks BGP each node announces its route to the pods of %s, and others follow that in place of "+
			"their own", remote)
	}
	return nil
}

// shortened joins a list for people.
func shortened(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

// olderThan reports whether a version of Kubernetes or of a kernel, such as v1.33.2+k3s1 or 5.4.0-42-generic, is older
// than another; not for one that it cannot parse.
func olderThan(least, text string) bool {
	v, err := version.ParseGeneric(text)
	return err == nil && v.LessThan(version.MustParseGeneric(least))
}

// Cover returns few networks that contain all addresses, each of at least 256 or 2^64 addresses, because nodes come and
// go.
func Cover(addresses []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, family := range []struct {
		is func(netip.Addr) bool
		// A network has at most the first number of bits; one that would have fewer than the second is split.
		bits, least int
	}{{netip.Addr.Is4, 24, 12}, {netip.Addr.Is6, 64, 40}} {
		var all []netip.Addr
		for _, a := range addresses {
			if a = a.Unmap(); family.is(a) {
				all = append(all, a)
			}
		}
		if len(all) == 0 {
			continue
		}
		slices.SortFunc(all, netip.Addr.Compare)
		bits := family.bits
		for bits >= family.least && !netip.PrefixFrom(all[0], bits).Masked().Contains(all[len(all)-1]) {
			bits--
		}
		if bits >= family.least {
			out = append(out, netip.PrefixFrom(all[0], bits).Masked())
			continue
		}
		for _, a := range all {
			if p := netip.PrefixFrom(a, family.bits).Masked(); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

var notOfNames = regexp.MustCompile(`[^a-z0-9]+`)

// NameOf derives a cluster's name from a text such as "admin@prod-1" or "arn:aws:eks:eu-west-1:123:cluster/prod"; empty
// if nothing is left.
func NameOf(text string) string {
	text = strings.ToLower(text)
	for _, before := range []string{"@", "/"} {
		if i := strings.LastIndex(text, before); i >= 0 && i < len(text)-1 {
			text = text[i+1:]
		}
	}
	text = strings.Trim(notOfNames.ReplaceAllString(text, "-"), "-")
	if len(text) > 32 {
		text = strings.Trim(text[:32], "-")
	}
	return text
}

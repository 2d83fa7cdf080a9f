package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// insideBridge is the bridge of the nodes behind a Router, in the fabric's namespace.
const insideBridge = "fabric1"

// Interfaces of a Router: to all other clusters, and to the cluster behind it.
const (
	RouterOutside = "eth0"
	RouterInside  = "eth1"
)

// RouterAddress is the first of the addresses that a Router has outside, AnotherRouterAddress the second. No node has
// one of RouterSubnet.
var (
	RouterSubnet         = netip.MustParsePrefix("172.18.9.0/24")
	RouterAddress        = netip.MustParseAddr("172.18.9.1")
	AnotherRouterAddress = netip.MustParseAddr("172.18.9.2")
)

// Router is a namespace between one cluster and all others, with nftables of its own. Nodes behind it need no
// other routes: it answers ARP for those outside, and those outside reach its own addresses. It forwards what its rules
// permit, and IPv6 without any translation.
type Router struct {
	Netns *netns.Namespace

	fabric  *netns.Namespace
	cluster *Cluster
}

// Route puts a router before a cluster, which had the others on its link until then. The router forwards nothing before
// Rules.
func (tb *Testbed) Route(ctx context.Context, c *Cluster) (*Router, error) {
	ns, err := netns.Create(namespacePrefix(tb.ID) + "router")
	if err != nil {
		return nil, err
	}
	r := &Router{Netns: ns, fabric: tb.fabric, cluster: c}
	inside, outside := c.NodeSubnet.String(), "172.18.0.0/16"
	// Forwarding is on before there are rules to permit anything: so a rule that drops comes first.
	const nothing = "table ip filter {\nchain forward { type filter hook forward priority 0; policy drop; }\n}"
	if err := r.Rules(ctx, nothing); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		in      *netns.Namespace
		command string
	}{
		{tb.fabric, "ip link add " + insideBridge + " type bridge"},
		{tb.fabric, "ip link set " + insideBridge + " up"},
		{tb.fabric, "ip link add router0 type veth peer name " + RouterOutside + " netns " + ns.Name()},
		{tb.fabric, "ip link add router1 type veth peer name " + RouterInside + " netns " + ns.Name()},
		{tb.fabric, "ip link set router0 master " + fabricBridge + " up"},
		{tb.fabric, "ip link set router1 master " + insideBridge + " up"},
		{ns, "ip link set " + RouterOutside + " up"},
		{ns, "ip link set " + RouterInside + " up"},
		{ns, "ip address add " + RouterAddress.String() + "/32 dev " + RouterOutside},
		{ns, "ip address add " + AnotherRouterAddress.String() + "/32 dev " + RouterOutside},
		{ns, "ip route add " + outside + " dev " + RouterOutside + " src " + RouterAddress.String()},
		{ns, "ip route add " + inside + " dev " + RouterInside + " src " + RouterAddress.String()},
		// The machine itself, which is in the fabric's namespace, reaches both sides.
		{tb.fabric, "ip address add " + fabricPrefix.Addr().Next().String() + "/32 dev " + insideBridge},
		{tb.fabric, "ip route add " + inside + " dev " + insideBridge + " src " + fabricPrefix.Addr().Next().String()},
	} {
		if err := run(ctx, step.in, "", strings.Fields(step.command)...); err != nil {
			return nil, err
		}
	}
	values := map[string]string{"ipv4/ip_forward": "1", "ipv4/neigh/" + RouterInside + "/proxy_delay": "0"}
	if err := setSysctls(ns, values); err != nil {
		return nil, err
	}
	for _, other := range tb.clusters {
		for _, n := range other.Nodes {
			if other != c {
				if err := run(ctx, ns, "", "ip", "neigh", "add", "proxy", n.IP.String(), "dev", RouterInside); err != nil {
					return nil, err
				}
			}
		}
	}
	if c.PodCIDR6.IsValid() {
		if err := r.forwardIPv6(ctx, tb.clusters); err != nil {
			return nil, err
		}
	}
	return r, tb.moveInside(ctx, c)
}

// forwardIPv6 makes the router answer for the nodes of both sides, and forward IPv6 between them.
func (r *Router) forwardIPv6(ctx context.Context, all []*Cluster) error {
	inside := netip.PrefixFrom(r.cluster.Nodes[0].IP6, 64).Masked()
	commands := []string{"ip route add " + inside.String() + " dev " + RouterInside,
		"ip route add " + fabricPrefix6.String() + " dev " + RouterOutside}
	values := map[string]string{"ipv6/conf/all/forwarding": "1"}
	for _, link := range []string{RouterOutside, RouterInside} {
		values["ipv6/conf/"+link+"/proxy_ndp"], values["ipv6/neigh/"+link+"/proxy_delay"] = "1", "0"
	}
	for _, c := range all {
		link := RouterInside
		if c == r.cluster {
			link = RouterOutside
		}
		for _, n := range c.Nodes {
			commands = append(commands, "ip neigh add proxy "+n.IP6.String()+" dev "+link)
		}
	}
	if err := setSysctls(r.Netns, values); err != nil {
		return err
	}
	for _, command := range commands {
		if err := run(ctx, r.Netns, "", strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// Neighbour returns a machine behind the router which is no node.
func (r *Router) Neighbour(ctx context.Context) (*netns.Namespace, error) {
	const port = "neighbour"
	ip := netip.AddrFrom4([4]byte{172, 18, r.cluster.NodeSubnet.Addr().As4()[2], 200})
	ns, err := connect(r.fabric, r.Netns.Name()+"-"+port, port, ip)
	if err != nil {
		return nil, err
	}
	return ns, run(ctx, r.fabric, "", "ip", "link", "set", port, "master", insideBridge)
}

// moveInside moves the ports of a cluster to the inner bridge, and has all nodes forget where the others were.
func (tb *Testbed) moveInside(ctx context.Context, c *Cluster) error {
	links, err := tb.fabric.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	bridge, err := links.LinkByName(insideBridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", insideBridge, err)
	}
	ports := []string{c.Name + "-cp"}
	for _, n := range c.Nodes {
		ports = append(ports, n.hostname())
	}
	for _, port := range ports {
		link, err := links.LinkByName(port)
		if err == nil {
			err = links.LinkSetMaster(link, bridge.(*netlink.Bridge))
		}
		if err != nil {
			return fmt.Errorf("move %s behind the router: %w", port, err)
		}
	}
	all := []*netns.Namespace{tb.fabric}
	for _, c := range tb.clusters {
		all = append(all, c.controlPlane)
		for _, n := range c.Nodes {
			all = append(all, n.Netns)
		}
	}
	for _, ns := range all {
		if err := run(ctx, ns, "", "ip", "neigh", "flush", "all"); err != nil {
			return err
		}
	}
	return nil
}

// Rules replaces the router's nftables rules, in nft's syntax. Connections that it tracks continue: see Forget.
func (r *Router) Rules(ctx context.Context, rules string) error {
	return run(ctx, r.Netns, "flush ruleset\n"+rules+"\n", "nft", "-f", "-")
}

// Forget makes the router forget all connections, as after a restart.
func (r *Router) Forget(ctx context.Context) error {
	return run(ctx, r.Netns, "", "conntrack", "-F")
}

// ForgetAfter sets after how many seconds without a packet the router forgets a connection of UDP.
func (r *Router) ForgetAfter(seconds int) error {
	text := fmt.Sprint(seconds)
	return setSysctls(r.Netns, map[string]string{"netfilter/nf_conntrack_udp_timeout": text,
		"netfilter/nf_conntrack_udp_timeout_stream": text})
}

// run runs a program of the machine in a network namespace.
func run(ctx context.Context, ns *netns.Namespace, stdin string, args ...string) error {
	return ns.Do(func() error {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s in %s: %w\n%s", strings.Join(args, " "), ns.Name(), err, out)
		}
		return nil
	})
}

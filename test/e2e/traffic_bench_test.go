package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/ctl/verify"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Bounds of what a tunnel carries, relative to a bare WireGuard device, and of what it adds to the latency of a path
// without a tunnel, relative to what the bare device adds; and of requests through a mirror's ClusterIP, relative to
// those to the pod's own address.
const leastOfBare, mostOfBareLatency, leastOfPodAddress = 0.95, 1.1, 0.95

// turnFor is how long a path is measured before the next one has its turn. Streams need longer to share the path:
// while a few of them have most of it, it carries more.
const turnFor, turnOfStreams = 600 * time.Millisecond, 2 * time.Second

// trafficPath is a way from a client to a server.
type trafficPath struct {
	client *netns.Namespace
	server netip.Addr
	// samples are the results of all turns by unit.
	samples map[string][]float64
}

func (p *trafficPath) add(unit string, value float64) {
	if p.samples == nil {
		p.samples = map[string][]float64{}
	}
	p.samples[unit] = append(p.samples[unit], value)
}

func (p *trafficPath) quartile(unit string) float64 {
	return figure.BetterQuartile(unit, p.samples[unit])
}

// manyStreams is the unit of a figure that differs from turn to turn by a factor of four, even without a tunnel:
// streams that share the path evenly have small segments. So its mean counts.
const manyStreams = "streams-16-Mbit/s"

// report reports a figure of the path beside that of another one. Where it is bounded, a mean may be lower by two
// standard errors of the ratio: the turns do not show less.
func (p *trafficPath) report(b *testing.B, unit string, floor *trafficPath, bounded bool) {
	b.Helper()
	value, of, least := p.quartile(unit), floor.quartile(unit), leastOfBare
	if unit == manyStreams {
		var e, ofE float64
		value, e = figure.Mean(p.samples[unit])
		of, ofE = figure.Mean(floor.samples[unit])
		least -= 2 * value / of * math.Hypot(e/value, ofE/of)
	}
	f := figure.Report(b, unit, value).Floor(of)
	if bounded {
		f.AtLeastTimesFloor(least)
	}
}

// trafficBed has pods and bare devices between which traffic is measured.
type trafficBed struct {
	*Scenario
	tunnel, plain, bare, gateway *trafficPath
}

// measure has a program in the namespace of the client make a measurement. Only that program is there, and not this
// process, for which it would be dear to enter the namespace for each connection.
func (b *trafficBed) measure(ctx context.Context, p *trafficPath, m verify.Measurement) (out verify.Measured,
	err error) {
	turn := turnFor
	if m.Name == verify.Bandwidth && m.Streams > 1 {
		turn = turnOfStreams
	}
	args := []string{"measure", string(m.Name), netip.AddrPortFrom(p.server, verify.LoadPort).String(), "--while",
		turn.String(), "--streams", strconv.Itoa(m.Streams), "--rate", fmt.Sprint(m.Rate)}
	var text bytes.Buffer
	cmd, err := b.probe(ctx, p.client, &text, args...)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		err = json.Unmarshal(text.Bytes(), &out)
	}
	if err == nil && out.Error != "" {
		err = errors.New(out.Error)
	}
	return out, err
}

// probe starts what check --traffic runs in its pods.
func (b *trafficBed) probe(ctx context.Context, in *netns.Namespace, out *bytes.Buffer, args ...string) (*exec.Cmd,
	error) {
	program := filepath.Join(b.in.repo, "bin", "semaphorectl")
	cmd := exec.CommandContext(ctx, program, append([]string{"probe"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	return cmd, in.Do(cmd.Start)
}

// serve starts a server for measurements in a namespace until the benchmark ends.
func (b *trafficBed) serve(ctx context.Context, t testing.TB, ns *netns.Namespace) {
	t.Helper()
	udpEchoIn(t, ns)
	cmd := testkit.Value(b.probe(ctx, ns, &bytes.Buffer{}, "serve"))(t)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// measured is what one turn measures of a path; a value of the result that is not 0 is a sample of its unit.
type measured struct {
	m     verify.Measurement
	units func(verify.Measured) map[string]float64
}

func bandwidth(streams int) measured {
	m := verify.Measurement{Name: verify.Bandwidth, Streams: streams}
	return measured{m, func(r verify.Measured) map[string]float64 {
		return map[string]float64{fmt.Sprintf("streams-%d-Mbit/s", streams): 8 * r.BytesPerSecond / 1e6}
	}}
}

func requests() measured {
	return measured{verify.Measurement{Name: verify.Requests, Streams: 8}, func(r verify.Measured) map[string]float64 {
		return map[string]float64{"requests/s": r.RequestsPerSecond}
	}}
}

// latency is that of small messages, beside a stream of that many bytes per second; 0 is none.
func latency(what string, rate float64) measured {
	m := verify.Measurement{Name: verify.Latency, Rate: rate}
	if rate > 0 {
		m.Streams = 1
	}
	return measured{m, func(r verify.Measured) map[string]float64 {
		return map[string]float64{what + "-p50-µs": 1e6 * r.P50, what + "-p99-µs": 1e6 * r.P99}
	}}
}

// take has all paths make all measurements by turns, in an order in which each follows each other path equally often.
func (b *trafficBed) take(ctx context.Context, t testing.TB, rounds int, paths []*trafficPath, all ...measured) {
	t.Helper()
	for i := range rounds {
		order := append(slices.Clone(paths[i%len(paths):]), paths[:i%len(paths)]...)
		if i/len(paths)%2 == 1 {
			slices.Reverse(order)
		}
		for _, one := range all {
			for _, p := range order {
				r := testkit.Value(b.measure(ctx, p, one.m))(t)
				for unit, value := range one.units(r) {
					p.add(unit, value)
				}
			}
		}
	}
}

// packets measures how many datagrams of 64 bytes come back within a turn, with as many under way as queues hold
// without loss.
func (b *trafficBed) packets(t testing.TB, rounds int, paths ...*trafficPath) {
	t.Helper()
	const underWay, size = 64, 64
	for range rounds {
		for _, p := range paths {
			var c net.Conn
			inside(t, p.client, func() (err error) {
				c, err = net.Dial("udp", netip.AddrPortFrom(p.server, udpPort).String())
				return err
			})
			buffer, back, sent := make([]byte, size), 0, 0
			for began := time.Now(); time.Since(began) < turnFor; {
				for ; sent-back < underWay; sent++ {
					_, _ = c.Write(buffer)
				}
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				if _, err := c.Read(buffer); err != nil {
					sent = back // what has not come back by now is lost
					continue
				}
				back++
			}
			must(t, c.Close())
			p.add("UDP-packets/s", 2*float64(back)/turnFor.Seconds())
		}
	}
}

// BenchmarkTraffic measures the traffic of a pod of c1 to a pod of c2 through the tunnel. Beside it, by turns of half a
// second, the same programs in namespaces with a bare WireGuard device (bareChain), and the same pod to a pod of
// another node of c1, which no tunnel is between.
func BenchmarkTraffic(b *testing.B) {
	ctx := needsBed(b)
	bed := newTrafficBed(ctx, b)
	const rounds = 15
	b.Run("tunnel", func(b *testing.B) {
		for b.Loop() {
			bed.tunnels(ctx, b, rounds)
		}
		figure.WithoutTime(b)
	})
	b.Run("mirror", func(b *testing.B) { // the broker of c1 has made a Service of its own for that of c2
		for b.Loop() {
			mirror := &trafficPath{client: bed.tunnel.client, server: bed.mirror(ctx, b)}
			pod := &trafficPath{client: bed.tunnel.client, server: bed.tunnel.server}
			bed.take(ctx, b, rounds, []*trafficPath{mirror, pod}, requests())
			figure.Report(b, "requests/s", mirror.quartile("requests/s")).Floor(pod.quartile("requests/s")).
				AtLeastTimesFloor(leastOfPodAddress)
		}
		figure.WithoutTime(b)
	})
	b.Run("gateway", func(b *testing.B) {
		for b.Loop() {
			one, two := *bed.bare, *bed.gateway
			one.samples, two.samples = nil, nil
			bed.take(ctx, b, rounds/2, []*trafficPath{&one, &two}, bandwidth(1), bandwidth(16), latency("idle", 0))
			for unit := range two.samples {
				figure.Report(b, unit, two.quartile(unit)).Floor(one.quartile(unit))
			}
		}
		figure.WithoutTime(b)
	})
	for _, v := range bed.variants() {
		b.Run(v.name, func(b *testing.B) {
			v.begin(ctx, b)
			for b.Loop() {
				through, bare := *bed.tunnel, *bed.bare
				through.samples, bare.samples = nil, nil
				both := []*trafficPath{&bare, &through}
				bed.take(ctx, b, rounds, both, bandwidth(1), bandwidth(16), latency("idle", 0))
				for _, unit := range []string{"streams-1-Mbit/s", manyStreams} {
					through.report(b, unit, &bare, v.bounded)
				}
				figure.Report(b, "idle-p50-µs", through.quartile("idle-p50-µs")).Floor(bare.quartile("idle-p50-µs"))
			}
			figure.WithoutTime(b)
		})
	}
}

// tunnels measures the tunnel beside the bare device and the path without a tunnel.
func (b *trafficBed) tunnels(ctx context.Context, t *testing.B, rounds int) {
	paths := []*trafficPath{b.bare, b.tunnel, b.plain}
	for _, p := range paths {
		p.samples = nil
	}
	b.take(ctx, t, rounds, paths, bandwidth(1), requests())
	b.take(ctx, t, 2*rounds, paths, bandwidth(16))
	// Half of what the bare device carries is beside the messages, so that the processors are not the bottleneck.
	idle, loaded := latency("idle", 0), latency("loaded", b.bare.quartile("streams-1-Mbit/s")*1e6/8/2)
	b.take(ctx, t, rounds, []*trafficPath{b.plain}, idle, loaded)
	b.take(ctx, t, 4*rounds, []*trafficPath{b.bare, b.tunnel}, idle, loaded)
	b.packets(t, rounds, paths...)
	b.added(t, "idle-p50-µs")
	b.added(t, "loaded-p50-µs")
	for unit := range b.tunnel.samples {
		b.tunnel.report(t, unit, b.bare, strings.HasSuffix(unit, "Mbit/s"))
		figure.Report(t, "one-cluster-"+unit, b.tunnel.quartile(unit)).Floor(b.plain.quartile(unit))
	}
}

// added reports the latency that the tunnel adds to that of the path without one, beside what the bare device adds. It
// may be more by two standard errors: two bare devices differ by as much.
func (b *trafficBed) added(t *testing.B, unit string) {
	without := b.plain.quartile(unit)
	added := func(p *trafficPath) (all []float64) {
		for _, x := range p.samples[unit] {
			all = append(all, x-without)
		}
		return all
	}
	value, floor, e := figure.Paired(added(b.tunnel), added(b.bare))
	figure.Report(t, "added-"+unit, value).Floor(floor).AtMostTimesFloor(mostOfBareLatency * math.Exp(2*e))
}

// trafficPod is a pod on a node that does nothing itself.
func trafficPod(name, node string) string {
	return strings.NewReplacer("name: request", "name: "+name, "app: request", "app: "+name, "spec:\n",
		"spec:\n  nodeName: "+node+"\n").Replace(requestPod) + "---\n"
}

func newTrafficBed(ctx context.Context, t testing.TB) *trafficBed {
	t.Helper()
	specs := []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}}
	s := clusters(ctx, t, testbed.Options{Clusters: specs})
	must(t, s.in.Install(ctx, s.progress))
	must(t, s.c1.ApplyYAML(ctx, shopNamespace+trafficPod("client", "n1")+trafficPod("near", "n2")))
	must(t, s.c2.ApplyYAML(ctx, shopNamespace+trafficPod("far", "n1")+fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec: {selector: {app: far}, ports: [{name: load, port: %d}]}
`, verify.LoadPort)))
	ready(ctx, t, s.c1, "pod/client", "pod/near")
	ready(ctx, t, s.c2, "pod/far")
	b := &trafficBed{Scenario: s}
	of := func(c *testbed.Cluster, name string) *testbed.Pod {
		return testkit.Value(c.Pod(ctx, "shop", name))(t)
	}
	client, near, far := of(s.c1, "client"), of(s.c1, "near"), of(s.c2, "far")
	b.serve(ctx, t, near.Netns)
	b.serve(ctx, t, far.Netns)
	b.tunnel = &trafficPath{client: client.Netns, server: far.IP}
	b.plain = &trafficPath{client: client.Netns, server: near.IP}
	must(t, until(ctx, settle, func() error { return exchange(client.Netns, netip.AddrPortFrom(far.IP, udpPort), 100) }))
	b.bare = b.bareChain(ctx, t, client, client.Node, far.Node)
	b.gateway = b.bareChain(ctx, t, client, client.Node, near.Node, far.Node)
	return b
}

// mirror returns the ClusterIP of the mirror, once connections to it are answered.
func (b *trafficBed) mirror(ctx context.Context, t testing.TB) (ip netip.Addr) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		s, err := b.c1.Client.CoreV1().Services(Namespace).Get(ctx, naming.Mirror("c2", "shop", "far"), metav1.GetOptions{})
		if err != nil {
			return err
		}
		ip = netip.MustParseAddr(s.Spec.ClusterIP)
		c, err := b.tunnel.client.DialContext(ctx, "tcp", netip.AddrPortFrom(ip, verify.LoadPort).String())
		if err == nil {
			err = c.Close()
		}
		return err
	}))
	return ip
}

// bareChain connects two namespaces as the pods of two nodes are, and the nodes by WireGuard devices that the library
// alone programs: 2 nodes have a device each, and 3 are our model of a gateway, whose one device receives from one node
// and sends to the other. Nodes are on the testbed's bridge, as those of clusters are. MTUs are those of the pod and of
// the device of its node. The process of a userspace device is in the control group of the device of a node of the
// clusters: in one group, two would have less of the processors, and cost less. Nodes have the packet filter that
// Calico and kube-proxy gave the node of the pod, and so its connection tracking, and the interfaces of pods have the
// name of that pod's, so that its rules apply. The agent and its guard are missing.
func (b *trafficBed) bareChain(ctx context.Context, t testing.TB, like *testbed.Pod,
	groups ...*testbed.Node) *trafficPath {
	t.Helper()
	nodes, device := len(groups), linkOf(t, like.Node.Netns, "wireguard.c2")
	keys := make([]wgtypes.Key, nodes)
	address := func(i int) net.IP { return net.IPv4(172, 18, 200, byte(10*nodes+i)) }
	for i := range keys {
		keys[i] = testkit.Value(wgtypes.GeneratePrivateKey())(t)
	}
	pods := [2]netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(nodes), 2}),
		netip.AddrFrom4([4]byte{10, 201, byte(nodes), 2})}
	namespace := func(kind string, i int) *netns.Namespace {
		ns := testkit.Value(netns.Create(fmt.Sprintf("sb-%s-bare%d-%s%d", b.tb.ID, nodes, kind, i)))(t)
		t.Cleanup(func() { must(t, ns.Delete()) })
		return ns
	}
	path := &trafficPath{server: pods[1]}
	for i := range nodes {
		node := namespace("node", i)
		name := fmt.Sprintf("bare%d-%d", os.Getpid(), 10*nodes+i)
		ip(ctx, t, "-n", b.tb.Fabric().Name(), "link", "add", fmt.Sprint("bare", 10*nodes+i), "master", "fabric0", "up",
			"type", "veth", "peer", "name", "eth0", "netns", node.Name())
		ip(ctx, t, "-n", node.Name(), "address", "add", address(i).String()+"/16", "dev", "eth0")
		ip(ctx, t, "-n", node.Name(), "link", "set", "eth0", "up")
		inside(t, node, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		})
		filter(ctx, t, like.Node.Netns, node)
		b.bareDevice(ctx, t, node, groups[i], name, device.Attrs().MTU)
		var peers []wgtypes.PeerConfig
		for side, other := range []int{i - 1, i + 1} { // what is for the client, and what is for the server
			if other < 0 || other == nodes {
				continue
			}
			peers = append(peers, wgtypes.PeerConfig{PublicKey: keys[other].PublicKey(),
				Endpoint: &net.UDPAddr{IP: address(other), Port: 51900}, AllowedIPs: []net.IPNet{{IP: pods[side].AsSlice(),
					Mask: net.CIDRMask(32, 32)}}})
		}
		port := 51900
		configure(t, node, name, wgtypes.Config{PrivateKey: &keys[i], ListenPort: &port, Peers: peers})
		ip(ctx, t, "-n", node.Name(), "link", "set", name, "up", "txqueuelen", strconv.Itoa(device.Attrs().TxQLen))
		for side, end := range []int{0, nodes - 1} {
			if i != end {
				ip(ctx, t, "-n", node.Name(), "route", "add", pods[side].String(), "dev", name)
				continue
			}
			pod := namespace("pod", side)
			attach(ctx, t, node, pod, pods[side], like)
			if side == 0 {
				path.client = pod
			} else {
				b.serve(ctx, t, pod)
			}
		}
	}
	must(t, until(ctx, settle, func() error {
		return exchange(path.client, netip.AddrPortFrom(path.server, udpPort), 100)
	}))
	return path
}

// filter copies the sets and rules of iptables from one node to another, of both variants of iptables. It leaves out
// that kube-proxy also counts what one rule drops, in objects that are no rules.
func filter(ctx context.Context, t testing.TB, from, to *netns.Namespace) {
	t.Helper()
	counted := regexp.MustCompile(`-m nfacct --nfacct-name +\S+ `)
	var rules int
	for _, c := range [][2]string{{"ipset save", "ipset restore"}, {"iptables-legacy-save", "iptables-legacy-restore"},
		{"iptables-nft-save", "iptables-nft-restore"}} {
		var text, said bytes.Buffer
		save := exec.CommandContext(ctx, "sh", "-c", c[0])
		save.Stdout, save.Stderr = &text, &said
		must(t, from.Do(save.Start))
		must(t, save.Wait())
		restore := exec.CommandContext(ctx, "sh", "-c", c[1])
		restore.Stdin, restore.Stderr = bytes.NewReader(counted.ReplaceAll(text.Bytes(), nil)), &said
		must(t, to.Do(restore.Start))
		if err := restore.Wait(); err != nil {
			t.Fatalf("%s: %v: %s", c[1], err, &said)
		}
		rules += bytes.Count(text.Bytes(), []byte("\n-A cali-"))
	}
	if rules == 0 {
		t.Fatalf("the node %s has no rules of Calico, so the floor would do less work", from.Name())
	}
}

// attach connects a namespace to that of a node, by interfaces like those by which the CNI connected a pod.
func attach(ctx context.Context, t testing.TB, node, pod *netns.Namespace, at netip.Addr, like *testbed.Pod) {
	t.Helper()
	inner := linkOf(t, like.Netns, "eth0").Attrs()
	links := testkit.Value(like.Node.Netns.Netlink())(t)
	defer links.Close()
	outer := testkit.Value(links.LinkByIndex(inner.ParentIndex))(t)
	name, mtu := outer.Attrs().Name, strconv.Itoa(inner.MTU)
	ip(ctx, t, "-n", node.Name(), "link", "add", name, "mtu", mtu, "up", "type", "veth", "peer", "name", "eth0", "mtu",
		mtu, "netns", pod.Name())
	ip(ctx, t, "-n", node.Name(), "address", "add", at.Prev().String()+"/30", "dev", name)
	ip(ctx, t, "-n", pod.Name(), "address", "add", at.String()+"/30", "dev", "eth0")
	ip(ctx, t, "-n", pod.Name(), "link", "set", "eth0", "up")
	ip(ctx, t, "-n", pod.Name(), "route", "add", "default", "via", at.Prev().String())
}

// bareDevice creates a device as the agent does, the kernel's or wireguard-go in the control group of that of a node.
func (b *trafficBed) bareDevice(ctx context.Context, t testing.TB, ns *netns.Namespace, like *testbed.Node, name string,
	mtu int) {
	t.Helper()
	links, err := ns.Netlink()
	must(t, err)
	defer links.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	err = links.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		must(t, err)
		return
	}
	program := filepath.Join(b.in.repo, "bin", "semaphore-agent")
	cmd := exec.CommandContext(ctx, program, "wireguard-go", name, strconv.Itoa(mtu))
	cmd.Stderr = os.Stderr
	must(t, ns.Do(cmd.Start))
	t.Cleanup(func() { _ = cmd.Process.Signal(unix.SIGTERM); _ = cmd.Wait() })
	must(t, joinGroupOf(like, cmd.Process.Pid))
	must(t, until(ctx, settle, func() error {
		wg, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer wg.Close()
		_, err = wg.Device(name)
		return err
	}))
}

// joinGroupOf moves a process into the control group for processors of the userspace devices of a node.
func joinGroupOf(n *testbed.Node, pid int) error {
	all, err := n.Netns.Processes()
	if err != nil {
		return err
	}
	for _, other := range all {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", other))
		if !bytes.Contains(command, []byte("\x00wireguard-go\x00wireguard.")) {
			continue
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", other))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(groups)) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if controllers := strings.Split(fields[1], ","); fields[0] == "0" || slices.Contains(controllers, "cpu") {
				file := filepath.Join("/sys/fs/cgroup", fields[1], fields[2], "cgroup.procs")
				if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0); !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
		}
		return fmt.Errorf("no control group of process %d: %s", other, groups)
	}
	return fmt.Errorf("no process of a device on node %s", n.Name)
}

func linkOf(t testing.TB, ns *netns.Namespace, name string) netlink.Link {
	t.Helper()
	links := testkit.Value(ns.Netlink())(t)
	defer links.Close()
	return testkit.Value(links.LinkByName(name))(t)
}

func ip(ctx context.Context, t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// beginRemotes gives c1 99 more RemoteClusters, which nobody answers: agents guard the addresses of all. An agent makes
// a device for a remote that has connected, so this makes 99 more devices as an agent does, with a peer each, on the
// node of the client.
func (b *trafficBed) beginRemotes(ctx context.Context, t *testing.B) {
	const more = 99
	node := b.c1.Node("n1")
	var remotes strings.Builder
	for i := 1; i <= more; i++ {
		pods, key, peer := fmt.Sprintf("10.%d.0.0/16", 102+i), wgtypes.Key{8, byte(i)}, wgtypes.Key{byte(i), 1}
		fmt.Fprintf(&remotes, `---
apiVersion: semaphore.uw.io/v1alpha1
kind: RemoteCluster
metadata: {name: x%[1]d}
spec: {podSubnets: [%[2]s], nodeSubnets: [172.19.%[1]d.0/24], broker: {address: "172.19.%[1]d.1:8443"},
  wireguard: {listenPort: %[3]d}}
`, i, pods, 52000+i)
		name := fmt.Sprintf("more%d-%d", os.Getpid(), i)
		b.bareDevice(ctx, t, node.Netns, node, name, 1420)
		_, allowed, err := net.ParseCIDR(pods)
		must(t, err)
		configure(t, node.Netns, name, wgtypes.Config{PrivateKey: &key, Peers: []wgtypes.PeerConfig{{PublicKey: peer,
			Endpoint: &net.UDPAddr{IP: net.IPv4(172, 19, byte(i), 2), Port: 52000}, AllowedIPs: []net.IPNet{*allowed}}}})
		ip(ctx, t, "-n", node.Netns.Name(), "link", "set", name, "up")
	}
	must(t, b.c1.ApplyYAML(ctx, remotes.String()))
	t.Cleanup(func() {
		testkit.Value(b.c1.Kubectl(ctx, strings.NewReader(remotes.String()), "delete", "-f", "-"))(t)
	})
	must(t, until(ctx, settle, func() error {
		guarded, err := node.Exec(ctx, "nft", "list", "table", "inet", "semaphore")
		if n := strings.Count(guarded, "elsewhere drop"); err == nil && n < more {
			err = fmt.Errorf("%d remotes are guarded", n)
		}
		return err
	}))
}

func configure(t testing.TB, ns *netns.Namespace, device string, c wgtypes.Config) {
	t.Helper()
	inside(t, ns, func() error {
		wg, err := wgctrl.New()
		if err != nil {
			return err
		}
		return errors.Join(wg.ConfigureDevice(device, c), wg.Close())
	})
}

// variant is a state of the clusters in which the tunnel is measured, too.
type variant struct {
	name string
	// bounded means that the tunnel then carries what it carries otherwise.
	bounded bool
	begin   func(context.Context, *testing.B)
}

func (b *trafficBed) variants() []variant {
	return []variant{
		{"remotes-100", false, b.beginRemotes},
		{"permissive", true, func(ctx context.Context, t *testing.B) {
			b.in.Encryption = "permissive"
			for _, c := range b.tb.Clusters() {
				must(t, b.in.Apply(ctx, c))
				must(t, b.in.WaitReady(ctx, c))
			}
		}},
	}
}

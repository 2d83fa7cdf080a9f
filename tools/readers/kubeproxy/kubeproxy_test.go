// Package kubeproxy shows what the broker writes to kube-proxy's own code: with iptables and nftables in a real kernel,
// on which UDP clients send, and with IPVS, which few kernels of test machines have, up to the calls to the kernel.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	fakesysctl "k8s.io/component-helpers/node/util/sysctl/testing"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/ipvs"
	fakeipset "k8s.io/kubernetes/pkg/proxy/ipvs/ipset/testing"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	fakeipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util/testing"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	"k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
	fakeiptables "k8s.io/kubernetes/pkg/util/iptables/testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/mirrored"
)

func TestMain(m *testing.M) {
	loopback.Enter()
	os.Exit(m.Run())
}

// client is the address of the pod that sends.
const client = "10.1.0.200"

// period is the shortest time between two syncs, and patience the longest that one may take on a busy machine.
const (
	period   = 50 * time.Millisecond
	patience = time.Minute
)

// node prepares the namespace of this process: the endpoints of all Services are addresses of its loopback, and each
// answers a datagram with its address.
func node(t *testing.T) {
	t.Helper()
	testkit.NeedsRoot(t, "kube-proxy's rules are the kernel's")
	links, err := netlink.LinkList()
	testkit.Must(t, err)
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" && name != ipvsDevice {
			t.Fatalf("this is no namespace of its own: it has the device %s", name)
		}
	}
	addresses := []string{client, mirrored.Own}
	for _, e := range mirrored.Services(t, corev1.ProtocolUDP)[0].Endpoints {
		addresses = append(addresses, e.Address)
	}
	for _, a := range addresses {
		testkit.IP(t, "address replace "+a+"/32 dev lo")
		conn, err := net.ListenPacket("udp4", net.JoinHostPort(a, fmt.Sprint(mirrored.TargetPort)))
		testkit.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			buf := make([]byte, 16)
			for {
				_, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = conn.WriteTo([]byte(a), from)
			}
		}()
	}
	testkit.IP(t, "route replace "+mirrored.ClusterIP+"/32 dev lo")
	// The kernel forgets a flow after 30 s without a datagram, which a busy machine may take for the others.
	for _, key := range []string{"udp_timeout", "udp_timeout_stream"} {
		testkit.Must(t, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+key, []byte("3600"), 0o644))
	}
}

// ask sends a datagram to the Service from a source port, and returns the address of the endpoint that answered, or
// "refused".
func ask(t *testing.T, port int) string {
	t.Helper()
	conn := dial(t, port)
	defer conn.Close()
	testkit.Must(t, conn.SetDeadline(time.Now().Add(2*time.Second)))
	buf := make([]byte, 16)
	_, err := conn.Write([]byte("?"))
	if err == nil {
		var n int
		if n, err = conn.Read(buf); err == nil {
			return string(buf[:n])
		}
	}
	// A rule that rejects a datagram of this machine makes the call fail by either.
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM) {
		return "refused"
	}
	return err.Error()
}

// dial binds the source port once no other process has it: a program that the proxy has just started holds a copy of
// the socket before, for a moment.
func dial(t *testing.T, port int) (conn *net.UDPConn) {
	t.Helper()
	testkit.Eventually(t, patience, "the port is free", func() (err error) {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(client), Port: port},
			&net.UDPAddr{IP: net.ParseIP(mirrored.ClusterIP), Port: mirrored.Port})
		return err
	})
	return conn
}

type kubeProxy struct {
	t *testing.T
	proxy.Provider
	has mirrored.Service
}

// running is a proxy that knows a Service.
func running(t *testing.T, p proxy.Provider, err error, first mirrored.Service) *kubeProxy {
	t.Helper()
	testkit.Must(t, err)
	k := &kubeProxy{t, p, first}
	p.OnServiceAdd(first.Service)
	for _, s := range first.Slices {
		p.OnEndpointSliceAdd(s)
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	go p.SyncLoop()
	return k
}

// learn is the change to another state.
func (k *kubeProxy) learn(s mirrored.Service) {
	k.OnServiceUpdate(k.has.Service, s.Service)
	was := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range k.has.Slices {
		was[slice.Name] = slice
	}
	for _, to := range s.Slices {
		if from := was[to.Name]; from != nil {
			k.OnEndpointSliceUpdate(from, to)
		} else {
			k.OnEndpointSliceAdd(to)
		}
		delete(was, to.Name)
	}
	for _, gone := range was {
		k.OnEndpointSliceDelete(gone)
	}
	k.has = s
}

// replace deletes the Service, and makes another one.
func (k *kubeProxy) replace(s mirrored.Service) {
	k.OnServiceDelete(k.has.Service)
	for _, slice := range k.has.Slices {
		k.OnEndpointSliceDelete(slice)
	}
	k.OnServiceAdd(s.Service)
	for _, slice := range s.Slices {
		k.OnEndpointSliceAdd(slice)
	}
	k.has = s
}

// services are the mirrors or the global Services, first the one that uses c2's endpoints.
func services(t *testing.T, global bool) (used mirrored.Service, unused []mirrored.Service) {
	t.Helper()
	for _, s := range mirrored.Services(t, corev1.ProtocolUDP) {
		switch {
		case s.Own != global:
		case s.InUse:
			used = s
		default:
			unused = append(unused, s)
		}
	}
	if len(unused) < 2 {
		t.Fatalf("only %d states", len(unused))
	}
	return used, unused
}

func TestPackets(t *testing.T) {
	node(t)
	local := util.NewNoOpLocalDetector()
	for mode, make := range map[string]func(ctx context.Context) (proxy.Provider, error){
		"iptables": func(ctx context.Context) (proxy.Provider, error) {
			return iptables.NewProxier(ctx, corev1.IPv4Protocol, utiliptables.New(utiliptables.ProtocolIPv4), sysctl.New(),
				time.Hour, period, false, false, 14, local, "n1", net.ParseIP(client), nil, nil, nil, false)
		},
		"nftables": func(ctx context.Context) (proxy.Provider, error) {
			return nftables.NewProxier(ctx, corev1.IPv4Protocol, time.Hour, period, false, 14, local, "n1",
				net.ParseIP(client), nil, nil, nil, false)
		},
	} {
		t.Run(mode, func(t *testing.T) {
			testkit.Command(t, "nft", "flush", "ruleset")
			ports := &ports{20000}
			p, err := make(t.Context())
			used, unused := services(t, true)
			k := running(t, p, err, used)
			for _, s := range unused {
				k.moves(ports, used, s)
			}
			used, unused = services(t, false)
			k.replace(used)
			for _, s := range unused {
				k.refuses(ports, used, s)
			}
			k.ownNames(ports)
		})
	}
}

// ports are source ports that were not used before.
type ports struct{ next int }

func (p *ports) some(n int) (all []int) {
	for range n {
		all = append(all, p.next)
		p.next++
	}
	return all
}

// ownNames: the flows at c2's endpoints move to c1's once those of c2 have left the own name, and those at c1's move to
// c2's once nothing of c1 is ready.
func (k *kubeProxy) ownNames(ports *ports) {
	k.t.Helper()
	all := mirrored.OwnNames(k.t, corev1.ProtocolUDP)
	var both, elsewhere mirrored.Service
	for _, s := range all {
		if s.InUse && s.Own {
			both = s
		} else if s.InUse {
			elsewhere = s
		}
	}
	k.replace(both)
	for _, s := range all {
		if !s.InUse {
			k.moves(ports, both, s)
			k.movesAway(ports, s, elsewhere)
		}
	}
}

// movesAway: once only c2's endpoints are ready, the next datagram of each flow at c1 goes to one of them.
func (k *kubeProxy) movesAway(ports *ports, here, elsewhere mirrored.Service) {
	k.t.Helper()
	k.learn(here)
	k.settle(ports, here)
	flows := ports.some(50)
	for _, port := range flows {
		if got := ask(k.t, port); got != mirrored.Own {
			k.t.Errorf("%s: %s answers", here.Name, got)
		}
	}
	k.learn(elsewhere)
	k.settle(ports, elsewhere)
	ready := elsewhere.Ready()
	testkit.Eventually(k.t, patience, elsewhere.Name+": flows move", func() error {
		for _, port := range flows {
			if got := ask(k.t, port); !slices.Contains(ready, got) {
				return fmt.Errorf("%s answers a flow that was at %s", got, mirrored.Own)
			}
		}
		return nil
	})
}

// moves: once c2's endpoints are not in use, the next datagram of each of its flows goes to c1, as do new ones.
func (k *kubeProxy) moves(ports *ports, used, unused mirrored.Service) {
	k.t.Helper()
	k.learn(used)
	flows := ports.some(200)
	k.settle(ports, used)
	at := map[int]string{}
	for _, port := range flows {
		at[port] = ask(k.t, port)
	}
	k.learn(used)
	for _, port := range flows {
		if got := ask(k.t, port); got != at[port] {
			k.t.Errorf("%s: a flow moved from %s to %s", used.Name, at[port], got)
		}
	}
	k.learn(unused)
	k.settle(ports, unused)
	testkit.Eventually(k.t, patience, unused.Name+": its flows move", func() error {
		for _, port := range flows {
			if got := ask(k.t, port); got != mirrored.Own {
				return fmt.Errorf("%s answers a flow that was at %s", got, at[port])
			}
		}
		return nil
	})
}

// refuses: a mirror with no endpoint in use refuses new connections. kube-proxy leaves its flows where they are.
func (k *kubeProxy) refuses(ports *ports, used, unused mirrored.Service) {
	k.t.Helper()
	k.learn(used)
	k.settle(ports, used)
	flow := ports.some(1)[0]
	at := ask(k.t, flow)
	k.learn(unused)
	k.settle(ports, unused)
	if got := ask(k.t, flow); got != at {
		k.t.Errorf("%s: %s answers a flow that was at %s", unused.Name, got, at)
	}
}

// settle waits until clients of new source ports reach the endpoints that the Service has in use, and no others.
func (k *kubeProxy) settle(ports *ports, s mirrored.Service) {
	k.t.Helper()
	want := s.Ready()
	if len(want) == 0 {
		want = []string{"refused"}
	}
	testkit.Eventually(k.t, patience, s.Name, func() error {
		var got []string
		for _, port := range ports.some(15 * len(want)) {
			got = append(got, ask(k.t, port))
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			return fmt.Errorf("%q answer, not %q", got, want)
		}
		return nil
	})
}

// ipvsDevice is the device on which kube-proxy puts the addresses of Services: a dummy, which this kernel may lack.
const ipvsDevice = "kube-ipvs0"

// TestIPVS: the real servers of the Service are the ready endpoints that are in use.
func TestIPVS(t *testing.T) {
	node(t)
	testkit.IP(t, "link add "+ipvsDevice+" type bridge")
	t.Cleanup(func() { testkit.IP(t, "link delete "+ipvsDevice) })
	for _, isGlobal := range []bool{false, true} {
		used, unused := services(t, isGlobal)
		kernel := fakeipvs.NewFake()
		control := fakesysctl.NewFake()
		for _, key := range []string{"vs/conntrack", "vs/conn_reuse_mode", "vs/expire_nodest_conn",
			"vs/expire_quiescent_template", "ip_forward"} {
			control.Settings["net/ipv4/"+key] = 1
		}
		p, err := ipvs.NewProxier(t.Context(), corev1.IPv4Protocol, fakeiptables.NewFake(), kernel,
			fakeipset.NewFake(ipvs.MinIPSetCheckVersion), control, time.Hour, period, nil, false, 0, 0, 0, false, 14,
			util.NewNoOpLocalDetector(), "n1", net.ParseIP(client), nil, nil, "", nil, false)
		k := running(t, p, err, used)
		for _, s := range append([]mirrored.Service{used}, unused...) {
			k.learn(s)
			testkit.Eventually(t, patience, s.Name, func() error {
				got, err := servers(kernel)
				if err == nil && !slices.Equal(got, s.Ready()) {
					err = fmt.Errorf("the servers are %q, not %q", got, s.Ready())
				}
				return err
			})
		}
		if !isGlobal {
			continue
		}
		for i, s := range mirrored.OwnNames(t, corev1.ProtocolUDP) {
			if i == 0 {
				k.replace(s)
			} else {
				k.learn(s)
			}
			testkit.Eventually(t, patience, s.Name, func() error {
				got, err := servers(kernel)
				if err == nil && !slices.Equal(got, s.Ready()) {
					err = fmt.Errorf("the servers are %q, not %q", got, s.Ready())
				}
				return err
			})
		}
	}
}

// servers are the addresses to which IPVS sends new connections.
func servers(kernel utilipvs.Interface) (all []string, err error) {
	services, err := kernel.GetVirtualServers()
	if err != nil {
		return nil, err
	}
	if len(services) != 1 || services[0].Address.String() != mirrored.ClusterIP {
		return nil, fmt.Errorf("the Services are %v", services)
	}
	real, err := kernel.GetRealServers(services[0])
	for _, r := range real {
		if r.Weight > 0 {
			all = append(all, r.Address.String())
		}
	}
	slices.Sort(all)
	return all, err
}

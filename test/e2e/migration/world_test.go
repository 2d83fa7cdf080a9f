package migration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/agent"
	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	nodetest.Main(m)
}

// must ends the test on an error.
var must = testkit.Must

func eventually(t *testing.T, what string, ok func() error) time.Duration {
	t.Helper()
	return testkit.Eventually(t, 3*time.Minute, what, ok)
}

func ip(t *testing.T, args string) string {
	t.Helper()
	return testkit.IP(t, args)
}

// side is one cluster: its apiserver and its only node.
type side struct {
	name, node, address, podCIDR, podSubnet, pod string
	rest                                         *rest.Config
	kube                                         kubernetes.Interface
	keyPath                                      string
}

// world is two clusters with a node each. c1's node is the namespace of the test, c2's another network namespace.
type world struct {
	t      *testing.T
	dir    string
	c1, c2 *side
	remote *netns.Namespace
	// token is c1's agent token. federation and peering are the addresses of c1's broker.
	token               string
	federation, peering string
	// sends is the traffic that the stand-in for semaphore-wireguard must not disturb, or nil.
	sends atomic.Pointer[traffic]
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, dir: t.TempDir(),
		c1: &side{name: "c1", node: "a1", address: "192.0.2.1", podCIDR: "10.1.1.0/24", podSubnet: "10.1.0.0/16",
			pod: "10.1.1.1"},
		c2: &side{name: "c2", node: "b1", address: "192.0.2.2", podCIDR: "10.2.1.0/24", podSubnet: "10.2.0.0/16",
			pod: "10.2.1.1"},
	}
	ns := testkit.Value(netns.Create("b1"))(t)
	w.remote = ns
	ip(t, "link add eth0 type veth peer name eth0 netns b1")
	ip(t, "addr add 192.0.2.1/24 dev eth0")
	ip(t, "link set eth0 up")
	ip(t, "route add default via 192.0.2.254") // an apiserver does not start without a default route
	ip(t, "addr add 10.1.1.1/32 dev lo")
	ip(t, "-n b1 addr add 192.0.2.2/24 dev eth0")
	ip(t, "-n b1 link set eth0 up")
	ip(t, "-n b1 link set lo up")
	ip(t, "-n b1 addr add 10.2.1.1/32 dev lo")
	for _, s := range []*side{w.c1, w.c2} {
		s.keyPath = filepath.Join(w.dir, s.name, "keys")
		s.rest = kubetest.Start(t)
		s.kube = kubernetes.NewForConfigOrDie(s.rest)
		w.addNode(s, s.node, s.address, s.podCIDR)
		must(t, identity.Init(filepath.Join(w.dir, s.name, "pki"), s.name,
			identity.Validity{Authority: time.Hour, Certificate: time.Hour}, time.Now()))
		roots := testkit.Value(os.ReadFile(filepath.Join(w.dir, s.name, "pki", "ca.crt")))(t)
		must(t, os.MkdirAll(filepath.Join(w.dir, "bundles"), 0o700))
		must(t, os.WriteFile(filepath.Join(w.dir, "bundles", s.name+".pem"), roots, 0o600))
	}
	w.token = w.admit(w.c1)
	w.federation, w.peering = loopback.Address(t), loopback.Address(t)
	return w
}

// here runs f on c1's node, there on c2's.
func here(f func() error) error             { return f() }
func (w *world) there(f func() error) error { return w.remote.Do(f) }

func (w *world) addNode(s *side, name, address, podCIDR string) {
	w.t.Helper()
	n := kubetest.Create(w.t, s.kube.CoreV1().Nodes(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
	})
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	kubetest.UpdateStatus(w.t, s.kube.CoreV1().Nodes(), n)
}

// admit creates the objects and the token by which a broker admits the agent of a cluster's node, and returns the token
// file.
func (w *world) admit(s *side) string {
	w.t.Helper()
	ctx := w.t.Context()
	kubetest.Namespace(w.t, s.kube, "semaphore")
	kubetest.Create(w.t, s.kube.CoreV1().ServiceAccounts("semaphore"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}})
	pod := kubetest.Create(w.t, s.kube.CoreV1().Pods("semaphore"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"},
		Spec: corev1.PodSpec{NodeName: s.node, ServiceAccountName: "semaphore-agent",
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}}},
	})
	token := testkit.Value(s.kube.CoreV1().ServiceAccounts("semaphore").CreateToken(ctx, "semaphore-agent",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{"semaphore-broker." + s.name},
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{}))(w.t)
	file := filepath.Join(w.dir, s.name, "token")
	must(w.t, os.WriteFile(file, []byte(token.Status.Token), 0o600))
	return file
}

// starts runs a function until it is stopped or the test ends.
func (w *world) starts(what string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("%s ended with %v", what, err)
			}
		case <-time.After(2 * time.Minute):
			w.t.Errorf("%s does not end", what)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// original1 and original2 run the stand-in for semaphore-wireguard on the node of c1 and of c2.
func (w *world) original1() (stop func()) {
	w.t.Helper()
	o := &original{local: "c1", remote: "c2", node: "a1", port: 51820, mtu: 1380, podSubnet: "10.2.0.0/16",
		keyPath: w.c1.keyPath, own: w.c1.kube, other: w.c2.kube, on: here}
	return w.original(o)
}

func (w *world) original2() (stop func()) {
	w.t.Helper()
	o := &original{local: "c2", remote: "c1", node: "b1", port: 51820, mtu: 1380, podSubnet: "10.1.0.0/16",
		keyPath: w.c2.keyPath, own: w.c2.kube, other: w.c1.kube, on: w.there}
	return w.original(o)
}

func (w *world) original(o *original) (stop func()) {
	w.t.Helper()
	o.ready, o.quietly = make(chan struct{}), w.quietly
	stop = w.starts("semaphore-wireguard's stand-in on "+o.node, o.run)
	select {
	case <-o.ready:
	case <-time.After(3 * time.Minute):
		w.t.Fatalf("semaphore-wireguard's stand-in on %s does not come up", o.node)
	}
	return stop
}

// quietly changes a device while no packet is in flight. semaphore-wireguard sets the port of a device again and
// replaces the allowed IPs of its peers. wireguard-go closes its socket for the first (BindUpdate in device/device.go),
// and has no peer for a packet during the second (replace_allowed_ips in device/uapi.go). Packets are lost then, with
// or without semaphore.
func (w *world) quietly(change func() error) error {
	sends := w.sends.Load()
	if sends == nil {
		return change()
	}
	return sends.pause(change)
}

// semaphore runs c1's broker, and next to it an exporter for c2, where nothing is installed: like semaphore-wireguard,
// it needs nothing more there. remotes is the remotes section of the broker's configuration.
func (w *world) semaphore(remotes string) (stop func()) {
	w.t.Helper()
	own := fmt.Appendf(nil, `
cluster: c1
features: [encryption]
localSubnets: [10.1.0.0/16, 10.101.0.0/16]
leaderElection: {enabled: false}
tls: {certFile: %[1]s/c1/pki/broker/tls.crt, keyFile: %[1]s/c1/pki/broker/tls.key, bundleDir: %[1]s/bundles}
kube: {kubeConfigPath: %[2]s}
listen: {federation: %[3]s, peering: %[4]s, http: %[5]s, debugSocket: %[1]s/broker.sock}
remotes: %[6]s`, w.dir, kubetest.Kubeconfig(w.t, w.c1.rest), w.federation, w.peering, loopback.Address(w.t), remotes)
	b := testkit.Value(described.Broker(own))(w.t)
	must(w.t, os.WriteFile(w.subnetsFile(), own, 0o644))
	must(w.t, os.WriteFile(filepath.Join(filepath.Dir(w.subnetsFile()), bounds.RemotesFile), []byte("remotes: "+remotes),
		0o644))
	e := testkit.Value(config.Parse[config.Exporter](fmt.Appendf(nil, `
cluster: c2
features: [encryption]
localBroker: {cluster: c1, address: %[3]q}
leaderElection: {enabled: false}
tls: {certFile: %[1]s/c2/pki/exporter/tls.crt, keyFile: %[1]s/c2/pki/exporter/tls.key, bundleDir: %[1]s/bundles}
kube: {kubeConfigPath: %[2]s}
listen: {http: %[4]s, debugSocket: %[1]s/exporter.sock}
`, w.dir, kubetest.Kubeconfig(w.t, w.c2.rest), w.federation, loopback.Address(w.t))))(w.t)
	file := kubetest.Described(w.t, w.c1.rest, b)
	stopBroker := w.starts("broker", func(ctx context.Context) error { return broker.Run(ctx, file) })
	stopExporter := w.starts("exporter", func(ctx context.Context) error { return exporter.Run(ctx, e) })
	return func() { stopExporter(); stopBroker() }
}

// subnetsFile returns the broker's configuration file, which c1's agent reads.
func (w *world) subnetsFile() string { return filepath.Join(w.dir, "c1", "broker.yaml") }

// c2Remote is c2 in the broker's configuration.
const c2Remote = `[{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 51820, ` +
	`mtu: 1380}}]`

func (w *world) agentConfig(more string) *config.Agent {
	w.t.Helper()
	return testkit.Value(config.Parse[config.Agent](fmt.Appendf(nil, `
cluster: c1
broker: {address: %q, bundleFile: %q, tokenFile: %q}
subnetsFile: %q
wgKeyPath: %q
listen: {http: "127.0.0.1:7773", debugSocket: %q}
%s`, w.peering, filepath.Join(w.dir, "bundles", "c1.pem"), w.token, w.subnetsFile(), w.c1.keyPath,
		filepath.Join(w.dir, "agent.sock"), more)))(w.t)
}

func (w *world) agent(cfg *config.Agent) (stop func()) {
	w.t.Helper()
	stop = w.starts("agent", func(ctx context.Context) error { return agent.Run(ctx, cfg) })
	eventually(w.t, "the agent is ready", func() error {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
		answer, err := client.Get("http://127.0.0.1:7773/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz: %s", answer.Status)
		}
		return nil
	})
	return stop
}

// annotations returns the tunnel annotations on a cluster's Node.
func (w *world) annotations(s *side) map[string]string {
	w.t.Helper()
	n := kubetest.Get(w.t, s.kube.CoreV1().Nodes(), s.node)
	return n.Annotations
}

// traffic is c1's pod that sends 500 packets a second to c2's pod, which echoes them.
type traffic struct {
	t *testing.T

	mu   sync.Mutex
	next uint64
	// missing are the packets without an answer. judged is the last packet that lost has covered.
	missing map[uint64]bool
	judged  uint64
	// sent is the send time of the last packet. writtenOff is the number of missing packets that no longer count as in
	// flight.
	sent       time.Time
	writtenOff int
	// paused is the number of callers of pause.
	paused int
}

// echo answers packets at c2's pod until the test ends.
func (w *world) echo() {
	w.t.Helper()
	conn := testkit.Value(w.remote.ListenPacket(w.t.Context(), "udp", "10.2.1.1:7"))(w.t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], from)
		}
	}()
	w.t.Cleanup(func() { conn.Close(); <-ended })
}

// dial fails while the route to c2's pod is unreachable.
func dial() (*net.UDPConn, error) {
	return net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 1, 1, 1)}, &net.UDPAddr{IP: net.IPv4(10, 2, 1, 1), Port: 7})
}

// reached waits until a packet is answered.
func (w *world) reached() {
	w.t.Helper()
	eventually(w.t, "c2's pod can be reached", func() error {
		c, err := dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, err = c.Read(make([]byte, 10))
		return err
	})
}

func (w *world) traffic() *traffic {
	w.t.Helper()
	tr := &traffic{t: w.t, missing: map[uint64]bool{}}
	c := testkit.Value(dial())(w.t)
	stop, sender, reader := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reader)
		buffer := make([]byte, 2048)
		for {
			n, err := c.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 8 {
				tr.mu.Lock()
				delete(tr.missing, binary.BigEndian.Uint64(buffer))
				tr.mu.Unlock()
			}
		}
	}()
	go func() {
		defer close(sender)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				tr.mu.Lock()
				if !tr.mayBeMore() {
					tr.mu.Unlock()
					continue
				}
				tr.next++
				number := tr.next
				tr.missing[number] = true
				tr.mu.Unlock()
				// A packet that cannot be sent counts as lost.
				_, _ = c.Write(binary.BigEndian.AppendUint64(nil, number))
			case <-stop:
				return
			}
		}
	}()
	w.t.Cleanup(func() { close(stop); <-sender; c.Close(); <-reader })
	w.sends.Store(tr)
	return tr
}

// pause calls f while no packet is sent. Before that it waits for the packets in flight, as long as lost does.
func (tr *traffic) pause(f func() error) error {
	count := func(more int) (missing int) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.paused += more
		return len(tr.missing)
	}
	defer count(-1)
	end := time.Now().Add(nodetest.Patience(2 * time.Second))
	for missing := count(1); missing > 0 && time.Now().Before(end); missing = count(0) {
		time.Sleep(time.Millisecond)
	}
	return f()
}

// mayBeMore limits the packets in flight, so that the next one fits into all queues. Queues fill while the process that
// empties them waits for CPU time. Packets that are still missing after a second without a send do not count.
func (tr *traffic) mayBeMore() bool {
	const most = 100
	if tr.paused > 0 {
		return false
	}
	if tr.writtenOff = min(tr.writtenOff, len(tr.missing)); len(tr.missing)-tr.writtenOff < most {
		tr.sent = time.Now()
		return true
	}
	if time.Since(tr.sent) > nodetest.Patience(time.Second) {
		tr.writtenOff = len(tr.missing)
	}
	return false
}

// lost returns how many packets sent so far have no answer, after two seconds without any answer. It counts each packet
// once.
func (tr *traffic) lost(until string) int {
	tr.t.Helper()
	var last uint64
	eventually(tr.t, "there was some traffic", func() error {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if last = tr.next; last < tr.judged+250 {
			return fmt.Errorf("%d packets", last-tr.judged)
		}
		tr.judged = last
		return nil
	})
	lost := 0
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		tr.mu.Lock()
		before := lost
		lost = 0
		for number := range tr.missing {
			if number <= last {
				lost++
			}
		}
		if lost < before {
			begin = time.Now()
		}
		late := time.Since(begin) > nodetest.Patience(2*time.Second)
		if lost == 0 || late {
			maps.DeleteFunc(tr.missing, func(number uint64, _ bool) bool { return number <= last })
			tr.mu.Unlock()
			break
		}
		tr.mu.Unlock()
	}
	tr.t.Logf("%d packets sent until %s, %d lost", last, until, lost)
	return lost
}

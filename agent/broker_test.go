package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// refusal returns what the broker that ships finds wrong with a report; nil for nothing.
func refusal(r *semaphorev1.AgentReport) error {
	configured := map[string]bool{}
	for _, d := range r.GetDevices() {
		configured[d.GetCluster()] = true
	}
	session := peering.NewState().Open("c1", "n1", configured)
	_, err := session.Receive(&semaphorev1.AttachRequest{
		Message: &semaphorev1.AttachRequest_Hello{Hello: &semaphorev1.AgentHello{}}})
	if err != nil {
		return err
	}
	got, err := session.Receive(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{Report: r}})
	if err != nil {
		return err
	}
	for _, problem := range got.Report.Problems {
		if strings.HasPrefix(problem, "report of ") {
			return errors.New(problem)
		}
	}
	return nil
}

const brokerAddress = "127.0.0.1:8444"

// broker is a real gRPC server over TLS that sends what a test wants.
type broker struct {
	semaphorev1.UnimplementedPeeringServiceServer
	source *identity.Source
	server *grpc.Server

	mu       sync.Mutex
	epoch    string
	log      []*semaphorev1.PeeringChange
	clusters []string // complete
	// network and guard are sent after Attached; nil to send none.
	network *semaphorev1.NodeNetwork
	guard   *semaphorev1.Guard
	changed chan struct{}
	// undelivered is sent after guard, and whenever it changes; nil to send none.
	undelivered *semaphorev1.Undelivered
	// orders are those of operators that are not sent yet.
	orders []*semaphorev1.AttachResponse
	// token is the only one that the broker accepts.
	token string
	// Messages of agents: hellos, and the last report and revision of the newest stream.
	hellos   []*semaphorev1.AgentHello
	report   *semaphorev1.AgentReport
	applied  uint64
	attached int
	ends     chan struct{} // closed to end all streams
}

// newBroker starts a broker of c1 with the complete state of clusters, and returns an agent's configuration for it.
func newBroker(t testing.TB, clusters ...string) (*broker, *config.Agent) {
	t.Helper()
	dir := t.TempDir()
	must(t, identity.Init(filepath.Join(dir, "pki"), "c1", identity.Validity{Authority: time.Hour, Certificate: time.Hour},
		time.Now()))
	bundle := filepath.Join(dir, "c1.pem")
	roots, err := os.ReadFile(filepath.Join(dir, "pki", "ca.crt"))
	must(t, err)
	must(t, os.WriteFile(bundle, roots, 0o600))
	source, err := identity.NewSource(config.TLS{
		CertFile: filepath.Join(dir, "pki", "broker", "tls.crt"), KeyFile: filepath.Join(dir, "pki", "broker", "tls.key"),
		BundleDir: dir,
	})
	must(t, err)
	token := filepath.Join(dir, "token")
	must(t, os.WriteFile(token, []byte("first\n"), 0o600))
	cfg, err := config.Parse[config.Agent](fmt.Appendf(nil, `
cluster: c1
broker: {address: %q, bundleFile: %q, tokenFile: %q}
wgKeyPath: %q
listen: {http: "127.0.0.1:7773", debugSocket: %q}
`, brokerAddress, bundle, token, filepath.Join(dir, "keys"), filepath.Join(dir, "agent.sock")))
	must(t, err)
	cfg.Backend = nodetest.Backend()
	cfg.SubnetsFile = config.NoSubnets // tests of the bounds set a file
	b := &broker{source: source, epoch: "A", token: "first", clusters: clusters, changed: make(chan struct{})}
	b.start(t)
	t.Cleanup(b.stop)
	return b, cfg
}

func (b *broker) start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", brokerAddress)
	must(t, err)
	b.mu.Lock()
	b.ends = make(chan struct{})
	b.mu.Unlock()
	// As in the product, the server accepts the pings of an agent that sends nothing else.
	b.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(b.source.ServerOnlyTLS())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	semaphorev1.RegisterPeeringServiceServer(b.server, b)
	go func() { _ = b.server.Serve(listener) }()
}

func (b *broker) stop() { b.server.Stop() }

// restart replaces the broker by one with the same state, and with revisions of its own.
func (b *broker) restart(t *testing.T, epoch string) {
	t.Helper()
	b.stop()
	b.mu.Lock()
	b.epoch = epoch
	newest := map[string]int{}
	for i, c := range b.log {
		newest[objectOf(c)] = i
	}
	var log []*semaphorev1.PeeringChange
	for i, c := range b.log {
		if newest[objectOf(c)] == i && c.GetDeleteDevice() == "" && c.GetDeletePeer() == nil {
			log = append(log, proto.Clone(c).(*semaphorev1.PeeringChange))
		}
	}
	// A device precedes its peers, whenever it was last changed.
	slices.SortStableFunc(log, func(a, b *semaphorev1.PeeringChange) int {
		return cmp.Compare(len(a.GetPeer().GetKey().GetNode()), len(b.GetPeer().GetKey().GetNode()))
	})
	for i, c := range log {
		c.Revision = uint64(i + 1)
	}
	b.log = log
	b.mu.Unlock()
	b.start(t)
}

func objectOf(c *semaphorev1.PeeringChange) string {
	key := c.GetPeer().GetKey()
	if key == nil {
		key = c.GetDeletePeer()
	}
	return c.GetDevice().GetCluster() + c.GetDeleteDevice() + key.GetCluster() + "/" + key.GetNode()
}

// say adds changes to the desired state.
func (b *broker) say(changes ...*semaphorev1.PeeringChange) {
	b.change(func() {
		for _, c := range changes {
			b.log = append(b.log, c)
			c.Revision = uint64(len(b.log))
		}
	})
}

// change changes what the broker sends.
func (b *broker) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
	close(b.changed)
	b.changed = make(chan struct{})
}

// program adds changes to the desired state, and waits until the agent has reported all of it as programmed.
func (b *broker) program(t testing.TB, changes ...*semaphorev1.PeeringChange) {
	t.Helper()
	b.say(changes...)
	eventually(t, "all is programmed", b.done)
}

// order sends an operator's order.
func (b *broker) order(m *semaphorev1.AttachResponse) {
	b.change(func() { b.orders = append(b.orders, m) })
}

// delivers sets the remotes that receive new keys: all except those named.
func (b *broker) delivers(but ...string) {
	b.change(func() { b.undelivered = undelivered(but...).GetUndelivered() })
}

// knows sets the network of the node, and has the agent attach again.
func (b *broker) knows(network *semaphorev1.NodeNetwork) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.network = network
	close(b.ends)
	b.ends = make(chan struct{})
}

// done reports whether the attached agent has reported everything as programmed.
func (b *broker) done() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attached > 0 && b.applied == uint64(len(b.log)) && b.applied > 0
}

// newest returns the newest report.
func (b *broker) newest() *semaphorev1.AgentReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report
}

// reportOf returns the newest report of the device for a cluster; nil for none.
func (b *broker) reportOf(cluster string) *semaphorev1.DeviceReport {
	for _, d := range b.newest().GetDevices() {
		if d.GetCluster() == cluster {
			return d
		}
	}
	return nil
}

// guarded reports whether the newest report says that all remotes are guarded.
func (b *broker) guarded() bool { return b.newest().GetGuarded() }

func (b *broker) hello(i int) *semaphorev1.AgentHello {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i >= len(b.hellos) {
		return nil
	}
	return b.hellos[i]
}

func (b *broker) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	md, _ := metadata.FromIncomingContext(call.Context())
	b.mu.Lock()
	ok := len(md["authorization"]) == 1 && md["authorization"][0] == "Bearer "+b.token
	ends := b.ends
	b.mu.Unlock()
	if !ok {
		return status.Error(codes.Unauthenticated, "another token")
	}
	first, err := call.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	b.mu.Lock()
	b.hellos = append(b.hellos, hello)
	b.report, b.applied = nil, 0
	b.attached++
	epoch, position, network, guard := b.epoch, uint64(0), b.network, b.guard
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.attached--
		b.mu.Unlock()
	}()
	resumed := hello.GetResumeEpoch() == epoch
	if resumed {
		position = hello.GetResumeRevision()
	}
	gone := make(chan error, 1)
	go func() {
		for {
			m, err := call.Recv()
			if err != nil {
				gone <- err
				return
			}
			b.mu.Lock()
			if m.GetReport() != nil {
				b.report = m.GetReport()
				if err := refusal(b.report); err != nil {
					gone <- err
				}
			}
			if m.GetApplied() != nil {
				b.applied = m.GetApplied().GetRevision()
			}
			b.mu.Unlock()
		}
	}()
	// Where the stream breaks, Recv returns the reason, too.
	_ = call.Send(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{
		Attached: &semaphorev1.Attached{Node: "n1", Cluster: "c1", Epoch: epoch, Resumed: resumed}}})
	if network != nil {
		_ = call.Send(&semaphorev1.AttachResponse{
			Message: &semaphorev1.AttachResponse_NodeNetwork{NodeNetwork: network}})
	}
	if guard != nil {
		_ = call.Send(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guard}})
	}
	synced := false
	var sent *semaphorev1.Undelivered
	for {
		b.mu.Lock()
		rest, changed, clusters, orders, undelivered := b.log[position:], b.changed, b.clusters, b.orders, b.undelivered
		b.orders = nil
		b.mu.Unlock()
		if undelivered != sent {
			sent = undelivered
			_ = call.Send(&semaphorev1.AttachResponse{
				Message: &semaphorev1.AttachResponse_Undelivered{Undelivered: sent}})
		}
		if len(rest) > 0 {
			position += uint64(len(rest))
			_ = call.Send(&semaphorev1.AttachResponse{
				Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{Changes: rest}}})
		}
		// A remote that is sent during the stream is then complete, and named in the end mark.
		for _, c := range rest {
			if d := c.GetDevice(); d != nil && synced && !slices.Contains(clusters, d.GetCluster()) {
				clusters = append(slices.Clone(clusters), d.GetCluster())
				synced = false
			}
		}
		if !synced {
			synced = true
			_ = call.Send(&semaphorev1.AttachResponse{
				Message: &semaphorev1.AttachResponse_Synced{Synced: &semaphorev1.Synced{Revision: position, Clusters: clusters}}})
		}
		for _, m := range orders {
			_ = call.Send(m)
		}
		select {
		case <-changed:
		case <-ends:
			return nil
		case err := <-gone:
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

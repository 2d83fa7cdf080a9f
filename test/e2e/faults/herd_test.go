package faults

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/agent/stream"
	productconfig "github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// herd is many agents of the hub without kernels. Their streams and their stream state are the product's code, and
// their tokens are real ones, of pods on Nodes that exist only as objects.
type herd struct {
	agents []*grazer
	end    context.CancelFunc
	done   sync.WaitGroup
}

// grazer is one agent of a herd.
type grazer struct {
	node string

	mu      sync.Mutex
	state   *stream.State
	current bool
	at      time.Time
	changes int
	// peers are the received endpoints by node of the remote.
	peers map[string]string
	key   []byte
}

// Begin implements attach.Handler.
func (g *grazer) Begin() []*semaphorev1.AttachRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Begin()
	epoch, revision := g.state.Resume()
	return []*semaphorev1.AttachRequest{
		stream.Hello(epoch, revision, g.state.Held()),
		{Message: &semaphorev1.AttachRequest_Report{Report: &semaphorev1.AgentReport{Devices: []*semaphorev1.DeviceReport{{
			Cluster: "a", Interface: "wireguard.a", PublicKey: g.key, ListenPort: 51820,
			Backend: semaphorev1.Backend_BACKEND_USERSPACE,
		}}}}},
	}
}

// Receive implements attach.Handler.
func (g *grazer) Receive(_ context.Context, m *semaphorev1.AttachResponse) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.state.Receive(m); err != nil {
		return err
	}
	for _, c := range m.GetChanges().GetChanges() {
		g.changes++
		if p := c.GetPeer(); p != nil {
			g.peers[p.GetKey().GetNode()] = p.GetWireguard().GetAddress()
		}
	}
	if s := m.GetSynced(); s != nil && slices.Contains(s.GetClusters(), "a") {
		g.current, g.at = true, time.Now()
	}
	return nil
}

// Ended implements attach.Handler.
func (g *grazer) Ended(error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.current = false
}

// publicKey returns 32 bytes as a canonical Curve25519 key (RFC 7748, section 5), with the highest bit clear.
func publicKey(of string, i int) []byte {
	key := sha256.Sum256(fmt.Append(nil, of, i))
	key[31] &= 0x7f
	return key[:]
}

// herd creates Nodes, pods and tokens for n agents and attaches them until the test ends.
func (l *lab) herd(n int, peering string) *herd {
	l.t.Helper()
	ctx, end := context.WithCancel(life)
	h := &herd{end: end}
	l.t.Cleanup(func() { end(); h.done.Wait() })
	kubetest.Create(l.t, l.kube.CoreV1().ServiceAccounts(e2e.Namespace),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}})
	config := rest.CopyConfig(l.rest)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client := kubernetes.NewForConfigOrDie(config)
	made, mctx := errgroup.WithContext(ctx)
	made.SetLimit(16)
	for i := range n {
		key := publicKey("agent", i)
		h.agents = append(h.agents, &grazer{node: fmt.Sprintf("node-%04d", i), state: stream.NewState(),
			peers: map[string]string{}, key: key})
		made.Go(func() error { return l.admit(mctx, client, i) })
	}
	testkit.Must(l.t, made.Wait())
	for i, g := range h.agents {
		cfg := &productconfig.Agent{Cluster: "hub"}
		cfg.Broker.Address, cfg.Broker.BundleFile, cfg.Broker.TokenFile = peering, l.path("bundles", "hub.pem"), l.token(i)
		h.done.Go(func() { _ = stream.New(cfg, g).Run(ctx) })
	}
	return h
}

func (l *lab) token(i int) string { return l.path("tokens", fmt.Sprint(i)) }

// admit creates one agent's Node, pod and token.
func (l *lab) admit(ctx context.Context, client kubernetes.Interface, i int) error {
	node := fmt.Sprintf("node-%04d", i)
	if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("172.20.%d.%d", i/250, 1+i%250)}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods(e2e.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "semaphore-agent",
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	token, err := client.CoreV1().ServiceAccounts(e2e.Namespace).CreateToken(ctx, "semaphore-agent",
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences:      []string{"semaphore-broker.hub"},
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return writeFile(l.token(i), token.Status.Token)
}

// wait waits until all agents satisfy f, and returns the time at which the last one did.
func (h *herd) wait(t *testing.T, within time.Duration, what string, f func(*grazer) bool) time.Time {
	t.Helper()
	var last time.Time
	eventually(t, within, func(context.Context) error {
		missing := 0
		last = time.Time{}
		for _, g := range h.agents {
			g.mu.Lock()
			if !f(g) {
				missing++
			} else if g.at.After(last) {
				last = g.at
			}
			g.mu.Unlock()
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d agents: not %s", missing, len(h.agents), what)
		}
		return nil
	})
	return last
}

// received returns the total number of changes that the agents have received.
func (h *herd) received() int {
	sum := 0
	for _, g := range h.agents {
		g.mu.Lock()
		sum += g.changes
		g.mu.Unlock()
	}
	return sum
}

// player plays the exporter of cluster a without an apiserver, with any number of nodes.
type player struct {
	l       *lab
	address string
	epoch   string

	mu       sync.Mutex
	nodes    []*semaphorev1.Object
	at       []uint64 // revision of each node
	revision uint64
	pending  chan *semaphorev1.Change
	welcome  *semaphorev1.Welcome
}

// play publishes n nodes of cluster a to a broker until the test ends, and reconnects when the stream ends.
func (l *lab) play(n int, address string) *player {
	l.t.Helper()
	p := &player{l: l, address: address, epoch: "played", revision: uint64(n),
		pending: make(chan *semaphorev1.Change, 1024)}
	for i := range n {
		p.nodes, p.at = append(p.nodes, playedNode(i, 51820)), append(p.at, uint64(i+1))
	}
	ctx, end := context.WithCancel(life)
	done := make(chan struct{})
	conn := l.dial(address, "a", "exporter")
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = p.stream(ctx, semaphorev1.NewFederationServiceClient(conn)) // it ends when the broker is killed
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	l.t.Cleanup(func() { end(); <-done })
	return p
}

func playedNode(i, port int) *semaphorev1.Object {
	key := publicKey("peer", i)
	return &semaphorev1.Object{
		Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: fmt.Sprintf("peer-%04d", i)},
		Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{
			PodCidrs: []string{fmt.Sprintf("10.11.%d.%d/26", i/4, i%4*64)},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: key,
				Address: fmt.Sprintf("172.21.%d.%d:%d", i/250, 1+i%250, port)},
		}},
	}
}

func (p *player) stream(ctx context.Context, client semaphorev1.FederationServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.Publish(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	revision := p.revision
	var all []*semaphorev1.Change
	for i, n := range p.nodes {
		all = append(all, &semaphorev1.Change{Revision: p.at[i], ObservedAt: timestamppb.Now(),
			Change: &semaphorev1.Change_Upsert{Upsert: n}})
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b *semaphorev1.Change) int { return cmp.Compare(a.GetRevision(), b.GetRevision()) })
	if err := stream.Send(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
		Cluster: "a", ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: p.epoch,
		// With OldestRevision equal to HeadRevision, every stream begins with a snapshot.
		HeadRevision: revision, OldestRevision: revision, Kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE},
	}}}); err != nil {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.welcome = m.GetWelcome()
	p.mu.Unlock()
	messages := []*semaphorev1.PublishRequest{{Message: &semaphorev1.PublishRequest_SnapshotBegin{
		SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: semaphorev1.Kind_KIND_NODE, Revision: revision},
	}}}
	for batch := range slices.Chunk(all, 100) {
		messages = append(
			messages,
			&semaphorev1.PublishRequest{
				Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: batch}},
			},
		)
	}
	messages = append(messages, &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: semaphorev1.Kind_KIND_NODE, Revision: revision,
			Objects: uint64(len(all))},
	}})
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			_, err = stream.Recv()
			return err
		}
	}
	g.Go(func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		beat := time.NewTicker(5 * time.Second)
		defer beat.Stop()
		for {
			var m *semaphorev1.PublishRequest
			select {
			case <-ctx.Done():
				return ctx.Err()
			case c := <-p.pending:
				m = &semaphorev1.PublishRequest{
					Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{c}}},
				}
			case <-beat.C:
				m = &semaphorev1.PublishRequest{
					Message: &semaphorev1.PublishRequest_Heartbeat{Heartbeat: &semaphorev1.Heartbeat{HeadRevision: revision}},
				}
			}
			if err := stream.Send(m); err != nil {
				<-ctx.Done()
				return ctx.Err()
			}
		}
	})
	return g.Wait()
}

// move changes a node's port and returns its new endpoint.
func (p *player) move(i, port int) (node, address string) {
	n := playedNode(i, port)
	p.mu.Lock()
	p.revision++
	p.nodes[i], p.at[i] = n, p.revision
	c := &semaphorev1.Change{Revision: p.revision, ObservedAt: timestamppb.Now(),
		Change: &semaphorev1.Change_Upsert{Upsert: n}}
	p.mu.Unlock()
	p.pending <- c
	return n.GetKey().GetName(), n.GetNode().GetWireguard().GetAddress()
}

// encrypting is the configuration of a broker with agents.
var encrypting = config{"features": []string{"encryption"}}

// herdBound bounds the processor time of a broker from its restart until all agents are current: on the two processors
// of which it then has one, they are current within 30 s.
const herdBound = 30 * time.Second

// The broker is killed and restarts. To attach a thousand agents again costs it at most 30 s of a processor. Because
// nothing has changed, none of them receives a change, and nothing is written.
func TestF34_BrokerRestartsUnderAThousandAgents(t *testing.T) {
	tier.OnlyAll(t, "broker/peering, with a few agents; BenchmarkFanOutHerd has the cost")
	const agents, peers = 1000, 200
	l := newLab(t, "a")
	broker := l.broker(encrypting)
	l.play(peers, broker.address)
	began := time.Now()
	h := l.herd(agents, broker.peering)
	prepared := time.Since(began)
	h.wait(t, 2*settle, "current", func(g *grazer) bool { return g.current && len(g.peers) == peers })
	first := time.Since(began)
	// All keys are on the Nodes, so the start-up work is done.
	eventually(t, settle, func(ctx context.Context) error {
		list, err := l.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		missing := 0
		for _, n := range list.Items {
			if n.Annotations["a.wireguard.semaphore.uw.io/pubKey"] == "" {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d Nodes have no key", missing)
		}
		return nil
	})
	received := h.received()
	memory, err := residentOf(broker.PID)
	testkit.Must(t, err)
	broker.kill()
	h.wait(t, settle, "cut off", func(g *grazer) bool { return !g.current })
	restarted := time.Now()
	broker.run()
	last := h.wait(t, settle, "current", func(g *grazer) bool { return g.current && g.at.After(restarted) })
	took := last.Sub(restarted)
	ticks, err := ticksOf(broker.PID)
	testkit.Must(t, err)
	spent := time.Duration(ticks) * 10 * time.Millisecond
	if spent > herdBound {
		t.Errorf("until all of %d agents were current the broker had %s of a processor, want %s", agents, seconds(spent),
			herdBound)
	}
	pause(t, 2*time.Second)
	if n := h.received() - received; n > 0 {
		t.Errorf("%d changes were sent, want none: all agents held what there is", n)
	}
	if n := broker.metric("semaphore_broker_writes_total"); n > 0 {
		t.Errorf("%v objects were written, want none", n)
	}
	t.Logf("%d agents with %d peers: ready to attach after %s, all current first after %s (%d changes sent); after the "+
		"kill all current in %s with %s of a processor, %d changes sent; broker %d MiB",
		agents, peers, seconds(prepared), seconds(first), received, seconds(took), seconds(spent), h.received()-received,
		memory>>10)
}

// An agent stops reading. Its backlog is bounded by the number of objects, and the other agents receive changes as fast
// as before. When it reads again, it receives the newest state and not every change.
func TestF25_SlowAgent(t *testing.T) {
	tier.OnlyAll(t, "TestAnAgentThatStopsReading (broker/peering)")
	const agents, peers, rounds = 20, 250, 16
	l := newLab(t, "a")
	broker := l.broker(encrypting)
	p := l.play(peers, broker.address)
	h := l.herd(agents, broker.peering)
	h.wait(t, settle, "current", func(g *grazer) bool { return g.current && len(g.peers) == peers })
	slow := &grazer{node: fmt.Sprintf("node-%04d", agents), state: stream.NewState(), peers: map[string]string{},
		key: make([]byte, 32)}
	slow.key[0] = 1
	testkit.Must(t, l.admit(t.Context(), l.kube, agents))
	// churn measures the slowest delivery of several changes to all other agents, while every node moves repeatedly.
	port := 52000
	churn := func() (worst time.Duration) {
		for range rounds {
			port++
			started := time.Now()
			var node, address string
			for i := range peers {
				node, address = p.move(i, port)
			}
			eventually(t, settle, func(context.Context) error {
				for _, g := range h.agents {
					g.mu.Lock()
					got := g.peers[node]
					g.mu.Unlock()
					if got != address {
						return errors.New(g.node + " has not heard of it")
					}
				}
				return nil
			})
			worst = max(worst, time.Since(started))
		}
		return worst
	}
	calm := churn()
	before, err := residentOf(broker.PID)
	testkit.Must(t, err)
	read := l.attach(slow, agents, broker.peering)
	for !slow.current {
		read()
	}
	// From now on it does not read. Its connection lives, because its pings are answered.
	heard := slow.changes
	beside := kubetest.WriteBeside(t, l.kube)
	during := churn()
	late := beside.Late()
	beside.Stop()
	after, err := residentOf(broker.PID)
	testkit.Must(t, err)
	newest := func() bool {
		for i := range peers {
			n := playedNode(i, port)
			if slow.peers[n.GetKey().GetName()] != n.GetNode().GetWireguard().GetAddress() {
				return false
			}
		}
		return true
	}
	for !newest() {
		read()
	}
	caught := slow.changes - heard
	if limit := 2*calm + time.Second + late; during > limit {
		t.Errorf("with a slow agent a change took the others %s, without %s, and %s are for a machine as busy as this one",
			seconds(during), seconds(calm), seconds(late))
	}
	if most := rounds * peers / 2; caught > most {
		t.Errorf("the slow agent received %d changes of %d, want the newest of each object: at most %d", caught,
			rounds*peers, most)
	}
	if grown := after - before; grown > 64<<10 {
		t.Errorf("the broker grew by %d MiB", grown>>10)
	}
	t.Logf("%d changes: the others had all within %s before and %s while one did not read; it received %d when it read "+
		"again; broker %d MiB before, %d MiB after",
		rounds*peers, seconds(calm), seconds(during), caught, before>>10, after>>10)
}

// attach attaches one agent that reads a message only on request. Its flow control window has the smallest size and
// does not grow.
func (l *lab) attach(g *grazer, i int, peering string) (read func()) {
	l.t.Helper()
	token, err := os.ReadFile(l.token(i))
	testkit.Must(l.t, err)
	const window = 64 << 10
	conn, err := grpc.NewClient(peering,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"},
			MinVersion: tls.VersionTLS13})),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	testkit.Must(l.t, err)
	l.t.Cleanup(func() { conn.Close() })
	ctx := metadata.AppendToOutgoingContext(l.t.Context(), "authorization", "Bearer "+string(token))
	stream, err := semaphorev1.NewPeeringServiceClient(conn).Attach(ctx)
	testkit.Must(l.t, err)
	for _, m := range g.Begin() {
		testkit.Must(l.t, stream.Send(m))
	}
	return func() {
		l.t.Helper()
		m, err := stream.Recv()
		if err == nil {
			err = g.Receive(ctx, m)
		}
		if err != nil {
			l.t.Fatalf("the slow agent: %v", err)
		}
	}
}

// writeFile writes a file with mode 0600, and creates its directory.
func writeFile(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
}

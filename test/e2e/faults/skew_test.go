package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // exporters compress their messages
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	productconfig "github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// Peers of other versions: one without digests, terms and sources, like the first version, and one with fields that no
// version knows yet; with make skew, also the programs of another build.
func TestF38_VersionSkew(t *testing.T) {
	tier.OnlyAll(t, "buf breaking; TestF38RequiredUnknownsEndTheStream (broker/replica)")
	l := newLab(t, "a")
	t.Run("an older exporter", func(t *testing.T) {
		broker := l.on(t).broker(nil)
		// It sends no term, source or digests, so only its snapshot says what it has.
		mirrored := converse(t, l, broker, nil)
		t.Logf("taken over: %s", mirrored)
	})
	t.Run("a newer exporter", func(t *testing.T) {
		broker := l.on(t).broker(nil)
		mirrored := converse(t, l, broker, func(h *semaphorev1.Hello, object *semaphorev1.Object) {
			h.ProtocolVersion = 7
			h.Kinds = append(h.Kinds, semaphorev1.Kind(99))
			unknown(h)
			unknown(object)
			unknown(object.GetService())
		})
		t.Logf("taken over: %s", mirrored)
	})
	for name, answer := range map[string]*semaphorev1.Welcome{
		"an older broker": {Cluster: "hub", ProtocolVersion: 1},
		"a newer broker": {
			Cluster: "hub", ProtocolVersion: 1,
			Held: []*semaphorev1.KindState{{Kind: semaphorev1.Kind(99), Objects: 3, Digest: []byte("no such digest")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := l.on(t)
			if strings.Contains(name, "newer") {
				unknown(answer)
			}
			played := &playedBroker{welcome: answer}
			address := played.serve(t, l)
			exporter := l.exporter("a", address, nil)
			exporter.connected("hub")
			service := strings.ReplaceAll(name, " ", "-")
			l.offer("a", service, 1)
			defer l.withdraw(service)
			eventually(t, settle, func(context.Context) error {
				played.mu.Lock()
				defer played.mu.Unlock()
				if !played.ended || !played.heard["shop/"+service] {
					return fmt.Errorf("snapshots ended %t, heard of %v", played.ended, played.heard)
				}
				return nil
			})
			if n := exporter.metric("semaphore_exporter_streams_ended_total"); n > 0 {
				t.Errorf("%v streams ended", n)
			}
			exporter.kill()
		})
	}
	if dir := os.Getenv("SEMAPHORE_PREVIOUS"); dir != "" {
		previous := map[string]string{}
		for _, program := range []string{"semaphore-exporter", "semaphore-broker", "semaphore-agent"} {
			previous[program] = filepath.Join(dir, program)
		}
		t.Run("the previous exporter", func(t *testing.T) { upgrades(t, l, l.bins, previous) })
		t.Run("the previous broker", func(t *testing.T) { upgrades(t, l, previous, l.bins) })
		t.Run("the previous agent", func(t *testing.T) { attaches(t, l, 0, l.bins, previous) })
		t.Run("the previous broker and an agent", func(t *testing.T) { attaches(t, l, 1, previous, l.bins) })
	}
}

// upgrades runs a broker and an exporter of different builds. Services come, change and go between them. Then a broker
// and an exporter of the lab's build take over, one after the other, and change nothing that exists.
func upgrades(t *testing.T, l *lab, ofBroker, ofExporter map[string]string) {
	here := l.on(t)
	broker := here.with(ofBroker).broker(nil)
	exporter := here.with(ofExporter).exporter("a", broker.address, nil)
	exporter.connected("hub")
	for i := range 5 {
		here.offer("a", fmt.Sprintf("skew-%d", i), i)
	}
	here.waitMirrors("a", 5)
	here.withdraw("skew-4")
	here.waitMirrors("a", 4)
	was := here.mustMirrors("a")
	exporter.kill()
	exporter = here.exporter("a", broker.address, nil)
	exporter.connected("hub")
	here.unchanged("a", was)
	broker.kill()
	exporter.kill()
	broker = here.broker(nil)
	exporter = here.exporter("a", broker.address, nil)
	exporter.connected("hub")
	here.offer("a", "skew-5", 5)
	here.waitMirrors("a", 5)
	for key, version := range here.mustMirrors("a") {
		if had, ok := was[key]; ok && had != version {
			t.Errorf("%s was changed by the upgrade: %s, then %s", key, had, version)
		}
	}
	for _, name := range []string{"skew-0", "skew-1", "skew-2", "skew-3", "skew-5"} {
		here.withdraw(name)
	}
	here.waitMirrors("a", 0)
	exporter.kill()
	broker.kill()
}

// attaches runs a broker and the agent of node i of different builds. The Node gets the agent's key, and the device
// gets the remote's peer and follows it. Then an agent and a broker of the lab's build take over, one after the other,
// and the key remains.
func attaches(t *testing.T, l *lab, i int, ofBroker, ofAgent map[string]string) {
	here := l.on(t)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", "wireguard.a").Run() }) // its process ends with it
	_, err := l.kube.CoreV1().ServiceAccounts(e2e.Namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}}, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		err = l.admit(t.Context(), i)
	}
	testkit.Must(t, err)
	encrypting := config{"features": []string{"encryption"}}
	broker := here.with(ofBroker).broker(encrypting)
	first := here.publishNode(broker, 51820)
	agent := here.with(ofAgent).agent(i, broker.peering)
	key := ""
	works := func(endpoint string) {
		t.Helper()
		host, port, err := net.SplitHostPort(endpoint)
		testkit.Must(t, err)
		eventually(t, settle, func(ctx context.Context) error {
			node, err := l.kube.CoreV1().Nodes().Get(ctx, fmt.Sprintf("node-%04d", i), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := agent.runs(); err != nil {
				return err
			}
			listens, err := net.Dial("tcp", agent.http)
			if err != nil {
				return err
			}
			listens.Close()
			now := node.Annotations["a.wireguard.semaphore.uw.io/pubKey"]
			if now == "" || agent.metric("semaphore_wg_peer_info", host, ":"+port+`"`) != 1 ||
				agent.metric("semaphore_agent_connected") != 1 {
				return fmt.Errorf("the Node has key %q, the device not the endpoint %s, or the agent no stream\n%s", now,
					endpoint, agent.Tail())
			}
			if key != "" && now != key {
				t.Fatalf("the upgrade changed the key of the node: %s, then %s", key, now)
			}
			key = now
			return nil
		})
	}
	works(first)
	moved := here.publishNode(broker, 51821)
	works(moved)
	agent.kill()
	agent = here.agent(i, broker.peering)
	works(moved)
	broker.kill()
	agent.kill()
	broker = here.broker(encrypting)
	agent = here.agent(i, broker.peering)
	moved = here.publishNode(broker, 51822)
	works(moved)
	agent.kill()
	broker.kill()
}

// publishNode is an exporter of cluster a that has one node, at this port, and ends. It returns the node's endpoint.
func (l *lab) publishNode(broker *daemon, port int) (endpoint string) {
	l.t.Helper()
	node := players.Node("peer", 1, "10.11.0.0/26")
	node.GetNode().Wireguard.Address = fmt.Sprintf("172.21.0.1:%d", port)
	exporter := l.plays(broker)
	defer exporter.Cancel()
	exporter.SendAll("a", fmt.Sprint("at ", port), node)
	return node.GetNode().GetWireguard().GetAddress()
}

// admit creates the Node of an agent, its pod and its token.
func (l *lab) admit(ctx context.Context, i int) error {
	node := fmt.Sprintf("node-%04d", i)
	if _, err := l.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("172.20.0.%d", 1+i)}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	pod, err := l.kube.CoreV1().Pods(e2e.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "semaphore-agent",
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	token, err := l.kube.CoreV1().ServiceAccounts(e2e.Namespace).CreateToken(ctx, "semaphore-agent",
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences:      []string{"semaphore-broker.hub"},
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
			},
		}, metav1.CreateOptions{})
	if err == nil {
		l.write(l.token(i), token.Status.Token)
	}
	return err
}

func (l *lab) token(i int) string { return l.path("tokens", fmt.Sprint(i)) }

// with returns the lab with programs of another build.
func (l *lab) with(bins map[string]string) *lab {
	other := *l
	other.bins = bins
	return &other
}

// agent starts the agent of node i in the network namespace of the tests.
func (l *lab) agent(i int, peering string) *daemon {
	l.t.Helper()
	name := fmt.Sprintf("agent-%d", i)
	return l.start(&daemon{name: name, program: "semaphore-agent"}, config{
		"cluster": "hub", "backend": "userspace", "subnetsFile": productconfig.NoSubnets,
		"localSubnets": []string{"10.10.0.0/16", "172.20.0.0/16"}, "allowedSubnets": []string{l.subnets["a"]},
		"broker":    config{"address": peering, "bundleFile": l.path("bundles", "hub.pem"), "tokenFile": l.token(i)},
		"wgKeyPath": l.path(name, "keys"), "stateFile": l.path(name, "state"),
	}, config{"probe": productconfig.NoProbe}, nil)
}

// unknown adds a field that this version does not know.
func unknown(m proto.Message) {
	raw := protowire.AppendTag(nil, 999, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(raw, []byte("of a later version")))
}

// plays is the exporter of cluster a, once the broker listens.
func (l *lab) plays(broker *daemon) *players.Exporter {
	l.t.Helper()
	eventually(l.t, settle, func(context.Context) error {
		conn, err := net.Dial("tcp", broker.address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return players.Publish(l.t, l.dial(broker.address, "a", "exporter"))
}

// converse plays an exporter that offers one Service, alters its messages, and returns the mirror's name.
func converse(t *testing.T, l *lab, broker *daemon, alter func(*semaphorev1.Hello, *semaphorev1.Object)) string {
	t.Helper()
	hello := players.Hello("a", t.Name(), 1, semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE)
	service := players.Service("shop", "skewed", 80)
	if alter != nil {
		alter(hello.GetHello(), service)
	}
	exporter := l.plays(broker)
	defer exporter.Cancel()
	if w := exporter.Greet(hello); w.GetProtocolVersion() != 1 {
		t.Errorf("welcome %v, want version 1", w)
	}
	exporter.Send(players.Snapshot(semaphorev1.Kind_KIND_SERVICE, 1, service)...)
	exporter.Send(players.Snapshot(semaphorev1.Kind_KIND_ENDPOINT_SLICE, 1)...)
	if later := semaphorev1.Kind(99); slices.Contains(hello.GetHello().GetKinds(), later) {
		object := &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: later, Name: "of-a-later-version"}}
		unknown(object)
		exporter.Send(players.Snapshot(later, 1, object)...)
	}
	for _, r := range exporter.Acked(1) {
		if r.GetKey().GetKind() != 99 || r.GetCode() != "UnknownKind" {
			t.Errorf("refused: %v", r)
		}
	}
	var name string
	eventually(t, settle, func(ctx context.Context) error {
		v, err := l.mirrors(ctx, "a")
		if err != nil {
			return err
		}
		if len(v) != 1 {
			return fmt.Errorf("mirrors: %v", v)
		}
		for name = range v {
		}
		return nil
	})
	exporter.Send(players.Deletion(2, service)) // the stream still works
	l.waitMirrors("a", 0)
	broker.kill()
	return name
}

// playedBroker plays a broker of another version: it answers Hello with its own Welcome and records what it receives.
type playedBroker struct {
	semaphorev1.UnimplementedFederationServiceServer
	welcome *semaphorev1.Welcome

	mu    sync.Mutex
	ended bool
	heard map[string]bool
}

func (p *playedBroker) Publish(stream semaphorev1.FederationService_PublishServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		var answer *semaphorev1.PublishResponse
		p.mu.Lock()
		switch m := m.GetMessage().(type) {
		case *semaphorev1.PublishRequest_Hello:
			p.heard = map[string]bool{}
			answer = &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Welcome{Welcome: p.welcome}}
		case *semaphorev1.PublishRequest_Changes:
			revision := uint64(0)
			for _, c := range m.Changes.GetChanges() {
				if k := c.GetUpsert().GetKey(); k.GetKind() == semaphorev1.Kind_KIND_SERVICE {
					p.heard[k.GetNamespace()+"/"+k.GetName()] = true
				}
				revision = c.GetRevision()
			}
			if p.ended {
				answer = &semaphorev1.PublishResponse{
					Message: &semaphorev1.PublishResponse_Ack{Ack: &semaphorev1.Ack{Revision: revision}},
				}
			}
		case *semaphorev1.PublishRequest_SnapshotEnd:
			p.ended = true
		}
		p.mu.Unlock()
		if answer != nil {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

// serve serves the played broker with the hub's certificate until the test ends.
func (p *playedBroker) serve(t *testing.T, l *lab) string {
	t.Helper()
	certificate := testkit.Value(tls.LoadX509KeyPair(l.path("pki", "hub", "broker", "tls.crt"),
		l.path("pki", "hub", "broker", "tls.key")))(t)
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
	})))
	semaphorev1.RegisterFederationServiceServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends with Stop
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

// on returns the lab for a subtest.
func (l *lab) on(t *testing.T) *lab {
	copied := *l
	copied.t = t
	return &copied
}

package faults

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // exporters compress their messages
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	productconfig "github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testkit"
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
			l.offer("a", service, 1, "")
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
		here.offer("a", fmt.Sprintf("skew-%d", i), i, "")
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
	here.offer("a", "skew-5", 5, "")
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
		err = l.admit(t.Context(), l.kube, i)
	}
	testkit.Must(t, err)
	broker := here.with(ofBroker).broker(encrypting)
	remote := here.play(1, broker.address)
	_, first := remote.move(0, 51820)
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
	_, moved := remote.move(0, 51821)
	works(moved)
	agent.kill()
	agent = here.agent(i, broker.peering)
	works(moved)
	broker.kill()
	agent.kill()
	broker = here.broker(encrypting)
	remote = here.play(1, broker.address)
	agent = here.agent(i, broker.peering)
	_, moved = remote.move(0, 51822)
	works(moved)
	agent.kill()
	broker.kill()
}

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

// converse plays an exporter that offers one Service, alters its messages, and returns the mirror's name.
func converse(t *testing.T, l *lab, broker *daemon, alter func(*semaphorev1.Hello, *semaphorev1.Object)) string {
	t.Helper()
	hello := &semaphorev1.Hello{
		Cluster: "a", ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: t.Name(), HeadRevision: 1,
		Kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE},
	}
	service := &semaphorev1.Object{
		Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: "skewed"},
		Spec: &semaphorev1.Object_Service{Service: &semaphorev1.Service{
			Mirror: true, Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 80}},
		}},
	}
	if alter != nil {
		alter(hello, service)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*settle)
	defer cancel()
	var stream semaphorev1.FederationService_PublishClient
	eventually(t, settle, func(context.Context) error { // the broker may not listen yet
		var err error
		if stream, err = semaphorev1.NewFederationServiceClient(l.dial(broker.address, "a",
			"exporter")).Publish(ctx); err != nil {
			return err
		}
		if err = stream.Send(&semaphorev1.PublishRequest{
			Message: &semaphorev1.PublishRequest_Hello{Hello: hello},
		}); err != nil {
			return err
		}
		m, err := stream.Recv()
		if err == nil && m.GetWelcome().GetProtocolVersion() != 1 {
			err = fmt.Errorf("welcome %v, want version 1", m)
		}
		return err
	})
	messages := []*semaphorev1.PublishRequest{
		{
			Message: &semaphorev1.PublishRequest_SnapshotBegin{
				SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: semaphorev1.Kind_KIND_SERVICE, Revision: 1},
			},
		},
		{Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{
			{Revision: 1, ObservedAt: timestamppb.Now(), Change: &semaphorev1.Change_Upsert{Upsert: service}},
		}}}},
		{
			Message: &semaphorev1.PublishRequest_SnapshotEnd{
				SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: semaphorev1.Kind_KIND_SERVICE, Revision: 1, Objects: 1},
			},
		},
		{
			Message: &semaphorev1.PublishRequest_SnapshotBegin{
				SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Revision: 1},
			},
		},
		{
			Message: &semaphorev1.PublishRequest_SnapshotEnd{
				SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Revision: 1},
			},
		},
	}
	if later := semaphorev1.Kind(99); slices.Contains(hello.Kinds, later) {
		object := &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: later, Name: "of-a-later-version"}}
		unknown(object)
		messages = append(
			messages,
			&semaphorev1.PublishRequest{
				Message: &semaphorev1.PublishRequest_SnapshotBegin{
					SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: later, Revision: 1},
				},
			},
			&semaphorev1.PublishRequest{
				Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{
					{Revision: 1, ObservedAt: timestamppb.Now(), Change: &semaphorev1.Change_Upsert{Upsert: object}},
				}}},
			},
			&semaphorev1.PublishRequest{
				Message: &semaphorev1.PublishRequest_SnapshotEnd{
					SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: later, Revision: 1, Objects: 1},
				},
			},
		)
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			_, err = stream.Recv()
			t.Fatalf("%v: %v", m, err)
		}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v; want an ack of revision 1", err)
		}
		if r := m.GetRefusal(); r != nil && (r.GetKey().GetKind() != 99 || r.GetCode() != "UnknownKind") {
			t.Errorf("refused: %v", r)
		}
		if m.GetAck().GetRevision() == 1 {
			break
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
	// The stream still works.
	testkit.Must(t, stream.Send(&semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: []*semaphorev1.Change{
			{Revision: 2, Change: &semaphorev1.Change_Delete{Delete: service.GetKey()}},
		}}}}))
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

// Publish implements semaphorev1.FederationServiceServer.
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
	certificate, err := tls.LoadX509KeyPair(l.path("pki", "hub", "broker", "tls.crt"),
		l.path("pki", "hub", "broker", "tls.key"))
	testkit.Must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
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

// A certificate that is valid only in ten minutes, as from a clock that is ahead, is refused with an error that names
// both times. Existing objects are not touched, and the right certificate is accepted without a restart. A clock that
// is less than five minutes ahead does no harm, because certificates are backdated by that.
func TestF18_ClocksApart(t *testing.T) {
	tier.OnlyAll(t, "TestF18BothClocksAreNamed (internal/identity)")
	l := newLab(t, "a")
	broker := l.broker(nil)
	exporter := l.exporter("a", broker.address, nil)
	for i := range 5 {
		l.offer("a", fmt.Sprintf("a-%d", i), i, "")
	}
	l.waitMirrors("a", 5)
	was := l.mustMirrors("a")

	file := l.path("pki", "a", "exporter", "tls.crt")
	good, err := os.ReadFile(file)
	testkit.Must(t, err)
	goodKey, err := os.ReadFile(l.path("pki", "a", "exporter", "tls.key"))
	testkit.Must(t, err)
	block, _ := pem.Decode(good)
	certificate, err := x509.ParseCertificate(block.Bytes)
	testkit.Must(t, err)
	if early := time.Since(certificate.NotBefore); early < 5*time.Minute {
		t.Errorf("a new certificate began %s ago, want at least 5 min: clocks differ", early.Round(time.Second))
	}
	for name, ahead := range map[string]time.Duration{"ahead by ten minutes": 10 * time.Minute,
		"behind by ten minutes": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			// Clock ahead: the certificate is valid in ten minutes. Clock behind: it expired ten minutes ago.
			begin, end := time.Now().Add(ahead), time.Now().Add(time.Hour)
			if ahead < 0 {
				begin, end = time.Now().Add(-time.Hour), time.Now().Add(ahead)
			}
			crt, key := issue(t, l, "a", "exporter", begin, end)
			l.write(l.path("pki", "a", "exporter", "tls.key"), key)
			l.write(file, crt)
			exporter.kill()
			testkit.Must(t, os.Truncate(exporter.log, 0))
			exporter.run()
			var said string
			eventually(t, settle, func(ctx context.Context) error {
				for line := range strings.Lines(exporter.Tail()) {
					if strings.Contains(line, "our clock says") {
						said = line
						return nil
					}
				}
				return errors.New("nothing was said of the clocks")
			})
			edge := begin
			if ahead < 0 {
				edge = end
			}
			if !strings.Contains(said, edge.UTC().Format("2006-01-02 15:04")) {
				t.Errorf("what was said does not name the certificate's time, %s: %s", edge.UTC().Format(time.RFC3339), said)
			}
			l.unchanged("a", was)
			l.write(l.path("pki", "a", "exporter", "tls.key"), string(goodKey))
			l.write(file, string(good))
			if exporter.runs() != nil {
				exporter.run() // it did not start, and a kubelet would retry
			}
			exporter.connected("hub")
			l.unchanged("a", was)
			t.Logf("said: %s", strings.TrimSpace(said))
		})
	}
}

// issue signs a part's certificate with any validity.
func issue(t *testing.T, l *lab, cluster, part string, from, until time.Time) (certificate, key string) {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(l.path("pki", cluster, "ca.crt"), l.path("pki", cluster, "ca.key"))
	testkit.Must(t, err)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	id := &url.URL{Scheme: "spiffe", Host: cluster, Path: "/" + part}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: from, NotAfter: until, URIs: []*url.URL{id},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, ca.Leaf, private.Public(), ca.PrivateKey)
	testkit.Must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// on returns the lab for a subtest.
func (l *lab) on(t *testing.T) *lab {
	copied := *l
	copied.t = t
	return &copied
}

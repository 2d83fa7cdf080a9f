package publish

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

// must ends the test where there is an error.
var must = testkit.Must

// broker is a FederationService of one cluster for the exporter of c1, on the real replica.
type broker struct {
	semaphorev1.UnimplementedFederationServiceServer
	t       *testing.T
	cluster string
	tls     *identity.Source
	// hang makes it take streams and say nothing.
	hang bool

	mu      sync.Mutex
	replica *replica.Replica
	// deliveries are those of the last heartbeat.
	deliveries []*semaphorev1.Delivery
	messages   map[string]int
	bytes      int
	refuse     string   // name of an object to refuse
	domains    []string // of the labels of its sets
	reason     string

	most    int // bytes of a message; gRPC's limit if it is 0
	address string
	stop    func() // since start
}

func newBroker(t *testing.T, cluster string, tls *identity.Source) *broker {
	b := &broker{t: t, cluster: cluster, tls: tls, messages: map[string]int{}, reason: "for the test"}
	b.replica = replica.New("c1", cluster, "broker version",
		func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) {
			if o.GetKey().GetName() == b.refuse {
				return nil, []admission.Refusal{{Code: finding.InvalidIP, Reason: b.reason}}
			}
			return o, nil
		})
	return b
}

// start listens; again on the same address, after stop.
func (b *broker) start() *broker {
	b.t.Helper()
	if b.address == "" {
		b.address = loopback.Address(b.t)
	}
	listener, err := net.Listen("tcp", b.address)
	must(b.t, err)
	b.address = listener.Addr().String()
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(b.tls.ServerTLS(func(id spiffeid.ID) error {
			if id != identity.Exporter("c1") {
				return fmt.Errorf("%s is not the exporter", id)
			}
			return nil
		}))),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(cmp.Or(b.most, 4<<20)),
	)
	semaphorev1.RegisterFederationServiceServer(server, b)
	b.stop = testkit.Serve(b.t, listener, server)
	return b
}

func (b *broker) Publish(stream grpc.BidiStreamingServer[semaphorev1.PublishRequest,
	semaphorev1.PublishResponse]) error {
	if b.hang {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	session := b.replica.Open()
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.messages[strings.TrimPrefix(fmt.Sprintf("%T", m.GetMessage()), "*semaphorev1.PublishRequest_")]++
		b.bytes += proto.Size(m)
		if beat := m.GetHeartbeat(); beat != nil {
			b.deliveries = beat.GetDeliveries()
		}
		r, err := session.Receive(time.Now(), m)
		b.mu.Unlock()
		if err != nil {
			return err
		}
		for _, answer := range r.Responses {
			if w := answer.GetWelcome(); w != nil {
				w.LabelDomains = b.domains
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

func (b *broker) count(message string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.messages[message]
}

func (b *broker) held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(held(b.replica))
}

// bench is a catalog and the publishers of it.
type bench struct {
	t        *testing.T
	trust    trust.Dir
	catalog  *catalog.Catalog
	recorder *debug.Recorder
	registry *prometheus.Registry
	metrics  *Metrics
}

func newBench(t *testing.T, clusters ...string) *bench {
	already := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, already) })
	b := &bench{
		t: t, trust: trust.New(t, append(clusters, "c1")...),
		catalog: catalog.New(catalog.Rules{
			Features: config.Features{config.Encryption, config.Policy}, Clusters: clusters,
			LabelDomains: []string{naming.DefaultLabelDomain},
		}),
		recorder: debug.NewRecorder("exporter", "c1", ""),
		registry: prometheus.NewRegistry(),
	}
	b.metrics = NewMetrics(b.registry)
	return b
}

func (b *bench) publish(to *broker) *Publisher { return b.publishFrom(to, source{}) }

func (b *bench) publishFrom(to *broker, from Source) *Publisher {
	p := b.publisher(to.cluster, to.address, Options{Source: from})
	testkit.Run(b.t, p.Run)
	return p
}

// publisher returns the publisher to a cluster's broker.
func (b *bench) publisher(cluster, address string, o Options) *Publisher {
	return New("c1", 0, config.ExporterBroker{Cluster: cluster, Address: address},
		b.trust.Source(b.t, "c1", "exporter"), b.catalog, b.recorder, b.metrics, o)
}

func (b *bench) pod(name, ip string) {
	b.catalog.PutPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{naming.DefaultLabelDomain + "/name": "front"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}, time.Now())
}

// metric is the value of a series by the values of its labels; -1 for none.
func (b *bench) metric(name string, labels ...string) float64 {
	b.t.Helper()
	if sum, found := testkit.Metric(b.t, b.registry, name, labels...); found {
		return sum
	}
	return -1
}

// within waits for what has no bound in time: how soon it comes is for make bench, and order_test.go holds what nothing
// waits for.
func within(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	return testkit.Eventually(t, time.Minute, what, testkit.True(ok))
}

// TestTheLargestObjectIsNamed: if a broker of another version, with a lower limit, ends each stream because of one
// object, the status names it.
func TestTheLargestObjectIsNamed(t *testing.T) {
	b := newBench(t, "c2")
	c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker"))
	c2.most = maxBatchBytes
	c2.start()
	b.catalog.PutPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "big", UID: types.UID(strings.Repeat("u", maxBatchBytes)),
			Labels: map[string]string{naming.DefaultLabelDomain + "/name": "front"}},
		Status: corev1.PodStatus{PodIP: "10.1.1.1"},
	}, time.Now())
	p := b.publish(c2)
	within(t, "the object is named", func() bool {
		return strings.HasSuffix(p.Status().GetLastError(), " bytes: setmember shop/big (ResourceExhausted)")
	})
}

func TestPublisher(t *testing.T) {
	b := newBench(t, "c2")
	c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker")).start()
	const pods = 5000
	for i := range pods {
		b.pod(fmt.Sprint("pod-", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	p := b.publish(c2)
	within(t, "all objects are there and acknowledged", func() bool {
		return c2.held() == pods && p.Status().GetConnected() && p.Status().GetBehind() == 0
	})
	if raw, wire := float64(c2.bytes), b.metric("semaphore_exporter_sent_bytes_total", "c2"); wire <= 0 || wire > raw/2 {
		t.Errorf("%v bytes on the wire for messages of %v bytes: not compressed", wire, raw)
	}
	s := p.Status()
	if s.GetSoftwareVersion() != "broker version" || s.GetLastHeard() == nil || s.GetLastError() != "" {
		t.Errorf("status is %v", s)
	}
	for _, k := range s.GetKinds() {
		if k.GetKind() == semaphorev1.Kind_KIND_SET_MEMBER && k.GetObjects() != pods {
			t.Errorf("status counts %d pods", k.GetObjects())
		}
	}
	if got := b.metric("semaphore_exporter_connected", "c2"); got != 1 {
		t.Errorf("connected is %v", got)
	}

	b.pod("pod-0", "10.1.99.99")
	lag := within(t, "a change is acknowledged, and the metrics say so", func() bool {
		return p.Status().GetBehind() == 0 && b.metric("semaphore_exporter_ack_duration_seconds", "c2") >= 1 &&
			b.metric("semaphore_exporter_acked_revision", "c2") == float64(b.catalog.Journal().Head())
	})
	t.Logf("a change was acknowledged within %s", lag)
	if got := b.metric("semaphore_exporter_last_ack_timestamp_seconds", "c2"); got < float64(time.Now().Unix()-60) {
		t.Errorf("last_ack_timestamp_seconds is %v", got)
	}

	// The broker goes, changes come, and it comes back: nothing but the changes crosses again.
	c2.stop()
	within(t, "the loss is reported", func() bool {
		return !p.Status().GetConnected() &&
			p.Status().GetLastError() != ""
	})
	within(t, "it is no longer connected", func() bool { return b.metric("semaphore_exporter_connected", "c2") == 0 })
	b.pod("pod-new", "10.1.99.100")
	b.catalog.DeletePod("shop", "pod-1", time.Now())
	ended := b.metric("semaphore_exporter_streams_ended_total", "c2")
	within(t, "some attempts are in vain",
		func() bool { return b.metric("semaphore_exporter_streams_ended_total", "c2") >= ended+2 })
	changes := c2.count("Changes")
	c2.start()
	took := within(t, "connected again, and nothing waits",
		func() bool { return p.Status().GetConnected() && p.Status().GetBehind() == 0 })
	t.Logf("connected again after %s", took)
	if got := c2.count("SnapshotBegin"); got != len(kinds) {
		t.Errorf("%d snapshots began, %d kinds", got, len(kinds))
	}
	if got := c2.count("Changes") - changes; got != 1 {
		t.Errorf("two changes came in %d messages", got)
	}
	if got := c2.held(); got != pods {
		t.Errorf("the broker holds %d objects", got)
	}
}

// TestLabelDomainsThatDiffer: an exporter reports that a broker labels sets with other domains than those by which it
// finds their pods. The order does not matter, and a broker or an exporter without sets has none.
func TestLabelDomainsThatDiffer(t *testing.T) {
	const ours, theirs = naming.DefaultLabelDomain, naming.PolicyLabelDomain
	both, policy := []string{ours, theirs}, config.Features{config.Policy}
	for _, c := range []struct {
		name        string
		features    config.Features
		own, broker []string
		says, heard string
	}{
		{"the same", policy, both, both, "", ""},
		{"the same in another order", policy, both, []string{theirs, ours}, "", ""},
		{"others", policy, []string{ours}, []string{theirs}, ours, theirs},
		{"one is missing in the broker", policy, both, []string{ours}, ours + ", " + theirs, ours},
		{"the broker has one more", policy, []string{ours}, both, ours, ours + ", " + theirs},
		{"the broker writes no sets", policy, []string{ours}, nil, "", ""},
		{"the exporter exports no sets", config.Features{config.Encryption}, []string{ours}, []string{theirs}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "c2")
			b.catalog = catalog.New(catalog.Rules{Features: c.features, Clusters: []string{"c2"}, LabelDomains: c.own})
			c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker"))
			c2.domains = c.broker
			p := b.publish(c2.start())
			within(t, "all is acknowledged", func() bool { return p.Status().GetConnected() && p.Status().GetBehind() == 0 })
			found := p.Findings()
			if c.says == "" {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			want := fmt.Sprintf("labels of %q put pods into sets here, and the broker of c2 labels sets with %q, by which "+
				"policies there select; set labelDomains to the same domains in both", c.says, c.heard)
			if len(found) != 1 || found[0].Code != finding.LabelDomainsDiffer || found[0].Cluster != "c2" ||
				!slices.Equal(finding.Texts(found), []string{want}) {
				t.Errorf("found %+v, want %q", found, want)
			}
		})
	}
}

// The publisher knows what a broker acknowledges, and that it no longer does; and the own broker receives that.
func TestDelivery(t *testing.T) {
	b := newBench(t, "c2")
	c2, own := newBroker(t, "c2", b.trust.Source(t, "c2", "broker")).start(),
		newBroker(t, "c1", b.trust.Source(t, "c1", "broker")).start()
	lost := make(chan struct{}, 1)
	var losses atomic.Int64
	p := b.publisher("c2", c2.address,
		Options{Source: source{}, Disconnected: func() { losses.Add(1); lost <- struct{}{} }})
	testkit.Run(t, p.Run)
	testkit.Run(t, b.publisher("c1", own.address,
		Options{Source: source{}, ReportNow: lost, Deliveries: func() []*semaphorev1.Delivery {
			return []*semaphorev1.Delivery{p.Delivery(time.Now())}
		}}).Run)
	within(t, "acknowledged", func() bool { return p.Delivery(time.Now()).GetAcknowledged() })
	within(t, "the own broker receives it", func() bool { return own.delivered("c2").GetAcknowledged() })
	if d := p.Delivery(time.Now().Add(11 * time.Second)); d.GetAcknowledged() || d.GetProblem() == "" {
		t.Errorf("with no word of the broker for 11 s: %v", d)
	}
	if own.delivered("c1") != nil || c2.delivered("c2") != nil {
		t.Error("more is sent, or to a broker that it does not concern")
	}
	// Each loss is reported; TestNothingWaitsForAHeartbeat: at once.
	for range 2 {
		within(t, "the own broker knows that it is acknowledged",
			func() bool { return own.delivered("c2").GetAcknowledged() })
		before := losses.Load()
		c2.stop()
		within(t, "the loss is reported", func() bool { return losses.Load() > before })
		within(t, "the own broker knows that it is not", func() bool {
			d := p.Delivery(time.Now())
			return !d.GetAcknowledged() && d.GetProblem() != "" && own.delivered("c2").GetProblem() != ""
		})
		c2.start()
	}
}

// delivered is what the last heartbeat said of a cluster's broker; nil for nothing.
func (b *broker) delivered(cluster string) *semaphorev1.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.deliveries {
		if d.GetCluster() == cluster {
			return d
		}
	}
	return nil
}

func TestRefusals(t *testing.T) {
	b := newBench(t, "c2")
	c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker"))
	c2.refuse, c2.reason = "bad", strings.Repeat("é", 10_000)
	c2.start()
	b.pod("good", "10.1.1.1")
	b.pod("bad", "10.1.1.2")
	p := b.publisher("c2", c2.address, Options{Source: source{}})
	stop := testkit.Run(t, p.Run)
	refused := func() uint64 {
		var n uint64
		for _, k := range p.Status().GetKinds() {
			n += k.GetRefused()
		}
		return n
	}
	within(t, "the refusal is reported", func() bool { return refused() == 1 && c2.held() == 1 })
	within(t, "it is counted",
		func() bool { return b.metric("semaphore_exporter_refused_total", "c2", "InvalidIP", "setmember") == 1 })
	p.mu.Lock()
	for _, r := range p.refused {
		if len(r.reason) > maxReason {
			t.Errorf("a reason of %d bytes is kept", len(r.reason))
		}
	}
	p.mu.Unlock()
	// An object that is not, or no longer, exported is not kept as refused.
	p.recordRefusal(&semaphorev1.Refusal{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SET_MEMBER,
		Name: "invented"}, Code: "x"})
	if got := refused(); got != 1 {
		t.Errorf("%d objects are refused", got)
	}
	// An edit of the broker's addresses makes another publisher, whose stream resumes.
	stop()
	p = b.publisher("c2", c2.address, Options{Source: source{}, Heartbeat: 10 * time.Millisecond})
	testkit.Run(t, p.Run)
	within(t, "the next publisher knows the refusal", func() bool { return refused() == 1 })
	if got := c2.count("SnapshotBegin") + c2.count("SnapshotUnchanged"); got != len(kinds) {
		t.Errorf("%d snapshots of %d kinds: the stream did not resume", got, len(kinds))
	}
	b.catalog.DeletePod("shop", "bad", time.Now())
	within(t, "what is gone is no longer refused", func() bool { return refused() == 0 })
}

// TestRefusalCodesAreBounded: each code of the registry is counted as itself, and a broker that invents codes makes few
// series.
func TestRefusalCodesAreBounded(t *testing.T) {
	for _, d := range finding.All() {
		if code := string(d.Code); (codes{}).label(code) != code {
			t.Errorf("%s is counted as %q", code, (codes{}).label(code))
		}
	}
	c := codes{}
	for i := range 1000 {
		c.label(fmt.Sprint("Invented", i))
	}
	if len(c) != maxCodes || c.label("Invented0") != "Invented0" || c.label("Invented999") != "other" ||
		codes.label(codes{}, "no word\n") != "other" {
		t.Errorf("%d codes", len(c))
	}
}

func TestOnlyTheRightBrokerReceives(t *testing.T) {
	for name, test := range map[string]struct {
		cluster, part string
		want          string
	}{
		"another cluster's broker":        {"c3", "broker", "c3"},
		"another part of the cluster":     {"c2", "semaphorectl", "semaphorectl"},
		"a broker of an unknown trust":    {"c4", "broker", "c4"},
		"the exporter's own, as a broker": {"c1", "broker", "c1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "c2", "c3")
			source := b.trust
			if test.cluster == "c4" {
				source = trust.New(t, "c4")
				// c4 knows c1; c1 does not know c4.
				bundle, err := os.ReadFile(filepath.Join(b.trust.Bundles(), "c1.pem"))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(string(source), "bundles", "c1.pem"), bundle, 0o644))
			}
			wrong := newBroker(t, "c2", source.Source(t, test.cluster, test.part)).start()
			b.pod("secret", "10.1.1.1")
			p := b.publish(wrong)
			// A busy machine may have reported a connection that took too long before.
			testkit.Eventually(t, time.Minute, "the error names "+test.want, testkit.State(func() (bool, string) {
				got := p.Status().GetLastError()
				return strings.Contains(got, test.want), got
			}))
			if wrong.count("Hello") != 0 {
				t.Error("it received something")
			}
		})
	}
}

// TestOneBrokerCostsTheOthersNothing: c3 takes the stream and never says a word.
func TestOneBrokerCostsTheOthersNothing(t *testing.T) {
	b := newBench(t, "c2", "c3")
	c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker")).start()
	c3 := newBroker(t, "c3", b.trust.Source(t, "c3", "broker"))
	c3.hang = true
	c3.start()
	p3, p2 := b.publish(c3), b.publish(c2)
	b.pod("first", "10.1.1.1")
	within(t, "c2 has it", func() bool { return c2.held() == 1 && p2.Status().GetBehind() == 0 })
	if p3.Status().GetConnected() {
		t.Error("c3 has not said welcome, and counts as connected")
	}
	within(t, "the silence is reported", func() bool {
		return strings.Contains(p3.Status().GetLastError(), "the broker of c3 has not answered hello")
	})
	if !p2.Status().GetConnected() {
		t.Error("c2 is not connected")
	}
}

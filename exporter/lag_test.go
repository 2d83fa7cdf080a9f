package exporter

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// ahead is a broker with the real replica that claims to have received newer pods than the exporter has read.
type ahead struct {
	semaphorev1.UnimplementedFederationServiceServer
	claim *semaphorev1.KindState

	mu      sync.Mutex
	replica *replica.Replica
	hellos  [][]semaphorev1.Kind
	// ends maps a kind to the source revision at the end of its snapshot.
	ends map[semaphorev1.Kind]uint64
}

func (b *ahead) Publish(stream grpc.BidiStreamingServer[semaphorev1.PublishRequest,
	semaphorev1.PublishResponse]) error {
	session := b.replica.Open()
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		b.mu.Lock()
		if h := m.GetHello(); h != nil {
			b.hellos = append(b.hellos, h.GetKinds())
		}
		if end := m.GetSnapshotEnd(); end != nil {
			b.ends[end.GetKind()] = end.GetSourceRevision()
		}
		r, err := session.Receive(time.Now(), m)
		b.mu.Unlock()
		if err != nil {
			return err
		}
		for _, answer := range r.Responses {
			if w := answer.GetWelcome(); w != nil && slices.Contains(m.GetHello().GetKinds(), b.claim.GetKind()) {
				w.Held = append(w.Held, b.claim)
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

func (b *ahead) state() (hellos [][]semaphorev1.Kind, ends map[semaphorev1.Kind]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.hellos), maps.Clone(b.ends)
}

// TestF03AnApiserverThatLags checks an exporter that has read an older state than an earlier exporter sent. The broker
// receives nothing of that kind until a write has passed the revision, and other kinds as usual.
func TestF03AnApiserverThatLags(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	trust := trust.New(t, "c1", "c2")
	populate(t, admin)
	ns := kubetest.Get(t, admin.CoreV1().Namespaces(), metav1.NamespaceSystem)
	touch := func() uint64 {
		t.Helper()
		pod := kubetest.Get(t, admin.CoreV1().Pods("shop"), "web")
		pod.Status.Message += "."
		pod = kubetest.UpdateStatus(t, admin.CoreV1().Pods("shop"), pod)
		return revisionOf(t, pod)
	}
	needed := touch() + 100_000
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	b := &ahead{
		claim: &semaphorev1.KindState{Kind: kind, Objects: 1, Digest: make([]byte, 32), SourceId: string(ns.UID),
			SourceRevision: needed},
		replica: replica.New("c1", "c2", "test",
			func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) { return o, nil }),
		ends: map[semaphorev1.Kind]uint64{},
	}
	address := serve(t, trust, "c2", b, func(spiffeid.ID) error { return nil })

	t.Run("far behind", func(t *testing.T) {
		e := start(t, api, trust, address)
		within(t, "the other kinds are sent", func() bool {
			_, ends := b.state()
			return ends[semaphorev1.Kind_KIND_NODE] > 0 && ends[semaphorev1.Kind_KIND_SERVICE] > 0 &&
				ends[semaphorev1.Kind_KIND_ENDPOINT_SLICE] > 0
		})
		touch()
		time.Sleep(2 * time.Second)
		hellos, ends := b.state()
		if _, ok := ends[kind]; ok {
			t.Fatal("the broker received pods that may be old")
		}
		with := 0 // streams; a kind that the apiserver lists late makes another one before
		for _, kinds := range hellos {
			if slices.Contains(kinds, kind) {
				with++
			}
		}
		if with != 1 || slices.Contains(hellos[len(hellos)-1], kind) {
			t.Errorf("streams with the kinds %v, not one that found out and the last without the kind", hellos)
		}
		if p := strings.Join(e.status().GetProblems(), "\n"); !strings.Contains(p,
			"the apiserver lags: setmember has been read up to resourceVersion") {
			t.Errorf("problems are %q", p)
		}
		if _, text := e.get("/metrics"); !strings.Contains(text,
			`semaphore_exporter_apiserver_lags{cluster="c2",kind="setmember"} 1`) {
			t.Error("no metric shows that the apiserver lags")
		}
	})

	// As after a restore of etcd: no write passes the revision for a long time, and the status asks the operator to
	// confirm the state.
	t.Run("an etcd that was put back", func(t *testing.T) {
		e := start(t, api, trust, address)
		within(t, "the status says what to do", func() bool {
			return strings.Contains(strings.Join(e.status().GetProblems(), "\n"),
				"raise restores in the exporter's configuration")
		})
		e.stop()
		if _, ends := b.state(); ends[kind] > 0 {
			t.Fatal("the broker received pods that may be old")
		}
		again := start(t, api, trust, address, "restores: 1")
		within(t, "pods are sent, to a broker that was not restarted", func() bool {
			_, ends := b.state()
			return ends[kind] > 0
		})
		within(t, "there is no problem left", func() bool { return len(again.status().GetProblems()) == 0 })
		again.stop()
		b.mu.Lock()
		delete(b.ends, kind)
		b.mu.Unlock()
	})

	t.Run("until a write passes it", func(t *testing.T) {
		needed := touch() + 50
		b.mu.Lock()
		b.claim.SourceRevision = needed
		b.mu.Unlock()
		e := start(t, api, trust, address)
		within(t, "the exporter has found out", func() bool {
			return strings.Contains(strings.Join(e.status().GetProblems(), "\n"), "the apiserver lags")
		})
		if _, ends := b.state(); ends[kind] > 0 {
			t.Fatal("the broker received pods that may be old")
		}
		for touch() < needed {
		}
		within(t, "pods are sent, of a time after the write", func() bool {
			_, ends := b.state()
			return ends[kind] >= needed
		})
		within(t, "there is no problem left", func() bool { return len(e.status().GetProblems()) == 0 })
		if _, text := e.get("/metrics"); strings.Contains(text, `semaphore_exporter_apiserver_lags{`) {
			t.Error("a metric still shows that the apiserver lags")
		}
	})
}

func revisionOf(t *testing.T, pod *corev1.Pod) (n uint64) {
	t.Helper()
	for _, c := range pod.ResourceVersion {
		n = 10*n + uint64(c-'0')
	}
	return n
}

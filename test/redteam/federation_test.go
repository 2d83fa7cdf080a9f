package redteam

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // exporters compress what they send
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// remoteBroker is the broker of a remote, with its certificate. It welcomes each exporter's stream and acknowledges
// all of it. run may send the exporter bytes of its choice.
type remoteBroker struct {
	t       *testing.T
	cluster string
	address string
	run     func(ctx context.Context, send func([]byte) error)

	mu sync.Mutex
	// ips are the addresses of pods that the exporter has sent, and streams counts its streams.
	ips     map[string]string
	streams int
}

// serve runs the broker of a remote at an address that the RemoteCluster of the remote names.
func (v *victim) serve(cluster string, run func(ctx context.Context, send func([]byte) error)) *remoteBroker {
	v.t.Helper()
	source := trust.Dir(v.dir).Source(v.t, cluster, "broker")
	b := &remoteBroker{t: v.t, cluster: cluster, address: loopback.Address(v.t), run: run, ips: map[string]string{}}
	listener := testkit.Value((&net.ListenConfig{}).Listen(context.Background(), "tcp", b.address))(v.t)
	server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(b.handle),
		grpc.Creds(credentials.NewTLS(source.ServerTLS(func(spiffeid.ID) error { return nil }))))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	v.t.Cleanup(func() {
		server.Stop()
		<-done
	})
	v.remote(cluster).Spec.Broker.Address = b.address
	return b
}

func (b *remoteBroker) handle(_ any, call grpc.ServerStream) error {
	var sending sync.Mutex
	send := func(data []byte) error {
		sending.Lock()
		defer sending.Unlock()
		return call.SendMsg(data)
	}
	for {
		var data []byte
		if err := call.RecvMsg(&data); err != nil {
			return err
		}
		var m semaphorev1.PublishRequest
		if err := proto.Unmarshal(data, &m); err != nil {
			return err
		}
		if m.GetHello() != nil {
			b.mu.Lock()
			b.streams++
			b.mu.Unlock()
			if err := send(encode(b.t, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Welcome{
				Welcome: &semaphorev1.Welcome{Cluster: b.cluster, ProtocolVersion: 1}}})); err != nil {
				return err
			}
			if b.run != nil {
				go b.run(call.Context(), send)
			}
			continue
		}
		if revision := b.take(&m); revision > 0 {
			if err := send(encode(b.t, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Ack{
				Ack: &semaphorev1.Ack{Revision: revision}}})); err != nil {
				return err
			}
		}
	}
}

// take keeps the addresses in a message, and returns the revision to acknowledge, 0 for none.
func (b *remoteBroker) take(m *semaphorev1.PublishRequest) (revision uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range m.GetChanges().GetChanges() {
		if o := c.GetUpsert(); o.GetSetMember() != nil {
			b.ips[o.GetKey().GetName()] = strings.Join(o.GetSetMember().GetIps(), " ")
		}
		revision = c.GetRevision()
	}
	return max(revision, m.GetHeartbeat().GetSentRevision(), m.GetSnapshotEnd().GetRevision())
}

func (b *remoteBroker) ip(pod string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ips[pod]
}

// setIP writes the address of a pod of c1.
func (v *victim) setIP(pod, ip string) {
	v.t.Helper()
	p := testkit.Value(v.kube.CoreV1().Pods("shop").Get(v.t.Context(), pod, metav1.GetOptions{}))(v.t)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	testkit.Value(v.kube.CoreV1().Pods("shop").UpdateStatus(v.t.Context(), p, metav1.UpdateOptions{}))(v.t)
}

// TestHostileBrokerOfARemote floods the exporter with the shipped configuration with answers of a remote's broker, with
// texts, codes and names of the broker's choice, and then with messages that would be large once decoded. The exporter
// stays within stated bounds of memory, log lines and series. The broker of another remote receives changes meanwhile,
// on the stream that it had before.
func TestHostileBrokerOfARemote(t *testing.T) {
	const pods, most = 100, 32 << 20
	v := newVictim(t, "exporter")
	v.cfg["listen"] = map[string]any{"http": v.http, "debugSocket": v.path("exporter.sock")}
	kubetest.Namespace(t, v.kube, "shop")
	for i := range pods {
		testkit.Value(v.kube.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i),
				Labels: map[string]string{naming.DefaultLabelDomain + "/name": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{}))(t)
		v.setIP(fmt.Sprint("pod-", i), fmt.Sprintf("10.1.0.%d", i+1))
	}
	// The attack sends what next returns until that is nil.
	var mu sync.Mutex
	var next func() []byte
	sent, bytes := 0, 0
	hostile := v.serve("c2", func(ctx context.Context, send func([]byte) error) {
		for ctx.Err() == nil {
			mu.Lock()
			var data []byte
			if next != nil {
				data = next()
			}
			mu.Unlock()
			if data == nil {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if send(data) != nil {
				return
			}
			mu.Lock()
			sent, bytes = sent+1, bytes+len(data)
			mu.Unlock()
		}
	})
	attack := func(f func() []byte) {
		mu.Lock()
		defer mu.Unlock()
		next = f
	}
	honest := v.serve("c3", nil)
	v.run()
	v.eventually("both brokers have the pods", func() error {
		last := fmt.Sprint("pod-", pods-1)
		if hostile.ip(last) == "" || honest.ip(last) == "" {
			return fmt.Errorf("%q, %q", hostile.ip(last), honest.ip(last))
		}
		return nil
	})
	changes := 0
	// delivered measures how long n changes took from the apiserver to the other remote's broker.
	delivered := func(n int) time.Duration {
		var took []time.Duration
		for range n {
			changes++
			ip := fmt.Sprintf("10.1.%d.%d", 1+changes/250, 1+changes%250)
			begun := time.Now()
			v.setIP("pod-0", ip)
			for honest.ip("pod-0") != ip {
				if time.Since(begun) > patience {
					t.Fatalf("the other remote's broker has %s, not %s", honest.ip("pod-0"), ip)
				}
				time.Sleep(time.Millisecond)
			}
			took = append(took, time.Since(begun))
			time.Sleep(50 * time.Millisecond)
		}
		slices.Sort(took)
		t.Logf("a change reaches the other remote's broker after %s (median), %s at most", took[n/2], took[n-1])
		return took[n-1]
	}
	delivered(20)
	streamsOf := func(b *remoteBroker) int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.streams
	}
	atFirst := streamsOf(honest) // a kind that the apiserver lists late makes another one

	refusals := 0
	flood := func() []byte {
		refusals++
		text := strings.Repeat("x\n\x1b[31m", 8)
		if refusals%100 == 0 {
			text = strings.Repeat(text, 400)
		}
		key := &semaphorev1.ObjectKey{Kind: memberKind, Namespace: "shop", Name: fmt.Sprint("pod-", refusals%pods)}
		m := &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{Refusal: &semaphorev1.Refusal{
			Key: key, Revision: 1 << 40, Code: fmt.Sprint("code-", refusals), Reason: text}}}
		if refusals%2 == 0 {
			key = &semaphorev1.ObjectKey{Kind: serviceKind, Namespace: "shop", Name: fmt.Sprint("s-", refusals)}
			m = &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Outcome{Outcome: &semaphorev1.Outcome{
				Key: key, Code: fmt.Sprint("code-", refusals), Reason: text, Conflicts: []string{text}}}}
		}
		return encode(t, m)
	}
	began, ran := time.Now(), v.ran()
	v.costs("a flood of answers", most, func() {
		attack(flood)
		beside := kubetest.WriteBeside(t, v.kube)
		defer beside.Stop()
		if worst, late := delivered(100), beside.Late(); worst > maxAck+late {
			t.Errorf("beside the flood a change reached the other remote's broker after %s; %s is the most on a machine as "+
				"busy as this one", worst, maxAck+late)
		}
		attack(nil)
	})
	took := time.Since(began)
	t.Logf("%d answers of %d bytes in %s cost the exporter %.2f of a core", sent, bytes, took.Round(time.Millisecond),
		(v.ran()-ran).Seconds()/took.Seconds())
	data := testkit.Value(os.ReadFile(v.log))(t)
	lines := strings.Count(string(data), "the broker refuses an object")
	if bound := 21 + int(took/(3*time.Second)); lines > bound || lines == 0 {
		t.Errorf("%d refusals are logged, and %d is the most", lines, bound)
	}
	text := testkit.Value(v.get("/metrics"))(t)
	series := strings.Count(text, "semaphore_exporter_refused_total{")
	t.Logf("%d lines of the log and %d series for them; the log has %d bytes", lines, series, len(data))
	if series > 64 || series == 0 {
		t.Errorf("the broker has made %d series", series)
	}

	// Messages that would be large once decoded, and one that is large once it is unpacked, end the broker's stream.
	for _, large := range []struct {
		what, reason string
		data         []byte
	}{
		{"an answer that would be a hundred times as large", "once decoded",
			field(1, slices.Repeat([]byte{0x3a, 0}, 30<<10))},
		{"an answer of 16 MiB, packed", "larger than max", field(1, make([]byte, 16<<20))},
	} {
		before := streamsOf(hostile)
		v.costs(large.what, most, func() {
			data := large.data
			attack(func() []byte {
				once := data
				data = nil
				return once
			})
			v.eventually(large.what+" ends the stream", func() error {
				if streamsOf(hostile) == before {
					return fmt.Errorf("%d streams", before)
				}
				return nil
			})
			attack(nil)
		})
		if data, err := os.ReadFile(v.log); err != nil || !strings.Contains(string(data), large.reason) {
			t.Errorf("%s: the log does not say %q: %v", large.what, large.reason, err)
		}
	}
	delivered(5)
	if n := streamsOf(honest) - atFirst; n != 0 {
		t.Errorf("the other remote's broker has had %d streams more", n)
	}
}

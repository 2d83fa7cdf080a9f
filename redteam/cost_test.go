package redteam

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxAck bounds the p99 of another remote's acknowledgements. On a busy machine, broker and test also wait for CPU
// time, which delays all answers of the broker.
const maxAck = 250 * time.Millisecond

// upserts returns upserts whose revisions follow at.
func upserts(at uint64, objects ...*semaphorev1.Object) *semaphorev1.PublishRequest {
	var all []*semaphorev1.Change
	for i, o := range objects {
		all = append(all, upsert(at+uint64(i)+1, o))
	}
	return changesOf(all...)
}

// wideService is a global service with the maximum number of ports. wideSlice is one of its slices, with its own port
// numbers.
func wideService(ports int, first int32) *semaphorev1.Object {
	s := &semaphorev1.Service{Mirror: true, Global: true, Headless: true}
	for i := range ports {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("p%d", i), Protocol: "TCP", Port: first + int32(i)})
	}
	return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop",
		Name: "wide"}, Spec: &semaphorev1.Object_Service{Service: s}}
}

func wideSlice(i, ports int, ready bool) *semaphorev1.Object {
	s := &semaphorev1.EndpointSlice{Service: "wide", AddressType: "IPv4", Endpoints: []*semaphorev1.Endpoint{
		{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i>>8, i&255)}, Ready: &ready, Hostname: fmt.Sprint("h", i)},
	}}
	for p := range ports {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("p%d", p), Protocol: "TCP",
			Port: int32(1 + i*ports%60000 + p)})
	}
	return &semaphorev1.Object{
		Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: "shop",
			Name: fmt.Sprintf("wide-%d", i)},
		Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s},
	}
}

// TestAnotherRemoteIsAcknowledged checks that another remote's changes are acknowledged within a quarter of a second
// while one remote exports the costliest objects within its limits and changes them as fast as it may.
func TestAnotherRemoteIsAcknowledged(t *testing.T) {
	v := start(t)
	const ports, wide, nodes, members = 100, 1000, 14, 10_000
	kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SERVICE,
		semaphorev1.Kind_KIND_ENDPOINT_SLICE, semaphorev1.Kind_KIND_SET_MEMBER}
	worst := map[semaphorev1.Kind][]*semaphorev1.Object{semaphorev1.Kind_KIND_SERVICE: {wideService(ports, 1)}}
	for i := range wide {
		worst[semaphorev1.Kind_KIND_ENDPOINT_SLICE] = append(worst[semaphorev1.Kind_KIND_ENDPOINT_SLICE],
			wideSlice(i, ports, true))
	}
	cidrs := func(n int, first string) (all []string) {
		if first != "" {
			all = append(all, first)
		}
		for i := range 60 { // of limits.podCIDRsPerNode, 64
			all = append(all, fmt.Sprintf("10.2.%d.%d/32", n*16+i>>8, i&255))
		}
		return all
	}
	for n := range nodes {
		worst[semaphorev1.Kind_KIND_NODE] = append(worst[semaphorev1.Kind_KIND_NODE],
			node("c2", fmt.Sprintf("n%02d", n), byte(n+1), cidrs(n, "")...))
	}
	for i := range members {
		worst[semaphorev1.Kind_KIND_SET_MEMBER] = append(worst[semaphorev1.Kind_KIND_SET_MEMBER],
			member(i, fmt.Sprintf("10.2.%d.%d", 64+i>>8, i&255)))
	}
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	s := v.publish("c3")
	s.tell(hello("c3", "e1", 1, kind))
	s.tell(snapshot(kind, 1)...)
	s.acked(1)
	at := uint64(1)
	// acknowledgements measures n answers: their p99, the same without the time spent waiting for CPU, and the time of
	// /healthz right after each, for which the broker needs none of its state.
	acknowledgements := func(n int) (p99, ran, direct time.Duration) {
		var took, without, beside []time.Duration
		waited := func() time.Duration {
			_, broker := scheduled(t, v.PID)
			_, test := scheduled(t, os.Getpid())
			return broker + test
		}
		for range n {
			at++
			before, begun := waited(), time.Now()
			s.tell(upserts(at-1, member(int(at), fmt.Sprintf("10.3.0.%d", at%200))))
			s.acked(at)
			all := time.Since(begun)
			took, without = append(took, all), append(without, max(0, all-(waited()-before)))
			begun = time.Now()
			if _, err := v.get("/healthz"); err != nil {
				t.Fatal(err)
			}
			beside = append(beside, time.Since(begun))
			time.Sleep(20 * time.Millisecond)
		}
		slices.Sort(took)
		slices.Sort(without)
		slices.Sort(beside)
		t.Logf("acknowledgements: median %s, p99 %s, longest %s; /healthz: p99 %s", took[n/2], took[n*99/100], took[n-1],
			beside[n*99/100])
		return took[n*99/100], without[n*99/100], beside[n*99/100]
	}
	acknowledgements(100) // without the other remote

	a := v.publish("c2")
	const head = 100_000
	a.tell(hello("c2", "e1", head, kinds...))
	for _, kind := range kinds {
		a.tell(snapshot(kind, head, worst[kind]...)...)
	}
	go func() { // its acknowledgements
		for {
			if _, err := a.next(time.Hour); err != nil {
				return
			}
		}
	}()
	sent := make(chan int, 1)
	stop := make(chan struct{})
	go func() {
		n := 0
		defer func() { sent <- n }()
		for at := uint64(2); ; at++ {
			odd := at%2 == 0
			first := ""
			if odd {
				first = "10.2.0.0/16" // 10.2.0.0/16 covers the CIDRs of all other nodes
			}
			m := upserts(head+8*at, wideSlice(int(at)%wide, ports, odd), wideService(ports, 1+int32(at%2)),
				node("c2", "n00", 1, cidrs(0, first)...),
				member(int(at)%members, fmt.Sprintf("10.2.200.%d", at%200)))
			if a.call.SendMsg(encode(t, m)) != nil {
				return
			}
			n++
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	p99, ran, direct := acknowledgements(300)
	close(stop)
	a.cancel()
	t.Logf("that was beside %d messages of the worst remote", <-sent)
	if ran > maxAck {
		t.Errorf("p99 of another remote's acknowledgements is %s without waits for a processor; %s is the most", ran, maxAck)
	}
	// Allow as many steps as kubetest.Beside does: each may wait for CPU time.
	if p99 > maxAck+5*direct {
		t.Errorf("p99 of another remote's acknowledgements is %s, while /healthz takes %s", p99, direct)
	}
}

// TestAnotherRemoteIsWritten checks that another remote's Service is written immediately while hundreds of objects of
// one remote fail and are retried. A failure of the other remote is logged, and its retries are not delayed.
func TestAnotherRemoteIsWritten(t *testing.T) {
	const failing = 500
	v := start(t)
	foreign := func(name string) {
		t.Helper()
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}}
		if _, err := v.kube.CoreV1().Services("semaphore").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var all []*semaphorev1.Object
	for i := range failing {
		all = append(all, service(fmt.Sprint("s", i), 1))
		foreign(fmt.Sprint("c2-shop-73736d-s", i))
	}
	begun := time.Now()
	foreign("c3-shop-73736d-taken")
	direct := time.Since(begun)
	s := v.publish("c2")
	s.tell(hello("c2", "e1", failing, serviceKind))
	s.tell(snapshot(serviceKind, failing, all...)...)
	s.acked(failing)
	v.eventuallyWithin(10*time.Minute, "all of them have failed", func() error {
		if n := v.metric("semaphore_broker_writes_total", `kind="service"`, `result="foreign"`); n < failing {
			return fmt.Errorf("%v failures", n)
		}
		return nil
	})
	honest := v.publish("c3")
	honest.tell(hello("c3", "e1", 10, serviceKind))
	told := time.Now()
	honest.tell(snapshot(serviceKind, 10, service("good", 1), service("taken", 1))...)
	honest.acked(10)
	// written compares with the time of a write on this machine. An object queued behind the failing ones, which are
	// retried ten times a second, would wait for half a minute.
	written := func(within time.Duration, name string) {
		t.Helper()
		beside := kubetest.WriteBeside(t, v.kube)
		defer beside.Stop()
		v.eventually("another remote's Service "+name, func() error {
			o, err := v.kube.CoreV1().Services("semaphore").Get(t.Context(), "c3-shop-73736d-"+name, metav1.GetOptions{})
			if err == nil && o.Labels["app.kubernetes.io/managed-by"] == "" {
				err = errors.New("it is not ours")
			}
			return err
		})
		took, late := time.Since(told), beside.Late()
		t.Logf("beside %d Services of another remote that cannot be written, %s was written after %s", failing, name, took)
		if most := within + max(20*direct, late); took > most {
			t.Errorf("%s was written after %s; %s is the most on a machine as busy as this one", name, took, most)
		}
	}
	written(2*time.Second, "good")
	v.eventually("the failure is logged", func() error {
		if data, _ := os.ReadFile(v.log); !regexp.MustCompile(`level=WARN msg="reconcile failed.*key=c3-shop-73736d-taken`).
			Match(data) {
			return errors.New("it is not")
		}
		return nil
	})
	if err := v.kube.CoreV1().Services("semaphore").Delete(t.Context(), "c3-shop-73736d-taken",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	told = time.Now()
	written(5*time.Second, "taken")
}

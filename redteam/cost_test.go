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

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxAck is what another remote's acknowledgement takes at most, of a hundred the worst but one.
const maxAck = 250 * time.Millisecond

// upserts are changes whose revisions follow at.
func upserts(at uint64, objects ...*semaphorev1.Object) *semaphorev1.PublishRequest {
	var all []*semaphorev1.Change
	for i, o := range objects {
		all = append(all, upsert(at+uint64(i)+1, o))
	}
	return changesOf(all...)
}

// wideService is a global service of as many ports as one may have, and wideSlice one of its slices, whose ports have
// numbers of their own.
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

// TestAnotherRemoteIsAcknowledged: beside a remote that exports the costliest objects that its limits allow, and
// changes them as fast as it may, another one's changes are acknowledged within a quarter of a second.
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
	acknowledgements := func(n int) (median, p99, worst time.Duration) {
		var took []time.Duration
		for range n {
			at++
			begun := time.Now()
			s.tell(upserts(at-1, member(int(at), fmt.Sprintf("10.3.0.%d", at%200))))
			s.acked(at)
			took = append(took, time.Since(begun))
			time.Sleep(20 * time.Millisecond)
		}
		slices.Sort(took)
		return took[n/2], took[n*99/100], took[n-1]
	}
	median, p99, longest := acknowledgements(100)
	t.Logf("without the other remote: median %s, p99 %s, longest %s", median, p99, longest)

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
				first = "10.2.0.0/16" // over those of all others, or not
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
	median, p99, longest = acknowledgements(300)
	close(stop)
	a.cancel()
	t.Logf("beside %d messages of the worst remote: median %s, p99 %s, longest %s", <-sent, median, p99, longest)
	if p99 > maxAck {
		t.Errorf("p99 of another remote's acknowledgements is %s; %s is the most", p99, maxAck)
	}
}

// TestAnotherRemoteIsWritten: beside a remote of which hundreds of objects cannot be written, and are tried again and
// again, another's Service is written at once, its failure is logged, and it is tried again as if it were alone.
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
	foreign("c3-shop-73736d-taken")
	s := v.publish("c2")
	s.tell(hello("c2", "e1", failing, serviceKind))
	s.tell(snapshot(serviceKind, failing, all...)...)
	s.acked(failing)
	v.eventually("all of them have failed", func() error {
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
	written := func(within time.Duration, name string) {
		t.Helper()
		v.eventuallyWithin(within, "another remote's Service "+name, func() error {
			o, err := v.kube.CoreV1().Services("semaphore").Get(t.Context(), "c3-shop-73736d-"+name, metav1.GetOptions{})
			if err == nil && o.Labels["app.kubernetes.io/managed-by"] == "" {
				err = errors.New("it is not ours")
			}
			return err
		})
		t.Logf("beside %d Services of another remote that cannot be written, %s was written after %s", failing, name,
			time.Since(told))
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

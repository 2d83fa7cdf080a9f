package redteam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// maxAck bounds the p99 of another remote's acknowledgements. On a busy machine, broker and test also wait for CPU
// time, which delays all answers of the broker.
const maxAck = 250 * time.Millisecond

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

// withMCS enables the Multi-Cluster Services API.
func withMCS(v *victim) {
	_, err := mcs.ApplyDefinitions(v.t.Context(), dynamic.NewForConfigOrDie(v.rest))
	if err == nil {
		_, err = v.kube.CoreV1().Namespaces().Create(v.t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	}
	testkit.Must(v.t, err)
	v.cfg["mcs"] = map[string]any{"enabled": true}
}

// export is an exported Service with as many annotations as are taken, of 16 KiB in all.
func export(i, version int) *semaphorev1.Object {
	m := &semaphorev1.MultiClusterExport{}
	for n := range 64 {
		m.Annotations = append(m.Annotations, &semaphorev1.Annotation{Key: fmt.Sprintf("example.org/a%02d", n),
			Value: strings.Repeat(fmt.Sprint(version%10), 230)})
	}
	o := service(fmt.Sprint("export-", i), 100)
	o.GetService().Mirror, o.GetService().MultiCluster = false, m
	return o
}

// worst is the costliest remote that the shipped limits allow: 160 nodes of 60 pod CIDRs, a global Service of 100 ports
// with 10,000 slices of which no two have the same ports, a set of 100,000 pods, and 999 exports of 100 ports and
// annotations of 16 KiB.
type worst struct{ slices, nodes, members, exports int }

var worstOfLimits = worst{slices: 10_000, nodes: 160, members: 100_000, exports: 999}

// node is a node with 60 pod CIDRs, and one that precedes them unless it is empty.
func (w worst) node(n int, first string) *semaphorev1.Object {
	o := node("c2", fmt.Sprintf("n%03d", n), byte(n+1))
	o.GetNode().GetWireguard().Address = fmt.Sprintf("192.0.2.%d:%d", 17+n%14, 51820+n/14)
	if first != "" {
		o.GetNode().PodCidrs = append(o.GetNode().PodCidrs, first)
	}
	for i := range 60 { // of limits.podCIDRsPerNode, 64
		at := n*60 + i
		o.GetNode().PodCidrs = append(o.GetNode().PodCidrs, fmt.Sprintf("10.2.%d.%d/32", at>>8, at&255))
	}
	return o
}

// member is a pod of the set, at one of two addresses.
func (w worst) member(i, version int) *semaphorev1.Object {
	at := i + version%2*w.members
	return member(i, fmt.Sprintf("10.2.%d.%d", at>>8&255, at&255))
}

// snapshot is all of the remote.
func (w worst) snapshot(head uint64) []*semaphorev1.PublishRequest {
	objects := []*semaphorev1.Object{wideService(widePorts, 1)}
	for i := range w.nodes {
		objects = append(objects, w.node(i, ""))
	}
	for i := range w.exports {
		objects = append(objects, export(i, 0))
	}
	for i := range w.slices {
		objects = append(objects, wideSlice(i, widePorts, true))
	}
	for i := range w.members {
		objects = append(objects, w.member(i, 0))
	}
	return players.Snapshots(players.AllKinds, head, objects...)
}

// change changes one object of each kind. The first node claims the subnet of all others' pod CIDRs, and releases it.
func (w worst) change(head uint64, n int) *semaphorev1.PublishRequest {
	first := ""
	if n%2 == 0 {
		first = "10.2.0.0/16"
	}
	return players.Upserts(head+8*uint64(n)+1, wideSlice(n%w.slices, widePorts, n%2 == 0),
		wideService(widePorts, 1+int32(n%2)),
		w.node(0, first), w.member(n%w.members, 1+n/w.members), export(n%w.exports, 1+n))
}

const widePorts = 100

// modest is a change of an object of each kind by another remote.
func modest(version int) []*semaphorev1.Object {
	ip := fmt.Sprintf("10.3.0.%d", version%200)
	endpoints := slice("modest", 1, 1)
	endpoints.GetEndpointSlice().Endpoints[0].Addresses = []string{ip}
	return []*semaphorev1.Object{node("c3", "modest", 1, fmt.Sprintf("10.3.%d.0/24", 100+version%2)),
		service("modest", 1+version%2), endpoints, member(1, ip)}
}

// TestAnotherRemoteIsAcknowledged checks that the broker works for less than a quarter of a second before it
// acknowledges another remote's changes, while one remote exports the costliest objects within the shipped limits, and
// then changes them as fast as it may.
func TestAnotherRemoteIsAcknowledged(t *testing.T) {
	v := start(t, withMCS)
	slicesOf := v.kube.DiscoveryV1().EndpointSlices("semaphore")
	direct := testkit.Value(slicesOf.Create(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Name: "direct", Labels: map[string]string{discoveryv1.LabelServiceName: "direct"}},
		AddressType: discoveryv1.AddressTypeIPv4}, metav1.CreateOptions{}))(t)
	none := testkit.Value(slicesOf.List(t.Context(), metav1.ListOptions{}))(t)
	// A busy apiserver ends watches.
	mirror := testkit.Value(watchtools.NewRetryWatcherWithContext(t.Context(), none.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = discoveryv1.LabelServiceName + " in (direct, c3-shop-73736d-modest)"
			return slicesOf.Watch(ctx, options)
		}}))(t)
	defer mirror.Stop()
	written := func(service, address string) {
		for e := range mirror.ResultChan() {
			s, ok := e.Object.(*discoveryv1.EndpointSlice)
			if ok && s.Labels[discoveryv1.LabelServiceName] == service && len(s.Endpoints) > 0 &&
				s.Endpoints[0].Addresses[0] == address {
				return
			}
		}
		t.Fatal("the watch of the mirror's slices ended")
	}
	s, _ := v.sends("c3", "e1", 1, players.AllKinds)
	at := uint64(1)
	// acknowledgements asks for n answers. The broker's work before one is at most its computation until then, and at most
	// the time that passes without waits for a processor. On a busy machine the first grows where this test is late, and
	// the second where a goroutine waits for another one. /healthz right after each needs no state of the broker.
	acknowledgements := func(when string, n int, more func() bool) {
		t.Helper()
		var took, before, beside, until, floor []time.Duration
		for asked := 0; asked < n || more(); asked++ {
			changed := modest(int(at)) // each feature's engine gets one of them
			cpu, waits := scheduled(t, v.PID)
			_, own := scheduled(t, os.Getpid())
			begun := time.Now()
			s.tell(players.Upserts(at+1, changed...))
			at += uint64(len(changed))
			s.acked(at)
			took = append(took, time.Since(begun))
			cpuThen, waitsThen := scheduled(t, v.PID)
			_, ownThen := scheduled(t, os.Getpid())
			ran := max(0, took[len(took)-1]-(waitsThen-waits)-(ownThen-own))
			before = append(before, min(cpuThen-cpu, ran))
			if asked%10 == 0 { // a write takes fifty times as long as an acknowledgement
				address := changed[2].GetEndpointSlice().Endpoints[0].Addresses[0]
				written("c3-shop-73736d-modest", address)
				until = append(until, time.Since(begun))
				begun = time.Now()
				direct.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}}}
				direct = testkit.Value(slicesOf.Update(t.Context(), direct, metav1.UpdateOptions{}))(t)
				written("direct", address)
				floor = append(floor, time.Since(begun))
			}
			begun = time.Now()
			testkit.Value(v.get("/healthz"))(t)
			beside = append(beside, time.Since(begun))
			time.Sleep(20 * time.Millisecond)
		}
		slices.Sort(took)
		slices.Sort(before)
		slices.Sort(beside)
		slices.Sort(until)
		slices.Sort(floor)
		n = len(took)
		p99, work, healthz := took[n*99/100], before[n*99/100], beside[n*99/100]
		t.Logf("%s: %d acknowledgements: median %s, p99 %s, longest %s; the broker's work before one: p99 %s; "+
			"/healthz: p99 %s; written, at the watch: median %s, p99 %s; a direct write: %s, %s", when, n, took[n/2], p99,
			took[n-1], work, healthz, until[len(until)/2], until[len(until)*99/100], floor[len(floor)/2],
			floor[len(floor)*99/100])
		if work > maxAck {
			t.Errorf("%s: the broker works for %s (p99) before it acknowledges another remote's change; %s is the most",
				when, work, maxAck)
		}
	}
	enough := func() bool { return false }
	acknowledgements("without the other remote", 30, enough)

	const head = 1_000_000
	// Made before the stream begins: on a busy machine that takes longer than a broker waits for the hello.
	first := append([]*semaphorev1.PublishRequest{hello("c2", "e1", head, players.AllKinds...)},
		worstOfLimits.snapshot(head)...)
	a := v.publish("c2")
	taken := make(chan int, 1)
	go func() { // its acknowledgements and refusals
		refused := 0
		for {
			m, err := a.next(time.Hour)
			if err != nil {
				return
			}
			if m.GetRefusal() != nil {
				refused++
			}
			if m.GetAck().GetRevision() >= head {
				select {
				case taken <- refused:
				default:
				}
			}
		}
	}()
	sent := make(chan int, 1)
	begin, stop := make(chan struct{}), make(chan struct{})
	go func() {
		n := 0
		defer func() { sent <- n }()
		for _, m := range first {
			if a.call.SendMsg(encode(t, m)) != nil {
				return
			}
		}
		<-begin
		for ; ; n++ {
			if a.call.SendMsg(encode(t, worstOfLimits.change(head, n+1))) != nil {
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	begun := time.Now()
	acknowledgements("while it sends its first snapshot", 100, func() bool {
		return len(taken) == 0 && time.Since(begun) < patience
	})
	select {
	case refused := <-taken:
		t.Logf("its snapshot was taken after %s, %d objects were refused", time.Since(begun).Round(time.Millisecond), refused)
		if refused > 0 {
			t.Errorf("%d objects of the worst remote are refused: it is not within the limits", refused)
		}
	default:
		t.Fatal("its snapshot is not taken")
	}
	close(begin)
	all := 50 // beside it, no other test gets what it needs of the processors
	if tier.All() {
		all = 300
	}
	acknowledgements("while it changes all", all, enough)
	close(stop)
	a.cancel()
	t.Logf("that was beside %d messages of the worst remote", <-sent)
}

// TestAnotherRemoteIsWritten checks that another remote's Service is written before most of the hundreds of objects of
// one remote that fail are retried. A failure of the other remote is logged, and its retries are not delayed.
func TestAnotherRemoteIsWritten(t *testing.T) {
	const failing = 200
	v := start(t)
	foreign := func(name string) {
		t.Helper()
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}}
		testkit.Value(v.kube.CoreV1().Services("semaphore").Create(t.Context(), o, metav1.CreateOptions{}))(t)
	}
	var all []*semaphorev1.Object
	for i := range failing {
		all = append(all, service(fmt.Sprint("s", i), 1))
		foreign(fmt.Sprint("c2-shop-73736d-s", i))
	}
	foreign("c3-shop-73736d-taken")
	v.sends("c2", "e1", failing, ofServices, all...)
	failures := func() float64 {
		return v.metric("semaphore_broker_writes_total", `kind="service"`, `result="foreign"`)
	}
	testkit.Eventually(t, 10*time.Minute, "all of them have failed", func() error {
		if n := failures(); n < failing {
			return fmt.Errorf("%v failures", n)
		}
		return nil
	})
	before := failures()
	v.sends("c3", "e1", 10, ofServices, service("good", 1), service("taken", 1))
	// written counts the retries meanwhile: an object queued behind the failing ones would wait for all of them.
	written := func(name string) {
		t.Helper()
		v.eventually("another remote's Service "+name, func() error {
			o, err := v.kube.CoreV1().Services("semaphore").Get(t.Context(), "c3-shop-73736d-"+name, metav1.GetOptions{})
			if err == nil && o.Labels["app.kubernetes.io/managed-by"] == "" {
				err = errors.New("it is not ours")
			}
			return err
		})
		retries := failures() - before
		t.Logf("beside %d Services of another remote that cannot be written, %s was written after %v retries", failing,
			name, retries)
		if retries > failing/2 {
			t.Errorf("%s was written after %v of %d Services of another remote were retried", name, retries, failing)
		}
	}
	written("good")
	v.eventually("the failure is logged", func() error {
		if data, _ := os.ReadFile(v.log); !regexp.MustCompile(
			`"level":"WARN","msg":"reconcile failed.*"key":"c3-shop-73736d-taken"`).Match(data) {
			return errors.New("it is not")
		}
		return nil
	})
	testkit.Must(t, v.kube.CoreV1().Services("semaphore").Delete(t.Context(), "c3-shop-73736d-taken",
		metav1.DeleteOptions{}))
	before = failures()
	written("taken")
}

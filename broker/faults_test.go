package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// shopOf returns services s0 to s(n-1) of c2 with one endpoint each.
func shopOf(n int) (all []*semaphorev1.Object) {
	for i := range n {
		name := fmt.Sprint("s", i)
		all = append(all, players.Service("shop", name, 80), players.Slice("shop", name+"-x", name,
			fmt.Sprint("10.2.1.", i+1)))
	}
	return all
}

func mirrorOf(name string) string { return "c2-shop-73736d-" + name }

// TestServicesUnderAPIServerFaults covers what an apiserver and other writers do to the Services and slices of a
// broker.
func TestServicesUnderAPIServerFaults(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	stop := w.start(w.cfg)
	e := w.exporter("c2")
	e.SendAll("c2", "e1", shopOf(3)...)
	w.has("the mirrors", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	w.made(t, mirrorOf("s0"), mirrorOf("s1"), mirrorOf("s2"))
	revision := uint64(100)
	send := func(objects ...*semaphorev1.Object) {
		t.Helper()
		e.Send(players.Upserts(revision+1, objects...))
		revision += uint64(len(objects))
		e.Acked(revision)
	}
	t.Run("F35 changed by hand", func(t *testing.T) { w.changedByHand(t) })
	t.Run("F14 and F15 an address is another pod's", func(t *testing.T) { w.reused(t, send) })
	t.Run("F36 refused", func(t *testing.T) { w.refusedObjects(t, send) })
	t.Run("someone else's Service", func(t *testing.T) { w.foreign(t, send) })
	e.Cancel()
	stop()
	t.Run("F2 restarts write nothing", func(t *testing.T) { w.restarts(t) })
	t.Run("F36 the namespace is going", func(t *testing.T) { w.terminating(t) })
}

// made waits for Services, which may be written after their slices.
func (w *world) made(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, name, func() (bool, string) {
			_, err := w.admin.CoreV1().Services("semaphore").Get(t.Context(), name, metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		})
	}
}

// changedByHand checks that edited or deleted objects are restored within a second, and that an Event names who changed
// them. Labels of others stay.
func (w *world) changedByHand(t *testing.T) {
	ctx := t.Context()
	services, slices := w.admin.CoreV1().Services("semaphore"), w.admin.DiscoveryV1().EndpointSlices("semaphore")
	service := func() string {
		s, err := services.Get(ctx, mirrorOf("s0"), metav1.GetOptions{})
		delete(s.Labels, "team")
		return text(t, err, s.Spec.Ports, s.Spec.Selector, s.Spec.ExternalIPs, s.Spec.InternalTrafficPolicy, s.Labels)
	}
	name := func() string { return w.sliceOf(t, mirrorOf("s0")).Name }
	slice := func() string {
		s, err := slices.Get(ctx, name(), metav1.GetOptions{})
		return text(t, err, s.Endpoints, s.Ports, s.Labels)
	}
	patchService := func(body string) func() error {
		return func() error {
			_, err := services.Patch(ctx, mirrorOf("s0"), types.MergePatchType, []byte(body),
				metav1.PatchOptions{FieldManager: "by-hand"})
			return err
		}
	}
	// A team's own label is not removed.
	testkit.Must(t, patchService(`{"metadata":{"labels":{"team":"shop"}}}`)())
	for _, c := range []struct {
		name string
		is   func() string
		do   func() error
	}{
		{"a Service edited", service,
			patchService(`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"x"}},"spec":{"selector":` +
				`{"app":"mine"},"externalIPs":["192.0.2.1"],"ports":[{"name":"p80","port":81,"protocol":"TCP"}]}}`)},
		{"a Service without its label", service,
			patchService(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`)},
		{"a Service of which only local endpoints count", service,
			patchService(`{"spec":{"internalTrafficPolicy":"Local"}}`)},
		{"a Service deleted", service, func() error { return services.Delete(ctx, mirrorOf("s0"), metav1.DeleteOptions{}) }},
		{"a slice edited", slice, func() error {
			_, err := slices.Patch(ctx, name(), types.MergePatchType, []byte(`{"endpoints":[{"addresses":["10.2.9.9"]}]}`),
				metav1.PatchOptions{})
			return err
		}},
		{"a slice without its label", slice, func() error {
			_, err := slices.Patch(ctx, name(), types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"kubernetes.io/service-name":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"a slice that is nobody's", slice, func() error {
			_, err := slices.Patch(ctx, name(), types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`), metav1.PatchOptions{})
			return err
		}},
		{"a slice deleted", slice, func() error { return slices.Delete(ctx, name(), metav1.DeleteOptions{}) }},
	} {
		before := c.is()
		began := time.Now()
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		kubetest.Promptly(t, w.admin, time.Second, c.name, testkit.State(func() (bool, string) {
			now := w.settledText(t, c.is)
			return now == before, now
		}))
		t.Logf("%s: as before after %s", c.name, time.Since(began).Round(time.Millisecond))
	}
	for _, words := range [][]string{{"service " + mirrorOf("s0"), "by-hand", "spec.ports"},
		{"service " + mirrorOf("s0"), "metadata.labels[app.kubernetes.io/managed-by]"},
		{"service " + mirrorOf("s0"), "the object, which is deleted"}, {"endpointslice "}} {
		w.event(t, "Restored", words...)
	}
}

// text returns objects in readable form, or the error.
func text(t *testing.T, err error, objects ...any) string {
	t.Helper()
	if err != nil {
		return err.Error()
	}
	return string(testkit.Value(json.Marshal(objects))(t))
}

// settledText returns the result of f, or why it is not available now.
func (w *world) settledText(t *testing.T, f func() string) (out string) {
	t.Helper()
	if len(w.slicesOf(t, mirrorOf("s0"))) != 1 {
		return "no slice"
	}
	return f()
}

func (w *world) slicesOf(t *testing.T, service string) []discoveryv1.EndpointSlice {
	t.Helper()
	all := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("semaphore").List(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}))(t)
	return all.Items
}

func (w *world) sliceOf(t *testing.T, service string) *discoveryv1.EndpointSlice {
	t.Helper()
	all := w.slicesOf(t, service)
	if len(all) != 1 {
		t.Fatalf("%s has %d slices", service, len(all))
	}
	return &all[0]
}

// reused checks that an address moves to another pod in the same service, and to another service, sent in each order.
func (w *world) reused(t *testing.T, send func(...*semaphorev1.Object)) {
	// A watch of the slices shows that the service keeps the address all the time.
	watch := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("semaphore").Watch(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + mirrorOf("s1")}))(t)
	var mu sync.Mutex
	held := map[string][]string{} // addresses by slice
	var lost []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			s, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			mu.Lock()
			held[s.Name] = nil
			if event.Type != "DELETED" {
				for _, e := range s.Endpoints {
					held[s.Name] = append(held[s.Name], e.Addresses...)
				}
			}
			found := false
			for _, addresses := range held {
				found = found || slices.Contains(addresses, "10.2.1.2")
			}
			if !found {
				lost = append(lost, fmt.Sprint(event.Type, " ", s.Name, " ", held))
			}
			mu.Unlock()
		}
	}()
	// In the same service: added to another slice of the source, and then removed from the first.
	send(players.Slice("shop", "s1-y", "s1", "10.2.1.2", "10.2.1.20"))
	w.has("one more", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s1 c2 "+
		"10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	send(players.Slice("shop", "s1-x", "s1", "10.2.1.21"))
	w.has("another instead", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s1 c2 "+
		"10.2.1.20+\nc2-shop-73736d-s1 c2 10.2.1.21+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	// Removed from one slice and added to another in one message, in the less favorable order.
	send(players.Slice("shop", "s1-y", "s1", "10.2.1.20"), players.Slice("shop", "s1-x", "s1", "10.2.1.2"))
	w.has("moved", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s1 c2 "+
		"10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	watch.Stop()
	<-done
	if len(lost) > 0 {
		t.Errorf("10.2.1.2 was not in any slice: %v", lost)
	}
	// To another service: the new one is sent first, and then the old one first.
	send(players.Slice("shop", "s2-x", "s2", "10.2.1.3", "10.2.1.20"))
	w.has("in both, as the source has it", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 "+
		"10.2.1.2+\nc2-shop-73736d-s1 c2 10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	send(players.Slice("shop", "s1-y", "s1"))
	w.has("out of the old one", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s2 c2 "+
		"10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	send(players.Slice("shop", "s2-x", "s2", "10.2.1.3"), players.Slice("shop", "s1-y", "s1", "10.2.1.20"))
	w.has("back", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s1 c2 "+
		"10.2.1.20+\nc2-shop-73736d-s2 c2 10.2.1.3+")
	send(shopOf(3)...)
	send(players.Slice("shop", "s1-y", "s1"))
	w.has("as at first", "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s1 c2 10.2.1.2+\nc2-shop-73736d-s2 c2 10.2.1.3+")
}

// onMirrors are operations on Services and slices.
func onMirrors(operations ...admissionv1.OperationType) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{Operations: operations, Rule: admissionv1.Rule{
		APIGroups: []string{"", "discovery.k8s.io"}, APIVersions: []string{"v1"},
		Resources: []string{"services", "endpointslices"}}}
}

// refusedObjects checks one object each that a quota and an admission policy refuse. Only that object waits, it is
// reported, and it is written when it is allowed.
func (w *world) refusedObjects(t *testing.T, send func(...*semaphorev1.Object)) {
	ctx := t.Context()
	allow := kubetest.Refuse(t, w.admin, onMirrors(admissionv1.Create, admissionv1.Update),
		"!object.metadata.name.startsWith('c2-shop-73736d-s3')", "s3 is not for us")
	eventually(t, "the policy holds", func() (bool, string) {
		probe := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: mirrorOf("s3")},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
		_, err := w.admin.CoreV1().Services("semaphore").Create(ctx, probe,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "s3 is not for us"), fmt.Sprint(err)
	})
	send(append(shopOf(5)[6:], players.Slice("shop", "s0-x", "s0", "10.2.1.1", "10.2.1.11"))...)
	rest := "c2-shop-73736d-s0 c2 10.2.1.1+\nc2-shop-73736d-s0 c2 10.2.1.11+\nc2-shop-73736d-s1 c2 " +
		"10.2.1.2+\nc2-shop-73736d-s2 c2 10.2.1.3+\nc2-shop-73736d-s4 c2 10.2.1.5+"
	w.has("the rest", rest)
	w.reported(t, "WriteFailed", mirrorOf("s3"), "s3 is not for us")
	// Its backoff grows, and other objects do not wait for it. A change of it is tried at most once a second.
	requests, began := w.failures(t, "error"), time.Now()
	for i := range 30 {
		send(players.Service("shop", "s3", 80+int32(i)%2), players.Slice("shop", "s3-x", "s3", fmt.Sprint("10.2.5.", i+1)))
		time.Sleep(100 * time.Millisecond)
	}
	more, passed := w.failures(t, "error")-requests, time.Since(began)
	if more > 2*(1+passed.Seconds()) {
		t.Errorf("%v attempts for two objects that change all the time, in %s", more, passed)
	}
	send(shopOf(5)[6:8]...)
	allow()
	w.has("let in",
		strings.Replace(rest, "\nc2-shop-73736d-s4", "\nc2-shop-73736d-s3 c2 10.2.1.4+\nc2-shop-73736d-s4", 1))
	w.unreported(t, mirrorOf("s3"))

	// Without a quota controller, the apiserver counts the usage from the quota's status.
	quota := kubetest.Create(t, w.admin.CoreV1().ResourceQuotas("semaphore"), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"services": resource.MustParse("6")}},
	})
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard,
		Used: corev1.ResourceList{"services": resource.MustParse("5")}}
	kubetest.UpdateStatus(t, w.admin.CoreV1().ResourceQuotas("semaphore"), quota)
	eventually(t, "the quota is full", func() (bool, string) {
		// The first fits.
		probe := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
		_, err := w.admin.CoreV1().Services("semaphore").Create(ctx, probe, metav1.CreateOptions{})
		return err != nil && strings.Contains(err.Error(), "exceeded quota"), fmt.Sprint(err)
	})
	send(append(shopOf(6)[10:], players.Slice("shop", "s0-x", "s0", "10.2.1.1"))...)
	w.reported(t, "WriteFailed", mirrorOf("s5"), "exceeded quota")
	eventually(t, "slices flow", func() (bool, string) {
		got := w.endpoints()
		return !strings.Contains(got, "10.2.1.11"), got
	})
	testkit.Must(t, w.admin.CoreV1().ResourceQuotas("semaphore").Delete(ctx, "few", metav1.DeleteOptions{}))
	w.unreported(t, mirrorOf("s5"))
	w.made(t, mirrorOf("s5"))
}

// reported waits until an Event, the status and a metric report an object.
func (w *world) reported(t *testing.T, reason, object, why string) {
	t.Helper()
	w.event(t, reason, object, why)
	w.problem(t, object, why)
	if w.failures(t, "error")+w.failures(t, "foreign") == 0 {
		t.Error("no metric")
	}
}

// unreported waits until the status no longer reports an object.
func (w *world) unreported(t *testing.T, object string) {
	t.Helper()
	eventually(t, "the status", func() (bool, string) {
		problems := w.status(w.cfg).GetProblems()
		return !anyHas(problems, object), fmt.Sprint(problems)
	})
}

// failures returns the number of writes of Services and slices with a result.
func (w *world) failures(t *testing.T, result string) (sum float64) {
	t.Helper()
	_, text := get("http://" + w.cfg.Listen.HTTP + "/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "semaphore_broker_writes_total{") &&
			strings.Contains(line, fmt.Sprintf("result=%q", result)) {
			var n float64
			fmt.Sscan(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:], &n)
			sum += n
		}
	}
	return sum
}

// foreign checks R17: a Service of another owner under the name of a mirror is not touched.
func (w *world) foreign(t *testing.T, send func(...*semaphorev1.Object)) {
	ctx, services := t.Context(), w.admin.CoreV1().Services("semaphore")
	theirs := kubetest.Create(t, services, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: mirrorOf("s6"), Labels: map[string]string{"app": "mine"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "mine"}, Ports: []corev1.ServicePort{{Port: 1}}},
	})
	send(shopOf(7)[12:]...)
	w.reported(t, "NameTaken", mirrorOf("s6"), "did not create")
	if w.failures(t, "foreign") == 0 {
		t.Error("no metric")
	}
	now, err := services.Get(ctx, mirrorOf("s6"), metav1.GetOptions{})
	if err != nil || now.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("it is %v, %v", now, err)
	}
	// Its name must not lead to another cluster.
	if got := w.endpoints(); strings.Contains(got, mirrorOf("s6")) {
		t.Errorf("it is given endpoints:\n%s", got)
	}
	testkit.Must(t, services.Delete(ctx, mirrorOf("s6"), metav1.DeleteOptions{}))
	w.unreported(t, mirrorOf("s6"))
	w.made(t, mirrorOf("s6"))
}

// odd returns services of every shape.
func odd() []*semaphorev1.Object {
	all := shopOf(7)
	headless := players.Service("shop", "db", 5432)
	headless.GetService().Headless, headless.GetService().PublishNotReadyAddresses = true, true
	named := players.Slice("shop", "db-x", "db", "10.2.3.1", "10.2.3.2")
	named.GetEndpointSlice().Endpoints[0].Hostname, named.GetEndpointSlice().Endpoints[1].Hostname = "db-0", "db-1"
	named.GetEndpointSlice().Endpoints[1].Ready, named.GetEndpointSlice().Endpoints[1].Serving = ptr.To(false),
		ptr.To(false)
	sticky := globalObject("shop", "web", 443)
	sticky.GetService().ClientIpAffinitySeconds = 600
	all = append(all, headless, named, sticky)
	for part := range 3 { // more than one slice of semaphore holds
		var addresses []string
		for i := range 90 {
			addresses = append(addresses, fmt.Sprintf("10.2.%d.%d", 10+part, i+1))
		}
		all = append(all, players.Slice("shop", fmt.Sprint("web-", part), "web", addresses...))
	}
	return all
}

// restarts checks that exporters and brokers that restart, in any order, find all objects unchanged.
func (w *world) restarts(t *testing.T) {
	stop := w.start(w.cfg)
	e := w.exporter("c2")
	// A slice has its endpoints in the order of arrival. After a restart they arrive in another order.
	first := odd()
	e.SendAll("c2", "e2", append(first[:17:17], first[19])...)
	eventually(t, "the last part is written", func() (bool, string) {
		got := w.endpoints()
		return strings.Count(got, "gl-shop-73736d-web") == 90, got
	})
	e.Send(players.Upserts(101, first[17], first[18]))
	e.Acked(102)
	eventually(t, "all is written", func() (bool, string) {
		got := w.endpoints()
		return strings.Count(got, "gl-shop-73736d-web") == 270 && strings.Count(got, "c2-shop-73736d-") == 9, got
	})
	w.made(t, mirrorOf("s6"), mirrorOf("db"), "gl-shop-73736d-web")
	before := w.versions(t)
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"another exporter", func() { e.Cancel(); e = w.exporter("c2"); e.SendAll("c2", "e3", odd()...) }},
		{"another exporter, in another order", func() {
			e.Cancel()
			e = w.exporter("c2")
			all := odd()
			slices.Reverse(all)
			e.SendAll("c2", "e4", all...)
		}},
		{"another broker", func() {
			e.Cancel()
			stop()
			stop = w.start(w.cfg)
			e = w.exporter("c2")
			e.SendAll("c2", "e4", odd()...)
		}},
		{"another broker, and slices that are cut in another way", func() {
			e.Cancel()
			stop()
			stop = w.start(w.cfg)
			e = w.exporter("c2")
			all := odd()[:17] // all but the slices of web
			for part := range 6 {
				var addresses []string
				for i := range 45 {
					addresses = append(addresses, fmt.Sprintf("10.2.%d.%d", 10+part/2, part%2*45+i+1))
				}
				all = append(all, players.Slice("shop", fmt.Sprint("web-other-", part), "web", addresses...))
			}
			e.SendAll("c2", "e5", all...)
		}},
	} {
		c.do()
		w.settles(t, e, 101, "10.2.255.1")
		now := w.versions(t)
		for name, version := range now {
			if before[name] != version {
				t.Errorf("%s: %s was written", c.name, name)
			}
		}
		if len(now) != len(before) {
			t.Errorf("%s: %d objects, there were %d", c.name, len(now), len(before))
		}
	}
	e.Cancel()
	stop()
}

// versions returns the versions of all Services and slices of the namespace.
func (w *world) versions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	services := testkit.Value(w.admin.CoreV1().Services("semaphore").List(t.Context(), metav1.ListOptions{}))(t)
	for _, s := range services.Items {
		if !isBarrier(s.Name) {
			out["service "+s.Name] = s.ResourceVersion
		}
	}
	all := testkit.Value(w.admin.DiscoveryV1().EndpointSlices("semaphore").List(t.Context(), metav1.ListOptions{}))(t)
	for _, s := range all.Items {
		if !isBarrier(s.Labels[discoveryv1.LabelServiceName]) {
			out["slice "+s.Name] = s.ResourceVersion
		}
	}
	return out
}

// terminating checks that in a namespace that is being deleted nothing can be created, and that everything else works.
func (w *world) terminating(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	stop := w.start(w.cfg)
	defer stop()
	e := w.exporter("c2")
	defer e.Cancel()
	e.SendAll("c2", "e6", odd()...)
	// No controller completes the deletion here.
	testkit.Must(t, w.admin.CoreV1().Namespaces().Delete(ctx, "semaphore", metav1.DeleteOptions{}))
	fresh := players.Service("shop", "fresh", 80)
	e.Send(players.Upserts(101, fresh, players.Slice("shop", "s0-x", "s0", "10.2.1.1", "10.2.1.99"),
		players.Member("shop", "p", "u", "set", "10.2.1.1")))
	e.Acked(103)
	w.problem(t, mirrorOf("fresh"), "being terminated")
	eventually(t, "what is there is kept right", func() (bool, string) {
		got := w.endpoints()
		return strings.Contains(got, "s0 c2 10.2.1.99+"), got
	})
	eventually(t, "sets flow", func() (bool, string) {
		got := contents(w.written())
		return strings.Contains(got, "set c2-shop-set: 10.2.1.1/32"), got
	})
	requests, began := w.failures(t, "error"), time.Now()
	time.Sleep(3 * time.Second)
	// Only one object probes for all that wait, at least 300 ms after the one before, except the first three.
	more, passed := w.failures(t, "error")-requests, time.Since(began)
	if more > 4+passed.Seconds()/0.3 {
		t.Errorf("%v attempts for one object in %s", more, passed)
	}
}

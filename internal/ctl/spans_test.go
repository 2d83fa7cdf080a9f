package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
	"github.com/kube-semaphore/semaphore/internal/testkit/otlp"
	"github.com/kube-semaphore/semaphore/internal/testkit/trust"
)

// TestSpans: an endpoint of c2 changes. The collector of both clusters receives one trace of the change, from c2's
// exporter to the write of c1's broker, in the order of the hops and with the times of `debug trace`. The programs, the
// SDK, OTLP/gRPC and the apiserver are real. Both clusters share the apiserver.
func TestSpans(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	c := otlp.New(t)
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	for _, name := range []string{"semaphore", "shop"} {
		_, err := admin.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	dir := string(trust.New(t, "c1", "c2"))
	sockets := startTraced(t, dir, kubetest.Kubeconfig(t, api), c.URL)

	offered := map[string]string{"mirror.semaphore.uw.io/mirror-service": "true"}
	_, err := admin.CoreV1().Services("shop").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "echo", Labels: offered},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)
	ready, port, portName, protocol := true, int32(8080), "http", corev1.ProtocolTCP
	slice, err := admin.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "echo-1", Labels: map[string]string{discoveryv1.LabelServiceName: "echo",
			"mirror.semaphore.uw.io/mirror-service": "true"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.9"},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}, metav1.CreateOptions{})
	must(t, err)
	mirrored := func(ip string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, ip+" is in a slice of the mirror", func() error {
			all, err := admin.DiscoveryV1().EndpointSlices("semaphore").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, s := range all.Items {
				for _, e := range s.Endpoints {
					if e.Addresses[0] == ip {
						return nil
					}
				}
			}
			return fmt.Errorf("%d slices have it not", len(all.Items))
		})
	}
	mirrored("10.2.0.9")
	slice.Endpoints[0].Addresses[0] = "10.2.0.10" // the change
	_, err = admin.DiscoveryV1().EndpointSlices("shop").Update(t.Context(), slice, metav1.UpdateOptions{})
	must(t, err)
	mirrored("10.2.0.10")

	// The output of debug trace, once the broker has recorded its write, which it does after the apiserver's answer.
	var trace []hop
	testkit.Eventually(t, time.Minute, "debug trace has the change", func() error {
		out, code, err := run(t, append([]string{"debug", "trace", "endpointslice/shop/echo-1", "-o", "json"}, sockets...)...)
		if code != 0 {
			return fmt.Errorf("code %d: %w\n%s", code, err, out)
		}
		var answer struct{ Hops []hop }
		must(t, json.Unmarshal([]byte(out), &answer))
		trace = answer.Hops
		if len(trace) != 2 || trace[1].Time.Before(trace[0].Time) { // what was received is the state before, still
			return fmt.Errorf("the hops are %+v", trace)
		}
		return nil
	})
	checkPlaces(t, sockets)
	var written hop
	testkit.Eventually(t, time.Minute, "and the write", func() error {
		out, code, err := run(t, append([]string{"debug", "trace", "service/shop/echo", "-o", "json"}, sockets...)...)
		if code != 0 {
			return fmt.Errorf("code %d: %w\n%s", code, err, out)
		}
		var answer struct{ Hops []hop }
		must(t, json.Unmarshal([]byte(out), &answer))
		for _, h := range answer.Hops {
			if h.Action == "update" && !h.Time.Before(trace[1].Time) &&
				strings.HasPrefix(h.Object, "endpointslice c2-shop-73736d-echo-") {
				written = h
				return nil
			}
		}
		return fmt.Errorf("the hops are\n%s", out)
	})
	trace = append(trace, written)
	checkSpans(t, c, trace)
	if got := c.Header("x-tenant"); !slices.Equal(got, []string{"shop"}) {
		t.Errorf("the header of OTEL_EXPORTER_OTLP_HEADERS is %q", got)
	}
}

// startTraced runs c1's broker and c2's exporter with all changes traced, and returns semaphorectl's flags for both.
func startTraced(t *testing.T, dir, kubeconfig, to string) (sockets []string) {
	t.Helper()
	address := loopback.Address(t)
	common := func(part string) string {
		return fmt.Sprintf(`
leaderElection: {enabled: false}
features: [services]
kube: {kubeConfigPath: %q}
tracing: {samplingRatePerMillion: 1000000, endpoint: %q}
tls: {certFile: %[3]s/%[4]s/tls.crt, keyFile: %[3]s/%[4]s/tls.key, bundleDir: %[3]s/bundles}
`, kubeconfig, to, dir, part)
	}
	ofBroker, err := config.Parse[config.Broker](fmt.Appendf(nil, `%s
cluster: c1
localSubnets: [10.1.0.0/16]
remotes: [{name: c2, podSubnets: [10.2.0.0/16]}]
listen: {federation: %q, http: %q, debugSocket: %s/broker.sock, services: []}
`, common("c1/broker"), address, loopback.Address(t), dir))
	must(t, err)
	ofExporter, err := config.Parse[config.Exporter](fmt.Appendf(nil, `%s
cluster: c2
brokers: [{cluster: c1, address: %q}]
listen: {http: %q, debugSocket: %s/exporter.sock}
`, common("c2/exporter"), address, loopback.Address(t), dir))
	must(t, err)
	testkit.Run(t, func(ctx context.Context) error { return broker.Run(ctx, ofBroker) })
	testkit.Run(t, func(ctx context.Context) error { return exporter.Run(ctx, ofExporter) })
	return []string{"--socket", filepath.Join(dir, "exporter.sock"), "--socket", filepath.Join(dir, "broker.sock")}
}

// checkPlaces: debug trace says where the Service is now at each hop, and what is not there is nowhere.
func checkPlaces(t *testing.T, sockets []string) {
	t.Helper()
	const object, mirror = "service shop/echo", "service semaphore/c2-shop-73736d-echo"
	want := []string{"source " + object + " done", "export " + object + " done", "stream " + object + " done",
		"accept " + object + " done", "plan " + mirror + " done", "write " + mirror + " done"}
	testkit.Eventually(t, time.Minute, "debug trace has each hop", func() error {
		out, code, err := run(t, append([]string{"debug", "trace", "service/shop/echo", "-o", "json"}, sockets...)...)
		if code != 0 {
			return fmt.Errorf("code %d: %w\n%s", code, err, out)
		}
		var answer struct{ Places []location }
		must(t, json.Unmarshal([]byte(out), &answer))
		var got []string
		for _, p := range answer.Places {
			if strings.HasPrefix(p.Object, "service ") {
				got = append(got, p.Hop+" "+p.Object+" "+p.State)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s; want %s\n%s", got, want, out)
		}
		return nil
	})
	if out, code, _ := run(t, append([]string{"debug", "trace", "service/shop/nothing"}, sockets...)...); code != 1 {
		t.Errorf("a Service that does not exist: code %d\n%s", code, out)
	}
}

// checkSpans compares the newest trace of the slice with the output of debug trace.
func checkSpans(t *testing.T, c *otlp.Collector, hops []hop) {
	t.Helper()
	want := []string{"semaphore-exporter/c2: exporter export endpointslice endpointslice shop/echo-1",
		"semaphore-broker/c1: broker receive endpointslice endpointslice shop/echo-1",
		"semaphore-broker/c1: broker update endpointslice " + hops[2].Object}
	var spans []otlp.Span
	var root *otlp.Span
	testkit.Eventually(t, time.Minute, "the collector has one trace of the change", func() error {
		spans, root = nil, nil
		of := map[string]bool{}
		all := c.Spans()
		for _, s := range all {
			if s.String() == want[0] && s.End().Equal(hops[0].Time) {
				of[string(s.TraceId)] = true
			}
		}
		for _, s := range all {
			switch {
			case !of[string(s.TraceId)]:
			case s.Name == "change endpointslice":
				root = &s
			default:
				spans = append(spans, s)
			}
		}
		if len(of) != 1 || len(spans) < len(want) || root == nil {
			return fmt.Errorf("%d traces, %d spans with root %v, of\n%s", len(of), len(spans), root, otlp.Lines(all))
		}
		return nil
	})
	if len(spans) != len(hops) {
		t.Fatalf("%d spans of one change; want %d:\n%s", len(spans), len(hops), otlp.Lines(spans))
	}
	parent := root.SpanId
	observed := hops[0].Time.Add(-time.Duration(*hops[0].After * float64(time.Second)))
	if root.Start().Sub(observed).Abs() > time.Microsecond { // seconds in a float
		t.Errorf("the change begins at %s; want %s", root.Start(), observed)
	}
	for i, s := range spans {
		h := hops[i]
		if s.String() != want[i] || string(s.ParentSpanId) != string(parent) {
			t.Errorf("span %d is %s under %x; want %s under %x", i, s, s.ParentSpanId, want[i], parent)
		}
		parent = s.SpanId
		if !s.End().Equal(h.Time) || s.After() != *h.After {
			t.Errorf("%s ends at %s, %v s after; debug trace says %s, %v s", s, s.End(), s.After(), h.Time, *h.After)
		}
		if i > 0 && s.End().Before(spans[i-1].End()) || s.Start().After(s.End()) {
			t.Errorf("%s is out of order", s)
		}
	}
	if !spans[2].Start().Equal(spans[1].End()) {
		t.Errorf("the write begins at %s; want the end of the receipt, %s", spans[2].Start(), spans[1].End())
	}
}

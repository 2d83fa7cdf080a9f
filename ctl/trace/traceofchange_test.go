package trace

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// TestTraceOfAChange: an endpoint of c2 changes, and `trace` has the change at each hop, in order, from c2's
// exporter to the write of c1's broker. The programs and the apiserver are real. Both clusters share the apiserver.
func TestTraceOfAChange(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	for _, name := range []string{"semaphore", "shop"} {
		kubetest.Namespace(t, admin, name)
	}
	dir := string(trust.New(t, "c1", "c2"))
	sockets := startBoth(t, dir, api)

	slice := ctltest.Offer(t, admin, "shop", "echo", "10.2.0.9")
	mirrored := func(ip string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, ip+" is in a slice of the mirror", func() error {
			return ctltest.Mirrored(t.Context(), admin, "c2-shop-73736d-echo", ip)
		})
	}
	mirrored("10.2.0.9")
	slice.Endpoints[0].Addresses[0] = "10.2.0.10" // the change
	kubetest.Update(t, admin.DiscoveryV1().EndpointSlices("shop"), slice)
	mirrored("10.2.0.10")

	// The output of trace, once the broker has recorded its write, which it does after the apiserver's answer.
	var trace []hop
	testkit.Eventually(t, time.Minute, "trace has the change", func() error {
		var answer struct{ Hops []hop }
		if _, err := traced(t, "endpointslice/shop/echo-1", sockets, &answer); err != nil {
			return err
		}
		trace = answer.Hops
		if len(trace) != 2 || trace[1].Time.Before(trace[0].Time) { // what was received is the state before, still
			return fmt.Errorf("the hops are %+v", trace)
		}
		return nil
	})
	checkPlaces(t, sockets)
	testkit.Eventually(t, time.Minute, "and the write", func() error {
		var answer struct{ Hops []hop }
		out, err := traced(t, "service/shop/echo", sockets, &answer)
		if err != nil {
			return err
		}
		for _, h := range answer.Hops {
			if h.Action == "update" && !h.Time.Before(trace[1].Time) &&
				strings.HasPrefix(h.Object, "endpointslice c2-shop-73736d-echo-") {
				return nil
			}
		}
		return fmt.Errorf("the hops are\n%s", out)
	})
}

// traced reads trace's answer for an object.
func traced(t *testing.T, object string, sockets []string, answer any) (out string, err error) {
	t.Helper()
	out, code, err := ctltest.Run(t, append([]string{"trace", object, "-o", "json"}, sockets...)...)
	if code != 0 {
		return "", fmt.Errorf("code %d: %w\n%s", code, err, out)
	}
	return out, json.Unmarshal([]byte(out), answer)
}

// startBoth runs c1's broker and c2's exporter, and returns semaphorectl's flags for both.
func startBoth(t *testing.T, dir string, api *rest.Config) (sockets []string) {
	t.Helper()
	kubeconfig := kubetest.Kubeconfig(t, api)
	address := loopback.Address(t)
	common := func(part string) string {
		return fmt.Sprintf(`
leaderElection: {enabled: false}
features: [services]
kube: {kubeConfigPath: %q}
tls: {certFile: %[2]s/%[3]s/tls.crt, keyFile: %[2]s/%[3]s/tls.key, bundleDir: %[2]s/bundles}
`, kubeconfig, dir, part)
	}
	ofBroker := testkit.Value(described.Broker(fmt.Appendf(nil, `%s
cluster: c1
localSubnets: [10.1.0.0/16]
remotes: [{name: c2, podSubnets: [10.2.0.0/16]}]
listen: {federation: %q, http: %q, debugSocket: %s/broker.sock, services: []}
`, common("c1/broker"), address, loopback.Address(t), dir)))(t)
	ofExporter := testkit.Value(config.Parse[config.Exporter](fmt.Appendf(nil, `%s
cluster: c2
localBroker: {cluster: c1, address: %q}
listen: {http: %q, debugSocket: %s/exporter.sock}
`, common("c2/exporter"), address, loopback.Address(t), dir)))(t)
	file := kubetest.Described(t, api, ofBroker)
	testkit.Run(t, func(ctx context.Context) error { return broker.Run(ctx, file) })
	testkit.Run(t, func(ctx context.Context) error { return exporter.Run(ctx, ofExporter) })
	return []string{"--socket", filepath.Join(dir, "exporter.sock"), "--socket", filepath.Join(dir, "broker.sock")}
}

// checkPlaces: trace says where the Service is now at each hop, and what is not there is nowhere.
func checkPlaces(t *testing.T, sockets []string) {
	t.Helper()
	const object, mirror = "service shop/echo", "service semaphore/c2-shop-73736d-echo"
	want := []string{"source " + object + " done", "export " + object + " done", "stream " + object + " done",
		"accept " + object + " done", "plan " + mirror + " done", "write " + mirror + " done"}
	testkit.Eventually(t, time.Minute, "trace has each hop", func() error {
		var answer struct{ Places []location }
		out, err := traced(t, "service/shop/echo", sockets, &answer)
		if err != nil {
			return err
		}
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
	if out, code, _ := ctltest.Run(t, append([]string{"trace", "service/shop/nothing"},
		sockets...)...); code != 1 {
		t.Errorf("a Service that does not exist: code %d\n%s", code, out)
	}
}

package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const globalLabel = "mirror.semaphore.uw.io/global-service"

// shared creates Service web-0 as part of a global service, with one slice. Its endpoints are ready.
func (c *cluster) shared(annotations map[string]string, addresses ...string) {
	c.b.Helper()
	s := service(0)
	s.Labels, s.Annotations = map[string]string{globalLabel: "true"}, annotations
	testkit.Value(c.CoreV1().Services(shop).Create(c.b.Context(), s, metav1.CreateOptions{}))(c.b)
	testkit.Value(c.DiscoveryV1().EndpointSlices(shop).Create(c.b.Context(), sharedSlice(true, addresses...),
		metav1.CreateOptions{}))(c.b)
}

func sharedSlice(ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := slice(shop, 0, 1, 0)
	delete(s.Labels, mirrorLabel)
	s.Labels[globalLabel] = "true"
	s.Endpoints = nil
	for _, a := range addresses {
		e := endpoint(netip.MustParseAddr(a))
		e.Conditions.Ready, e.Conditions.Serving = ptr.To(ready), ptr.To(ready)
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// slicesOf are the events of the slices in namespace shop.
type slicesOf struct {
	b      *testing.B
	events chan sliceEvent
}

type sliceEvent struct {
	at    time.Time
	kind  watch.EventType
	slice *discoveryv1.EndpointSlice
}

func (c *cluster) watchShop() slicesOf {
	c.b.Helper()
	w := testkit.Value(c.DiscoveryV1().EndpointSlices(shop).Watch(c.b.Context(), metav1.ListOptions{}))(c.b)
	o := slicesOf{c.b, make(chan sliceEvent, 1000)}
	run(c.b, func(ctx context.Context) error {
		defer w.Stop()
		for {
			select {
			case e, open := <-w.ResultChan():
				s, ok := e.Object.(*discoveryv1.EndpointSlice)
				if !open || !ok {
					return ctx.Err()
				}
				o.events <- sliceEvent{time.Now(), e.Type, s}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return o
}

// await returns when the next event of a kind was seen whose slice is of the own name, or is one that was written
// directly.
func (o slicesOf) await(kind watch.EventType, own bool) time.Time {
	o.b.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case e := <-o.events:
			_, is := e.slice.Labels[naming.LabelOwnName]
			if e.kind == kind && (own && is || !own && strings.HasPrefix(e.slice.Name, "direct-")) {
				return e.at
			}
		case <-timeout:
			o.b.Fatalf("no slice is %s, under the own name: %t, within a minute", kind, own)
		}
	}
}

// BenchmarkOwnName measures a failover under the own name of a Service: from the answer to the write after which its
// only endpoint is not ready, until the own cluster's watch has the slice with the endpoints of the other cluster. In
// alternation, the same slice is created directly, from the request to the watch. The broker writes the global service,
// which has the same endpoint, at the same time.
func BenchmarkOwnName(b *testing.B) {
	const warm, failovers = 5, 200
	const local = "172.18.1.10"
	var remote []string
	for i := range 10 {
		remote = append(remote, stays(0, i).String())
	}
	c1, c2 := newCluster(b, mirrors), newCluster(b, shop)
	kubetest.Namespace(b, c1, shop)
	c1.shared(map[string]string{naming.AnnotationOwnName: naming.OwnNameFailover}, local)
	c2.shared(nil, remote...)
	o := c1.watchShop()
	w := newRealBroker(b, c1.rest, "services", func(c *config.Broker) {
		g := &c.GlobalServices
		g.PodSubnets, g.OwnNames = []string{"172.18.1.0/24"}, true
		g.PodPrefixes = []netip.Prefix{netip.MustParsePrefix(g.PodSubnets[0])}
		g.Settle.Duration = 0 // the failover is measured, not the wait until it ends
	})
	w.export(c2.rest, "services")
	w.exportAs("c1", c1.rest, "services", func(*config.Exporter) {})
	global := c1.observe(mirrors)
	global.await(b, "the global service", func() bool { return global.all == 1+len(remote) })
	slices := c1.DiscoveryV1().EndpointSlices(shop)
	set := func(ready bool) time.Time {
		testkit.Value(slices.Update(b.Context(), sharedSlice(ready, local), metav1.UpdateOptions{}))(b)
		return time.Now()
	}
	var through, direct []time.Duration
	failover := func(n int) {
		gone := set(false)
		through = append(through, o.await(watch.Added, true).Sub(gone))
		set(true)
		o.await(watch.Deleted, true)
		s := sharedSlice(true, remote...)
		s.Name = fmt.Sprint("direct-", n)
		began := time.Now()
		testkit.Value(slices.Create(b.Context(), s, metav1.CreateOptions{}))(b)
		direct = append(direct, o.await(watch.Added, false).Sub(began))
		must(b, slices.Delete(b.Context(), s.Name, metav1.DeleteOptions{}))
		o.await(watch.Deleted, false)
	}
	for n := range warm {
		failover(n)
	}
	for b.Loop() {
		through, direct = nil, nil
		for n := range failovers {
			failover(n)
		}
	}
	reportQuantiles(b, through, direct, maxOfOwnName)
	figure.WithoutTime(b)
}

// maxOfOwnName bounds the ratio of a failover's time to that of a direct write of its slice: the exporter reads the
// local slice, and the broker's slice of the global service shares the apiserver with that of the own name.
const maxOfOwnName = 2.5

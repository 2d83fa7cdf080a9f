package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// webItself is the name that clients of c1 know without semaphore.
const webItself = "web.shop.svc.cluster.local"

// sliceOfAUser is a slice that the owner of web keeps beside those of Kubernetes. Nobody else may change it.
const sliceOfAUser = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-by-hand
  namespace: shop
  labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: its-owner}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: []
---
`

// ownNameBed has Service web in both clusters, whose own name in c1 leads to c1's pods near and, while there are too
// few of them, to c2's pods far.
type ownNameBed struct {
	*servicesBed
	web *load
}

func startOwnName(ctx context.Context, t *testing.T, s *servicesBed) *ownNameBed {
	t.Helper()
	b := &ownNameBed{servicesBed: s}
	b.applies(ctx, t)
	b.web = b.clients[b.c1].load(ctx, t, "http://"+webItself+"/")
	must(t, until(ctx, settle, func() error {
		if b.web.seen(anyPod) == 0 {
			return fmt.Errorf("no answer: %s", b.web)
		}
		return nil
	}))
	b.web.reset()
	return b
}

// applies creates both Services, and waits until c1's broker knows the endpoints of web in both clusters.
func (b *ownNameBed) applies(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, b.c1.ApplyYAML(ctx, web("near")+"---\n"+sliceOfAUser))
	must(t, b.c2.ApplyYAML(ctx, web("far")))
	b.annotate(ctx, t, "web", naming.OwnNameFailover)
	ready(ctx, t, b.c1, "deployment/near")
	ready(ctx, t, b.c2, "deployment/far")
	must(t, until(ctx, settle, func() error { return b.globalHas(ctx, "web", 4) }))
}

// annotate sets how the own name of a Service of c1 leads to other clusters; "" removes the annotation.
func (b *servicesBed) annotate(ctx context.Context, t *testing.T, service, use string) {
	t.Helper()
	value := naming.AnnotationOwnName + "=" + use
	if use == "" {
		value = naming.AnnotationOwnName + "-"
	}
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "annotate", "--overwrite", "service", service, value))(t)
}

func scale(ctx context.Context, t *testing.T, c *testbed.Cluster, workload string, replicas int) {
	t.Helper()
	testkit.Value(c.Kubectl(ctx, nil, "-n", "shop", "scale", workload, fmt.Sprint("--replicas=", replicas)))(t)
}

// reports waits for an Event on Service web of c1.
func (b *servicesBed) reports(ctx context.Context, t *testing.T, reason, text string) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		all, err := b.c1.Client.EventsV1().Events("shop").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range all.Items {
			if e.Regarding.Kind == "Service" && e.Regarding.Name == "web" {
				if notes = append(notes, e.Reason+": "+e.Note); strings.HasPrefix(e.Reason, reason) &&
					strings.Contains(e.Note, text) {
					return nil
				}
			}
		}
		return fmt.Errorf("no Event %s on web has %q: %q", reason, text, notes)
	}))
}

// lost reports what the load lost since the last call: none may be lost.
func (b *ownNameBed) lost(t *testing.T, when string) {
	t.Helper()
	t.Logf("%s: %s", when, b.web)
	if failed := b.web.failures(); len(failed) > 0 {
		t.Errorf("%s requests are lost: %s", when, b.web)
	}
	b.web.reset()
}

// scales scales near of web, and waits until its pods are there or gone.
func (b *ownNameBed) scales(ctx context.Context, t *testing.T, replicas int) {
	t.Helper()
	scale(ctx, t, b.c1, "deployment/near", replicas)
	if replicas > 0 {
		ready(ctx, t, b.c1, "deployment/near")
		return
	}
	must(t, until(ctx, settle, func() error {
		left, err := b.c1.Client.CoreV1().Pods("shop").List(ctx,
			metav1.ListOptions{LabelSelector: "app=web"})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are there still", len(left.Items))
		}
		return err
	}))
}

// failsOver scales the own pods of web to 0. Those of c2 answer under the same name, and no request is lost.
func (b *ownNameBed) failsOver(ctx context.Context, t *testing.T) {
	answers(ctx, t, b.web, settle, "near")
	must(t, b.lent(ctx, "", false))
	b.scales(ctx, t, 0)
	b.lost(t, "while the own pods went")
	answers(ctx, t, b.web, settle, "far")
	b.reports(ctx, t, "ServedElsewhere", "endpoints of c2 are used under its own name: 0 of ")
}

// comesBack scales the own pods of web up again: they answer alone, and no request is lost.
func (b *ownNameBed) comesBack(ctx context.Context, t *testing.T) {
	b.scales(ctx, t, 2)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "web", false) }))
	b.lost(t, "while the own pods came back")
	answers(ctx, t, b.web, settle, "near")
	b.reports(ctx, t, "ServedHere", "endpoints of c2 are no longer used under its own name: ")
}

// misspelled sets a value that means nothing, kills the broker, and checks that the last good value holds under the
// next one: nothing is written, and no request is lost.
func (b *ownNameBed) misspelled(ctx context.Context, t *testing.T) {
	standing := testkit.Value(b.slicesOf(ctx, "web", true))(t)
	stands := func(when string) {
		t.Helper()
		if now, err := b.slicesOf(ctx, "web", true); err != nil || !slices.Equal(now, standing) {
			t.Errorf("%s the slices under the own name are %q (%v), and were %q", when, now, err, standing)
		}
	}
	b.web.reset()
	b.annotate(ctx, t, "web", "fail-over")
	b.reports(ctx, t, "", `annotation `+naming.AnnotationOwnName+`: "fail-over" is ignored`)
	broker := testkit.Value(awaitLeader(ctx, b.c1, "broker"))(t)
	// A killed broker does not release its Lease. Its pod is deleted too, because kubelet would restart the container.
	must(t, errors.Join(b.c1.KillPod(ctx, Namespace, broker.Name), b.c1.Client.CoreV1().Pods(Namespace).Delete(ctx,
		broker.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})))
	pause(ctx, t, 5*time.Second)
	stands("without a broker")
	must(t, until(ctx, settle, func() error {
		now, err := leader(ctx, b.c1, "broker")
		if err == nil && now.Name == broker.Name {
			err = fmt.Errorf("%s leads still", now.Name)
		}
		return errors.Join(err, b.attached(ctx, b.c1))
	}))
	stands("under the next broker")
	b.lost(t, "with a misspelled annotation and another broker") // answers counts again
	answers(ctx, t, b.web, settle, "far")
	b.annotate(ctx, t, "web", naming.OwnNameFailover)
}

// withdrawn mixes both clusters, and then removes the annotation: slices under the own name go at once, those of others
// are not touched, and no request is lost.
func (b *ownNameBed) withdrawn(ctx context.Context, t *testing.T) {
	others := testkit.Value(b.slicesOf(ctx, "web", false))(t)
	b.annotate(ctx, t, "web", naming.OwnNameAll)
	answers(ctx, t, b.web, settle, "near", "far")
	b.annotate(ctx, t, "web", "")
	kubetest.Promptly(t, b.c1.Client, time.Second, "the slices under the own name are gone",
		func() error { return b.lent(ctx, "web", false) })
	b.lost(t, "while the annotation went")
	answers(ctx, t, b.web, settle, "near")
	if now, err := b.slicesOf(ctx, "web", false); err != nil || !slices.Equal(now, others) {
		t.Errorf("the slices of others are %q (%v), and were %q", now, err, others)
	}
}

// deleted deletes the Service while its own name leads to c2: all of ours goes, and nothing else.
func (b *ownNameBed) deleted(ctx context.Context, t *testing.T) {
	b.annotate(ctx, t, "web", naming.OwnNameAll)
	answers(ctx, t, b.web, settle, "near", "far")
	b.web.stop()
	byHand := func() string {
		t.Helper()
		s := testkit.Value(b.c1.Client.DiscoveryV1().EndpointSlices("shop").Get(ctx, "web-by-hand", metav1.GetOptions{}))(t)
		return fmt.Sprint(s.UID, " ", s.ResourceVersion)
	}
	before, pods := byHand(), b.podsOf(ctx, t)
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "delete", "service", "web"))(t)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "web", false) }))
	if after := byHand(); after != before {
		t.Errorf("the slice of a user is %s, and was %s", after, before)
	}
	if now := b.podsOf(ctx, t); !slices.Equal(now, pods) {
		t.Errorf("the pods are %q, and were %q", now, pods)
	}
}

func (b *ownNameBed) podsOf(ctx context.Context, t *testing.T) (names []string) {
	t.Helper()
	all := testkit.Value(pods(ctx, b.c1, "shop", ""))(t)
	for _, p := range all {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// ownNames has the short cases, on the clusters of TestFeatures.
func ownNames(ctx context.Context, t *testing.T, s *servicesBed) {
	b := startOwnName(ctx, t, s)
	b.failsOver(ctx, t)
	b.misspelled(ctx, t)
	b.comesBack(ctx, t)
	b.withdrawn(ctx, t)
	b.deleted(ctx, t)
	for c, name := range map[*testbed.Cluster]string{b.c1: "near", b.c2: "far"} {
		_, err := c.Kubectl(ctx, nil, "-n", "shop", "delete", "--ignore-not-found", "--wait=false", "service/web",
			"deployment/"+name, "endpointslice/web-by-hand")
		must(t, err)
	}
}

// TestOwnName covers Services whose own name leads to another cluster, beside Services of one cluster to which the same
// happens.
func TestOwnName(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures fails over and back; broker/mirror has the rest, and tools/readers UDP")
	ctx := needsBed(t)
	b := ownNameClusters(ctx, t, testbed.Options{
		Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 2}, {Name: "c2", Nodes: 1}}})
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"scaled to 0", b.failsOver},
		{"misspelled, and the broker is killed", b.misspelled},
		{"scaled up again", b.comesBack},
		{"UDP", b.udp},
		{"headless", b.headlessOwnName},
		{"hints", b.hints},
		{"minReady", b.startsOneByOne},
		{"the remote is cut off", b.cutOffOwnName},
		{"the annotation goes", b.withdrawn},
		{"the Service is deleted", b.deleted},
		{"a node is lost", b.nodeLost},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) {
			return
		}
	}
}

// TestOwnNameGoes covers what is left of an own name under kube-proxy with nftables: after a namespace, a RemoteCluster
// and semaphore itself are gone.
func TestOwnNameGoes(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures deletes the Service; broker/apply has the cleanup")
	ctx := needsBed(t)
	options := testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 1}}}
	for _, m := range testbed.KubeProxyModes() {
		if m.Mode == "nftables" && m.Err == nil {
			options.KubeProxyMode = m.Mode
		}
	}
	if options.KubeProxyMode == "" {
		t.Logf("%s kube-proxy with nftables, which this kernel lacks: iptables in its place", tier.Marker)
	}
	b := ownNameClusters(ctx, t, options)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"scaled to 0", b.failsOver},
		{"scaled up again", b.comesBack},
		{"UDP", b.udp},
		{"a namespace goes", b.namespaceGoes},
		{"the RemoteCluster goes", b.remoteGoes},
		{"semaphore goes", b.semaphoreGoes},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) {
			return
		}
	}
}

func ownNameClusters(ctx context.Context, t *testing.T, options testbed.Options) *ownNameBed {
	t.Helper()
	s := &servicesBed{Scenario: clusters(ctx, t, options), clients: map[*testbed.Cluster]*client{}}
	s.in.withOwnNames()
	must(t, s.in.Install(ctx, s.progress))
	for _, c := range s.tb.Clusters() {
		must(t, c.ApplyYAML(ctx, shopNamespace+podOn("client", "n1")))
		ready(ctx, t, c, "pod/client")
	}
	s.clients[s.c1] = newClient(ctx, t, s.c1, "client")
	return startOwnName(ctx, t, s)
}

// udp checks that a flow of one source port follows within a second when the only pod of c1 has ended, and returns when
// that is back. The time counts from the slices from which kube-proxy knows both: c2's endpoints, and that none of c1's
// serves.
func (b *ownNameBed) udp(ctx context.Context, t *testing.T) {
	must(t, b.c1.ApplyYAML(ctx, stats("near")))
	must(t, b.c2.ApplyYAML(ctx, stats("far")))
	b.annotate(ctx, t, "stats", naming.OwnNameFailover)
	ready(ctx, t, b.c1, "deployment/stats")
	ready(ctx, t, b.c2, "deployment/stats")
	must(t, until(ctx, settle, func() error { return b.globalHas(ctx, "stats", 2) }))
	f := b.flowTo(ctx, t, "shop", "stats", "near")
	f.patience = datagramPause
	seen := b.watchSlices(ctx, t, "stats")
	beside := kubetest.WriteBeside(t, b.c1.Client)
	scale(ctx, t, b.c1, "deployment/stats", 0)
	var moved time.Time
	must(t, until(ctx, settle, func() error {
		if got := f.ask(); got != "far" {
			return fmt.Errorf("%d datagrams, %d without an answer, the last was answered by %q", f.sent, f.lost, got)
		}
		moved = time.Now()
		return nil
	}))
	beside.Stop()
	at, ok := seen.lent(0)
	if !ok { // kube-proxy on nftables may move it while c1's pod still serves as it ends
		if at, ok = seen.lent(1); !ok {
			t.Fatalf("the flow moved, and the slices were %+v", seen.all())
		}
	}
	took := moved.Sub(at)
	t.Logf("the flow moved %s after the slice", took.Round(time.Millisecond))
	if limit := time.Second + beside.Late(); took > limit {
		t.Errorf("the flow moved %s after the slice, want %s at most", took, limit)
	}
	f.patience = time.Second
	f.moves(ctx, t, "far")
	scale(ctx, t, b.c1, "deployment/stats", 1)
	ready(ctx, t, b.c1, "deployment/stats")
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "stats", false) }))
	f.moves(ctx, t, "near")
}

// slicesSeen records the ready endpoints of a Service of c1 at each instant, those of Kubernetes and ours.
type slicesSeen struct {
	mu    sync.Mutex
	now   map[string]*discoveryv1.EndpointSlice
	ready []readyAt
}

type readyAt struct {
	at time.Time
	// own and lent are the numbers of ready endpoints of c1 and of c2, serving that of c1's which serve, and all that of
	// c1's in any condition.
	own, serving, all, lent int
}

func (b *servicesBed) watchSlices(ctx context.Context, t *testing.T, service string) *slicesSeen {
	t.Helper()
	s := &slicesSeen{now: map[string]*discoveryv1.EndpointSlice{}}
	api := b.c1.Client.DiscoveryV1().EndpointSlices("shop")
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	list := testkit.Value(api.List(ctx, of))(t)
	for i := range list.Items {
		s.now[list.Items[i].Name] = &list.Items[i]
	}
	s.note()
	of.ResourceVersion = list.ResourceVersion
	w := testkit.Value(api.Watch(ctx, of))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if slice, ok := e.Object.(*discoveryv1.EndpointSlice); ok {
				s.mu.Lock()
				if s.now[slice.Name] = slice; e.Type == watch.Deleted {
					delete(s.now, slice.Name)
				}
				s.mu.Unlock()
				s.note()
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
	return s
}

func (s *slicesSeen) note() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := readyAt{at: time.Now()}
	for slice := range maps.Values(s.now) {
		_, lent := slice.Labels[naming.LabelOwnName]
		for _, e := range slice.Endpoints {
			ready := ptr.Deref(e.Conditions.Ready, true)
			switch {
			case lent && ready:
				r.lent++
			case !lent && ready:
				r.own++
			}
			if !lent {
				if r.all++; ptr.Deref(e.Conditions.Serving, true) {
					r.serving++
				}
			}
		}
	}
	s.ready = append(s.ready, r)
}

// all returns what was seen so far.
func (s *slicesSeen) all() []readyAt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ready)
}

// lent returns when c2's endpoints were first there, none of c1's was ready, and at most a number of them served.
// kube-proxy on iptables leaves a flow on an endpoint that serves while it terminates (docs/contracts.md).
func (s *slicesSeen) lent(serving int) (time.Time, bool) {
	for _, r := range s.all() {
		if r.lent > 0 && r.own == 0 && r.serving <= serving {
			return r.at, true
		}
	}
	return time.Time{}, false
}

// headlessService is a headless Service of both clusters, with StatefulSets of this number of pods, which have the same
// names in both.
func headlessService(replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: kv, namespace: shop}
spec:
  serviceName: kv
  replicas: %d
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: kv}}
  template:
    metadata: {labels: {app: kv}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: kv, image: testbed.local/testbed:1, command: [testbed, sleep]}]
---
apiVersion: v1
kind: Service
metadata: {name: kv, namespace: shop, labels: {mirror.semaphore.uw.io/global-service: "true"}}
spec:
  clusterIP: None
  selector: {app: kv}
  ports: [{name: kv, port: 6379}]
`, replicas)
}

// headlessOwnName checks that addresses and hostnames of both clusters join, and that a hostname of both leads to the
// own pod.
func (b *ownNameBed) headlessOwnName(ctx context.Context, t *testing.T) {
	const name = "kv.shop.svc.cluster.local"
	must(t, b.c1.ApplyYAML(ctx, headlessService(1)))
	must(t, b.c2.ApplyYAML(ctx, headlessService(2)))
	b.annotate(ctx, t, "kv", naming.OwnNameAll)
	ready(ctx, t, b.c1, "statefulset/kv")
	ready(ctx, t, b.c2, "statefulset/kv")
	ips := func(c *testbed.Cluster) map[string]string {
		t.Helper()
		all := testkit.Value(pods(ctx, c, "shop", "app=kv"))(t)
		out := map[string]string{}
		for _, p := range all {
			out[p.Name] = p.Status.PodIP
		}
		return out
	}
	near, far := ips(b.c1), ips(b.c2)
	b.resolves(ctx, t, name, near["kv-0"], far["kv-0"], far["kv-1"])
	b.resolves(ctx, t, "kv-0."+name, near["kv-0"])
	b.resolves(ctx, t, "kv-1."+name, far["kv-1"])
	scale(ctx, t, b.c1, "statefulset/kv", 0)
	b.resolves(ctx, t, name, far["kv-0"], far["kv-1"])
	b.resolves(ctx, t, "kv-0."+name, far["kv-0"])
	b.annotate(ctx, t, "kv", naming.OwnNameFailover)
	scale(ctx, t, b.c1, "statefulset/kv", 1)
	ready(ctx, t, b.c1, "statefulset/kv")
	b.resolves(ctx, t, name, ips(b.c1)["kv-0"])
	b.resolves(ctx, t, "kv-0."+name, ips(b.c1)["kv-0"])
}

// zoned is a Service of both clusters that keeps traffic in its zone, with these Deployments, each on a node.
func zoned(nodes map[string]string) (yaml string) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		yaml += echoes{name: name, labels: "service: zoned", grace: lingeringGrace, lifecycle: lingering,
			spec: "nodeName: " + nodes[name]}.yaml()
	}
	return yaml + `
apiVersion: v1
kind: Service
metadata: {name: zoned, namespace: shop, labels: {mirror.semaphore.uw.io/global-service: "true"}}
spec:
  trafficDistribution: PreferSameZone
  selector: {service: zoned}
  ports: [{name: http, port: 80, targetPort: http}]
`
}

// hints checks that a client stays in its zone while the own cluster suffices, that traffic goes to all while it does
// not, and back.
func (b *ownNameBed) hints(ctx context.Context, t *testing.T) {
	for node, zone := range map[string]string{"n1": "a", "n2": "b"} {
		testkit.Value(b.c1.Kubectl(ctx, nil, "label", "--overwrite", "node", node, corev1.LabelTopologyZone+"="+zone))(t)
	}
	must(t, b.c1.ApplyYAML(ctx, zoned(map[string]string{"zone-a": "n1", "zone-b": "n2"})))
	must(t, b.c2.ApplyYAML(ctx, zoned(map[string]string{"zone-far": "n1"})))
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "annotate", "service", "zoned",
		naming.AnnotationOwnName+"="+naming.OwnNameFailover, naming.AnnotationMinReady+"=2"))(t)
	ready(ctx, t, b.c1, "deployment/zone-a", "deployment/zone-b")
	ready(ctx, t, b.c2, "deployment/zone-far")
	must(t, until(ctx, settle, func() error { return b.globalHas(ctx, "zoned", 3) }))
	const url = "http://zoned.shop.svc.cluster.local/"
	l := b.clients[b.c1].load(ctx, t, url)
	hinted := func() error {
		all, err := b.c1.Client.DiscoveryV1().EndpointSlices("shop").List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=zoned"})
		if err != nil {
			return err
		}
		for _, s := range all.Items {
			for _, e := range s.Endpoints {
				if e.Hints == nil && ptr.Deref(e.Conditions.Ready, true) {
					return fmt.Errorf("endpoint %s of %s has no hints", e.Addresses, s.Name)
				}
			}
		}
		return nil
	}
	must(t, until(ctx, settle, hinted))
	must(t, until(ctx, settle, func() error {
		_, err := b.clients[b.c1].ask(ctx, url)
		return err
	}))
	l.reset()
	answers(ctx, t, l, settle, "zone-a")
	scale(ctx, t, b.c1, "deployment/zone-b", 0)
	answers(ctx, t, l, settle, "zone-a", "zone-far")
	scale(ctx, t, b.c1, "deployment/zone-b", 1)
	answers(ctx, t, l, settle, "zone-a")
	must(t, hinted())
	l.stop()
}

// gate is the condition of pods that the test makes ready one by one.
const gate = "e2e.semaphore.uw.io/ready"

// many is a part of a Service of both clusters, with four pods.
func many(name, spec string) string {
	return echoes{name: name, labels: "service: many", replicas: 4, spec: spec}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop, labels: {mirror.semaphore.uw.io/global-service: "true"}}
spec:
  selector: {service: many}
  ports: [{name: http, port: 80, targetPort: http}]
`
}

// startsOneByOne brings a Deployment back from 0 to 4 pods that become ready one by one, with minReady 50%: at no
// instant has the Service fewer than two ready endpoints, as c2 has four all the time.
func (b *ownNameBed) startsOneByOne(ctx context.Context, t *testing.T) {
	must(t, b.c1.ApplyYAML(ctx, strings.Replace(many("many-near", "readinessGates: [{conditionType: "+gate+"}]"),
		"replicas: 4", "replicas: 0", 1)))
	must(t, b.c2.ApplyYAML(ctx, many("many-far", "")))
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "annotate", "service", "many",
		naming.AnnotationOwnName+"="+naming.OwnNameFailover, naming.AnnotationMinReady+"=50%"))(t)
	ready(ctx, t, b.c2, "deployment/many-far")
	var seen *slicesSeen
	must(t, until(ctx, settle, func() error {
		seen = b.watchSlices(ctx, t, "many")
		if r := seen.all(); r[len(r)-1].lent != 4 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	}))
	scale(ctx, t, b.c1, "deployment/many-near", 4)
	await := func(what string, is func(readyAt) bool) {
		t.Helper()
		must(t, until(ctx, settle, func() error {
			if r := seen.all(); !is(r[len(r)-1]) {
				return fmt.Errorf("%s: %+v", what, r)
			}
			return nil
		}))
	}
	await("four pods have addresses", func(r readyAt) bool { return r.all == 4 })
	mine := testkit.Value(pods(ctx, b.c1, "shop", "app=many-near"))(t)
	open := func(p corev1.Pod, status string) {
		t.Helper()
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, gate, status)
		testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "shop", "patch", "pod", p.Name, "--subresource=status", "-p", patch))(t)
	}
	for i, p := range mine {
		open(p, "True")
		await(fmt.Sprint(i+1, " are ready"), func(r readyAt) bool { return r.own == i+1 })
		if pause(ctx, t, 5*time.Second); i == 0 { // longer than settle
			await("one of four is not enough", func(r readyAt) bool { return r.lent == 4 })
		}
	}
	await("the own cluster suffices", func(r readyAt) bool { return r.own == 4 && r.lent == 0 })
	for _, r := range seen.all() {
		if r.own+r.lent < 2 {
			t.Errorf("%d and %d endpoints of both clusters are ready, fewer than half of four: %+v", r.own, r.lent, seen.all())
			break
		}
	}
	back := len(seen.all())
	for i, p := range mine[:3] {
		open(p, "False")
		await(fmt.Sprint(3-i, " are ready"), func(r readyAt) bool { return r.own == 3-i })
	}
	await("c2 is used again", func(r readyAt) bool { return r.lent == 4 })
	var few time.Time
	for _, r := range seen.all()[back:] {
		if few.IsZero() && r.own+r.lent < 2 {
			few = r.at
		} else if !few.IsZero() && r.lent > 0 {
			t.Logf("c2 joined %s after fewer than half were ready", r.at.Sub(few).Round(time.Millisecond))
			few = time.Time{}
		}
	}
}

// cutOffOwnName cuts c2 off while both clusters answer: its endpoints leave the own name, and return.
func (b *ownNameBed) cutOffOwnName(ctx context.Context, t *testing.T) {
	b.annotate(ctx, t, "web", naming.OwnNameAll)
	answers(ctx, t, b.web, settle, "near", "far")
	others := testkit.Value(b.slicesOf(ctx, "web", false))(t)
	drop := func(change string) {
		t.Helper()
		for _, c := range b.tb.Clusters() {
			for _, n := range c.Nodes {
				for _, from := range b.tb.Clusters() {
					if from != c {
						must(t, iptables(n.Netns, change, "PREROUTING", "-s", from.NodeSubnet.String(), "-j", "DROP"))
					}
				}
			}
		}
	}
	cut := time.Now()
	drop("-I")
	must(t, until(ctx, session+settle, func() error { return b.lent(ctx, "web", false) }))
	t.Logf("c2 left the own name %s after the last packet from it", time.Since(cut).Round(100*time.Millisecond))
	must(t, until(ctx, settle, func() error {
		b.web.reset()
		pause(ctx, t, patience+proxySync)
		if failed := b.web.failures(); len(failed) > 0 {
			return fmt.Errorf("requests are lost still: %s", b.web)
		}
		return nil
	}))
	answers(ctx, t, b.web, settle, "near")
	if now, err := b.slicesOf(ctx, "web", false); err != nil || !slices.Equal(now, others) {
		t.Errorf("the slices of others are %q (%v), and were %q", now, err, others)
	}
	drop("-D")
	answers(ctx, t, b.web, settle, "near", "far")
	b.annotate(ctx, t, "web", naming.OwnNameFailover)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "web", false) }))
	answers(ctx, t, b.web, settle, "near")
}

// onLostNode is a part of a Service, with two pods on a node that may be lost.
func onLostNode(service, name, node, labels string) string {
	return echoes{name: name, labels: "service: " + service, replicas: 2, spec: "nodeName: " + node}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: ` + service + `, namespace: shop, labels: {` + labels + `}}
spec:
  selector: {service: ` + service + `}
  ports: [{name: http, port: 80, targetPort: http}]
---
`
}

// nodeLost switches the node off that has all own pods of a Service. Once Kubernetes says that they are not ready, c2's
// answer. No more requests are lost than of a Service of one cluster, which loses all.
func (b *ownNameBed) nodeLost(ctx context.Context, t *testing.T) {
	const global = `mirror.semaphore.uw.io/global-service: "true"`
	// The testbed's CoreDNS has one pod, which may be on either node.
	testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "kube-system", "patch", "deployment", "coredns", "--patch",
		`{"spec":{"template":{"spec":{"nodeName":"n1"}}}}`))(t)
	must(t, b.c1.WaitForDeployment(ctx, "kube-system", "coredns", settle))
	must(t, b.c1.ApplyYAML(ctx, onLostNode("stable", "stable-near", "n2", global)+onLostNode("alone", "alone", "n2", "")))
	must(t, b.c2.ApplyYAML(ctx, onLostNode("stable", "stable-far", "n1", global)))
	b.annotate(ctx, t, "stable", naming.OwnNameFailover)
	ready(ctx, t, b.c1, "deployment/stable-near", "deployment/alone")
	ready(ctx, t, b.c2, "deployment/stable-far")
	must(t, until(ctx, settle, func() error { return b.globalHas(ctx, "stable", 4) }))
	stable := b.clients[b.c1].load(ctx, t, "http://stable.shop.svc.cluster.local/")
	alone := b.clients[b.c1].load(ctx, t, "http://alone.shop.svc.cluster.local/")
	for _, l := range []*load{stable, alone} {
		must(t, until(ctx, settle, func() error {
			if l.seen(anyPod) == 0 {
				return errors.New(l.String())
			}
			return nil
		}))
		l.reset()
	}
	began := time.Now()
	must(t, b.c1.Node("n2").PowerOff())
	must(t, until(ctx, settle, func() error {
		if l := stable.seen(func(pod string) bool { return strings.HasPrefix(pod, "stable-far-") }); l < 40 {
			return fmt.Errorf("%d answers of c2: %s", l, stable)
		}
		return nil
	}))
	// Requests that were sent to the node may wait for an answer until they time out, of both Services.
	pause(ctx, t, patience)
	mine, theirs := len(stable.failures()), len(alone.failures())
	t.Logf("%s after the node was lost: %s; the Service of one cluster: %s", time.Since(began).Round(time.Second), stable,
		alone)
	if mine > theirs {
		t.Errorf("%d requests are lost, and %d of a Service of one cluster", mine, theirs)
	}
	stable.reset()
	answers(ctx, t, stable, settle, "stable-far")
}

// namespaceGoes deletes the namespace of a Service whose own name leads to c2.
func (b *ownNameBed) namespaceGoes(ctx context.Context, t *testing.T) {
	b.annotate(ctx, t, "web", naming.OwnNameAll)
	answers(ctx, t, b.web, settle, "near", "far")
	b.web.stop()
	testkit.Value(b.c1.Kubectl(ctx, nil, "delete", "namespace", "shop", "--wait", "--timeout=300s"))(t)
	must(t, b.lent(ctx, "", false))
	must(t, b.c1.ApplyYAML(ctx, shopNamespace+podOn("client", "n1")))
	ready(ctx, t, b.c1, "pod/client")
	b.clients[b.c1] = newClient(ctx, t, b.c1, "client")
	b.applies(ctx, t)
}

// mixes returns requests to web whose answers come from both clusters.
func (b *ownNameBed) mixes(ctx context.Context, t *testing.T) *load {
	t.Helper()
	b.annotate(ctx, t, "web", naming.OwnNameAll)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "web", true) }))
	l := b.clients[b.c1].load(ctx, t, "http://"+webItself+"/")
	answers(ctx, t, l, settle, "near", "far")
	return l
}

// remoteGoes deletes the RemoteCluster while both clusters answer, and creates it again.
func (b *ownNameBed) remoteGoes(ctx context.Context, t *testing.T) {
	l := b.mixes(ctx, t)
	others := testkit.Value(b.slicesOf(ctx, "web", false))(t)
	testkit.Value(b.c1.Kubectl(ctx, nil, "delete", "remotecluster", "c2"))(t)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "", false) }))
	// Requests to c2's pods may be lost: the tunnel goes with the RemoteCluster, beside the slices.
	pause(ctx, t, patience+proxySync)
	l.reset()
	answers(ctx, t, l, settle, "near")
	if now, err := b.slicesOf(ctx, "web", false); err != nil || !slices.Equal(now, others) {
		t.Errorf("the slices of others are %q (%v), and were %q", now, err, others)
	}
	testkit.Value(b.c1.Kubectl(ctx, nil, "apply", "-f", filepath.Join(b.in.overlay("c1"), "remotes.yaml")))(t)
	must(t, until(ctx, settle, func() error { return b.lent(ctx, "web", true) }))
}

// semaphoreGoes removes semaphore from c1 while both clusters answer.
func (b *ownNameBed) semaphoreGoes(ctx context.Context, t *testing.T) {
	l := b.mixes(ctx, t)
	others := testkit.Value(b.slicesOf(ctx, "web", false))(t)
	must(t, b.in.remove(ctx, b.c1))
	must(t, b.lent(ctx, "", false))
	l.reset()
	answers(ctx, t, l, settle, "near")
	if now, err := b.slicesOf(ctx, "web", false); err != nil || !slices.Equal(now, others) {
		t.Errorf("the slices of others are %q (%v), and were %q", now, err, others)
	}
}

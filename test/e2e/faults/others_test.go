package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// Others' changes, with requests counted: docs/faults.md has the numbers of the reports.

// askPause is the time between two requests of one of four workers: at most 40 requests a second.
const askPause = 100 * time.Millisecond

// requests are requests of a pod to a Service, each on a new connection through kube-proxy.
type requests struct {
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	answered map[string]int // by pod
	lost     []string
}

// ask sends requests to an address until stop or the end of the test.
func ask(t *testing.T, from *testbed.Pod, address string) *requests {
	t.Helper()
	ctx, end := context.WithCancel(life)
	r := &requests{end: end, answered: map[string]int{}}
	client := &http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: from.Netns.DialContext, DisableKeepAlives: true}}
	for range 4 {
		r.running.Go(func() {
			for ctx.Err() == nil {
				pod, err := askOnce(ctx, client, address)
				if ctx.Err() != nil {
					return
				}
				r.mu.Lock()
				if err != nil {
					r.lost = append(r.lost, fmt.Sprintf("%s: %v", time.Now().Format("15:04:05.000"), err))
				} else {
					r.answered[pod]++
				}
				r.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(askPause):
				}
			}
		})
	}
	t.Cleanup(func() { r.end(); r.running.Wait() })
	return r
}

// askOnce returns the name of the pod that answers.
func askOnce(ctx context.Context, client *http.Client, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct {
		Pod string `json:"pod"`
	}
	return answer.Pod, json.NewDecoder(response.Body).Decode(&answer)
}

// by returns the number of answers from pods whose names begin with a prefix.
func (r *requests) by(prefix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod, answers := range r.answered {
		if strings.HasPrefix(pod, prefix) {
			n += answers
		}
	}
	return n
}

// more waits for a number of further answers from pods whose names begin with a prefix.
func (r *requests) more(t *testing.T, prefix string, n int) {
	t.Helper()
	n += r.by(prefix)
	eventually(t, settle, func(context.Context) error {
		if got := r.by(prefix); got < n {
			return fmt.Errorf("%d answers of %s, want %d: %s", got, prefix, n, r)
		}
		return nil
	})
}

// noneLost fails the test if a request was lost.
func (r *requests) noneLost(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lost) > 0 {
		t.Errorf("%d requests were lost, %v were answered; the first: %q", len(r.lost), r.answered,
			r.lost[:min(3, len(r.lost))])
	}
}

func (r *requests) String() string {
	sent := r.by("")
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%d of %d requests lost", len(r.lost), sent+len(r.lost))
}

// load is the load of the machine, for the log.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return string(text[:min(len(text), strings.IndexByte(string(text)+"\n", ' '))])
}

// echo returns a Deployment of the Service web on a node.
func echo(name, node string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: web, of: %[1]s}}
  template:
    metadata: {labels: {app: web, of: %[1]s}}
    spec:
      nodeName: %[2]s
      terminationGracePeriodSeconds: 1
      containers:
        - name: echo
          image: testbed.local/testbed:1
          command: [testbed, echo]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10,
            failureThreshold: 10}
---
`, name, node, replicas)
}

// webService returns the Service web with the labels that offer it.
func webService(labels ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {%s}}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
`, strings.Join(labels, ", "))
}

const (
	mirrored = mirrorLabel + `: "true"`
	global   = `mirror.semaphore.uw.io/global-service: "true"`
)

// applied applies objects that the test removes at its end.
func (b *bed) applied(t *testing.T, c *testbed.Cluster, manifest string) {
	t.Helper()
	t.Cleanup(func() {
		_, err := c.Kubectl(life, strings.NewReader(manifest), "delete", "--ignore-not-found", "--wait", "-f", "-")
		if err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, c.ApplyYAML(t.Context(), manifest))
}

// asker returns a pod of the namespace shop on a node, from which the test sends.
func (b *bed) asker(t *testing.T, c *testbed.Cluster, node string) (pod *testbed.Pod) {
	t.Helper()
	b.applied(t, c, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: asker, namespace: shop}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: asker, image: testbed.local/testbed:1, command: [testbed, sleep]}]
`, node))
	eventually(t, settle, func(ctx context.Context) (err error) {
		pod, err = c.Pod(ctx, "shop", "asker")
		return err
	})
	return pod
}

// answers waits until a Service of a cluster answers a pod, and returns its address.
func answers(t *testing.T, c *testbed.Cluster, from *testbed.Pod, service string) (address string) {
	t.Helper()
	client := &http.Client{Timeout: 3 * time.Second,
		Transport: &http.Transport{DialContext: from.Netns.DialContext, DisableKeepAlives: true}}
	eventually(t, settle, func(ctx context.Context) error {
		s, err := c.Client.CoreV1().Services(e2e.Namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		address = net.JoinHostPort(s.Spec.ClusterIP, "80")
		_, err = askOnce(ctx, client, address)
		return err
	})
	return address
}

// finds returns nil if a status has a finding with a code and all texts.
func finds(s *semaphorev1.GetStatusResponse, code finding.Code, texts ...string) error {
	for _, f := range s.GetFindings() {
		text := strings.Join(f.GetFirst(), "\n")
		if f.GetCode() == string(code) && !slices.ContainsFunc(texts, func(want string) bool {
			return !strings.Contains(text, want)
		}) {
			return nil
		}
	}
	return fmt.Errorf("no %s with %q: %v", code, texts, s.GetFindings())
}

// Case 5: a node of c1 without an agent has one of three pods of a Service. c2's mirror and global Service use it only
// once an agent runs there: no request is lost, neither before nor when it joins.
func TestNodeWithoutAnAgent(t *testing.T) {
	tier.OnlyAll(t, "TestPodsWithoutATunnel (broker), TestOnlyWhatTunnelsLeadTo (broker/mirror)")
	b := onBed(t)
	from := b.asker(t, b.c2, "n1")
	b.applied(t, b.c2, echo("near", "n1", 2)+webService(global))
	b.applied(t, b.c1, echo("far", "n1", 2)+webService(mirrored, global))
	toMirror, toGlobal := answers(t, b.c2, from, "c1-shop-73736d-web"), answers(t, b.c2, from, "gl-shop-73736d-web")
	mirror, global := ask(t, from, toMirror), ask(t, from, toGlobal)
	defer mirror.noneLost(t)
	defer global.noneLost(t)
	global.more(t, "far-", 1)
	global.more(t, "near-", 1)

	joined, err := b.c1.AddNode(t.Context(), "--node-labels="+withoutAgent+"=true")
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(b.c1.RemoveNode(life, joined), releaseBlocks(life, b.c1, joined.Name)); err != nil {
			t.Error(err)
		}
	})
	b.applied(t, b.c1, echo("alone", joined.Name, 1))
	eventually(t, settle, func(ctx context.Context) error {
		broker, err := active(ctx, b.c2, "broker")
		if err != nil {
			return err
		}
		s, err := status(ctx, b.c2, broker)
		if err != nil {
			return err
		}
		return finds(s, finding.NoTunnel, "node "+joined.Name+": it has published no key")
	})
	// By chance one of three pods answers none of 120 requests once in 10^21, and one of five once in 10^11.
	mirror.more(t, "", 120)
	global.more(t, "", 120)
	for _, r := range []*requests{mirror, global} {
		if n := r.by("alone-"); n > 0 {
			t.Errorf("%d answers came from a node without a tunnel: the test sees nothing", n)
		}
	}
	t.Logf("load %s; a pod on a node without an agent: to the mirror %s, to the global Service %s", load(), mirror, global)

	if _, err := b.c1.Kubectl(t.Context(), nil, "label", "node", joined.Name, withoutAgent+"-"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	mirror.more(t, "alone-", 1)
	global.more(t, "alone-", 1)
	took := time.Since(began)
	mirror.more(t, "", 120)
	global.more(t, "", 120)
	mirror.end()
	global.end()
	t.Logf("load %s; it answers %s after the node may have an agent: to the mirror %s, to the global Service %s", load(),
		seconds(took), mirror, global)
}

// releaseBlocks deletes what Calico has assigned to a node that is gone, for which Calico itself takes minutes.
func releaseBlocks(ctx context.Context, c *testbed.Cluster, node string) error {
	affinities := c.Dynamic.Resource(schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
		Resource: "blockaffinities"})
	list, err := affinities.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range list.Items {
		if of, _, _ := unstructured.NestedString(a.Object, "spec", "node"); of == node {
			errs = append(errs, affinities.Delete(ctx, a.GetName(), metav1.DeleteOptions{}))
		}
	}
	return errors.Join(errs...)
}

// Case 8: a cluster that was restored from a backup beside c2 has its certificate, and an exporter that reads it. c1's
// mirrors and nodes do not change, no request is lost, and the status of both names it.
func TestCopyOfACluster(t *testing.T) {
	tier.OnlyAll(t, "TestASecondCluster (broker), TestAnotherClusterStands (exporter/publish)")
	b := onBed(t)
	from := b.asker(t, b.c1, "n1")
	b.applied(t, b.c2, echo("web", "n1", 2)+webService(mirrored))
	address := answers(t, b.c1, from, "c2-shop-73736d-web")
	b.converges(t, settle)
	l := newLab(t)
	for _, name := range []string{"c1", "c2"} {
		l.write(l.path("bundles", name+".pem"), l.ctl("pki", "bundle", "--dir", b.install.PKI(name)))
	}
	// In the copy the Service has an endpoint that does not answer.
	testkit.Must(t, offer(t.Context(), &testbed.Cluster{Client: l.kube, PodCIDR: b.c2.PodCIDR}, "web", 1))
	system := kubetest.Get(t, l.kube.CoreV1().Namespaces(), metav1.NamespaceSystem)
	toC1 := l.through(func(ctx context.Context) (net.Conn, error) {
		return b.tb.Fabric().DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", b.c1.Nodes[0].IP, e2e.FederationNodePort))
	})
	g := b.watch(t)
	r := ask(t, from, address)
	defer r.noneLost(t)
	r.more(t, "web-", 40)

	began := time.Now()
	keys := b.install.PKI("c2") + "/exporter/"
	second := l.start(&daemon{name: "exporter-copy", program: "semaphore-exporter"}, config{
		"cluster":        "c2",
		"localBroker":    config{"cluster": "c1", "address": toC1.Address().String()},
		"leaderElection": config{"enabled": false},
		"tls":            config{"certFile": keys + "tls.crt", "keyFile": keys + "tls.key", "bundleDir": l.path("bundles")},
		"kube":           config{"kubeConfigPath": kubetest.Kubeconfig(t, l.rest)},
	}, nil, nil)
	// c1's broker reports the copy for five minutes more, and the next broker knows nothing of it.
	t.Cleanup(func() { b.restartBroker(t, b.c1, second) })
	eventually(t, settle, func(ctx context.Context) error {
		testkit.Must(t, second.runs())
		s, err := second.status(ctx)
		if err != nil {
			return err
		}
		if err := finds(s, finding.SourceRefused, "the broker of c1 refuses"); err != nil {
			return err
		}
		broker, err := active(ctx, b.c1, "broker")
		if err != nil {
			return err
		}
		if s, err = status(ctx, b.c1, broker); err != nil {
			return err
		}
		return finds(s, finding.SourceRefused, string(system.UID))
	})
	named := time.Since(began)
	eventually(t, settle, func(context.Context) error {
		if n := second.metric("semaphore_exporter_streams_ended_total", `cluster="c1"`); n < 2 {
			return fmt.Errorf("it has tried %v times", n)
		}
		return nil
	})
	r.more(t, "web-", 120)
	r.end()
	t.Logf("load %s; named on both sides after %s, refused %v times in %s: %s; %s", load(), seconds(named),
		second.metric("semaphore_exporter_streams_ended_total", `cluster="c1"`), seconds(time.Since(began)), r, g.finish())
}

// restartBroker ends an exporter and lets the other broker of a cluster lead.
func (b *bed) restartBroker(t *testing.T, c *testbed.Cluster, refused *daemon) {
	refused.kill()
	pod := waitActive(t, c, "broker")
	if _, err := c.Kubectl(life, nil, "-n", e2e.Namespace, "delete", "pod", pod.Name, "--wait"); err != nil {
		t.Error(err)
	}
}

// Case 15: a second InternalIP, at which nobody answers, comes first in the status of c2's node for a while. The
// published endpoint stays, and no request and no packet is lost.
func TestAddressThatComesFirst(t *testing.T) {
	tier.OnlyAll(t, "TestAddressInAnyOrder, TestNodeAnnotations (broker/nodes)")
	b := onBed(t)
	from := b.asker(t, b.c1, "n1")
	b.applied(t, b.c2, echo("web", "n1", 2)+webService(mirrored))
	address := answers(t, b.c1, from, "c2-shop-73736d-web")
	b.converges(t, settle)
	g := b.watch(t)
	r := ask(t, from, address)
	r.more(t, "web-", 20)
	node, vip := b.c2.Nodes[0], b.c2.NodeSubnet.Addr().Next()
	for range 98 {
		vip = vip.Next()
	}
	endpoint := func() string {
		n := kubetest.Get(t, b.c2.Client.CoreV1().Nodes(), node.Name)
		return n.Annotations[naming.EndpointAnnotation("c1")]
	}
	before, began := endpoint(), time.Now()
	if !strings.HasPrefix(before, node.IP.String()+":") {
		t.Fatalf("the endpoint is %q, not of %s", before, node.IP)
	}
	first := func(ctx context.Context) error {
		n, err := b.c2.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil || n.Status.Addresses[0].Address == vip.String() {
			return err
		}
		n.Status.Addresses = slices.Insert(n.Status.Addresses, 0,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: vip.String()})
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/status/addresses",
			"value": n.Status.Addresses}})
		if err != nil {
			return err
		}
		_, err = b.c2.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	// The kubelet puts its own list in order every ten seconds, so the test repeats its change.
	for range 12 {
		eventually(t, settle, first)
		pause(t, time.Second)
		if now := endpoint(); now != before {
			t.Errorf("with %s first the endpoint is %s, was %s", vip, now, before)
		}
	}
	lasted := time.Since(began)
	r.more(t, "web-", 90)
	r.noneLost(t)
	r.end()
	t.Logf("load %s; a VIP first for %s: the endpoint was %s; %s; %s", load(), seconds(lasted), before, r, g.finish())
}

// Case 18: the exporter of c2 knows two nodes of c1 by whose NodePort it reaches the broker. The one that it uses is
// cut off: the stream is there again by way of the other, and no request is lost.
func TestNamedNodeGoesAway(t *testing.T) {
	tier.OnlyAll(t, "TestKeepTriesEachAddress (internal/streams)")
	b := onBed(t)
	gone, stays := b.c1.Nodes[0], b.c1.Nodes[1]
	from := b.asker(t, b.c1, stays.Name)
	b.applied(t, b.c2, echo("web", "n1", 2)+webService(mirrored))
	address := answers(t, b.c1, from, "c2-shop-73736d-web")
	b.leadsOn(t, b.c1, stays)
	at := func(n *testbed.Node) string { return fmt.Sprintf("%s:%d", n.IP, e2e.FederationNodePort) }
	b.reaches(t, at(gone), at(stays))
	r := ask(t, from, address)
	r.more(t, "web-", 20)
	was := b.stream(t)

	cuts := [][]string{{"raw", "PREROUTING", "-i", "eth0"}, {"mangle", "POSTROUTING", "-o", "eth0"}}
	change := func(op string) error {
		var errs []error
		for _, c := range cuts {
			errs = append(errs, iptables(gone.Netns, append([]string{"-t", c[0], op, c[1]}, append(c[2:], "-j", "DROP")...)...))
		}
		return errors.Join(errs...)
	}
	mend := sync.OnceValue(func() error { return change("-D") })
	t.Cleanup(func() {
		if err := mend(); err != nil {
			t.Error(err)
		}
	})
	cut := time.Now()
	testkit.Must(t, change("-I"))
	eventually(t, settle, func(ctx context.Context) error {
		l, err := b.linkOf(ctx, b.c1, "broker", "c2")
		if err == nil && (!l.GetConnected() || l.GetSince().AsTime().Equal(was)) {
			err = fmt.Errorf("c1 has no new stream of c2: %v", l)
		}
		return err
	})
	took := time.Since(cut)
	testkit.Must(t, offer(t.Context(), b.c2, "by-another-node", 951))
	t.Cleanup(func() {
		if err := withdraw(life, b.c2, "by-another-node"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, settle, func(ctx context.Context) error {
		_, err := b.c1.Client.CoreV1().Services(e2e.Namespace).Get(ctx, "c2-shop-73736d-by-another-node", metav1.GetOptions{})
		return err
	})
	r.more(t, "web-", 120)
	r.noneLost(t)
	r.end()
	t.Logf("load %s; the stream is there again %s after the cut, a new Service after %s: %s", load(), seconds(took),
		seconds(time.Since(cut)), r)
	testkit.Must(t, mend())
}

// leadsOn makes the broker on a node lead.
func (b *bed) leadsOn(t *testing.T, c *testbed.Cluster, node *testbed.Node) {
	t.Helper()
	eventually(t, settle, func(ctx context.Context) error {
		leading, err := active(ctx, c, "broker")
		if err != nil {
			return err
		}
		pod, err := c.Client.CoreV1().Pods(e2e.Namespace).Get(ctx, leading.Name, metav1.GetOptions{})
		if err != nil || pod.Spec.NodeName == node.Name {
			return err
		}
		return errors.Join(fmt.Errorf("%s leads on %s", pod.Name, pod.Spec.NodeName),
			c.Client.CoreV1().Pods(e2e.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	})
	eventually(t, settle, func(ctx context.Context) error { return e2e.CallsReachLeader(ctx, c) })
}

// reaches gives c2's exporter addresses of c1's broker until the end of the test, and waits until it uses the first.
func (b *bed) reaches(t *testing.T, first, other string) {
	t.Helper()
	remotes := b.c2.Dynamic.Resource(v1alpha1.RemoteClusters)
	set := func(ctx context.Context, broker map[string]any) error {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"broker": broker}})
		if err != nil {
			return err
		}
		_, err = remotes.Patch(ctx, "c1", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := set(life, map[string]any{"address": b.toC1.Address().String(), "otherAddresses": nil}); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, set(t.Context(), map[string]any{"address": first, "otherAddresses": []string{other}}))
	eventually(t, settle, func(ctx context.Context) error {
		l, err := b.linkOf(ctx, b.c2, "exporter", "c1")
		if err == nil && (!l.GetConnected() || l.GetAddress() != first || l.GetBehind() > 0) {
			err = fmt.Errorf("c2 does not use %s: %v", first, l)
		}
		return err
	})
}

// linkOf returns what the leading broker or exporter of a cluster says of another cluster.
func (b *bed) linkOf(ctx context.Context, c *testbed.Cluster, part, other string) (*semaphorev1.LinkStatus, error) {
	pod, err := active(ctx, c, part)
	if err != nil {
		return nil, err
	}
	s, err := status(ctx, c, pod)
	if err != nil {
		return nil, err
	}
	for _, l := range s.GetLinks() {
		if l.GetCluster() == other {
			return l, nil
		}
	}
	return nil, fmt.Errorf("the %s of %s knows no cluster %s", part, c.Name, other)
}

// stream returns since when c1's broker has its stream of c2.
func (b *bed) stream(t *testing.T) (since time.Time) {
	t.Helper()
	eventually(t, settle, func(ctx context.Context) error {
		l, err := b.linkOf(ctx, b.c1, "broker", "c2")
		if err == nil && !l.GetConnected() {
			err = errors.New("c1 has no stream of c2")
		}
		since = l.GetSince().AsTime()
		return err
	})
	return since
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// DNS names of c2's Services in c1, from the server blocks in CoreDNS's configuration.
const (
	echoInC2 = "echo.shop.svc.cluster.c2"
	dbInC2   = "db.shop.svc.cluster.c2"
)

// offeredEcho is echo of c2 with a ClusterIP. Ending pods still answer clients that do not know about their end yet.
var offeredEcho = echoes{name: "echo", replicas: 2, grace: lingeringGrace, lifecycle: lingering}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: http}, {name: other, port: 8080, targetPort: http}]
---
`

// servicesC2 are the Services that c2 offers: echo, and the headless db, whose pods have names.
var servicesC2 = offeredEcho + `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: db
          image: testbed.local/testbed:1
          command: [testbed, echo]
          ports: [{containerPort: 8080, name: http}]
          readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, timeoutSeconds: 10,
            failureThreshold: 10}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: http, port: 8080, targetPort: http}]
`

const shopNamespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n"

// servicesBed is two clusters with a client in each, and services in c2.
type servicesBed struct {
	*Scenario
	clients map[*testbed.Cluster]*client
}

// TestServices covers services of one cluster as pods of the other use them: by name, through CoreDNS and kube-proxy.
func TestServices(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures has ClusterIP, headless and a rollout; broker/mirror has global Services")
	ctx := needsBed(t)
	b := newServicesBed(ctx, t, connected(ctx, t, func(in *Installation) { in.Global = globalTimes }))
	// This is first, because no packet must have passed the tunnel yet.
	must(t, b.c1.ApplyYAML(ctx, web("near")))
	must(t, b.c2.ApplyYAML(ctx, web("far")))
	ready(ctx, t, b.c1, "deployment/near")
	ready(ctx, t, b.c2, "deployment/far")
	t.Run("idle tunnels", func(t *testing.T) { b.flapping(ctx, t) })
	t.Run("ClusterIP", func(t *testing.T) { b.clusterIP(ctx, t) })
	t.Run("headless", func(t *testing.T) { b.headless(ctx, t) })
	t.Run("rolling update", func(t *testing.T) { b.rollingUpdate(ctx, t, 20) })
	t.Run("global", func(t *testing.T) { b.global(ctx, t) })
}

// newServicesBed starts the clients and the Services of c2.
func newServicesBed(ctx context.Context, t *testing.T, s *Scenario) *servicesBed {
	t.Helper()
	b := &servicesBed{Scenario: s, clients: map[*testbed.Cluster]*client{}}
	must(t, b.c2.ApplyYAML(ctx, shopNamespace+servicesC2))
	for _, c := range b.tb.Clusters() {
		must(t, c.ApplyYAML(ctx, shopNamespace+workload("client", "app: client")))
		ready(ctx, t, c, "pod/client")
		b.clients[c] = newClient(ctx, t, c, "client")
	}
	ready(ctx, t, b.c2, "deployment/echo", "statefulset/db")
	return b
}

// addresses returns the addresses of c2's pods with a label, by pod name.
func (b *servicesBed) addresses(ctx context.Context, t *testing.T, app string) map[string]string {
	t.Helper()
	all := testkit.Value(pods(ctx, b.c2, "shop", "app="+app))(t)
	out := map[string]string{}
	for _, p := range all {
		out[p.Name] = p.Status.PodIP
	}
	return out
}

// resolves waits until a name resolves to exactly these addresses.
func (b *servicesBed) resolves(ctx context.Context, t *testing.T, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	must(t, until(ctx, settle, func() error {
		got, err := b.clients[b.c1].lookup(ctx, name)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%s is %v, want %v", name, got, want)
		}
		return err
	}))
}

// clusterIP checks that the name resolves to one address of c1 and that every pod behind it answers.
func (b *servicesBed) clusterIP(ctx context.Context, t *testing.T) {
	echoes := b.addresses(ctx, t, "echo")
	answered := map[string]bool{}
	must(t, until(ctx, settle, func() error {
		a, err := b.clients[b.c1].ask(ctx, "http://"+echoInC2+"/")
		if err != nil {
			return err
		}
		if echoes[a.Pod] != a.IP {
			t.Fatalf("%+v answered, which is none of %v", a, echoes)
		}
		if answered[a.Pod] = true; len(answered) < len(echoes) {
			return fmt.Errorf("of %v only %v answered", echoes, answered)
		}
		return nil
	}))
	found := testkit.Value(b.clients[b.c1].lookup(ctx, echoInC2))(t)
	if len(found) != 1 || !b.c1.ServiceCIDR.Contains(ip4(net.ParseIP(found[0]).To4())) {
		t.Errorf("%s is %v, not one of c1's ClusterIPs", echoInC2, found)
	}
	// Use a program in the pod with the pod's resolv.conf.
	out, err := b.c1.ExecPod(ctx, "shop", "client", "curl", "-sS", "--max-time", "20", "http://"+echoInC2)
	if err != nil || !strings.Contains(out, `"pod":"echo-`) {
		t.Errorf("curl in the pod: %v, %q", err, out)
	}
}

// headless checks that the name resolves to the pods, and that each pod has a name, which it keeps when its address
// changes.
func (b *servicesBed) headless(ctx context.Context, t *testing.T) {
	dbs := b.addresses(ctx, t, "db")
	b.resolves(ctx, t, dbInC2, dbs["db-0"], dbs["db-1"])
	answers := func(name string) {
		t.Helper()
		must(t, until(ctx, settle, func() error {
			a, err := b.clients[b.c1].ask(ctx, "http://"+name+"."+dbInC2+":8080/")
			if err == nil && a.Pod != name {
				err = fmt.Errorf("%s answered at the name of %s", a.Pod, name)
			}
			return err
		}))
	}
	for name, ip := range dbs {
		b.resolves(ctx, t, name+"."+dbInC2, ip)
		answers(name)
	}
	t.Run("SRV", func(t *testing.T) {
		_, all, err := b.clients[b.c1].resolver.LookupSRV(ctx, "http", "tcp", dbInC2+".")
		must(t, err)
		var got []string
		for _, r := range all {
			pod, _, _ := strings.Cut(r.Target, ".")
			got = append(got, fmt.Sprintf("%s:%d", pod, r.Port))
		}
		slices.Sort(got)
		if !slices.Equal(got, []string{"db-0:8080", "db-1:8080"}) {
			t.Errorf("SRV records lead to %v", got)
		}
	})
	testkit.Value(b.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", "db-0", "--wait"))(t)
	var fresh string
	must(t, until(ctx, settle, func() error {
		if fresh = b.addresses(ctx, t, "db")["db-0"]; fresh == "" || fresh == dbs["db-0"] {
			return errors.New("db-0 has no other address yet")
		}
		return nil
	}))
	b.resolves(ctx, t, "db-0."+dbInC2, fresh)
	answers("db-0")
	b.resolves(ctx, t, dbInC2, fresh, dbs["db-1"])
}

// rollingUpdate replaces pods, five at a time, while a client in each cluster sends requests continuously. Each pod
// answers until 20 s after its deletion, so no request is lost as long as the lag is shorter than that.
// BenchmarkServicesChange measures the lag.
func (b *servicesBed) rollingUpdate(ctx context.Context, t *testing.T, replicas int) {
	testkit.Value(b.c2.Kubectl(ctx, nil, "-n", "shop", "scale", "deployment/echo", fmt.Sprint("--replicas=", replicas)))(t)
	ready(ctx, t, b.c2, "deployment/echo")
	before := b.addresses(ctx, t, "echo")
	local := b.clients[b.c2].load(ctx, t, "http://echo.shop.svc.cluster.local/")
	remote := b.clients[b.c1].load(ctx, t, "http://"+echoInC2+"/")
	must(t, until(ctx, settle, func() error {
		for _, l := range []*load{local, remote} {
			for pod := range before {
				if l.seen(func(p string) bool { return p == pod }) == 0 {
					return fmt.Errorf("%s has had no answer of %s", l.client.name, pod)
				}
			}
		}
		return nil
	}))
	testkit.Value(b.c2.Kubectl(ctx, nil, "-n", "shop", "rollout", "restart", "deployment/echo"))(t)
	ready(ctx, t, b.c2, "deployment/echo")
	// Continue until the last old pod is gone and the last new one has answered.
	var after []corev1.Pod
	must(t, until(ctx, settle, func() error {
		list, err := b.c2.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=echo"})
		if err != nil {
			return err
		}
		after = list.Items
		for _, p := range after {
			pod := p.Name
			if before[pod] != "" {
				return fmt.Errorf("%s is there still", pod)
			}
			for _, l := range []*load{local, remote} {
				if l.seen(func(p string) bool { return p == pod }) == 0 {
					return fmt.Errorf("%s has had no answer of %s", l.client.name, pod)
				}
			}
		}
		return nil
	}))
	t.Log(local.stop())
	t.Log(remote.stop())
	if len(after) != replicas {
		t.Errorf("%d pods after the update", len(after))
	}
	if mine, theirs := len(remote.failures()), len(local.failures()); mine > theirs {
		t.Errorf("%d requests from the other cluster failed, and %d from the own one", mine, theirs)
	}
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// theirEcho is what semaphore-service-mirror creates for c2's Service shop/echo.
const theirEcho = `
apiVersion: v1
kind: Service
metadata:
  name: c2-shop-73736d-echo
  namespace: semaphore
  labels: {mirrored-svc: "true", mirror-svc-prefix-sync: c2}
spec:
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Endpoints
metadata:
  name: c2-shop-73736d-echo
  namespace: semaphore
  labels: {mirrored-svc: "true", mirror-svc-prefix-sync: c2}
subsets:
  - addresses: [%s]
    ports: [{name: http, port: 8080}]
`

// TestHandover checks that semaphore adopts the objects of semaphore-service-mirror, with the real controllers and
// kube-proxy, while a client sends requests continuously. No request fails.
func TestHandover(t *testing.T) {
	tier.OnlyAll(t, "TestDrainRPC, TestDrainsFirst (broker); TestHints (broker/migrate)")
	ctx := needsBed(t)
	b := &servicesBed{Scenario: connected(ctx, t, nil), clients: map[*testbed.Cluster]*client{}}
	must(t, b.c2.ApplyYAML(ctx, shopNamespace+servicesC2))
	must(t, b.c1.ApplyYAML(ctx, shopNamespace+workload("client", "app: client")))
	ready(ctx, t, b.c1, "pod/client")
	ready(ctx, t, b.c2, "deployment/echo", "statefulset/db")
	b.clients[b.c1] = newClient(ctx, t, b.c1, "client")
	kubectl := func(args ...string) {
		t.Helper()
		testkit.Value(b.c1.Kubectl(ctx, nil, append([]string{"-n", Namespace}, args...)...))(t)
	}

	// Restore the state before semaphore.
	kubectl("scale", "deployment/semaphore-broker", "--replicas=0")
	kubectl("wait", "pod", "-l", "app.kubernetes.io/component=broker", "--for=delete", "--timeout=300s")
	kubectl("delete", "services,endpointslices", "-l", naming.LabelManagedBy+"="+naming.ManagedByBroker)
	var addresses []string
	for _, ip := range b.addresses(ctx, t, "echo") {
		addresses = append(addresses, "{ip: "+ip+"}")
	}
	must(t, b.c1.ApplyYAML(ctx, fmt.Sprintf(theirEcho, strings.Join(addresses, ", "))))
	must(t, until(ctx, settle, func() error {
		_, err := b.clients[b.c1].ask(ctx, "http://"+echoInC2+"/")
		return err
	}))
	before, err := b.c1.Client.CoreV1().Services(Namespace).Get(ctx, "c2-shop-73736d-echo", metav1.GetOptions{})
	must(t, err)
	load := b.clients[b.c1].load(ctx, t, "http://"+echoInC2+"/")

	// The operator allows the adoption.
	dir := b.in.overlay("c1")
	rewrite(t, filepath.Join(dir, "broker.yaml"), "localSubnets:",
		"services: {adoptFrom: [semaphore-service-mirror]}\nlocalSubnets:")
	rewrite(t, filepath.Join(dir, "kustomization.yaml"), "components:\n",
		"components:\n  - "+b.deploy(t, dir)+"/features/adopt-services\n")
	testkit.Value(b.c1.Kubectl(ctx, nil, "apply", "-k", dir))(t)
	must(t, b.in.WaitReady(ctx, b.c1))
	must(t, until(ctx, settle, func() error { return b.handedOver(ctx) }))
	from := load.seen(anyPod)
	must(t, until(ctx, settle, func() error {
		if n := load.seen(anyPod) - from; n < 40 {
			return fmt.Errorf("%d answers since", n)
		}
		return nil
	}))
	load.stop()
	if failed := load.failures(); len(failed) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(failed), load.seen(anyPod), failed)
	}
	t.Logf("%d requests were answered", load.seen(anyPod))
	after, err := b.c1.Client.CoreV1().Services(Namespace).Get(ctx, "c2-shop-73736d-echo", metav1.GetOptions{})
	must(t, err)
	if after.UID != before.UID || after.Spec.ClusterIP != before.Spec.ClusterIP {
		t.Errorf("it is another Service: %s at %s, and was %s at %s", after.UID, after.Spec.ClusterIP, before.UID,
			before.Spec.ClusterIP)
	}
	b.dnsIsRight(ctx, t)
	t.Run("Rollouts", func(t *testing.T) { b.rollouts(ctx, t) })
}

// rewrite replaces the first occurrence of old by new in a file.
func rewrite(t *testing.T, file, old, new string) {
	t.Helper()
	text := testkit.Value(os.ReadFile(file))(t)
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s has no %q", file, old)
	}
	must(t, os.WriteFile(file, []byte(strings.Replace(string(text), old, new, 1)), 0o644))
}

func anyPod(string) bool { return true }

// deploy returns the path of the manifests relative to an overlay.
func (b *servicesBed) deploy(t *testing.T, dir string) string {
	t.Helper()
	return testkit.Value(filepath.Rel(dir, filepath.Join(b.in.repo, "deploy")))(t)
}

// handedOver returns why an object is not adopted yet, or nil.
func (b *servicesBed) handedOver(ctx context.Context) error {
	left, err := b.c1.Kubectl(ctx, nil, "-n", Namespace, "get", "endpoints", "-l", naming.LabelMirrored+"=true",
		"-o", "name")
	if err != nil || strings.TrimSpace(left) != "" {
		return fmt.Errorf("left are %q (%w)", left, err)
	}
	all, err := b.c1.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=c2-shop-73736d-echo"})
	if err != nil {
		return err
	}
	ours := 0
	for _, s := range all.Items {
		if by := s.Labels[discoveryv1.LabelManagedBy]; by != naming.ManagedByBroker {
			return fmt.Errorf("slice %s is of %s", s.Name, by)
		}
		ours += len(s.Endpoints)
	}
	if ours == 0 {
		return fmt.Errorf("no endpoint is in a slice of ours")
	}
	return nil
}

// dnsIsRight asks the broker's pod, with the broker's permissions, whether CoreDNS serves the names of remote services.
func (b *servicesBed) dnsIsRight(ctx context.Context, t *testing.T) {
	t.Helper()
	list := testkit.Value(b.c1.Client.CoreV1().Pods(Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=broker"}))(t)
	if len(list.Items) == 0 {
		t.Fatal("no broker runs")
	}
	said, err := b.c1.ExecPod(ctx, Namespace, list.Items[0].Name, "semaphorectl", "check", "--config",
		"/etc/semaphore/config.yaml")
	// It ends with 3: the broker may not read Calico's policies.
	if err == nil || !strings.Contains(err.Error(), "exit status 3: semaphorectl: 0 errors, 0 warnings, 1 not checked") ||
		!strings.Contains(said, "it has the server blocks of cluster.c2, cluster.global") {
		t.Errorf("check says %q, %v", said, err)
	}
}

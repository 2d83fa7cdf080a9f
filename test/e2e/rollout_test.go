package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const (
	shipped = "ghcr.io/kube-semaphore/semaphore:main"
	// nextImage has the same programs under a new name, like a new build.
	nextImage = "ghcr.io/kube-semaphore/semaphore:next"
	// brokenImage is on no node and in no registry.
	brokenImage = "ghcr.io/kube-semaphore/semaphore:broken"
)

// rollouts checks that broker and exporter behave as tools expect of a Deployment. A new image replaces them while
// clients send requests and changes arrive. An image that does not start replaces nothing.
func (b *servicesBed) rollouts(ctx context.Context, t *testing.T) {
	kubectl := func(args ...string) string {
		t.Helper()
		return testkit.Value(b.c1.Kubectl(ctx, nil, append([]string{"-n", Namespace}, args...)...))(t)
	}
	kubectl("wait", "deployment/semaphore-broker", "deployment/semaphore-exporter", "--for=condition=Available",
		"--timeout=300s")
	for _, part := range []string{"broker", "exporter"} {
		must(t, until(ctx, settle, func() error {
			if allowed := kubectl("get", "poddisruptionbudget", "semaphore-"+part, "-o",
				"jsonpath={.status.disruptionsAllowed}"); allowed != "1" {
				return fmt.Errorf("the budget of the %s lets %q pods be evicted, want 1", part, allowed)
			}
			return nil
		}))
	}
	must(t, until(ctx, settle, func() error { return CallsReachLeader(ctx, b.c1) }))
	load := b.clients[b.c1].load(ctx, t, "http://"+echoInC2+"/")

	before := b.brokersOf(ctx, t, shipped)
	kubectl("set", "image", "deployment/semaphore-broker", "broker="+brokenImage)
	must(t, until(ctx, settle, func() error { return b.waitsForImage(ctx) }))
	b.changesArrive(ctx, t, "while-broken")
	if now := b.brokersOf(ctx, t, shipped); !slices.Equal(now, before) {
		t.Errorf("an image that does not start replaced the brokers %v by %v", before, now)
	}
	// A replica that has lost its Lease, because its apiserver got no CPU time, restarts.
	must(t, until(ctx, settle, func() error {
		if ready := kubectl("get", "deployment/semaphore-broker", "-o", "jsonpath={.status.readyReplicas}"); ready != "2" {
			return fmt.Errorf("with an image that does not start %s replicas are ready, want 2", ready)
		}
		return nil
	}))

	for _, n := range b.c1.Nodes {
		testkit.Value(n.Exec(ctx, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", shipped, nextImage))(t)
	}
	began := time.Now()
	for _, part := range []string{"broker", "exporter"} {
		kubectl("set", "image", "deployment/semaphore-"+part, part+"="+nextImage)
	}
	b.changesArrive(ctx, t, "during-rollout")
	for _, part := range []string{"broker", "exporter"} {
		kubectl("rollout", "status", "deployment/semaphore-"+part, "--timeout=300s")
	}
	took := time.Since(began)
	must(t, until(ctx, settle, func() error { return errors.Join(CallsReachLeader(ctx, b.c1), b.attached(ctx, b.c1)) }))
	b.changesArrive(ctx, t, "after-rollout")
	if now, err := awaitLeader(ctx, b.c1, "broker"); err != nil || now.Spec.Containers[0].Image != nextImage {
		t.Errorf("the leader is %v, %v; want one of %s", now, err, nextImage)
	}
	load.stop()
	if failed := load.failures(); len(failed) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(failed), load.seen(anyPod), failed)
	}
	t.Logf("rolled out in %s; %d requests were answered, 0 lost", took.Round(time.Second), load.seen(anyPod))
}

// brokersOf returns the sorted names of c1's broker pods with an image.
func (b *servicesBed) brokersOf(ctx context.Context, t *testing.T, image string) (names []string) {
	t.Helper()
	all := testkit.Value(pods(ctx, b.c1, Namespace, "app.kubernetes.io/component=broker"))(t)
	for _, p := range all {
		if p.Spec.Containers[0].Image == image {
			names = append(names, p.Name)
		}
	}
	if slices.Sort(names); len(names) != 2 {
		t.Errorf("%v are brokers of %s, want two", names, image)
	}
	return names
}

// waitsForImage returns nil when a broker pod cannot pull its image.
func (b *servicesBed) waitsForImage(ctx context.Context) error {
	list, err := b.c1.Client.CoreV1().Pods(Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=broker"})
	if err != nil {
		return err
	}
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting != nil && strings.Contains(s.State.Waiting.Reason, "Image") {
				return nil
			}
		}
	}
	return errors.New("no pod waits for its image")
}

// changesArrive checks that a Service offered in c2 is mirrored in c1.
func (b *servicesBed) changesArrive(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	began := time.Now()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mirror.semaphore.uw.io/mirror-service": "true"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "echo"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	testkit.Value(b.c2.Client.CoreV1().Services("shop").Create(ctx, service, metav1.CreateOptions{}))(t)
	must(t, until(ctx, settle, func() error {
		_, err := b.c1.Client.CoreV1().Services(Namespace).Get(ctx, "c2-shop-"+naming.MirrorSeparator+"-"+name,
			metav1.GetOptions{})
		return err
	}))
	t.Logf("%s: a Service was mirrored %s after it was offered", name, time.Since(began).Round(time.Millisecond))
}

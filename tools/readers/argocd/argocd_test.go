// Package argocd has Argo CD's engine synchronize an application in a cluster in which the broker writes.
package argocd

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/cache"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/engine"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/health"
	gitopssync "github.com/argoproj/argo-cd/gitops-engine/pkg/sync"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/sync/common"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/mirrored"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	os.Exit(m.Run())
}

// application is an application's name. In the source cluster it has the Service, in this one others.
const application = "shop"

// tracks reports whether Argo CD takes an object for one of the application, by the method label, which was the default
// before 3.0 (argo-cd v3.5.0, util/argo/resource_tracking.go:69, controller/cache/cache.go:734). By the methods with an
// annotation it prunes no object but the one that the annotation names (controller/state.go:1286).
func tracks(o metav1.Object) bool { return o.GetLabels()[naming.LabelInstance] == application }

// TestPrune: an application with prune and without anything in Git deletes what it tracks, and nothing of the broker's,
// whose sources have its labels.
func TestPrune(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx, client := context.Background(), kubernetes.NewForConfigOrDie(cfg)
	theirs := map[string]string{naming.LabelInstance: application, "argocd.argoproj.io/instance": application,
		"app.kubernetes.io/name": "echo"}
	all := mirrored.Labelled(t, theirs)
	namespace := all[0].Service.Namespace
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	testkit.Must(t, err)
	uids := map[string]string{}
	for _, s := range all {
		s.Service.Spec.ClusterIP, s.Service.Spec.ClusterIPs = "", nil
		made, err := client.CoreV1().Services(namespace).Create(ctx, s.Service, metav1.CreateOptions{})
		testkit.Must(t, err)
		if made.Labels["app.kubernetes.io/name"] != "echo" {
			t.Errorf("%s lacks the label that may be copied", made.Name)
		}
		uids["Service "+made.Name] = string(made.UID)
		for _, slice := range s.Slices {
			made, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
			testkit.Must(t, err)
			uids["EndpointSlice "+made.Name] = string(made.UID)
		}
	}
	// The mirror that another tool makes, with all labels.
	_, err = client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "labelled", Labels: theirs},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	testkit.Must(t, err)
	if pruned := prune(t, engineOf(t, cfg)); !slices.Equal(pruned, []string{"labelled"}) {
		t.Errorf("%q are pruned, not the labelled one", pruned)
	}
	_, err = client.CoreV1().Services(namespace).Get(ctx, "labelled", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	left := map[string]string{}
	services, err := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	testkit.Must(t, err)
	for _, s := range services.Items {
		left["Service "+s.Name] = string(s.UID)
		healthy(t, &s)
	}
	endpoints, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	testkit.Must(t, err)
	for _, s := range endpoints.Items {
		left["EndpointSlice "+s.Name] = string(s.UID)
	}
	for what, uid := range uids {
		if left[what] != uid {
			t.Errorf("%s was %s and is %q", what, uid, left[what])
		}
	}
}

// engineOf is Argo CD's engine, which knows of each object what it tracks.
func engineOf(t *testing.T, cfg *rest.Config) engine.GitOpsEngine {
	t.Helper()
	known := cache.NewClusterCache(cfg, cache.SetLogr(logr.Discard()),
		cache.SetPopulateResourceInfoHandler(func(o *unstructured.Unstructured, _ bool) (info any, keep bool) {
			return tracks(o), tracks(o)
		}))
	e := engine.NewEngine(cfg, known, engine.WithLogr(logr.Discard()))
	stop, err := e.Run()
	testkit.Must(t, err)
	t.Cleanup(stop)
	return e
}

// prune synchronizes the application with nothing in Git, and returns the names of what was deleted.
func prune(t *testing.T, e engine.GitOpsEngine) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	results, err := e.Sync(ctx, nil, func(r *cache.Resource) bool { return r.Info == true }, "1", "default",
		gitopssync.WithPrune(true), gitopssync.WithLogr(logr.Discard()),
		gitopssync.WithPrunePropagationPolicy(ptr.To(metav1.DeletePropagationBackground))) // no garbage collector runs
	testkit.Must(t, err)
	for _, r := range results {
		if r.Status != common.ResultCodePruned {
			t.Errorf("%s: %s %s", r.ResourceKey.Name, r.Status, r.Message)
		}
		names = append(names, r.ResourceKey.Name)
	}
	slices.Sort(names)
	return names
}

// healthy: Argo CD and kstatus take the Service for healthy, although it has no status.
func healthy(t *testing.T, s *corev1.Service) {
	t.Helper()
	s.APIVersion, s.Kind = "v1", "Service"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s)
	testkit.Must(t, err)
	u := &unstructured.Unstructured{Object: object}
	if h, err := health.GetResourceHealth(u, nil); err != nil || h.Status != health.HealthStatusHealthy {
		t.Errorf("%s: Argo CD says %v, %v", s.Name, h, err)
	}
	if r, err := status.Compute(u); err != nil || r.Status != status.CurrentStatus {
		t.Errorf("%s: kstatus says %v, %v", s.Name, r, err)
	}
}

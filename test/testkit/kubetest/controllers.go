package kubetest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// keys maps the URL of an apiserver to the directory with its keys.
var keys sync.Map

// StartControllers runs some of Kubernetes' own controllers until the test ends. Names are, for example,
// endpointslice-mirroring-controller.
func StartControllers(t testing.TB, cfg *rest.Config, names ...string) {
	t.Helper()
	servers := testkit.Value(find(t.Context()))(t)
	args := []string{"--kubeconfig=" + Kubeconfig(t, cfg), "--controllers=" + strings.Join(names, ","),
		"--leader-elect=false", "--secure-port=0"}
	if dir, ok := keys.Load(cfg.Host); ok && slices.Contains(names, "serviceaccount-token-controller") {
		args = append(args, "--service-account-private-key-file="+filepath.Join(dir.(string), "service-account.key"),
			"--root-ca-file="+filepath.Join(dir.(string), "ca.crt"))
	}
	testkit.Value(run(t, nil, t.TempDir(), "kube-controller-manager", servers.controllerManager, args...))(t)
}

// Repeat does something again and again until the test ends.
func Repeat(t testing.TB, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if do(ctx) != nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
}

// EndNamespaces acts as the namespace-controller until the test ends: it deletes what is in deleted namespaces, and
// then these. That one looks at a deleted namespace after five seconds at the earliest.
func EndNamespaces(t testing.TB, cfg *rest.Config) {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{} // it lists deprecated types, too
	admin, objects := kubernetes.NewForConfigOrDie(cfg), metadata.NewForConfigOrDie(cfg)
	Repeat(t, func(ctx context.Context) error { return endNamespaces(ctx, admin, objects) })
}

func endNamespaces(ctx context.Context, admin kubernetes.Interface, objects metadata.Interface) error {
	background := metav1.DeletePropagationBackground
	all, err := admin.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		n := &all.Items[i]
		if n.DeletionTimestamp == nil || len(n.Spec.Finalizers) == 0 {
			continue
		}
		lists, err := admin.Discovery().ServerPreferredNamespacedResources()
		if err != nil {
			return err
		}
		left := 0
		for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
			gv, _ := schema.ParseGroupVersion(list.GroupVersion)
			for _, r := range list.APIResources {
				of := objects.Resource(gv.WithResource(r.Name)).Namespace(n.Name)
				found, err := of.List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				for _, o := range found.Items {
					left++
					_ = of.Delete(ctx, o.Name, metav1.DeleteOptions{PropagationPolicy: &background})
				}
			}
		}
		if n.Spec.Finalizers = nil; left == 0 {
			_, _ = admin.CoreV1().Namespaces().Finalize(ctx, n, metav1.UpdateOptions{})
		}
	}
	time.Sleep(50 * time.Millisecond)
	return nil
}

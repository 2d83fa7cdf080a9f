package kube

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestCalico: the cluster passes through the states of real clusters: no Calico, its CRDs, the v3 API as well, and a v3
// API that is announced and does not answer.
func TestCalico(t *testing.T) {
	cfg := kubetest.Start(t)

	if _, err := Calico(cfg); !errors.Is(err, ErrNoCalico) {
		t.Fatalf("cluster without Calico: %v; want ErrNoCalico", err)
	}

	kubetest.InstallCalico(t, cfg, calicoCRD, "globalnetworksets", "ippools")
	t.Run("crd.projectcalico.org/v1", func(t *testing.T) { testGroup(t, cfg, calicoCRD) })

	// A v3 API without sets does not suffice.
	kubetest.InstallCalico(t, cfg, calicoV3, "ippools")
	if c, err := Calico(cfg); err != nil || c.GroupVersion != calicoCRD {
		t.Fatalf("v3 API without GlobalNetworkSets: %+v, %v; want %s", c, err, calicoCRD)
	}

	kubetest.InstallCalico(t, cfg, calicoV3, "globalnetworksets")
	t.Run("projectcalico.org/v3", func(t *testing.T) { testGroup(t, cfg, calicoV3) })
}

// TestCalicoAPIServer uses the real Calico API server.
func TestCalicoAPIServer(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.StartCalicoAPIServer(t, cfg)
	testGroup(t, cfg, calicoV3)
}

// TestCalicoAggregatedAPIDown: while an aggregated API is down, a part must not write to the other group, because its
// earlier objects would remain in the first one.
func TestCalicoAggregatedAPIDown(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, calicoCRD, "globalnetworksets", "ippools")
	apiServices := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{
		Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
	})
	kubetest.CreateObject(t, apiServices, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1",
		"kind":       "APIService",
		"metadata":   map[string]any{"name": "v3.projectcalico.org"},
		"spec": map[string]any{
			"group": calicoV3.Group, "version": calicoV3.Version,
			"groupPriorityMinimum": int64(1500), "versionPriority": int64(200), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "calico-apiserver", "name": "calico-api"},
		},
	}})
	// The apiserver takes a moment until it routes the group to the missing service.
	var err error
	testkit.Eventually(t, 3*time.Minute, "an error, as the v3 API is announced, and nobody there", func() error {
		var c *CalicoClient
		if c, err = Calico(cfg); err == nil {
			return errors.New("it chose " + c.GroupVersion.String())
		}
		return nil
	})
	if errors.Is(err, ErrNoCalico) || !strings.Contains(err.Error(), calicoV3.String()) {
		t.Errorf("error %v; want one that names %s and is not ErrNoCalico", err, calicoV3)
	}
}

func testGroup(t *testing.T, cfg *rest.Config, want schema.GroupVersion) {
	c := testkit.Value(Calico(cfg))(t)
	if c.GroupVersion != want {
		t.Fatalf("group %s; want %s", c.GroupVersion, want)
	}
	labels := map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker"}
	t.Run("GlobalNetworkSet", func(t *testing.T) {
		testResource(t, c.GlobalNetworkSets(),
			&calicov3.GlobalNetworkSet{
				ObjectMeta: metav1.ObjectMeta{Name: "c2-shop-client", Labels: labels},
				Spec:       calicov3.GlobalNetworkSetSpec{Nets: []string{"10.2.0.1/32", "fd00:2::1/128"}},
			},
			func(s *calicov3.GlobalNetworkSet) { s.Spec.Nets = []string{"10.2.0.2/32"} },
			func(*calicov3.GlobalNetworkSet, int) {},
			func(s *calicov3.GlobalNetworkSet) any { return s.Spec })
	})
	t.Run("IPPool", func(t *testing.T) {
		testResource(t, c.IPPools(),
			&calicov3.IPPool{
				ObjectMeta: metav1.ObjectMeta{Name: "semaphore-c2-10-2-0-0-16", Labels: labels},
				Spec: calicov3.IPPoolSpec{
					CIDR: "10.2.0.0/16", Disabled: true, IPIPMode: calicov3.IPIPModeNever,
					VXLANMode: calicov3.VXLANModeNever, NodeSelector: "all()",
					// The defaults that the Calico API server sets.
					BlockSize: 26, AllowedUses: []calicov3.IPPoolAllowedUse{calicov3.IPPoolAllowedUseWorkload,
						calicov3.IPPoolAllowedUseTunnel},
				},
			},
			func(p *calicov3.IPPool) { p.Spec.DisableBGPExport = true },
			func(p *calicov3.IPPool, i int) { p.Spec.CIDR = fmt.Sprintf("10.%d.0.0/16", 3+i) }, // they must not overlap
			func(p *calicov3.IPPool) any { return p.Spec })
	})
}

// testResource creates, changes and deletes object while it watches the resource. others changes a copy into an object
// that may exist beside it.
func testResource[T CalicoObject](t *testing.T, r CalicoResource[T], object T, change func(T), others func(T, int),
	spec func(T) any) {
	ctx := t.Context()
	seen := make(chan string, 100)
	informer := cache.NewSharedIndexInformer(r.ListWatch("app.kubernetes.io/managed-by=semaphore-broker"),
		r.Example(), 0, nil)
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "add " + o.(T).GetName() },
		UpdateFunc: func(_, o any) { seen <- "update " + o.(T).GetName() },
		DeleteFunc: func(o any) { seen <- "delete " + o.(T).GetName() },
	})
	testkit.Run(t, func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	})
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("informer does not sync")
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Fatalf("informer saw %q; want %q", got, want)
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("informer never saw %q", want)
		}
	}
	name := object.GetName()

	created := testkit.Value(r.Create(ctx, object))(t)
	if diff := cmp.Diff(spec(object), spec(created)); diff != "" {
		t.Errorf("what was asked for and what was made differ (-want +got):\n%s", diff)
	}
	if object.GetObjectKind().GroupVersionKind() != (schema.GroupVersionKind{}) {
		t.Errorf("Create changed its argument: %v", object.GetObjectKind().GroupVersionKind())
	}
	expect("add " + name)
	cached, exists, err := informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		t.Fatalf("%s is not in the informer's store: %v", name, err)
	}
	if diff := cmp.Diff(created.GetUID(), cached.(T).GetUID()); diff != "" {
		t.Errorf("UID as made and as listed: %s", diff)
	}
	if diff := cmp.Diff(spec(object), spec(cached.(T))); diff != "" {
		t.Errorf("what was asked for and what is listed differ (-want +got):\n%s", diff)
	}
	if _, err := r.Create(ctx, object); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v; want AlreadyExists", err)
	}

	// Objects without the label are not listed.
	foreign := object.DeepCopyObject().(T)
	foreign.SetName("foreign")
	others(foreign, 0)
	foreign.SetLabels(nil)
	foreign = testkit.Value(r.Create(ctx, foreign))(t)

	newest := created.DeepCopyObject().(T)
	change(newest)
	updated := testkit.Value(r.Update(ctx, newest))(t)
	if diff := cmp.Diff(spec(newest), spec(updated)); diff != "" {
		t.Errorf("update (-want +got):\n%s", diff)
	}
	expect("update " + name)
	stale := created.DeepCopyObject().(T)
	stale.SetAnnotations(map[string]string{"written": "late"})
	if _, err := r.Update(ctx, stale); !apierrors.IsConflict(err) {
		t.Errorf("update of an older version: %v; want a conflict", err)
	}

	if err := r.Delete(ctx, name, "another-uid", ""); !apierrors.IsConflict(err) {
		t.Errorf("delete with another's UID: %v; want a conflict", err)
	}
	if err := r.Delete(ctx, name, updated.GetUID(), created.GetResourceVersion()); !apierrors.IsConflict(err) {
		t.Errorf("delete of an older version: %v; want a conflict", err)
	}
	testkit.Must(t, r.Delete(ctx, name, updated.GetUID(), updated.GetResourceVersion()))
	expect("delete " + name)
	if err := r.Delete(ctx, name, updated.GetUID(), ""); !apierrors.IsNotFound(err) {
		t.Errorf("second delete: %v; want NotFound", err)
	}
	if err := r.Delete(ctx, foreign.GetName(), foreign.GetUID(), ""); err != nil {
		t.Errorf("delete without a version: %v", err)
	}

	// Lists in pages, as reflectors request them.
	var names []string
	for i, n := range []string{"one", "two", "three"} {
		o := object.DeepCopyObject().(T)
		o.SetName(n)
		others(o, 1+i)
		testkit.Value(r.Create(ctx, o))(t)
	}
	options := metav1.ListOptions{Limit: 2}
	for {
		list := testkit.Value(cache.ToListerWatcherWithContext(r.ListWatch("")).ListWithContext(ctx, options))(t)
		names = append(names, namesOf(t, list)...)
		if options.Continue = list.(metav1.ListInterface).GetContinue(); options.Continue == "" {
			break
		}
	}
	sort.Strings(names)
	if diff := cmp.Diff([]string{"one", "three", "two"}, names); diff != "" {
		t.Errorf("list in pages (-want +got):\n%s", diff)
	}
}

func namesOf(t *testing.T, list runtime.Object) (names []string) {
	t.Helper()
	switch l := list.(type) {
	case *calicov3.GlobalNetworkSetList:
		for _, o := range l.Items {
			names = append(names, o.Name)
		}
	case *calicov3.IPPoolList:
		for _, o := range l.Items {
			names = append(names, o.Name)
		}
	default:
		t.Fatalf("list of %T", list)
	}
	return names
}

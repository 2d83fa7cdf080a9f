package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const finalizer = "example.org/protection"

// TestForeignFinalizer: an object that somebody's finalizer keeps has no addresses once it is withdrawn. It is deleted
// with one request, whatever wakes its name; it counts as gone when the watch says so; a finding names the finalizer;
// and it follows what is desired while it waits.
func TestForeignFinalizer(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "networksets", "ippools")
	testkit.Value(mcs.ApplyDefinitions(t.Context(), dynamic.NewForConfigOrDie(cfg)))(t)
	client, requests := counted(cfg)
	wrapped := rest.CopyConfig(cfg)
	wrapped.Wrap(requests.Wrap)
	kubetest.Namespace(t, client, "mirrors")
	of := func(group, version, resource string) dynamic.NamespaceableResourceInterface {
		return dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: group, Version: version,
			Resource: resource})
	}
	// Types without addresses that a reader uses: a Service leads to its slices, and an IPPool is disabled.
	none := func(*unstructured.Unstructured) string { return "" }
	nets := func(u *unstructured.Unstructured) string {
		all, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "nets")
		return strings.Join(all, ",")
	}
	t.Run("GlobalNetworkSet", func(t *testing.T) {
		keptBack(t, func(d writes.Desired[*calicov3.GlobalNetworkSet]) *Objects[*calicov3.GlobalNetworkSet] {
			return Sets(quickCalico(wrapped), nil, d, options(t))
		}, func(addresses ...string) *calicov3.GlobalNetworkSet {
			return globalSet("c2-shop-web", addresses...)
		}, of("crd.projectcalico.org", "v1", "globalnetworksets"), nets, requests, "10.2.0.1/32", "10.2.0.2/32")
	})
	t.Run("NetworkSet", func(t *testing.T) {
		keptBack(t, func(d writes.Desired[*calicov3.NetworkSet]) *Objects[*calicov3.NetworkSet] {
			return NetworkSets(quickCalico(wrapped), d, options(t))
		}, func(addresses ...string) *calicov3.NetworkSet {
			return &calicov3.NetworkSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mirrors", Name: "c2-shop-web",
				Labels: bearing("c2")}, Spec: calicov3.NetworkSetSpec{Nets: addresses}}
		}, of("crd.projectcalico.org", "v1", "networksets").Namespace("mirrors"), nets, requests,
			"10.2.0.1/32", "10.2.0.2/32")
	})
	t.Run("ServiceImport", func(t *testing.T) {
		api := testkit.Value(mcs.New(wrapped, "test"))(t)
		keptBack(t, func(d writes.Desired[*mcsv1beta1.ServiceImport]) *Objects[*mcsv1beta1.ServiceImport] {
			return ServiceImports(NewMCS(api, slog.New(slog.DiscardHandler)), d, options(t))
		}, func(addresses ...string) *mcsv1beta1.ServiceImport {
			return &mcsv1beta1.ServiceImport{
				ObjectMeta: metav1.ObjectMeta{Namespace: "mirrors", Name: "web", Labels: bearing("c2")},
				Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: addresses,
					Ports: []mcsv1beta1.ServicePort{{Port: 80, Protocol: "TCP"}}},
				Status: mcsv1beta1.ServiceImportStatus{Clusters: []mcsv1beta1.ClusterStatus{{Cluster: "c2"}}},
			}
		}, of("multicluster.x-k8s.io", "v1beta1", "serviceimports").Namespace("mirrors"),
			func(u *unstructured.Unstructured) string {
				ips, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "ips")
				if clusters, _, _ := unstructured.NestedSlice(u.Object, "status", "clusters"); len(ips) != len(clusters) {
					return fmt.Sprint(ips, " of ", clusters)
				}
				return strings.Join(ips, ",")
			}, requests, "10.96.0.7", "10.96.0.8")
	})
	t.Run("Service", func(t *testing.T) {
		keptBack(t, func(d writes.Desired[*corev1.Service]) *Objects[*corev1.Service] {
			return Services(client, "mirrors", nil, d, options(t))
		}, func(...string) *corev1.Service { return service("c2-shop-73736d-web", "c2", 80, false) },
			of("", "v1", "services").Namespace("mirrors"), none, requests, "", "")
	})
	t.Run("IPPool", func(t *testing.T) {
		keptBack(t, func(d writes.Desired[*calicov3.IPPool]) *Objects[*calicov3.IPPool] {
			return Pools(quickCalico(wrapped), d, options(t))
		}, func(...string) *calicov3.IPPool {
			return &calicov3.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-c2-10-2-0-0-16", Labels: bearing("c2")},
				Spec: calicov3.IPPoolSpec{CIDR: "10.2.0.0/16", Disabled: true, DisableBGPExport: true,
					IPIPMode: calicov3.IPIPModeNever, VXLANMode: calicov3.VXLANModeNever, NodeSelector: "!all()"}}
		}, of("crd.projectcalico.org", "v1", "ippools"), none, requests, "", "")
	})
	t.Run("EndpointSlice", func(t *testing.T) {
		keptBack(t, func(d writes.Desired[*discoveryv1.EndpointSlice]) *Objects[*discoveryv1.EndpointSlice] {
			return Slices(client, writes.EndpointSlice, "mirrors", d, options(t))
		}, func(addresses ...string) *discoveryv1.EndpointSlice {
			return slice("c2-shop-73736d-web-c2-0", "c2", "IPv4", addresses...)
		}, of("discovery.k8s.io", "v1", "endpointslices").Namespace("mirrors"), func(u *unstructured.Unstructured) string {
			all, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
			var out []string
			for _, e := range all {
				out = append(out, fmt.Sprint(e.(map[string]any)["addresses"].([]any)[0]))
			}
			return strings.Join(out, ",")
		}, requests, "10.2.0.1", "10.2.0.2")
	})
}

func keptBack[T writes.Object](t *testing.T, objects func(writes.Desired[T]) *Objects[T],
	object func(addresses ...string) T, api dynamic.ResourceInterface,
	addressesOf func(*unstructured.Unstructured) string, requests *kubetest.Requests, first, second string) {
	ctx := t.Context()
	w, d := desired[T]()
	w.know("c2")
	o := objects(d)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	name := object().GetName()
	key := name
	if o.kind.everywhere {
		key = object().GetNamespace() + "/" + name
	}
	want := func(o T) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.objects[key] = o
	}
	want(object(first))
	testkit.Run(t, o.Run)
	has := func(what string, deleted bool, want string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			u, err := api.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			got := addressesOf(u)
			return got == want && (u.GetDeletionTimestamp() != nil) == deleted,
				fmt.Sprintf("%q, deleted at %v", got, u.GetDeletionTimestamp())
		})
	}
	has("written", false, first)
	finalizers := func(list string) {
		t.Helper()
		testkit.Value(api.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`),
			metav1.PatchOptions{}))(t)
	}
	finalizers(`["` + finalizer + `"]`)
	seesFinalizer := func(deleted bool) {
		t.Helper()
		eventually(t, "the watch has the finalizer", func() (bool, string) {
			have, there := o.Newest(key)
			return there && len(have.GetFinalizers()) == 1 && (have.GetDeletionTimestamp() != nil) == deleted,
				fmt.Sprint(there)
		})
	}
	seesFinalizer(false)

	requests.Take()
	w.unset(key)
	o.Mark(key, "c2", time.Time{})
	has("withdrawn", true, "")
	seesFinalizer(true)
	for range 20 {
		if err := o.reconcile(ctx, key); !errors.Is(err, reconcile.ErrIdle) {
			t.Errorf("there is something to do: %v", err)
		}
	}
	deletes := 0
	for _, r := range requests.Take() {
		if strings.HasPrefix(r, "DELETE ") {
			deletes++
		}
	}
	if deletes != 1 {
		t.Errorf("%d requests to delete it; want 1", deletes)
	}
	if _, there := o.Newest(key); !there {
		t.Error("it counts as gone while the apiserver has it")
	}
	lines := o.machine.Leaving(time.Now().Add(time.Minute))
	if len(lines) != 1 || !strings.Contains(lines[0], name) || !strings.Contains(lines[0], finalizer) {
		t.Errorf("the lines about it are %q", lines)
	}
	eventually(t, "a finding", func() (bool, string) {
		found := o.Findings()
		for _, f := range found {
			if f.Code == finding.Leaving && f.Count == 1 {
				return true, ""
			}
		}
		return false, fmt.Sprint(found)
	})

	// Desired again, it has what is desired; and goes, and comes back, when the finalizer does.
	want(object(second))
	o.Mark(key, "c2", time.Time{})
	has("desired again, and kept", true, second)
	finalizers("null")
	has("created again", false, second)
	if lines := o.machine.Leaving(time.Now().Add(time.Minute)); len(lines) > 0 {
		t.Errorf("there are still lines about it: %q", lines)
	}
	w.unset(key)
	o.Mark(key, "c2", time.Time{})
	eventually(t, "deleted", func() (bool, string) {
		_, err := api.Get(context.Background(), name, metav1.GetOptions{})
		return err != nil, "it is there"
	})
}

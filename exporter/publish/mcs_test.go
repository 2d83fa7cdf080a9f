package publish

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/mcstest"
)

// TestServiceExports: nothing is complete before both definitions of the API are served, those of v0.2 with v1alpha1
// alone; then a Service without a label is exported with its slices, and stays exported while the definitions are
// upgraded. When they are removed while the exporter runs, one alone or both, all exports stay and it says what it
// waits for. The apiserver deletes all ServiceExports with their definition.
func TestServiceExports(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin, ctx := client(t, cfg), t.Context()
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	exports, err := mcs.New(cfg, "test")
	must(t, err)
	kubetest.Namespace(t, admin, "shop")
	for _, name := range []string{"echo", "other"} {
		kubetest.Create(t, admin.CoreV1().Services("shop"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
		kubetest.Create(t, admin.DiscoveryV1().EndpointSlices("shop"), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.1"}}},
		})
	}
	rules := newCatalog(t, config.Services).Rules()
	rules.MultiCluster = true
	c := catalog.New(rules)
	ofServices := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
	w := startWith(t, admin, kube.NewBlockAffinities(cfg), c, WatcherOptions{
		Exports: func(u *kube.Unread) *cache.ListWatch { return exports.Exports().Follow("", u) },
	})

	waits(t, w, ofServices, "there is no CustomResourceDefinition serviceexports.multicluster.x-k8s.io: apply it")
	all := mcstest.V02(t)
	kubetest.Create(t, crds, all[0])
	waits(t, w, ofServices, "there is no CustomResourceDefinition serviceimports.multicluster.x-k8s.io: apply it")
	kubetest.Create(t, crds, all[1])
	waitForSync(t, w)

	eventually(t, c)
	export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"},
		Spec: mcsv1beta1.ServiceExportSpec{ExportedLabels: map[string]string{"team": "a"}}}
	_, err = exports.Exports().Create(ctx, export)
	must(t, err)
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")
	for _, e := range c.ServiceExports() {
		if e.Name != "echo" || e.Valid != mcsv1beta1.ServiceExportReasonValid || e.Offer == nil {
			t.Errorf("the export is %+v", e)
		}
	}

	// The upgrade to definitions that serve v1beta1 and store it: the exports are not sent again, and what changes
	// afterwards by the new version is followed.
	head := c.Journal().Head()
	upgraded, err := mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg))
	must(t, err)
	for _, d := range upgraded {
		if d.Action != mcs.Updated {
			t.Errorf("the definition %s was %s: %s", d.Name, d.Action, d.Why)
		}
	}
	newer, err := mcs.New(cfg, "test")
	must(t, err)
	other := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}}
	soon(t, func() error {
		_, err := newer.Exports().Create(ctx, other)
		return err
	})
	eventually(t, c, "endpointslice shop/echo-1", "endpointslice shop/other-1", "service shop/echo", "service shop/other")
	must(t, newer.Exports().Delete(ctx, "shop", "other", metav1.DeleteOptions{}))
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")
	changes, _, _ := c.Journal().Since(head, 100)
	for _, e := range changes {
		if strings.Contains(e.Key.String(), "echo") {
			t.Errorf("the upgrade changed %s", e.Key)
		}
	}
	if problems := finding.Texts(w.Findings()); len(problems) > 0 {
		t.Errorf("after the upgrade the problems are %q", problems)
	}

	waitsAgain := func(definition string) {
		t.Helper()
		soon(t, func() error {
			problems := strings.Join(finding.Texts(w.Findings()), "\n")
			if !strings.Contains(problems, "serviceexports: the watch fails") ||
				!strings.Contains(problems, "CustomResourceDefinition "+definition+".multicluster.x-k8s.io") {
				return fmt.Errorf("the problems are %q", problems)
			}
			return nil
		})
	}
	// The definition goes of which the exporter reads no object, and comes back. A change meanwhile of a Service that is
	// exported is followed.
	must(t, crds.Delete(ctx, mcsv1beta1.ServiceImportFullName, metav1.DeleteOptions{}))
	waitsAgain("serviceimports")
	moves := func(address string) {
		t.Helper()
		slice := kubetest.Get(t, admin.DiscoveryV1().EndpointSlices("shop"), "echo-1")
		slice.Endpoints[0].Addresses = []string{address}
		kubetest.Update(t, admin.DiscoveryV1().EndpointSlices("shop"), slice)
		soon(t, func() error {
			entries, _ := c.Journal().Snapshot()
			for _, e := range entries {
				if strings.Contains(e.Value.Object.String(), address) {
					return nil
				}
			}
			return fmt.Errorf("the slice is as it was")
		})
	}
	moves("10.1.1.2")
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")
	_, err = mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg))
	must(t, err)
	soon(t, func() error {
		if problems := finding.Texts(w.Findings()); len(problems) > 0 {
			return fmt.Errorf("the problems are %q", problems)
		}
		_, err := exports.Exports().Create(ctx, &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}})
		return err
	})
	eventually(t, c, "endpointslice shop/echo-1", "endpointslice shop/other-1", "service shop/echo", "service shop/other")
	must(t, exports.Exports().Delete(ctx, "shop", "other", metav1.DeleteOptions{}))
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")

	// The API goes, and with it all ServiceExports.
	for _, d := range all {
		must(t, crds.Delete(ctx, d.Name, metav1.DeleteOptions{}))
	}
	waitsAgain("serviceexports")
	soon(t, func() error {
		for _, d := range all {
			if _, err := crds.Get(ctx, d.Name, metav1.GetOptions{}); err == nil {
				return fmt.Errorf("definition %s is not gone yet", d.Name)
			}
		}
		return nil
	})
	// The watch of the exports has ended, after all that it reported. A later report of a watch counts.
	moves("10.1.1.3")
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")

	// It comes back: what is not exported any more goes.
	_, err = mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg))
	must(t, err)
	eventually(t, c)
	export.Spec = mcsv1beta1.ServiceExportSpec{}
	soon(t, func() error {
		_, err := exports.Exports().Create(ctx, export)
		return err
	})
	eventually(t, c, "endpointslice shop/echo-1", "service shop/echo")
	must(t, exports.Exports().Delete(ctx, "shop", "echo", metav1.DeleteOptions{}))
	eventually(t, c)
}

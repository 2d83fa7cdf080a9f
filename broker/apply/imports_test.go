package apply

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/mcstest"
)

// TestImportsWithoutDefinitions: the problem names the definition that is not there, before the loop begins and when
// one alone is removed while the loop runs and has nothing to write. It ends when the definition is there again, and
// the loop writes again.
func TestImportsWithoutDefinitions(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	client := testkit.Value(mcs.New(cfg, "test"))(t)
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	api := NewMCS(client, slog.New(slog.DiscardHandler))
	w, d := desired[*mcsv1beta1.ServiceImport]()
	o := ServiceImports(api, d, options(t))
	testkit.Run(t, o.Run)
	// change has the broker write an import.
	port := int32(0)
	change := func() {
		port++
		w.put("default/echo", &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "echo", Labels: bearing("c2")},
			Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP,
				Ports: []mcsv1beta1.ServicePort{{Port: port, Protocol: "TCP"}}}})
		o.Wake("default/echo")
	}
	problem := func(what string, parts ...string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			is := api.Problem()
			for _, part := range parts {
				if !strings.Contains(is, part) {
					return false, is
				}
			}
			return (is == "") == (len(parts) == 0), is
		})
	}
	apply := func() {
		t.Helper()
		testkit.Value(mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg)))(t)
	}
	problem("there are none", "no ServiceImports are written", mcsv1beta1.ServiceExportFullName)
	apply()
	problem("all are there")
	written := func() {
		t.Helper()
		change()
		want := port
		eventually(t, "the import is written", func() (bool, string) {
			i, err := client.Imports().Get(ctx, "default", "echo")
			return err == nil && len(i.Spec.Ports) == 1 && i.Spec.Ports[0].Port >= want, fmt.Sprint(i.Spec.Ports, err)
		})
	}
	written()
	for _, name := range []string{mcsv1beta1.ServiceExportFullName, mcsv1beta1.ServiceImportFullName} {
		testkit.Must(t, crds.Delete(ctx, name, metav1.DeleteOptions{}))
		problem(name+" is removed", "ServiceImports are no longer written", name)
		change()
		eventually(t, name+" is gone", func() (bool, string) {
			_, err := crds.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
		apply()
		problem(name + " is there again")
		written()
	}
}

// TestImportsWithOldDefinitions: with the definitions of v0.2, which serve v1alpha1 alone and lack fields, an import is
// written, and is not written again and again for the fields that the apiserver drops. When the definitions are
// replaced while the loop runs, the same import gets the fields with its next change.
func TestImportsWithOldDefinitions(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range mcstest.V02(t) {
		kubetest.Create(t, crds, d)
	}
	var requests kubetest.Requests
	counted := rest.CopyConfig(cfg)
	counted.Wrap(requests.Wrap)
	client := testkit.Value(mcs.New(counted, "test"))(t)
	w, d := desired[*mcsv1beta1.ServiceImport]()
	local := corev1.ServiceInternalTrafficPolicyLocal
	wanted := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "echo", Labels: bearing("c2")},
		Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.96.0.7"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, InternalTrafficPolicy: &local,
			Ports: []mcsv1beta1.ServicePort{{Port: 80, Protocol: "TCP"}}},
		Status: mcsv1beta1.ServiceImportStatus{Clusters: []mcsv1beta1.ClusterStatus{{Cluster: "c2"}},
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"}}},
	}
	w.put("default/echo", wanted)
	o := ServiceImports(NewMCS(client, slog.New(slog.DiscardHandler)), d, options(t))
	testkit.Run(t, o.Run)
	var have *mcsv1beta1.ServiceImport
	has := func(what string, is func(*mcsv1beta1.ServiceImport) bool) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			i, err := client.Imports().Get(ctx, "default", "echo")
			have = i
			return err == nil && is(have), fmt.Sprint(have, err)
		})
	}
	has("the import", func(i *mcsv1beta1.ServiceImport) bool {
		return len(i.Spec.IPs) == 1 && len(i.Status.Clusters) == 1
	})
	first := have.UID
	// The events of its writes come before those of an import that is wanted later.
	last := wanted.DeepCopy()
	last.Name = "last"
	w.put("default/last", last)
	o.Wake("default/last")
	eventually(t, "a later import", func() (bool, string) {
		i, err := client.Imports().Get(ctx, "default", "last")
		return err == nil && len(i.Status.Clusters) == 1, fmt.Sprint(i, err)
	})
	if n := len(withoutLists(requests.Take())); n > 4 {
		t.Errorf("%d writes of two imports and their status", n)
	}
	testkit.Value(mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg)))(t)
	has("all fields", func(i *mcsv1beta1.ServiceImport) bool {
		wanted = wanted.DeepCopy()
		wanted.Spec.Ports[0].Port++
		w.put("default/echo", wanted)
		o.Wake("default/echo")
		return len(i.Spec.IPFamilies) == 1 && i.Spec.InternalTrafficPolicy != nil && len(i.Status.Conditions) == 1
	})
	if have.UID != first {
		t.Error("it is another import")
	}
}

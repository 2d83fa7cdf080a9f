package apply

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/mcs/definitions"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
)

// TestImportsWithoutDefinitions: the problem names the definition that is not there, before the loop begins and when
// one alone is removed while the loop runs and has nothing to write. It ends when the definition is there again, and
// the loop writes again.
func TestImportsWithoutDefinitions(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	client, err := mcs.New(cfg, "test")
	testkit.Must(t, err)
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	api := NewMCS(client, slog.New(slog.DiscardHandler))
	w, d := desired[*mcsv1beta1.ServiceImport]()
	o := ServiceImports(api, d, options(t))
	testkit.Run(t, o.Run)
	// change has the broker write an import.
	port := int32(0)
	change := func() {
		port++
		w.mu.Lock()
		w.objects["default/echo"] = &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "echo", Labels: bearing("c2")},
			Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP,
				Ports: []mcsv1beta1.ServicePort{{Port: port, Protocol: "TCP"}}}}
		w.mu.Unlock()
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
		_, err := definitions.Apply(ctx, crds, false)
		testkit.Must(t, err)
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
		problem(name+" is removed", "ServiceImports are not written", name)
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

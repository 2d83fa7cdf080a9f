package mcs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func TestDecideDefinition(t *testing.T) {
	of := func(labels ...string) *apiextensionsv1.CustomResourceDefinition {
		d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		if len(labels) > 0 {
			d.Labels["multicluster.x-k8s.io/release-version"] = labels[0]
		}
		if len(labels) > 1 {
			d.Labels["multicluster.x-k8s.io/crd-schema-revision"] = labels[1]
		}
		return d
	}
	deleted := of("v0.4.0", "0")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for _, c := range []struct {
		have *apiextensionsv1.CustomResourceDefinition
		want Action
		why  string
	}{
		{of(), Updated, "before v0.4"},
		{of("v0.4.1", "3"), Updated, "older than v0.5.2, revision 1"},
		{of("v0.5.2", "0"), Updated, "older"},
		{of("v0.5.2", "1"), Left, "it is of v0.5.2, revision 1"},
		{of("v0.5.2", "2"), Left, "newer"},
		{of("v0.5.10", "0"), Left, "newer"},
		{of("v1.0.0", "0"), Left, "newer"},
		{of("v0.6.0-rc.1", "0"), Left, "newer"},
		{of("main", "0"), Left, "no release"},
		{deleted, Left, "being deleted"},
	} {
		got, why := decideDefinition(c.have, of("v0.5.2", "1"))
		if got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%v: %s, %q; want %s, %q", c.have, got, why, c.want, c.why)
		}
	}
}

// TestApplyDefinitions: an apiserver gets the definitions once, those of v0.2 (only v1alpha1) are updated, and newer
// ones are kept. The version of the API is the newest that both definitions serve.
func TestApplyDefinitions(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	client := testkit.Value(New(cfg, "test"))(t)
	version := func(want string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, "the version", func() error {
			got, err := client.Version(ctx)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				return fmt.Errorf("the version is %q, not %q", got, want)
			}
			return nil
		})
	}
	version("there is no CustomResourceDefinition serviceexports.multicluster.x-k8s.io: apply it")

	all := testkit.Value(Definitions())(t)
	for _, d := range all { // before v0.4: only v1alpha1, without a label
		d.Labels = nil
		var old []apiextensionsv1.CustomResourceDefinitionVersion
		for _, v := range d.Spec.Versions {
			if v.Name == "v1alpha1" {
				v.Storage = true
				old = append(old, v)
			}
		}
		d.Spec.Versions = old
		kubetest.Create(t, crds, d)
	}
	version("v1alpha1")
	apply := func(want Action) {
		t.Helper()
		done := testkit.Value(ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg)))(t)
		for _, d := range done {
			if d.Action != want {
				t.Errorf("%s was %s (%s), not %s", d.Name, d.Action, d.Why, want)
			}
		}
		if len(done) != 2 {
			t.Errorf("%d definitions", len(done))
		}
	}
	apply(Updated)
	version("v1beta1")
	apply(Left)
	newer := kubetest.Get(t, crds, all[0].Name)
	newer.Labels["multicluster.x-k8s.io/release-version"] = "v9.0.0"
	kubetest.Update(t, crds, newer)
	apply(Left)
}

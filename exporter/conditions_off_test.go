package exporter

import (
	"testing"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/mcstest"
)

// TestConditionsGoWithTheFeature checks that an exporter without the feature removes the conditions that an earlier one
// wrote, by v1alpha1 of the definitions of v0.2. It removes no others, and none whose reason somebody else has changed.
func TestConditionsGoWithTheFeature(t *testing.T) {
	cfg, ctx := kubetest.Start(t), t.Context()
	e := &exporter{rest: cfg}
	testkit.Must(t, e.removeConditions(ctx)) // the API is not served
	crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range mcstest.V02(t) {
		kubetest.Create(t, crds, d)
	}
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "shop")
	ours, err := mcs.New(cfg, mcs.Exporter)
	testkit.Must(t, err)
	theirs, err := mcs.New(cfg, "theirs")
	testkit.Must(t, err)
	var x *mcsv1beta1.ServiceExport
	testkit.Eventually(t, 3*time.Minute, "the API", func() (err error) {
		x, err = theirs.Exports().Create(ctx, &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"}})
		return err
	})
	write := func(client *mcs.Client, types ...string) {
		t.Helper()
		for _, kind := range types {
			x.Status.Conditions = append(x.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue,
				Reason: "Reason", LastTransitionTime: metav1.Now()})
		}
		x, err = client.Exports().UpdateStatus(ctx, x)
		testkit.Must(t, err)
	}
	write(theirs, "Theirs")
	write(ours, "Valid", "Ready", "Conflict")
	// The earlier exporter wrote v1alpha1. Since then the definitions were upgraded.
	_, err = mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(cfg))
	testkit.Must(t, err)
	theirs, err = mcs.New(cfg, "theirs")
	testkit.Must(t, err)
	x.Status.Conditions[3].Reason = "Changed"
	write(theirs)
	testkit.Must(t, e.removeConditions(ctx))
	x, err = ours.Exports().Get(ctx, "shop", "echo")
	testkit.Must(t, err)
	if all := x.Status.Conditions; len(all) != 2 || all[0].Type != "Theirs" || all[1].Type != "Conflict" {
		t.Errorf("the conditions are %+v", all)
	}
}

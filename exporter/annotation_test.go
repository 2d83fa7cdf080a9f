package exporter

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// document is the nth of a file of the manifests.
func document(t *testing.T, path string, n int, into any) {
	t.Helper()
	manifest, err := os.ReadFile(path)
	must(t, err)
	must(t, yaml.Unmarshal([]byte(strings.Split(string(manifest), "\n---\n")[n]), into))
}

// If configured, a Service has an annotation with its export status while it is offered. The shipped permissions allow
// that and no other change.
func TestAnnotationOfServices(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	limited := kubetest.Grant(t, api, "semaphore-exporter", "../deploy/features/services/exporter/rbac.yaml",
		"../deploy/features/service-status/rbac.yaml")
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	document(t, "../deploy/features/service-status/service-annotation.yaml", 0, policy)
	document(t, "../deploy/features/service-status/service-annotation.yaml", 1, binding)
	kubetest.Create(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicies(), policy)
	kubetest.Create(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings(), binding)
	kubetest.Namespace(t, admin, "shop")

	services := admin.CoreV1().Services("shop")
	create := func(name string, edit func(*corev1.Service)) {
		t.Helper()
		s := offered(name)
		s.Annotations = map[string]string{"mine": "stays"}
		edit(s)
		kubetest.Create(t, services, s)
	}
	create("fine", func(*corev1.Service) {})
	create("refused", func(*corev1.Service) {})
	create("kept", func(s *corev1.Service) { s.Annotations[naming.AnnotationExportTo] = "none" })
	create("private", func(s *corev1.Service) { s.Labels = nil })
	// An annotation of an earlier exporter.
	create("former", func(s *corev1.Service) { s.Labels = nil; s.Annotations[naming.AnnotationExportStatus] = "{}" })

	// Writes that a stolen exporter token must not be able to make.
	stolen := kubernetes.NewForConfigOrDie(limited).CoreV1().Services("shop")
	patch := func(body string) error {
		_, err := stolen.Patch(t.Context(), "private", types.MergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// A permission that is not in force yet gives a refusal too, so check for the policy's.
	within(t, "the policy is in force", func() bool {
		err := patch(`{"spec":{"selector":{"app":"evil"}}}`)
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
	})
	tooLong := `{"metadata":{"annotations":{"semaphore.uw.io/export-status":"` + strings.Repeat("x", 2049) + `"}}}`
	for body, refusal := range map[string]string{
		`{"spec":{"selector":{"app":"evil"}}}`:                                     "neither spec nor status",
		`{"spec":{"externalIPs":["192.0.2.1"]}}`:                                   "neither spec nor status",
		`{"metadata":{"labels":{"mirror.semaphore.uw.io/mirror-service":"true"}}}`: "neither labels",
		`{"metadata":{"annotations":{"mine":null}}}`:                               "not mine",
		`{"metadata":{"annotations":{"semaphore.uw.io/export-to":"c9"}}}`:          "not semaphore.uw.io/export-to",
		`{"metadata":{"finalizers":["example.org/f"]}}`:                            "nor finalizers",
		tooLong: "at most 2048",
		`{"metadata":{"annotations":{"semaphore.uw.io/export-status":"x"}}}`: "",
	} {
		if err := patch(body); refusal == "" && err != nil || refusal != "" &&
			(err == nil || !strings.Contains(err.Error(), refusal)) {
			t.Errorf("%.80s: %v, want %q", body, err, refusal)
		}
	}

	trust := trust.New(t, "c1", "c2")
	c2 := &judging{broker: &broker{objects: map[string]*semaphorev1.Object{}}}
	c2.address = serveSink(t, trust, "c2", c2, c2.outcomes)
	c2.judge(&semaphorev1.Outcome{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop",
		Name: "refused"}, Code: "NameTooLong", Reason: "its Service would be named too long"})
	const more = "features: [services]\nannotateServices: true"
	e := start(t, limited, trust, c2.address, more)
	says := func(name, want string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, name+" says how it is offered", testkit.State(func() (bool, string) {
			s := kubetest.Get(t, services, name)
			got := s.Annotations[naming.AnnotationExportStatus]
			if got == want && s.Annotations["mine"] != "stays" {
				t.Errorf("%s: annotations %v", name, s.Annotations)
			}
			return got == want, fmt.Sprintf("%q, want %q", got, want)
		}))
	}
	says("fine", `{"type":"Offered","status":"True","reason":"Offered","message":"offered to c2 as a mirror"}`)
	says("refused", `{"type":"Offered","status":"False","reason":"Refused","message":"cluster c2: its Service would be `+
		`named too long"}`)
	says("former", "")
	within(t, "one that is kept says so", func() bool {
		kept := kubetest.Get(t, services, "kept")
		return strings.Contains(kept.Annotations[naming.AnnotationExportStatus], `"status":"False","reason":"NotOffered"`)
	})
	within(t, "all is reported by Events", func() bool {
		all, err := admin.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		of := map[string]bool{}
		for _, e := range all.Items {
			if e.ReportingController == "semaphore.uw.io/exporter" {
				of[e.Regarding.Name] = true
			}
		}
		return of["fine"] && of["refused"] && of["kept"]
	})

	// An exporter that restarts writes nothing, and a Service that is no longer offered has no annotation.
	versions := func() (out []string) {
		all, err := services.List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, s := range all.Items {
			if s.Name != "last" {
				out = append(out, s.Name+" "+s.ResourceVersion)
			}
		}
		return out
	}
	before := fmt.Sprint(versions())
	e.stop()
	e = start(t, limited, trust, c2.address, more)
	within(t, "all is reported by the next exporter", func() bool {
		_, text := e.get("/metrics")
		return strings.Contains(text, `semaphore_exporter_events_total{result="repeated"} 3`)
	})
	create("last", func(*corev1.Service) {})
	says("last", `{"type":"Offered","status":"True","reason":"Offered","message":"offered to c2 as a mirror"}`)
	if after := fmt.Sprint(versions()); after != before {
		t.Errorf("written again: %s, was %s", after, before)
	}
	_, err := services.Patch(t.Context(), "fine", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`),
		metav1.PatchOptions{})
	must(t, err)
	says("fine", "")
}

package apply

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/events"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
)

// TestInterference has others change what the broker wrote, on a real apiserver.
func TestInterference(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(cfg)
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mirrors"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, requests := counted(cfg)
	opts := options(t)
	opts.Events = events.New(admin, "mirrors", nil, prometheus.NewRegistry(),
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	testkit.Run(t, opts.Events.Run)
	w, d := desired[*corev1.Service]()
	o := Services(client, "mirrors", d, opts)
	for _, name := range []string{"friend", "edited", "fought", "deleted", "unlabelled", "local"} {
		s := service(name, "c2", 80, false)
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		s.Annotations = map[string]string{naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: name}
		w.set(s)
	}
	stop := testkit.Run(t, o.Run)
	api := admin.CoreV1().Services("mirrors")
	get := func(name string) *corev1.Service {
		t.Helper()
		s, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return &corev1.Service{}
		}
		return s
	}
	patch := func(name, by, body string) {
		t.Helper()
		if _, err := api.Patch(ctx, name, types.MergePatchType, []byte(body),
			metav1.PatchOptions{FieldManager: by}); err != nil {
			t.Fatal(err)
		}
	}
	event := func(reason string, words ...string) {
		t.Helper()
		eventually(t, "an Event "+reason+" about "+words[0], func() (bool, string) {
			list, err := admin.EventsV1().Events("mirrors").List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			var notes []string
			for _, e := range list.Items {
				if e.Reason == reason && !slices.ContainsFunc(words,
					func(word string) bool { return !strings.Contains(e.Note, word) }) {
					return true, ""
				}
				notes = append(notes, e.Reason+": "+e.Note)
			}
			return false, strings.Join(notes, "\n")
		})
	}
	// within a second is the sentence of docs/services.md.
	withinASecond := func(what string, f func() bool) {
		t.Helper()
		kubetest.Promptly(t, admin, time.Second, what, testkit.True(f))
	}
	eventually(t, "all are made", func() (bool, string) { n := o.present(); return n == 6, fmt.Sprint(n) })
	time.Sleep(100 * time.Millisecond)
	requests.Take()

	t.Run("labels, annotations and fields of others stay", func(t *testing.T) {
		patch(
			"friend",
			"kubectl-label",
			`{"metadata":{"labels":{"team":"shop","app.kubernetes.io/name":"x"},`+
				`"annotations":{"note":"y"},"finalizers":["example.org/f"]}}`,
		)
		o.Mark("friend", "c2", time.Now())
		time.Sleep(300 * time.Millisecond)
		if got := withoutLists(requests.Take()); len(got) > 0 {
			t.Errorf("requests %v", got)
		}
		s := service("friend", "c2", 81, false)
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		w.set(s)
		o.Mark("friend", "c2", time.Now())
		eventually(t, "the port is another", func() (bool, string) { return get("friend").Spec.Ports[0].Port == 81, "" })
		if s := get("friend"); s.Labels["team"] != "shop" || s.Labels["app.kubernetes.io/name"] != "x" ||
			s.Annotations["note"] != "y" || len(s.Finalizers) != 1 {
			t.Errorf("after a write of ours: %v", s.ObjectMeta)
		}
		requests.Take()
		patch("friend", "x", `{"metadata":{"finalizers":null}}`)
	})
	t.Run("what would lead nowhere is restored, and reported", func(t *testing.T) {
		patch("local", "kubectl-edit", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		withinASecond("internalTrafficPolicy", func() bool {
			return *get("local").Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyCluster
		})
		event("Restored", "service local", "kubectl-edit", "spec.internalTrafficPolicy")
		patch(
			"edited",
			"kubectl-label",
			`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"x"}},`+
				`"spec":{"selector":{"a":"b"},"externalIPs":["192.0.2.1"]}}`,
		)
		withinASecond("all three", func() bool {
			s := get("edited")
			return s.Labels["service.kubernetes.io/service-proxy-name"] == "" &&
				len(s.Spec.Selector)+len(s.Spec.ExternalIPs) == 0
		})
		event("Restored", "service edited", "kubectl-label", "spec.selector")
	})
	t.Run("deleted", func(t *testing.T) {
		uid := get("deleted").UID
		if err := api.Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		withinASecond("it is there again", func() bool { now := get("deleted").UID; return now != "" && now != uid })
		event("Restored", "service deleted")
	})
	t.Run("the label of ownership is taken off", func(t *testing.T) {
		uid := get("unlabelled").UID
		patch("unlabelled", "kubectl-label",
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}},"spec":{"selector":{"a":"b"}}}`)
		withinASecond("the label is back, on the same object", func() bool {
			s := get("unlabelled")
			return s.UID == uid && s.Labels[naming.LabelManagedBy] == naming.ManagedByBroker && len(s.Spec.Selector) == 0
		})
		event("Restored", "service unlabelled", naming.LabelManagedBy)
		if problems := finding.Texts(o.Findings()); len(problems) > 0 {
			t.Errorf("problems %q", problems)
		}
	})
	t.Run("a controller that insists", func(t *testing.T) {
		requests.Take()
		restored := func() float64 { return value(t, opts.Metrics, "semaphore_broker_restored_total", "service") }
		fight, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		watch, err := api.Watch(fight, metav1.ListOptions{FieldSelector: "metadata.name=fought"})
		if err != nil {
			t.Fatal(err)
		}
		lost, began := 0, time.Now()
		for e := range watch.ResultChan() {
			if s, ok := e.Object.(*corev1.Service); ok && s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
				patch("fought", "kyverno", `{"spec":{"sessionAffinity":"ClientIP"}}`)
				lost++
			}
			if time.Since(began) > 5*time.Second && restored() >= 4 {
				break
			}
		}
		watch.Stop()
		writes, long := withoutLists(requests.Take()), time.Since(began)
		t.Logf("%d writes of the broker in %s, %d of the other", len(writes), long, lost)
		if len(writes) > inFight(long)+1 {
			t.Errorf("%d writes in a fight of %s", len(writes), long)
		}
		event("Contested", "service fought", "kyverno", "spec.sessionAffinity")
		eventually(t, "reported, and nothing else", func() (bool, string) {
			problems := finding.Texts(o.Findings())
			return len(problems) == 1 &&
				strings.Contains(problems[0], "service fought: kyverno changes spec.sessionAffinity"), fmt.Sprint(problems)
		})
		if n := restored(); n < 4 {
			t.Errorf("%v counted", n)
		}
		// What the remote changes does not wait for the fight.
		s := service("fought", "c2", 82, false)
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		s.Annotations = map[string]string{naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: "fought"}
		w.set(s)
		o.Mark("fought", "c2", time.Now())
		withinASecond("the port is another", func() bool { return get("fought").Spec.Ports[0].Port == 82 })
	})
	t.Run("a policy that changes what is written", func(t *testing.T) {
		mutate(t, admin)
		requests.Take()
		began := time.Now()
		w.set(service("mutated", "c2", 80, false))
		o.Mark("mutated", "c2", time.Now())
		eventually(t, "reported", func() (bool, string) {
			p := finding.Texts(o.Findings())
			return slices.ContainsFunc(p, func(line string) bool {
				return strings.Contains(line, "service mutated: a mutating webhook or policy changes spec.sessionAffinity")
			}), fmt.Sprint(p)
		})
		event("Contested", "service mutated", "spec.sessionAffinity")
		time.Sleep(3 * time.Second)
		if n := len(withoutLists(requests.Take())); n > inFight(time.Since(began))+3 {
			t.Errorf("%d writes in %s", n, time.Since(began))
		}
	})
	stop()
	t.Run("the label is off when the broker starts", func(t *testing.T) {
		patch("unlabelled", "kubectl-label", `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`)
		opts := options(t)
		o := Services(client, "mirrors", d, opts)
		testkit.Run(t, o.Run)
		eventually(t, "reported, with what to do", func() (bool, string) {
			p := finding.Texts(o.Findings())
			return slices.ContainsFunc(p, func(line string) bool {
				return strings.Contains(line, "service unlabelled") &&
					strings.Contains(line, "set app.kubernetes.io/managed-by=semaphore-broker again, or delete it")
			}), fmt.Sprint(p)
		})
	})
	t.Run("a slice", func(t *testing.T) {
		w, d := desired[*discoveryv1.EndpointSlice]()
		one := slice("one", "c2", "IPv4", "10.2.0.1")
		one.Annotations = map[string]string{naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: "one"}
		w.set(one)
		o := EndpointSlices(client, "mirrors", d, options(t))
		testkit.Run(t, o.Run)
		eventually(t, "made", func() (bool, string) { return o.present() == 1, "" })
		api := admin.DiscoveryV1().EndpointSlices("mirrors")
		if _, err := api.Patch(ctx, "one", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		withinASecond("the label is back", func() bool {
			s, err := api.Get(ctx, "one", metav1.GetOptions{})
			return err == nil && s.Labels[naming.LabelManagedBy] == naming.ManagedByBroker
		})
	})
}

// inFight is how often the broker restores an object that another changes again, in a time: three times at once, and
// after 0.1, 0.3, 0.7, 1.5 and 3.1 s, and so on.
func inFight(long time.Duration) int {
	n := 3
	for after := 100 * time.Millisecond; after < long; after = 2*after + 100*time.Millisecond {
		n++
	}
	return n
}

// mutate has the apiserver change what is written of the Service mutated, by a policy of its own.
func mutate(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	_, err := admin.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "sticky"},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				ResourceNames: []string{"mutated"},
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
						Resources: []string{"services"}},
				},
			}}},
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{
					Expression: `Object{spec: Object.spec{sessionAffinity: "ClientIP"}}`,
				}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Create(ctx,
		&admissionv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "sticky"},
			Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "sticky"},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policy holds", func() (bool, string) {
		s := service("mutated", "c2", 80, false)
		s, err := admin.CoreV1().Services("mirrors").Create(ctx, s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP, fmt.Sprint(err)
	})
}

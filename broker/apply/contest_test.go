package apply

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestInterference has others change what the broker wrote, on a real apiserver.
func TestInterference(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "mirrors")
	client, requests := counted(cfg)
	opts := options(t)
	opts.Events = eventsOf(admin, "mirrors")
	testkit.Run(t, opts.Events.Run)
	w, d := desired[*corev1.Service]()
	o := Services(client, "mirrors", nil, d, opts)
	for _, name := range []string{"friend", "fought", "unlabelled"} {
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
		testkit.Value(api.Patch(ctx, name, types.MergePatchType, []byte(body),
			metav1.PatchOptions{FieldManager: by}))(t)
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
	eventually(t, "all are made", func() (bool, string) { n := len(o.store.All()); return n == 3, fmt.Sprint(n) })
	time.Sleep(100 * time.Millisecond)
	requests.Take()

	t.Run("labels, annotations and fields of others stay", func(t *testing.T) {
		patch("friend", "kubectl-label",
			`{"metadata":{"labels":{"team":"shop","app.kubernetes.io/name":"x"},`+
				`"annotations":{"note":"y"},"finalizers":["example.org/f"]}}`)
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
	t.Run("many are edited at once", func(t *testing.T) {
		const many = 60
		name := func(i int) string { return fmt.Sprint("many-", i) }
		warnings := new(testkit.Warnings)
		opts := options(t)
		opts.Log = slog.New(warnings)
		w, d := desired[*corev1.Service]()
		for i := range many {
			w.set(service(name(i), "c2", 80, false))
		}
		o := Services(client, "mirrors", nil, d, opts)
		stop := testkit.Run(t, o.Run)
		defer stop()
		eventually(t, "all are made", func() (bool, string) {
			return len(o.Unwritten()) == 0 && len(o.store.All()) >= many, fmt.Sprint(len(o.store.All()))
		})
		began := time.Now()
		for i := range many {
			patch(name(i), "kubectl-edit", `{"spec":{"selector":{"a":"b"}}}`)
		}
		eventually(t, "all are restored", func() (bool, string) {
			n := value(t, opts.Metrics, "semaphore_broker_restored_total", "service")
			return n == many, fmt.Sprint(n)
		})
		// 20 at once, and one a second.
		if n, most := int(warnings.Count()), 20+int(time.Since(began).Seconds())+1; n < 20 || n > most {
			t.Errorf("%d messages about %d restored objects, want 20 to %d", n, many, most)
		}
	})
	t.Run("a controller that insists", func(t *testing.T) {
		fight{
			kind: writes.Service, name: "fought", field: "spec.sessionAffinity",
			edit: `{"spec":{"sessionAffinity":"ClientIP"}}`,
			restored: func(object map[string]any) bool {
				affinity, _, _ := unstructured.NestedString(object, "spec", "sessionAffinity")
				return affinity != "ClientIP"
			},
			long: 5 * time.Second,
		}.of(t, cfg, corev1.SchemeGroupVersion.WithResource("services"), "mirrors", requests, opts, o.Findings, event)
		eventually(t, "a reason for the delay", func() (bool, string) {
			patch("fought", "insists", `{"spec":{"sessionAffinity":"ClientIP"}}`)
			why := o.Delay("fought")
			return strings.Contains(why, "(contested) since") && strings.Contains(why, "another writer changes it"), why
		})
		// A change of the remote does not wait for the fight.
		s := service("fought", "c2", 82, false)
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
		s.Annotations = map[string]string{naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: "fought"}
		w.set(s)
		o.Mark("fought", "c2", time.Now())
		withinASecond("the port is another", func() bool { return get("fought").Spec.Ports[0].Port == 82 })
	})
	t.Run("a controller that insists, on a slice", func(t *testing.T) {
		client, requests := counted(cfg)
		w, d := desired[*discoveryv1.EndpointSlice]()
		w.set(slice("insisted", "c2", "IPv4", "10.2.0.1"))
		opts := opts
		opts.Metrics = NewMetrics(prometheus.NewRegistry())
		o := Slices(client, writes.EndpointSlice, "mirrors", d, opts)
		defer testkit.Run(t, o.Run)()
		eventually(t, "made", func() (bool, string) { return len(o.store.All()) == 1, "" })
		has := func(object map[string]any, address string) bool {
			endpoints, _, _ := unstructured.NestedSlice(object, "endpoints")
			return strings.Contains(fmt.Sprint(endpoints), "["+address+"]")
		}
		fight{
			kind: writes.EndpointSlice, name: "insisted", field: "endpoints",
			edit:     `{"endpoints":[{"addresses":["10.2.0.9"]}]}`,
			restored: func(object map[string]any) bool { return has(object, "10.2.0.1") },
			long:     2 * time.Second,
		}.of(t, cfg, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "mirrors", requests, opts, o.Findings,
			event)
		w.set(slice("insisted", "c2", "IPv4", "10.2.0.2"))
		o.Mark("insisted", "c2", time.Now())
		withinASecond("the address is another", func() bool {
			s, err := admin.DiscoveryV1().EndpointSlices("mirrors").Get(ctx, "insisted", metav1.GetOptions{})
			return err == nil && s.Endpoints[0].Addresses[0] == "10.2.0.2"
		})
	})
	t.Run("a controller that insists, on a set", func(t *testing.T) {
		kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
		requests, wrapped := &kubetest.Requests{}, rest.CopyConfig(cfg)
		wrapped.Wrap(requests.Wrap)
		w, d := desired[*calicov3.GlobalNetworkSet]()
		w.set(globalSet("insisted", "10.2.0.1/32"))
		opts := opts
		opts.Metrics = NewMetrics(prometheus.NewRegistry())
		o := Sets(quickCalico(wrapped), nil, d, opts)
		defer testkit.Run(t, o.Run)()
		eventually(t, "made", func() (bool, string) { return len(o.store.All()) == 1, "" })
		fight{
			kind: writes.GlobalNetworkSet, name: "insisted", field: "spec.nets",
			edit: `{"spec":{"nets":["10.2.0.1/32","10.2.0.9/32"]}}`,
			restored: func(object map[string]any) bool {
				nets, _, _ := unstructured.NestedStringSlice(object, "spec", "nets")
				return len(nets) == 1
			},
			long: 2 * time.Second,
		}.of(t, cfg, kubetest.CalicoCRD.WithResource("globalnetworksets"), "", requests, opts, o.Findings, event)
		w.set(globalSet("insisted", "10.2.0.2/32"))
		o.Mark("insisted", "c2", time.Now())
		withinASecond("the address is another", func() bool {
			s, there := o.store.Get("insisted")
			return there && slices.Equal(s.Spec.Nets, []string{"10.2.0.2/32"})
		})
	})
	t.Run("a policy that changes what is written", func(t *testing.T) {
		mutate(t, admin)
		requests.Take()
		began := time.Now()
		w.set(service("mutated", "c2", 80, false))
		o.Mark("mutated", "c2", time.Now())
		reports(t, o, "service mutated: a mutating webhook or policy changes spec.sessionAffinity")
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
		o := Services(client, "mirrors", nil, d, opts)
		testkit.Run(t, o.Run)
		reports(t, o, "service unlabelled", "set app.kubernetes.io/managed-by=semaphore-broker again, or delete it")
	})
	t.Run("a slice whose label is off", func(t *testing.T) {
		w, d := desired[*discoveryv1.EndpointSlice]()
		one := slice("one", "c2", "IPv4", "10.2.0.1")
		one.Annotations = map[string]string{naming.AnnotationSourceNamespace: "shop", naming.AnnotationSourceName: "one"}
		w.set(one)
		o := Slices(client, writes.EndpointSlice, "mirrors", d, options(t))
		stop := testkit.Run(t, o.Run)
		eventually(t, "made", func() (bool, string) { return o.Wants("one") && len(o.Unwritten()) == 0, "" })
		api := admin.DiscoveryV1().EndpointSlices("mirrors")
		unlabel := func() {
			t.Helper()
			testkit.Value(api.Patch(ctx, "one", types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`), metav1.PatchOptions{}))(t)
		}
		unlabel()
		withinASecond("the label is back", func() bool {
			s, err := api.Get(ctx, "one", metav1.GetOptions{})
			return err == nil && s.Labels[naming.LabelManagedBy] == naming.ManagedByBroker
		})
		stop()
		unlabel()
		started := options(t)
		started.Events = opts.Events
		o = Slices(client, writes.EndpointSlice, "mirrors", d, started)
		testkit.Run(t, o.Run)
		reports(t, o, "endpointslice one", "set app.kubernetes.io/managed-by=semaphore-broker again, or delete it")
		event("NameTaken", "endpointslice one", "set app.kubernetes.io/managed-by=semaphore-broker again, or delete it")
		// It helps to do what the status says.
		testkit.Value(api.Patch(ctx, "one", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"semaphore-broker"}}}`),
			metav1.PatchOptions{}))(t)
		changed := slice("one", "c2", "IPv4", "10.2.0.2")
		changed.Annotations = one.Annotations
		w.set(changed)
		o.Mark("one", "c2", time.Now())
		eventually(t, "it is the broker's again", func() (bool, string) {
			s, err := api.Get(ctx, "one", metav1.GetOptions{})
			p := finding.Texts(o.Findings())
			return err == nil && s.Endpoints[0].Addresses[0] == "10.2.0.2" && len(p) == 0, fmt.Sprint(err, p)
		})
	})
}

// TestLabelsThatSelectAreRestored: whichever label somebody takes off by which the broker selects an object, the object
// has the label again within a second, and the broker finds it.
func TestLabelsThatSelectAreRestored(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(kube.Protobuf(cfg))
	kubetest.Namespace(t, admin, "mirrors")
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	testkit.Value(mcs.ApplyDefinitions(t.Context(), dynamic.NewForConfigOrDie(cfg)))(t)
	endpointSlices := discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	sliceWith := func(name, label string) *discoveryv1.EndpointSlice {
		s := slice(name, "c2", "IPv4", "10.2.0.1")
		s.Labels[label] = "web"
		return s
	}
	t.Run("own slice", func(t *testing.T) {
		selectedBy(t, cfg, endpointSlices, naming.LabelOwnName, sliceWith("own", naming.LabelOwnName),
			func(d writes.Desired[*discoveryv1.EndpointSlice]) *Objects[*discoveryv1.EndpointSlice] {
				return Slices(admin, writes.OwnSlice, metav1.NamespaceAll, d, options(t))
			})
	})
	t.Run("import slice", func(t *testing.T) {
		selectedBy(t, cfg, endpointSlices, mcsv1beta1.LabelServiceName, sliceWith("import", mcsv1beta1.LabelServiceName),
			func(d writes.Desired[*discoveryv1.EndpointSlice]) *Objects[*discoveryv1.EndpointSlice] {
				return Slices(admin, writes.ImportSlice, metav1.NamespaceAll, d, options(t))
			})
	})
	t.Run("ServiceImport", func(t *testing.T) {
		selectedBy(t, cfg, mcsv1beta1.SchemeGroupVersion.WithResource("serviceimports"), naming.LabelManagedBy,
			&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "mirrors", Name: "web", Labels: bearing("c2")},
				Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.96.0.7"},
					Ports: []mcsv1beta1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
			func(d writes.Desired[*mcsv1beta1.ServiceImport]) *Objects[*mcsv1beta1.ServiceImport] {
				api := NewMCS(testkit.Value(mcs.New(cfg, writes.FieldManager))(t), slog.New(slog.DiscardHandler))
				return ServiceImports(api, d, options(t))
			})
	})
	t.Run("pool", func(t *testing.T) {
		selectedBy(t, cfg, kubetest.CalicoCRD.WithResource("ippools"), naming.LabelManagedBy,
			&calicov3.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-c2", Labels: bearing("c2")},
				Spec: calicov3.IPPoolSpec{CIDR: "10.2.0.0/16", Disabled: true, IPIPMode: calicov3.IPIPModeNever,
					VXLANMode: calicov3.VXLANModeNever, NodeSelector: "all()", BlockSize: 26}},
			func(d writes.Desired[*calicov3.IPPool]) *Objects[*calicov3.IPPool] {
				return Pools(quickCalico(cfg), d, options(t))
			})
	})
}

// selectedBy takes a label off an object that a loop has written.
func selectedBy[T writes.Object](t *testing.T, cfg *rest.Config, resource schema.GroupVersionResource, label string,
	object T, of func(writes.Desired[T]) *Objects[T]) {
	t.Helper()
	w, d := desired[T]()
	o := of(d)
	w.put(o.nameOf(object), object)
	testkit.Run(t, o.Run)
	found := testkit.True(func() bool { return len(o.store.All()) == 1 })
	testkit.Eventually(t, 3*time.Minute, "it is made", found)
	api := dynamic.NewForConfigOrDie(cfg).Resource(resource).Namespace(object.GetNamespace())
	testkit.Value(api.Patch(t.Context(), object.GetName(), types.MergePatchType,
		[]byte(fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, label)), metav1.PatchOptions{FieldManager: "by-hand"}))(t)
	kubetest.Promptly(t, kubernetes.NewForConfigOrDie(cfg), time.Second, label+" is back", func() error {
		have, err := api.Get(t.Context(), object.GetName(), metav1.GetOptions{})
		if err == nil && have.GetLabels()[label] != object.GetLabels()[label] {
			err = fmt.Errorf("labels %v, findings %q", have.GetLabels(), finding.Texts(o.Findings()))
		}
		return cmp.Or(err, found())
	})
}

// fight is a controller, kyverno, that changes an object again each time that the broker restores it.
type fight struct {
	kind writes.ObjectKind
	// name is the object's; edit, a merge patch, changes field.
	name, edit, field string
	// restored says that an object is as the broker wrote it.
	restored func(object map[string]any) bool
	// long is how long it lasts, and longer until the broker has restored the object four times.
	long time.Duration
}

// of has the controller fight on a real apiserver. It checks that the broker restores the object less and less often,
// and that an Event and the status name the object, the field and the other one.
func (f fight) of(t *testing.T, cfg *rest.Config, resource schema.GroupVersionResource, namespace string,
	requests *kubetest.Requests, opts Options, findings func() []finding.Finding, event func(string, ...string)) {
	t.Helper()
	var api dynamic.ResourceInterface = dynamic.NewForConfigOrDie(cfg).Resource(resource)
	if namespace != "" {
		api = dynamic.NewForConfigOrDie(cfg).Resource(resource).Namespace(namespace)
	}
	restored := func() float64 { return value(t, opts.Metrics, "semaphore_broker_restored_total", string(f.kind)) }
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	requests.Take()
	before := restored()
	watch := testkit.Value(api.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + f.name}))(t)
	lost, began := 0, time.Now()
	for e := range watch.ResultChan() {
		if o, ok := e.Object.(*unstructured.Unstructured); ok && f.restored(o.Object) {
			testkit.Value(api.Patch(ctx, f.name, types.MergePatchType, []byte(f.edit),
				metav1.PatchOptions{FieldManager: "kyverno"}))(t)
			lost++
		}
		if time.Since(began) > f.long && restored()-before >= 4 {
			break
		}
	}
	watch.Stop()
	writes, long := withoutLists(requests.Take()), time.Since(began)
	t.Logf("%d writes of the broker in %s, %d of the other", len(writes), long, lost)
	if len(writes) > inFight(long)+1 {
		t.Errorf("%d writes in a fight of %s", len(writes), long)
	}
	if n := restored() - before; n < 4 {
		t.Errorf("%v counted", n)
	}
	about := fmt.Sprintf("%s %s: kyverno changes %s", f.kind, f.name, f.field)
	event("Contested", about)
	eventually(t, "reported, and nothing else", func() (bool, string) {
		problems := finding.Texts(findings())
		return len(problems) == 1 && strings.Contains(problems[0], about), fmt.Sprint(problems)
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
	kubetest.Create(t, admin.AdmissionregistrationV1().MutatingAdmissionPolicies(),
		&admissionv1.MutatingAdmissionPolicy{
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
		})
	kubetest.Create(t, admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings(),
		&admissionv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "sticky"},
			Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "sticky"},
		})
	eventually(t, "the policy holds", func() (bool, string) {
		s := service("mutated", "c2", 80, false)
		s, err := admin.CoreV1().Services("mirrors").Create(ctx, s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP, fmt.Sprint(err)
	})
}

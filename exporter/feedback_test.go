package exporter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// judging is c2's broker with outcomes for services.
type judging struct {
	*broker
	mu      sync.Mutex
	against []*semaphorev1.Outcome
}

func (b *judging) judge(all ...*semaphorev1.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.against = all
}

// outcomes returns the outcomes of Services in the broker's replica. A broker has none for others.
func (b *judging) outcomes(string) (out []*semaphorev1.Outcome) {
	holds := strings.Split(b.holds(), ", ")
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.against {
		if k := o.GetKey(); slices.Contains(holds, "service "+k.GetNamespace()+"/"+k.GetName()) {
			out = append(out, o)
		}
	}
	return out
}

// A developer who offers a Service reads on the Service whether and to which clusters it is exported, or why not,
// without permissions in another cluster. Each change appears once, also when the exporter restarts, and one back to an
// earlier result is a change, too.
func TestFeedbackOnServices(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	// Use exactly the shipped permissions.
	limited := kubetest.Grant(t, api, "semaphore-exporter", "../deploy/features/services/exporter/rbac.yaml",
		"../deploy/exporter/remotes.yaml")
	kubetest.Namespace(t, admin, "shop")

	kubetest.InstallRemoteClusters(t, api)
	trust := trust.New(t, "c1", "c2")
	c2 := &judging{broker: &broker{objects: map[string]*semaphorev1.Object{}}}
	c2.address = serveSink(t, trust, "c2", c2, c2.outcomes)
	remote := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal([]byte(fmt.Sprintf("apiVersion: semaphore.uw.io/v1alpha1\nkind: RemoteCluster\nmetadata: "+
		"{name: c2}\nspec: {broker: {address: %q}, export: {rules: [{namespaces: [shop], action: Withhold, "+
		"selector: {matchExpressions: [{key: secret, operator: Exists}]}}]}}\n", c2.address)), &remote.Object))
	kubetest.CreateObject(t, dynamic.NewForConfigOrDie(api).Resource(v1alpha1.RemoteClusters), remote)
	const more = "features: [services]\n" + alone
	bundles := trust.Files("c1", "exporter").BundleDir
	e := startWith(t, limited, trust, more, bundles)

	create := func(name string, labels map[string]string, edit ...func(*corev1.Service)) *corev1.Service {
		t.Helper()
		s := offered(name)
		maps.Copy(s.Labels, labels)
		for _, f := range edit {
			f(s)
		}
		return kubetest.Create(t, admin.CoreV1().Services("shop"), s)
	}
	long := "x-" + strings.Repeat("y", 50)
	tooLong := &semaphorev1.Outcome{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop",
		Name: long}, Code: "NameTooLong", Reason: "its Service would be named too long"}
	c2.judge(tooLong)
	fine := create("fine", nil)
	create("outside", nil, func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	})
	create("secret", map[string]string{"secret": "yes"})
	create("kept", nil, func(s *corev1.Service) { s.Annotations = map[string]string{"semaphore.uw.io/export-to": "none"} })
	create("unheeded", map[string]string{"mirror.semaphore.uw.io/global-service": "true"}, func(s *corev1.Service) {
		s.Annotations = map[string]string{"semaphore.uw.io/min-ready": "many"}
	})
	create(long, nil)
	create("private", map[string]string{"mirror.semaphore.uw.io/mirror-service": "no"})

	// written returns the exporter's Events of a Service. The apiserver has Events of its own.
	written := func(name string) (out []string) {
		t.Helper()
		all, err := admin.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range all.Items {
			if e.Regarding.Kind == "Service" && e.Regarding.Name == name && e.ReportingController == "semaphore.uw.io/exporter" {
				out = append(out, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Note))
			}
		}
		slices.Sort(out)
		return out
	}
	has := func(name string, want ...string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, name+" has its Events", testkit.State(func() (bool, string) {
			got := written(name)
			return slices.EqualFunc(got, want, strings.HasPrefix), fmt.Sprintf("%q, want %q", got, want)
		}))
	}
	has("fine", "Normal Offered: offered to c2 as a mirror")
	has("outside", "Warning NotOffered: it is not offered to other clusters: spec.type ExternalName has no endpoints to "+
		"offer")
	has("secret", "Warning NotOffered: it is not offered to other clusters: spec.export of no RemoteCluster offers it")
	has("kept", "Warning NotOffered: it is not offered to other clusters: annotation semaphore.uw.io/export-to: \"none\"")
	has("unheeded", "Warning InvalidServiceSetting: offered to c2 as a mirror and as part of the global service; "+
		"annotation semaphore.uw.io/min-ready: \"many\" is ignored")
	has(long, "Warning Refused: cluster c2: its Service would be named too long")
	all, err := admin.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, e := range all.Items {
		if e.Regarding.Name == "fine" && e.Regarding.UID != fine.UID {
			t.Errorf("an Event of %s, not %s", e.Regarding.UID, fine.UID) // kubectl describe would not show it
		}
	}

	// Only changes are reported.
	c2.judge()
	has(long, "Normal Offered: offered to c2 as a mirror", "Warning Refused: cluster c2: ")
	c2.judge(tooLong)
	has(long, "Normal Offered: offered to c2 as a mirror", "Warning Refused: cluster c2: ",
		"Warning Refused: cluster c2: ")
	e.stop()
	e = startWith(t, limited, trust, more, bundles)
	within(t, "all is reported by the next exporter", func() bool {
		_, text := e.get("/metrics")
		return strings.Contains(text, `semaphore_exporter_events_total{result="repeated"} 6`) &&
			strings.Contains(text, `semaphore_exporter_events_total{result="written"} 0`)
	})
	has("fine", "Normal Offered: offered to c2 as a mirror")
	if got := written("private"); len(got) > 0 {
		t.Errorf("one that is not offered has %q", got)
	}
}

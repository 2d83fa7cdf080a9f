package report

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

// answer is what a broker says of all Services.
type answer struct {
	mu        sync.Mutex
	objection string
	known     bool
	conflicts []string
	message   string
	version   uint64
}

func (a *answer) set(objection string, known bool, conflicts ...string) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objection, a.known, a.conflicts, a.message = objection, known, conflicts, ""
	if len(conflicts) > 0 {
		a.message = "ports differ from those of cluster c2"
	}
	a.version++
	return a
}

func (a *answer) Verdict(catalog.Key, uint64) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objection, a.known
}

func (a *answer) VerdictVersion() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

func (a *answer) Conflict(catalog.Key) ([]string, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conflicts, a.message
}

func says(conditions []metav1.Condition) string {
	var all []string
	for _, c := range conditions {
		all = append(all, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(all, "\n")
}

func TestOf(t *testing.T) {
	taken := (&answer{}).set("", true)
	refused := (&answer{}).set("it has no port", true)
	silent := &answer{}
	conflict := (&answer{}).set("", true, "PortConflict", "TypeConflict")
	offer := &catalog.Offer{Namespace: "shop", Name: "echo", To: []string{"c1", "c2", "c3", "c4"}}
	valid := catalog.ServiceExport{Namespace: "shop", Name: "echo", Generation: 7, Valid: "Valid", Offer: offer}
	for _, test := range []struct {
		name    string
		export  catalog.ServiceExport
		brokers map[string]Broker
		known   bool
		want    string
	}{
		{"no Service", catalog.ServiceExport{Generation: 7, Valid: mcsv1beta1.ServiceExportReasonNoService,
			Reason: "none"}, nil,
			true, "Valid=False NoService: none\nReady=False Pending: nothing is exported: see the condition Valid"},
		{"no own broker", valid, map[string]Broker{"c2": taken}, true,
			"Valid=True Valid: the Service can be exported\nReady=False Failed: the exporter does not publish to the " +
				"broker of its own cluster: set localBroker in its configuration"},
		{"the own broker is silent", valid, map[string]Broker{"c1": silent, "c2": taken}, false,
			"Valid=True Valid: the Service can be exported\nReady=False Pending: the broker of the own cluster has not " +
				"confirmed it yet"},
		{"the own broker refuses it", valid, map[string]Broker{"c1": refused, "c2": taken}, true,
			"Valid=True Valid: the Service can be exported\nReady=False Failed: the broker of the own cluster: it has " +
				"no port\n" +
				"Conflict=False NoConflicts: no export of another cluster differs"},
		{"each broker says something else", valid,
			map[string]Broker{"c1": conflict, "c2": taken, "c3": refused, "c4": silent}, false,
			"Valid=True Valid: the Service can be exported\nReady=True Exported: exported to c2; not confirmed yet by c4; " +
				"cluster c3: it has no port\nConflict=True PortConflict,TypeConflict: ports differ from those of cluster c2"},
		{"rules export it to nobody", catalog.ServiceExport{Generation: 7, Valid: "Valid",
			Offer: &catalog.Offer{To: []string{"c1"}, Reason: "rules say so"}}, map[string]Broker{"c1": taken}, true,
			"Valid=True Valid: the Service can be exported\nReady=True Exported: exported to no other cluster: rules " +
				"say so\n" +
				"Conflict=False NoConflicts: no export of another cluster differs"},
		{"unsendable", catalog.ServiceExport{Generation: 7, Valid: "Valid", Offer: &catalog.Offer{Reason: "it is too big"}},
			map[string]Broker{"c1": taken}, true, "Valid=True Valid: the Service can be exported\n" +
				"Ready=False Failed: the Service is not exported: it is too big"},
	} {
		got, known := conditionsOf(test.export, "c1", test.brokers["c1"] != nil, func(cluster string) (string, bool) {
			return test.brokers[cluster].Verdict(catalog.Key{}, 0)
		}, func() Conflict {
			reasons, message := test.brokers["c1"].Conflict(catalog.Key{})
			return Conflict{reasons, message}
		})
		if says(got) != test.want || known != test.known {
			t.Errorf("%s: %t\n%s\nwant %t\n%s", test.name, known, says(got), test.known, test.want)
		}
		for _, c := range got {
			if c.ObservedGeneration != 7 {
				t.Errorf("%s: %s has generation %d", test.name, c.Type, c.ObservedGeneration)
			}
		}
	}
}

// TestWriter: a real apiserver accepts the conditions; each change of meaning is one write, a new writer writes nothing
// again, and a condition of somebody else stays.
func TestWriter(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx := t.Context()
	client := serveExports(t, cfg)
	exports := client.Exports()
	e := createExport(t, client, "echo")
	e.Status.Conditions = []metav1.Condition{{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "So", Message: "so",
		LastTransitionTime: metav1.Now()}}
	e = testkit.Value(exports.UpdateStatus(ctx, e))(t)

	c := newCatalog()
	own, other := &answer{}, (&answer{}).set("", true)
	var unpublishedNow atomic.Bool
	brokers := func() map[string]Broker {
		if unpublishedNow.Load() {
			return map[string]Broker{"c2": other}
		}
		return map[string]Broker{"c1": own, "c2": other}
	}
	run := func() (stop func()) {
		w := NewConditions("c1", client, c, brokers, NewConditionMetrics(prometheus.NewRegistry()), slog.Default())
		end := testkit.Run(t, w.Run)
		return func() {
			end()
			if p := w.Problems(); len(p) > 0 {
				t.Errorf("problems: %q", p)
			}
		}
	}
	stop := run()
	last := e.ResourceVersion
	is := func(want string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, "the conditions", func() error {
			have, err := exports.Get(ctx, "shop", "echo")
			if err != nil {
				return err
			}
			last = have.ResourceVersion
			if got := says(have.Status.Conditions); got != want {
				return fmt.Errorf("they are\n%s\nnot\n%s", got, want)
			}
			return nil
		})
	}
	const theirs = "Theirs=True So: so\n"
	c.PutExport(e, time.Now())
	is(theirs + "Valid=False NoService: there is no Service echo in namespace shop\n" +
		"Ready=False Pending: nothing is exported: see the condition Valid")
	own.set("", true)
	c.PutService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}}, time.Now())
	const ready = "Valid=True Valid: the Service can be exported\nReady=True Exported: exported to c2\n"
	is(theirs + ready + "Conflict=False NoConflicts: no export of another cluster differs")
	own.set("", true, "PortConflict")
	is(theirs + ready + "Conflict=True PortConflict: ports differ from those of cluster c2")
	before := last
	// seen returns when the writer has looked at all: the conditions of an export that comes later are written.
	seen := func(name string) {
		t.Helper()
		c.PutExport(createExport(t, client, name), time.Now())
		testkit.Eventually(t, 3*time.Minute, "the conditions of "+name, func() error {
			have, err := exports.Get(ctx, "shop", name)
			if err == nil && len(have.Status.Conditions) == 0 {
				err = errors.New("there are none")
			}
			return err
		})
	}
	// Neither a writer that has just started, which has no write to keep a distance from, nor a stream to the own broker
	// that breaks for a moment has anything written.
	stop()
	stop = run()
	seen("second")
	own.set("", false)
	seen("third")
	own.set("", true, "PortConflict")
	seen("fourth")
	is(theirs + ready + "Conflict=True PortConflict: ports differ from those of cluster c2")
	if last != before {
		t.Errorf("resourceVersion %s became %s, and nothing changed", before, last)
	}
	unpublishedNow.Store(true)
	is(theirs + "Valid=True Valid: the Service can be exported\nReady=False Failed: " + unpublished)
	unpublishedNow.Store(false)
	is(theirs + ready + "Conflict=True PortConflict: ports differ from those of cluster c2")
	c.DeleteService("shop", "echo", time.Now())
	is(theirs + "Valid=False NoService: there is no Service echo in namespace shop\n" +
		"Ready=False Pending: nothing is exported: see the condition Valid")
	stop()
}

// Package remoteclusters shows RemoteClusters to kstatus, by which Flux waits, and to the health check of Argo CD.
package remoteclusters

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	os.Exit(m.Run())
}

// world has one RemoteCluster at a real apiserver, and the writers of its status.
type world struct {
	t                *testing.T
	api              dynamic.ResourceInterface
	broker, exporter *follow.StatusWriter
	health           string
}

// TestReadyForTools: kstatus and Argo CD take a RemoteCluster for in progress until the parts have reported about its
// present spec, and for current only while all that it names works. Argo CD takes it for degraded when something does
// not.
func TestReadyForTools(t *testing.T) {
	w := newWorld(t)
	w.is("created", status.InProgressStatus, "Progressing")
	w.exports(metav1.ConditionTrue, finding.Connected)
	w.is("the exporter has reported, and no broker", status.InProgressStatus, "Progressing")
	w.exports(metav1.ConditionFalse, finding.Disconnected)
	w.is("the exporter has reported again, and no broker", status.InProgressStatus, "Progressing")
	w.reports(&semaphorev1.LinkStatus{Connected: true})
	w.is("the exporter is not connected", status.InProgressStatus, "Degraded")
	stale := w.object()
	w.exports(metav1.ConditionTrue, finding.Connected)
	w.is("the broker has not seen that", status.InProgressStatus, "Degraded")
	w.reports(&semaphorev1.LinkStatus{Connected: true})
	w.is("both are connected", status.CurrentStatus, "Healthy")
	w.reports(&semaphorev1.LinkStatus{})
	w.is("the remote is not connected", status.InProgressStatus, "Degraded")
	w.reports(&semaphorev1.LinkStatus{Connected: true})

	w.change()
	w.is("the spec was changed", status.InProgressStatus, "Progressing")
	w.reports(&semaphorev1.LinkStatus{Connected: true})
	w.is("the exporter has not seen the new spec", status.InProgressStatus, "Progressing")
	w.exports(metav1.ConditionTrue, finding.Connected)
	w.reports(&semaphorev1.LinkStatus{Connected: true})
	w.is("both have seen it", status.CurrentStatus, "Healthy")

	// An exporter that has not seen the broker's report does not replace it.
	stale.Status.Conditions = nil
	w.exporter.Propose(t.Context(), stale, exporting(stale, metav1.ConditionTrue, finding.Connected))
	w.is("a late proposal", status.CurrentStatus, "Healthy")
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cfg := kubetest.Start(t)
	client := dynamic.NewForConfigOrDie(cfg)
	kubetest.InstallRemoteClusters(t, cfg)
	page, err := os.ReadFile("../../../docs/remotes.md")
	testkit.Must(t, err)
	_, text, _ := strings.Cut(string(page), "\nresource.customizations.health")
	text, _, _ = strings.Cut("health"+text, "```")
	var settings map[string]string
	testkit.Must(t, yaml.Unmarshal([]byte(text), &settings))
	w := &world{t: t, api: client.Resource(v1alpha1.RemoteClusters),
		broker:   follow.NewStatusWriter(client, "semaphore-broker", slog.Default()),
		exporter: follow.NewStatusWriter(client, "semaphore-exporter", slog.Default())}
	for _, w.health = range settings {
	}
	kubetest.CreateRemote(t, cfg, "c2", "{podSubnets: [10.2.0.0/16], broker: {address: '192.0.2.1:8443'}}")
	return w
}

// change raises the generation of the object.
func (w *world) change() {
	w.t.Helper()
	o, err := w.api.Get(w.t.Context(), "c2", metav1.GetOptions{})
	testkit.Must(w.t, err)
	testkit.Must(w.t, unstructured.SetNestedField(o.Object, "192.0.2.2:8443", "spec", "broker", "address"))
	_, err = w.api.Update(w.t.Context(), o, metav1.UpdateOptions{})
	testkit.Must(w.t, err)
}

// object is the RemoteCluster as a part has it.
func (w *world) object() remotes.Object {
	w.t.Helper()
	var r v1alpha1.RemoteCluster
	testkit.Must(w.t, runtime.DefaultUnstructuredConverter.FromUnstructured(w.read().Object, &r))
	return remotes.Of(&r, "")
}

func (w *world) read() *unstructured.Unstructured {
	w.t.Helper()
	o, err := w.api.Get(w.t.Context(), "c2", metav1.GetOptions{})
	testkit.Must(w.t, err)
	return o
}

func exporting(o remotes.Object, is metav1.ConditionStatus, reason finding.Code) v1alpha1.RemoteClusterStatus {
	return v1alpha1.RemoteClusterStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionExporting, Status: is,
		Reason: string(reason), ObservedGeneration: o.Generation, Message: "m"}}}
}

// exports has the exporter report.
func (w *world) exports(is metav1.ConditionStatus, reason finding.Code) {
	w.t.Helper()
	o := w.object()
	w.exporter.Propose(w.t.Context(), o, exporting(o, is, reason))
}

// reports has the broker report.
func (w *world) reports(link *semaphorev1.LinkStatus) {
	w.t.Helper()
	o := w.object()
	w.broker.Report(w.t.Context(), o, report.StatusOf(o,
		remotes.Verdict{InEffect: &o, Reason: finding.Accepted, Message: "the spec is in effect"}, link))
}

// is compares what kstatus and Argo CD say.
func (w *world) is(when string, want status.Status, health string) {
	w.t.Helper()
	o := w.read()
	if r, err := status.Compute(o); err != nil || r.Status != want {
		w.t.Errorf("%s: kstatus says %v, %v; want %s", when, r, err, want)
	}
	if got := healthOf(w.t, w.health, o); got != health {
		w.t.Errorf("%s: Argo CD says %s, want %s", when, got, health)
	}
}

// healthOf runs a health check as Argo CD does: obj is the object, and the result has a status.
func healthOf(t *testing.T, check string, o *unstructured.Unstructured) string {
	t.Helper()
	l := lua.NewState()
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l.SetContext(ctx)
	l.SetGlobal("obj", valueOf(l, o.Object))
	testkit.Must(t, l.DoString(check))
	result, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the health check returns %v", l.Get(-1))
	}
	return lua.LVAsString(result.RawGetString("status"))
}

// valueOf converts JSON to a value of Lua.
func valueOf(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		out := l.NewTable()
		for _, one := range v {
			out.Append(valueOf(l, one))
		}
		return out
	case map[string]any:
		out := l.NewTable()
		for key, one := range v {
			out.RawSetString(key, valueOf(l, one))
		}
		return out
	}
	return lua.LNil
}

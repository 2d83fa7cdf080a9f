package redteam

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// exported returns a headless Service that a ServiceExport exports: it needs no cluster IP, so limits.exports is the
// first limit that many of them reach.
func exported(name string) *semaphorev1.Object {
	o := service(name, 1)
	o.GetService().Mirror, o.GetService().Headless = false, true
	o.GetService().MultiCluster = &semaphorev1.MultiClusterExport{}
	return o
}

// imports returns the names of all ServiceImports, which are in the namespace shop.
func (v *victim) imports(client *mcs.Client) map[string]bool {
	v.t.Helper()
	list := testkit.Value(client.Imports().Follow("", nil).ListWithContext(v.t.Context(), metav1.ListOptions{}))(v.t)
	names := map[string]bool{}
	for _, i := range list.(*mcsv1beta1.ServiceImportList).Items {
		names[i.Name] = true
	}
	return names
}

// labels changes exports so that they have labels that a deployment tool acts on, more than an export may have (R30).
func (v *victim) labels(client *mcs.Client, s *stream, existing []*semaphorev1.Object) {
	v.t.Helper()
	const n, each = 200, 100
	at, ran := uint64(1_000_000), v.ran()
	var refused []*semaphorev1.Refusal
	for some := range slices.Chunk(existing[:n], each) {
		var changed []*semaphorev1.Object
		for _, o := range some {
			o = proto.CloneOf(o)
			for i := range 65 {
				o.GetService().MultiCluster.Labels = append(o.GetService().MultiCluster.Labels, &semaphorev1.Label{
					Key: fmt.Sprint("argocd.argoproj.io/instance-", i), Value: strings.Repeat("x", 60)})
			}
			changed = append(changed, o)
		}
		s.tell(players.Upserts(at+1, changed...))
		at += each
		refused = append(refused, s.acked(at)...)
	}
	cpu := (v.ran() - ran) / n
	v.t.Logf("%d exports with reserved labels: %.3f ms of CPU each", n, float64(cpu.Microseconds())/1000)
	if cpu > 2*time.Millisecond {
		v.t.Errorf("%s of CPU for each export with reserved labels; %s is the most", cpu, 2*time.Millisecond)
	}
	if len(refused) < n || slices.ContainsFunc(refused, func(r *semaphorev1.Refusal) bool {
		return r.GetCode() != "InvalidExport"
	}) {
		v.t.Errorf("%d refusals of %d exports with reserved labels, such as %v", len(refused), n,
			refused[:min(1, len(refused))])
	}
	time.Sleep(2 * time.Second) // longer than a write takes
	i, err := client.Imports().Get(v.t.Context(), "shop", existing[0].GetKey().GetName())
	if err != nil || strings.Contains(fmt.Sprint(i.Labels), "argocd") {
		v.t.Errorf("an import has the labels %v, %v", i.Labels, err)
	}
}

// TestExportsOfARemoteAreBounded checks limits.exports with one export too many, and with 20,000 (100,000 in make
// test-all) that precede those that exist and arrive as fast as the broker reads them: changesPerSecond, which would
// make them wait for a minute and a half, is raised, and exports, which are written first, are a fifth of the default.
// Existing objects stay, nothing of the rest is written, each is refused and counted, and another remote's export is
// imported meanwhile.
func TestExportsOfARemoteAreBounded(t *testing.T) {
	const most = 200
	flood, memory := 20_000, 64<<20
	if tier.All() {
		flood, memory = 100_000, 128<<20
	}
	v := prepare(t)
	withMCS(v)
	client := testkit.Value(mcs.New(v.rest, "redteam"))(t)
	limit("c2", v1alpha1.Limits{ChangesPerSecond: v1alpha1.Limit(2 * flood), Exports: most})(v)
	v.run()
	v.sends("c1", "e1", 1, ofMirrors)
	honest, _ := v.sends("c3", "e1", 1, ofMirrors)

	var existing []*semaphorev1.Object
	for i := range most {
		existing = append(existing, exported(fmt.Sprintf("web-%04d", i)))
	}
	s, refused := v.sends("c2", "e1", most, ofServices, existing...)
	if len(refused) > 0 {
		t.Fatalf("%d exports are refused: %v", len(refused), refused[0])
	}
	begun := time.Now()
	v.eventually("the imports exist", func() error {
		if n := len(v.imports(client)); n != most {
			return fmt.Errorf("%d of %d", n, most)
		}
		return nil
	})
	t.Logf("%d ServiceImports were written in %s", most, time.Since(begun).Round(time.Millisecond))

	refusals := func() float64 {
		return v.metric("semaphore_broker_refused_total", `cluster="c2"`, `kind="service"`, `code="OverLimit"`)
	}
	s.tell(changesOf(upsert(most+1, exported("one-too-many"))))
	if refused := s.acked(most + 1); len(refused) != 1 || refusedBy(refused, "exports") != 1 || refusals() != 1 {
		t.Errorf("one export too many: refused %v, and the metric counts %v", refused, refusals())
	}

	messages := [][]byte{encode(t, hello("c2", "e2", uint64(2*flood), serviceKind))}
	var all []*semaphorev1.Object
	for i := range flood {
		all = append(all, exported(fmt.Sprintf("a-%06d", i)))
	}
	wire := 0
	for _, m := range snapshot(serviceKind, uint64(2*flood), append(all, existing...)...) {
		messages = append(messages, encode(t, m))
		wire += len(messages[len(messages)-1])
	}
	ran, writes := v.ran(), v.metric("semaphore_broker_writes_total")
	begun = time.Now()
	v.costs(fmt.Sprint(flood, " exports over limits.exports"), memory, func() {
		s = v.publish("c2")
		half, sent := make(chan struct{}), make(chan error, 1)
		go func() {
			for i, m := range messages {
				if i == len(messages)/2 {
					close(half)
				}
				if err := s.call.SendMsg(m); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		<-half
		beside, began := kubetest.WriteBeside(t, v.kube), time.Now()
		honest.tell(changesOf(upsert(2, exported("good"))))
		v.eventually("another remote's export is imported", func() error {
			if !v.imports(client)["good"] {
				return errors.New("it is not")
			}
			return nil
		})
		took, late := time.Since(began), beside.Late()
		beside.Stop()
		t.Logf("beside them, another remote's export was imported after %s", took.Round(time.Millisecond))
		if took > 5*time.Second+late {
			t.Errorf("another remote's export was imported after %s; %s is the most", took, 5*time.Second+late)
		}
		refused = s.acked(uint64(2 * flood))
		if err := <-sent; err != nil {
			t.Errorf("the exports could not be sent: %v", err)
		}
	})
	cpu := (v.ran() - ran) / time.Duration(flood)
	t.Logf("%d exports of %d bytes in all: %.3f ms of CPU each, answered within %s", flood, wire,
		float64(cpu.Microseconds())/1000, time.Since(begun).Round(time.Millisecond))
	if cpu > 2*time.Millisecond {
		t.Errorf("%s of CPU for each export; %s is the most", cpu, 2*time.Millisecond)
	}
	if n := refusedBy(refused, "exports"); n != flood || refusals() != float64(flood+1) {
		t.Errorf("%d refusals of %d name limits.exports, and the metric counts %v", n, len(refused), refusals())
	}
	if n := v.metric("semaphore_broker_objects", `cluster="c2"`, `kind="service"`); n != most {
		t.Errorf("%v exports are held", n)
	}
	if n := v.metric("semaphore_broker_refused", `cluster="c2"`, `kind="service"`); n != float64(flood) {
		t.Errorf("semaphore_broker_refused says %v", n)
	}
	if n := v.metric("semaphore_broker_writes_total") - writes; n > 40 {
		t.Errorf("the refused exports cost %v writes", n)
	}
	want := map[string]bool{"good": true}
	for _, o := range existing {
		want[o.GetKey().GetName()] = true
	}
	if have := v.imports(client); !maps.Equal(have, want) {
		t.Errorf("there are %d imports, not those that existed and the other remote's", len(have))
	}
	v.labels(client, s, existing)
	bins := testkit.Value(programs())(t)
	out, _ := exec.CommandContext(t.Context(), bins["semaphorectl"], "status", "--timeout", "2m", "--socket",
		v.path("broker.sock")).CombinedOutput()
	for _, part := range []string{"OverLimit (c2)", "limits.exports of this remote"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("semaphorectl status says nothing of %q:\n%.2000s", part, out)
		}
	}
}

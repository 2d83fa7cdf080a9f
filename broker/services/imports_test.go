package services

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// SetNamespaces sets all namespaces of the own cluster.
func (p *ImportPlan) SetNamespaces(names []string) (imports, slices []string) {
	for _, name := range names {
		p.SetNamespace(name, true)
	}
	return p.KnowNamespaces()
}

// TestImportWaitsForItsService: a ServiceImport is not written before its derived Service has had its IPs for 1.5 s, so
// that kube-proxy knows them before DNS does. Other changes of the Service meanwhile or later do not delay it again,
// other IPs do, and a Service without an IP is not waited for.
func TestImportWaitsForItsService(t *testing.T) {
	f := newFixture(t, 0)
	f.DesiredSlices().Synced()
	f.SetNamespace("shop", true)
	f.KnowNamespaces()
	f.take("c2", replica.Result{Changes: []replica.Change{svc("shop", "web", exported())}})
	f.snapshot(0)
	const derived = "mcs-shop-73736d-web"
	observe := func(ip, label string) {
		f.DesiredServices().Observed(derived, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: derived, Labels: map[string]string{naming.LabelImported: "true", "is": label,
				naming.LabelManagedBy: naming.ManagedByBroker}},
			Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}}}, true)
	}
	wants := func(verdict writes.Verdict, again time.Duration) {
		t.Helper()
		a := f.DesiredImports().Want("shop/web", "")
		if a.Verdict != verdict || a.Again != again {
			t.Errorf("the verdict is %v, again after %s; want %v, %s", a.Verdict, a.Again, verdict, again)
		}
	}
	observe("10.101.0.7", "new")
	wants(writes.Unknown, 1500*time.Millisecond)
	f.now = f.now.Add(time.Second)
	observe("10.101.0.7", "changed")
	wants(writes.Unknown, 500*time.Millisecond)
	f.now = f.now.Add(500 * time.Millisecond)
	wants(writes.Present, 0)
	observe("10.101.0.7", "changed again")
	wants(writes.Present, 0)
	observe("10.101.0.8", "other")
	wants(writes.Unknown, 1500*time.Millisecond)
	observe(corev1.ClusterIPNone, "headless")
	wants(writes.Present, 0)
}

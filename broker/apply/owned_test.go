package apply

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// The caller of owned may hold a lock for which the observer of an object waits.
func TestOwnedDoesNotWaitForAnObserver(t *testing.T) {
	observing, observed, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	o := newObjects(kind[*corev1.Service]{Kind: writes.Kind[*corev1.Service]{Name: "service"}, example: &corev1.Service{}},
		writes.Desired[*corev1.Service]{
			Names: func() []string { return nil },
			Observed: func(string, *corev1.Service, bool) {
				close(observing)
				<-release
			},
		}, options(t))
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, clusterIndex)
	o.reset(store)
	testkit.Must(t, store.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s",
		Labels: map[string]string{naming.LabelSourceCluster: "c2"}}}))
	go func() {
		defer close(observed)
		o.observe("s")
	}()
	<-observing
	owned := make(chan []string, 1)
	go func() {
		names, _ := o.Owned("c2")
		owned <- names
	}()
	select {
	case names := <-owned:
		if len(names) != 1 {
			t.Errorf("owned: %v", names)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the observer of an object")
	}
	close(release)
	<-observed
}

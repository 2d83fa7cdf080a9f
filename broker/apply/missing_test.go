package apply

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestDeletedServicesComeBack: a mirror that a deployment tool prunes 14 times is back each time with its ClusterIP,
// also from a broker that did not create it, and while its remote changes it all the time. TestMissingObjects (writes)
// has the waits.
func TestDeletedServicesComeBack(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "mirrors")
	w, d := desired[*corev1.Service]()
	w.set(service("echo", "c2", 80, false))
	w.set(service("headless", "c2", 80, true))
	api := admin.CoreV1().Services("mirrors")
	o := Services(admin, "mirrors", nil, d, options(t))
	run := func() (stop func()) {
		o := o
		stopLoop := testkit.Run(t, o.Run)
		stopChanges := testkit.Run(t, func(ctx context.Context) error { // reconciles between any two events of the watch
			for kube.Sleep(ctx, 100*time.Microsecond) == nil {
				o.Wake("echo")
			}
			return nil
		})
		return func() { stopChanges(); stopLoop() }
	}
	stop := run()
	come := func(name string, was *corev1.Service) (now *corev1.Service) {
		t.Helper()
		eventually(t, name+" is there", func() (bool, string) {
			s, err := api.Get(ctx, name, metav1.GetOptions{})
			now = s
			return err == nil && (was == nil || s.UID != was.UID), fmt.Sprint(err)
		})
		return now
	}
	remove := func(s *corev1.Service) {
		t.Helper()
		testkit.Must(t, api.Delete(ctx, s.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &s.UID}}))
	}
	stands, headless := come("echo", nil), come("headless", nil)
	address := stands.Spec.ClusterIP
	for i := range 14 {
		if i == 7 { // another leader
			stop()
			o = Services(admin, "mirrors", nil, d, options(t))
			stop = run()
			eventually(t, "it knows what stands", func() (bool, string) {
				n := len(o.store.All())
				return n == 2, fmt.Sprint(n)
			})
		}
		remove(stands)
		if stands = come("echo", stands); stands.Spec.ClusterIP != address {
			t.Fatalf("after deletion %d its ClusterIP is %s, was %s", i+1, stands.Spec.ClusterIP, address)
		}
	}
	remove(headless)
	if s := come("headless", headless); s.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the headless Service has %s", s.Spec.ClusterIP)
	}
	stop()

	client := serviceClient{native[*corev1.Service]{func(string) typed[*corev1.Service] { return api }},
		&lacking{refused: map[string]bool{}}}
	create := func(name string) (*corev1.Service, error) {
		return client.Create(ctx, withAddresses(service(name, "c2", 80, false), stands))
	}
	t.Run("another Service has the address", func(t *testing.T) {
		s, err := create("second")
		if err != nil || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == address {
			t.Errorf("%v, %v", s, err)
		}
	})
	t.Run("the Service has only lost its label", func(t *testing.T) {
		if _, err := create("echo"); !apierrors.IsAlreadyExists(err) {
			t.Errorf("%v, want that it exists", err)
		}
	})
}

package nodes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestForeignFinalizerOfReservations: an IPReservation that somebody's finalizer keeps reserves nothing once it is
// withdrawn, and the problem names the finalizer. It is deleted with one request, and reserves again once it is gone.
func TestForeignFinalizerOfReservations(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "ipamblocks", "ipreservations")
	ctx := t.Context()
	ipam := testkit.Value(kube.NewCalicoIPAM(cfg))(t)
	r := &reservations{cfg: cfg, ipam: ipam, log: slog.New(slog.DiscardHandler), timing: ordinary,
		ready: map[string][]netip.Addr{}, knows: func(string) bool { return true }, changed: func(string) {}, now: time.Now}
	const i = 3
	api := dynamic.NewForConfigOrDie(cfg).Resource(kubetest.CalicoCRD.WithResource("ipreservations"))
	reserves := map[string]map[netip.Addr]state{"n1": {netip.MustParseAddr("10.1.0.1"): {is: pending, since: time.Now()}}}
	write := func(next map[string]map[netip.Addr]state) error {
		if it := r.shards[i]; it == nil || it.read.IsZero() {
			testkit.Must(t, r.load(ctx, i))
		}
		err := r.write(ctx, i, next)
		if err != nil {
			r.shards[i].read = time.Time{} // as passShard's caller
		}
		return err
	}
	stored := func() string {
		u, err := api.Get(ctx, shardName(i), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "gone"
		}
		testkit.Must(t, err)
		cidrs := u.Object["spec"].(map[string]any)["reservedCIDRs"]
		return fmt.Sprint(cidrs, ", deleted ", u.GetDeletionTimestamp() != nil)
	}
	finalizers := func(list string) {
		t.Helper()
		testkit.Value(api.Patch(ctx, shardName(i), types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`),
			metav1.PatchOptions{}))(t)
	}
	testkit.Must(t, write(reserves))
	if got := stored(); got != "[10.1.0.1/32], deleted false" {
		t.Fatalf("it reserves %s", got)
	}
	finalizers(`["example.org/protection"]`)

	// It was changed since it was read, is emptied, and is deleted.
	if err := write(nil); !apierrors.IsConflict(err) {
		t.Errorf("it was deleted without a look at its finalizers: %v", err)
	}
	testkit.Must(t, write(nil))
	testkit.Must(t, write(nil))
	for range 2 {
		if err := write(nil); err == nil || !strings.Contains(err.Error(), "kept by example.org/protection") {
			t.Errorf("it waits for the finalizer: %v", err)
		}
	}
	if got := stored(); got != "[], deleted true" && got != "<nil>, deleted true" {
		t.Errorf("withdrawn, it reserves %s", got)
	}
	finalizers("null")
	testkit.Must(t, write(nil))
	if got := stored(); got != "gone" {
		t.Errorf("there is one that reserves %s", got)
	}
	testkit.Must(t, write(reserves))
	testkit.Must(t, write(nil)) // nobody keeps it
	if got := stored(); got != "gone" {
		t.Errorf("there is one that reserves %s", got)
	}
}

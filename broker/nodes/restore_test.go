package nodes

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// reserving is a broker that reserves addresses for n1, which has one block, on an apiserver without Calico's IPAM.
type reserving struct {
	*reservations
	t                      *testing.T
	blocks, objects, types dynamic.ResourceInterface
	// name is that of the IPReservation of n1.
	name  string
	clock time.Time
	// refused is set while no object can be created.
	refused  bool
	changes  int
	problems []string
}

// The block of n1, and the addresses that it reserves first and then.
const block, first, second = "10-1-0-0-30", "10.1.0.3", "10.1.0.2"

func startReserving(t *testing.T) *reserving {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "ipamblocks", "ipreservations")
	client := dynamic.NewForConfigOrDie(cfg)
	s := &reserving{t: t, clock: time.Now(), name: shardName(shardOf("n1")),
		blocks:  client.Resource(kubetest.CalicoCRD.WithResource("ipamblocks")),
		objects: client.Resource(kubetest.CalicoCRD.WithResource("ipreservations")),
		types: client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"})}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if s.refused && r.Method == http.MethodPost {
				return nil, fmt.Errorf("refused")
			}
			return next.RoundTrip(r)
		})
	})
	kubetest.CreateObject(t, s.blocks, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kubetest.CalicoCRD.String(), "kind": "IPAMBlock", "metadata": map[string]any{"name": block},
		"spec": map[string]any{"cidr": "10.1.0.0/30", "affinity": "host:n1", "strictAffinity": false,
			"allocations": []any{nil, nil, nil, nil}, "unallocated": []any{int64(0), int64(1), int64(2), int64(3)},
			"attributes": []any{}},
	}})
	s.reservations = &reservations{cfg: cfg, log: slog.New(slog.DiscardHandler), timing: ordinary,
		ready: map[string][]netip.Addr{}, knows: func(string) bool { return true }, changed: func(string) { s.changes++ },
		now: func() time.Time { return s.clock },
		wanted: func() map[string]wants {
			return map[string]wants{"n1": {v4: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30")}}}
		}}
	s.pass(3 * time.Minute)
	s.uses(first)
	s.reserves(first + "/32")
	s.changes = 0
	return s
}

func (s *reserving) pass(d time.Duration) {
	for end := s.clock.Add(d); s.clock.Before(end); s.clock = s.clock.Add(ordinary.pass) {
		s.problems = s.runPass(s.t.Context())
	}
}

// uses checks which address n1 may have: empty for none.
func (s *reserving) uses(want string) {
	s.t.Helper()
	if got := fmt.Sprint(s.addresses("n1")); got != "["+want+"]" {
		s.t.Errorf("n1 has %s, it is to have [%s]", got, want)
	}
}

// reserves checks what Calico reads.
func (s *reserving) reserves(want ...string) {
	s.t.Helper()
	u, err := s.objects.Get(s.t.Context(), s.name, metav1.GetOptions{})
	testkit.Must(s.t, err)
	got, _, err := unstructured.NestedStringSlice(u.Object, "spec", "reservedCIDRs")
	testkit.Must(s.t, err)
	if !slices.Equal(got, want) {
		s.t.Errorf("the IPReservation reserves %s, not %s", got, want)
	}
}

func (s *reserving) reports(want string) {
	s.t.Helper()
	if got := strings.Join(s.problems, "\n"); (want == "") != (got == "") || !strings.Contains(got, want) {
		s.t.Errorf("problems are %q, not %q", got, want)
	}
}

func (s *reserving) remove() {
	s.t.Helper()
	testkit.Must(s.t, s.objects.Delete(s.t.Context(), s.name, metav1.DeleteOptions{}))
}

func (s *reserving) patch(api dynamic.ResourceInterface, name, patch string) {
	s.t.Helper()
	testkit.Value(api.Patch(s.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(s.t)
}

// give gives the address of n1 to a pod.
func (s *reserving) give() {
	s.t.Helper()
	s.patch(s.blocks, block, `{"spec":{"allocations":[null,null,null,0],"unallocated":[0,1,2]}}`)
}

// another creates the IPReservation as somebody else.
func (s *reserving) another() {
	s.t.Helper()
	kubetest.CreateObject(s.t, s.objects, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kubetest.CalicoCRD.String(), "kind": "IPReservation", "metadata": map[string]any{"name": s.name},
		"spec": map[string]any{"reservedCIDRs": []any{"192.0.2.1/32"}},
	}})
}

// TestReservationsAreRestored: an IPReservation that somebody deletes or edits is restored within a minute, and the
// node keeps its address meanwhile.
func TestReservationsAreRestored(t *testing.T) {
	for what, lose := range map[string]func(s *reserving){
		"it is deleted":        (*reserving).remove,
		"a CIDR is removed":    func(s *reserving) { s.patch(s.objects, s.name, `{"spec":{"reservedCIDRs":["192.0.2.1"]}}`) },
		"its spec is removed":  func(s *reserving) { s.patch(s.objects, s.name, `{"spec":{"reservedCIDRs":null}}`) },
		"it has no annotation": func(s *reserving) { s.patch(s.objects, s.name, `{"metadata":{"annotations":null}}`) },
	} {
		t.Run(what, func(t *testing.T) {
			s := startReserving(t)
			lose(s)
			s.pass(ordinary.reread)
			s.reserves(first + "/32")
			s.uses(first)
			s.reports("")
			if s.changes != 0 {
				t.Errorf("the addresses of n1 changed %d times", s.changes)
			}
			if u := kubetest.GetObject(t, s.objects, s.name); u.GetAnnotations()[reservedFor] == "" {
				t.Errorf("the annotations are %v", u.GetAnnotations())
			}
		})
	}
}

// TestLostReservations: a node stops using an address that is not reserved: a pod got it before the broker restored the
// IPReservation, or soon after that; or the broker cannot restore it.
func TestLostReservations(t *testing.T) {
	for what, c := range map[string]func(s *reserving){
		"a pod got the address before": func(s *reserving) {
			s.remove()
			s.give()
			s.pass(ordinary.reread)
			s.uses("")
			s.reserves(second+"/32", first+"/32") // the agent of n1 may have it for a while
			s.pass(ordinary.quarantine + ordinary.reread)
			s.uses(second)
			s.reserves(second + "/32")
		},
		"a pod gets it of an assignment that began before": func(s *reserving) {
			s.remove()
			s.pass(ordinary.reread)
			s.uses(first)
			s.give()
			s.pass(ordinary.quarantine)
			s.uses("")
		},
		"the apiserver refuses the new one": func(s *reserving) {
			s.refused = true
			s.remove()
			s.pass(ordinary.reread)
			s.uses("")
			s.reports("refused")
			s.refused = false
			s.pass(ordinary.pass)
			s.uses(first)
			s.reserves(first + "/32")
			s.reports("")
		},
		"somebody else has created one": func(s *reserving) {
			s.remove()
			s.another()
			s.pass(ordinary.reread)
			s.uses("")
			s.reports("semaphore did not create it")
			s.remove()
			s.pass(ordinary.pass)
			s.uses(first)
			s.reserves(first + "/32")
		},
		"it lost its label, and still reserves the address": func(s *reserving) {
			s.patch(s.objects, s.name, `{"metadata":{"labels":null}}`)
			s.pass(ordinary.reread)
			s.uses(first)
			s.reports("semaphore did not create it")
		},
		"another replica led, and n1 needs none any more": func(s *reserving) {
			s.remove()
			s.shards = [shards]*shard{} // as run
			s.wanted = func() map[string]wants { return map[string]wants{} }
			s.pass(ordinary.pass)
			s.uses("")
		},
		"the cluster no longer serves the type": func(s *reserving) {
			testkit.Must(s.t, s.types.Delete(s.t.Context(), "ipreservations.crd.projectcalico.org", metav1.DeleteOptions{}))
			eventually(s.t, "nodes have no address", func() (bool, string) {
				s.pass(ordinary.reread)
				return len(s.addresses("n1")) == 0 && len(s.problems) == 0, fmt.Sprint(s.addresses("n1"), s.problems)
			})
		},
	} {
		t.Run(what, func(t *testing.T) { c(startReserving(t)) })
	}
}

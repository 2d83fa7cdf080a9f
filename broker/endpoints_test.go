package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/broker/uninstall"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// If configured, the broker writes Endpoints next to its slices, and Kubernetes creates no second slices from them.
func TestEndpointsBesideTheSlices(t *testing.T) {
	w := newWorld(t)
	kubetest.StartControllers(t, w.rest, "endpointslice-mirroring-controller", "endpoints-controller")
	w.cfg.Services.Endpoints = true
	stop := w.start(w.cfg)
	e := w.exporter("c2")
	ctx, api := t.Context(), w.admin.CoreV1().Endpoints("semaphore")
	echo := mirrorOf("s0")
	sendAs(e, "c2", "e1", append(shopOf(2), globalObject("shop", "web", 443),
		sliceObject("shop", "web-x", "web", "10.2.3.1"))...)
	revision := uint64(100)
	send := func(objects ...*semaphorev1.Object) {
		t.Helper()
		e.send(changesFrom(revision+1, objects...))
		revision += uint64(len(objects))
		e.acked(revision)
	}
	listed := func(name string) string {
		o, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var words []string
		for _, s := range o.Subsets {
			for _, p := range s.Ports {
				words = append(words, fmt.Sprint(p.Name, ":", p.Port))
			}
			for _, a := range s.Addresses {
				words = append(words, "+"+a.IP)
			}
			for _, a := range s.NotReadyAddresses {
				words = append(words, "-"+a.IP)
			}
		}
		return strings.Join(words, " ")
	}
	has := func(name, want string) {
		t.Helper()
		eventually(t, name, func() (bool, string) { got := listed(name); return got == want, got + ", want " + want })
	}
	has(echo, "p80:8080 +10.2.1.1")
	has("gl-shop-73736d-web", "p80:8080 +10.2.3.1")

	// Endpoints that terminate, are not ready, or have another family.
	more := sliceObject("shop", "s0-x", "s0", "10.2.1.1", "10.2.1.7", "10.2.1.8")
	more.GetEndpointSlice().Endpoints[1].Ready = ptr.To(false)
	more.GetEndpointSlice().Endpoints[2].Ready, more.GetEndpointSlice().Endpoints[2].Terminating = ptr.To(false),
		ptr.To(true)
	send(more)
	has(echo, "p80:8080 +10.2.1.1 -10.2.1.7")

	// More addresses than Kubernetes writes into one object are truncated, and a second write does not change that.
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("10.2.%d.%d", 20+i/250, i%250+1)
	}
	capacity := func(want string, n int) {
		t.Helper()
		eventually(t, "capacity", func() (bool, string) {
			o, err := api.Get(ctx, echo, metav1.GetOptions{})
			if err != nil || len(o.Subsets) != 1 {
				return false, fmt.Sprint(o, err)
			}
			got := fmt.Sprint(o.Annotations[endpoints.OverCapacity], len(o.Subsets[0].Addresses))
			return got == fmt.Sprint(want, n), got
		})
	}
	send(sliceObject("shop", "s0-x", "s0", many[:600]...), sliceObject("shop", "s0-y", "s0", many[600:]...))
	capacity("truncated", 1000)
	send(sliceObject("shop", "s0-y", "s0", many[600:1000]...))
	capacity("", 1000)
	send(sliceObject("shop", "s0-x", "s0", "10.2.1.1"), sliceObject("shop", "s0-y", "s0"))
	has(echo, "p80:8080 +10.2.1.1")

	// A user edits the Endpoints.
	if _, err := api.Patch(ctx, echo, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"team":"shop","endpointslice.kubernetes.io/skip-mirror":null}},"subsets":[]}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	kubetest.Promptly(t, w.admin, time.Second, "what was changed by hand", testkit.State(func() (bool, string) {
		o, err := api.Get(ctx, echo, metav1.GetOptions{})
		return err == nil && listed(echo) == "p80:8080 +10.2.1.1" && o.Labels["team"] == "shop" &&
			o.Labels[endpoints.SkipMirror] == "true", fmt.Sprint(o, err)
	}))

	// Endpoints of another owner are not touched, and Kubernetes creates slices from them, which shows that the controller
	// works.
	theirs := &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: mirrorOf("s6")},
		Subsets: []endpoints.Subset{{Addresses: []endpoints.Address{{IP: "192.0.2.1"}}}}}
	theirs, err := api.Create(ctx, theirs, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	send(serviceObject("shop", "s6", 80), sliceObject("shop", "s6-x", "s6", "10.2.1.6"))
	w.reported(t, "NameTaken", mirrorOf("s6"), "did not create")
	mirrored := func() (of []string) {
		all, err := w.admin.DiscoveryV1().EndpointSlices("semaphore").List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=endpointslicemirroring-controller.k8s.io"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all.Items {
			of = append(of, s.Labels[discoveryv1.LabelServiceName])
		}
		return of
	}
	eventually(t, "a slice of somebody else's Endpoints", func() (bool, string) {
		return slices.Contains(mirrored(), mirrorOf("s6")), fmt.Sprint(mirrored())
	})
	if got := mirrored(); len(got) != 1 {
		t.Errorf("Kubernetes made slices of %v", got)
	}
	if now, err := api.Get(ctx, mirrorOf("s6"), metav1.GetOptions{}); err != nil ||
		now.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("somebody else's are %v, %v", now, err)
	}
	if err := api.Delete(ctx, mirrorOf("s6"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has(mirrorOf("s6"), "p80:8080 +10.2.1.6")

	// A restarted broker writes nothing.
	version := func() (all []string) {
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: naming.LabelManagedBy + "=" + naming.ManagedByBroker})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			all = append(all, o.Name+" "+o.ResourceVersion)
		}
		return all
	}
	before := version()
	e.cancel()
	stop()
	stop = w.start(w.cfg)
	e = w.exporter("c2")
	sendAs(e, "c2", "e1", append(shopOf(2), globalObject("shop", "web", 443),
		sliceObject("shop", "web-x", "web", "10.2.3.1"),
		serviceObject("shop", "s6", 80), sliceObject("shop", "s6-x", "s6", "10.2.1.6"))...)
	time.Sleep(3 * time.Second)
	if now := version(); !slices.Equal(now, before) || len(now) != 4 {
		t.Errorf("there are %v, and were %v", now, before)
	}

	// They are deleted with their Services, and by the cleanup.
	e.send(deletion(101, serviceObject("shop", "s1")))
	e.acked(101)
	eventually(t, "what is not offered any more is gone", func() (bool, string) {
		return strings.Contains(listed(mirrorOf("s1")), "not found"), listed(mirrorOf("s1"))
	})
	e.cancel()
	stop()
	if err := uninstall.Run(ctx, w.cfg, uninstall.Options{}, t.Output()); err != nil {
		t.Error(err)
	}
	if now := version(); len(now) > 0 {
		t.Errorf("after a cleanup there are %v", now)
	}
}

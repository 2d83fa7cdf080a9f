package broker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/mcs/definitions"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestImportsOfBothFamilies checks a dual-stack cluster: a dual-stack Service and an IPv6-only one are imported with an
// IP of each of their families, and have EndpointSlices of each, for the derived Service and for the import.
func TestImportsOfBothFamilies(t *testing.T) {
	w := newWorldAt(t, kubetest.StartWith(t, "10.96.0.0/16,fd00:10:96::/112"))
	kubetest.NoLeaks(t, w.rest)
	ctx := t.Context()
	ownPods(w.cfg)
	w.cfg.MCS.Enabled = true
	w.cfg.Remotes[0].PodSubnets = append(w.cfg.Remotes[0].PodSubnets, "fd02::/64")
	w.cfg.Remotes[0].PodPrefixes = append(w.cfg.Remotes[0].PodPrefixes, netip.MustParsePrefix("fd02::/64"))
	testkit.Value(definitions.Apply(ctx, dynamic.NewForConfigOrDie(w.rest)))(t)
	kubetest.Namespace(t, w.admin, "shop")
	client := testkit.Value(mcs.New(w.rest, "test"))(t)
	stop := w.start(w.cfg)
	defer stop()

	of := func(name string, families ...string) *semaphorev1.Object {
		o := exportedService("shop", name, 80)
		o.GetService().IpFamilies = families
		return o
	}
	six := func(o *semaphorev1.Object) *semaphorev1.Object {
		o.GetEndpointSlice().AddressType = "IPv6"
		return o
	}
	w.exporter("c2").SendAll("c2", "e1", of("both", "IPv4", "IPv6"), of("six", "IPv6"),
		players.Slice("shop", "both-4", "both", "10.2.1.5"), six(players.Slice("shop", "both-6", "both", "fd02::5")),
		six(players.Slice("shop", "six-6", "six", "fd02::6")))
	own := w.exporter("c1")
	kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
	own.Greet(players.Hello("c1", "e1", 1, kinds...))
	for _, kind := range kinds {
		own.Send(players.Snapshot(kind, 1)...)
	}
	w.exporter("c3").SendAll("c3", "e1")

	endpoints := func(namespace, selector string) string {
		all, err := w.admin.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, s := range all.Items {
			for _, e := range s.Endpoints {
				out = append(out, fmt.Sprint(s.AddressType, " ", strings.Join(e.Addresses, ",")))
			}
		}
		slices.Sort(out)
		return strings.Join(out, "; ")
	}
	for name, want := range map[string]struct{ families, endpoints string }{
		"both": {"[IPv4 IPv6]", "IPv4 10.2.1.5; IPv6 fd02::5"},
		"six":  {"[IPv6]", "IPv6 fd02::6"},
	} {
		eventually(t, name, func() (bool, string) {
			derived := "mcs-shop-73736d-" + name
			i, err := client.Imports().Get(ctx, "shop", name)
			if err != nil {
				return false, err.Error()
			}
			s, err := w.admin.CoreV1().Services("semaphore").Get(ctx, derived, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			inShop := endpoints("shop", mcsv1beta1.LabelServiceName+"="+name+",!"+discoveryv1.LabelServiceName)
			ofDerived := endpoints("semaphore", discoveryv1.LabelServiceName+"="+derived)
			seen := fmt.Sprint(i.Spec.IPs, i.Spec.IPFamilies, i.Status.Conditions, s.Spec.ClusterIPs, " ", ofDerived, " ",
				inShop)
			if fmt.Sprint(i.Spec.IPFamilies) != want.families || !slices.Equal(i.Spec.IPs, s.Spec.ClusterIPs) ||
				len(i.Spec.IPs) != len(i.Spec.IPFamilies) || len(i.Status.Conditions) != 1 ||
				i.Status.Conditions[0].Status != metav1.ConditionTrue || inShop != want.endpoints || ofDerived != want.endpoints {
				return false, seen
			}
			for n, ip := range i.Spec.IPs {
				if a := netip.MustParseAddr(ip); a.Is4() != (i.Spec.IPFamilies[n] == corev1.IPv4Protocol) {
					return false, seen
				}
			}
			return true, seen
		})
	}
}

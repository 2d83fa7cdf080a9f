package redteam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// namesOf are the remotes of this test. c2 with a namespace "eu-X" and c2-eu with a namespace "X" can have equal names,
// and a Service of eu can end as c2-eu begins.
var namesOf = map[string]string{"c2": "10.2.0.0/16", "c2-eu": "10.4.0.0/16", "eu": "10.5.0.0/16"}

// address returns the address of the n-th pod of a remote.
func address(cluster string, n int) string {
	return fmt.Sprintf("%s1.%d", strings.TrimSuffix(namesOf[cluster], "0.0/16"), n)
}

// owners records, from watch events, to which remote each object of the broker belongs.
type owners struct {
	mu sync.Mutex
	// of is the remote and uids is the UID of the first object, by resource, namespace and name. addresses are the current
	// addresses.
	of, uids  map[string]string
	addresses map[string][]string
	passed    []string
	versions  int
}

func (o *owners) see(resource string, u *unstructured.Unstructured, deleted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.versions++
	key, cluster := resource+" "+u.GetNamespace()+"/"+u.GetName(), u.GetLabels()[naming.LabelSourceCluster]
	if was, ok := o.of[key]; ok && was != cluster {
		o.passed = append(o.passed, fmt.Sprintf("%s passed from %q to %q", key, was, cluster))
	}
	if o.of[key] = cluster; o.uids[key] == "" {
		o.uids[key] = string(u.GetUID())
	}
	if was := o.uids[key]; was != string(u.GetUID()) {
		o.passed = append(o.passed, key+" was made again")
	}
	delete(o.addresses, key)
	if deleted {
		o.passed = append(o.passed, key+" was deleted")
		return
	}
	nets, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "nets")
	for _, n := range nets {
		o.addresses[key] = append(o.addresses[key], strings.TrimSuffix(n, "/32"))
	}
	endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
	for _, e := range endpoints {
		all, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
		o.addresses[key] = append(o.addresses[key], all...)
	}
	for _, a := range o.addresses[key] {
		if !netip.MustParsePrefix(namesOf[cluster]).Contains(netip.MustParseAddr(a)) {
			o.passed = append(o.passed, fmt.Sprintf("%s of %s has %s", key, cluster, a))
		}
	}
}

// lacks reports which of the addresses are in no object of their remote whose name has the prefix.
func (o *owners) lacks(resource, begins, cluster string, addresses ...string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, all := range o.addresses {
		if strings.HasPrefix(key, resource+" "+begins) && o.of[key] == cluster {
			addresses = slices.DeleteFunc(addresses, func(a string) bool { return slices.Contains(all, a) })
		}
	}
	if len(addresses) > 0 {
		return fmt.Errorf("%s %s… of %s lacks %v", resource, begins, cluster, addresses)
	}
	return nil
}

// versions calls see for each version of what the broker writes. Calls for one resource do not overlap.
func (v *victim) versions(see func(resource string, u *unstructured.Unstructured, deleted bool), more ...string) {
	v.t.Helper()
	client := dynamic.NewForConfigOrDie(v.rest)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	all := []schema.GroupVersionResource{{Version: "v1", Resource: "services"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}}
	for _, name := range append(more, "globalnetworksets") {
		all = append(all, kubetest.CalicoCRD.WithResource(name))
	}
	for _, r := range all {
		w := testkit.Value(client.Resource(r).Watch(ctx, metav1.ListOptions{LabelSelector: naming.LabelManagedBy + "=" +
			naming.ManagedByBroker}))(v.t)
		wg.Go(func() {
			for e := range w.ResultChan() {
				if u, ok := e.Object.(*unstructured.Unstructured); ok && ctx.Err() == nil {
					see(r.Resource, u, e.Type == "DELETED")
				}
			}
			if ctx.Err() == nil {
				v.t.Errorf("the watch of %s ended early", r.Resource)
			}
		})
	}
	v.t.Cleanup(func() { cancel(); wg.Wait() })
}

// TestNoNamePassesBetweenRemotes checks that a remote whose mirrors could have the names of another's is not accepted.
// With other prefixes, and with namespaces, Services and sets that are made to collide, each name of a
// Service, EndpointSlice, GlobalNetworkSet and NetworkSet stays with the remote that had it first, across brokers and
// in any order of the streams. Each remote has objects for everything that it exports.
func TestNoNamePassesBetweenRemotes(t *testing.T) {
	for _, order := range [][]string{{"c2-eu", "c2", "eu"}, {"c2", "eu", "c2-eu"}} {
		t.Run("first "+order[0], func(t *testing.T) {
			v := prepare(t)
			kubetest.InstallCalico(t, v.rest, kubetest.CalicoCRD, "networksets")
			for _, name := range []string{"pay", "eu-pay", "eu"} {
				kubetest.Namespace(t, v.kube, name)
			}
			trust.In(t, v.dir, "c2-eu", "eu")
			v.remotes = v.remotes[:1]
			colliding := v.add("c2-eu", namesOf["c2-eu"], "192.0.2.48/28")
			v.add("eu", namesOf["eu"], "192.0.2.64/28")
			v.cfg["sets"] = map[string]any{"namespaced": true}
			v.run()
			v.decides("c2-eu", "PrefixConflict", `spec.servicePrefix: "c2-eu" and "c2" of c2`)
			// The prefix is immutable: the operator makes the object again.
			testkit.Must(t, v.objects().Delete(t.Context(), "c2-eu", metav1.DeleteOptions{}))
			colliding.Spec.ServicePrefix = "c2eu"
			v.create(colliding)
			v.decides("c2-eu", "Accepted", "")
			o := &owners{of: map[string]string{}, uids: map[string]string{}, addresses: map[string][]string{}}
			v.versions(o.see, "networksets")

			set := func(cluster string, n int, namespace, name string) *semaphorev1.Object {
				return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: memberKind, Namespace: namespace,
					Name: fmt.Sprint("pod-", n)},
					Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: fmt.Sprint(cluster, n),
						SetName: name, Ips: []string{address(cluster, n)}}}}
			}
			offer := func(cluster string, n int, namespace, name string) (*semaphorev1.Object, *semaphorev1.Object) {
				s := service(name, 1)
				s.Key.Namespace, s.GetService().Global = namespace, true
				e := slice(name, 1, 1)
				e.Key.Namespace = namespace
				e.GetEndpointSlice().Endpoints = []*semaphorev1.Endpoint{{Addresses: []string{address(cluster, n)}}}
				return s, e
			}
			type claims struct{ sets, services, slices []*semaphorev1.Object }
			all := map[string]*claims{"c2": {}, "c2-eu": {}, "eu": {}}
			honest, hash := all["c2-eu"], strings.TrimPrefix(naming.SetWithSuffix("c2", "eu-pay", "web"), "c2-eu-pay-web-")
			honest.sets = []*semaphorev1.Object{
				set("c2-eu", 1, "pay", "web"), set("c2-eu", 2, "eu", "x"), set("c2-eu", 3, "pay", "api"),
				set("c2-eu", 4, "pay", "web-"+hash), // c2's set would have this name with a suffix
			}
			all["c2"].sets = []*semaphorev1.Object{set("c2", 1, "eu-pay", "web"), set("c2", 2, "eu", "eu-x"),
				set("c2", 3, "eu-pay", "api"), set("c2", 4, "eu", "pay-web")}
			for cluster, services := range map[string][][2]string{
				"c2-eu": {{"pay", "checkout"}, {"pay", "web"}},
				"c2":    {{"eu-pay", "checkout"}, {"eu-pay", "web"}},
				"eu":    {{"pay", "web-c2"}, {"pay", "checkout-c2"}}, // gl-pay-73736d-web-c2-eu-1 would be a slice of web and c2-eu
			} {
				for i, s := range services {
					one, its := offer(cluster, 10+i, s[0], s[1])
					all[cluster].services, all[cluster].slices = append(all[cluster].services, one), append(all[cluster].slices, its)
				}
			}
			at := uint64(100)
			tell := func(order []string) {
				t.Helper()
				for _, cluster := range order {
					at++
					_, refused := v.sends(cluster, fmt.Sprint("e", at), at, append(ofMirrors, memberKind),
						slices.Concat(all[cluster].services, all[cluster].slices, all[cluster].sets)...)
					if len(refused) > 0 {
						t.Errorf("of %s are refused: %v", cluster, refused)
					}
					time.Sleep(time.Second) // so that the names are taken in this order
				}
			}
			complete := func() {
				t.Helper()
				v.eventually("each remote has objects for all that it exports", func() error {
					for _, cluster := range order {
						for i, s := range all[cluster].services {
							// A mirror has slices of one remote, and a global service has slices of several.
							mirror := naming.Mirror(strings.ReplaceAll(cluster, "-", ""), s.Key.Namespace, s.Key.Name)
							for _, name := range []string{mirror, naming.Global(s.Key.Namespace, s.Key.Name)} {
								if err := o.lacks("endpointslices", "semaphore/"+name+"-"+cluster+"-", cluster,
									address(cluster, 10+i)); err != nil {
									return err
								}
							}
						}
						for i, s := range all[cluster].sets {
							if err := o.lacks("globalnetworksets", "/", cluster, address(cluster, i+1)); err != nil {
								return err
							}
							if err := o.lacks("networksets", s.Key.Namespace+"/", cluster, address(cluster, i+1)); err != nil {
								return err
							}
						}
					}
					return nil
				})
			}
			tell(order)
			complete()
			// The next broker has no memory of the order, and receives the remotes in reverse order.
			for range 2 {
				v.kill()
				v.run()
				slices.Reverse(order)
				tell(order)
				complete()
				time.Sleep(2 * time.Second)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			for _, text := range o.passed {
				t.Error(text)
			}
			for _, want := range []string{"globalnetworksets /c2-eu-pay-web", "networksets eu/c2-eu-eu-x",
				"endpointslices semaphore/gl-pay-73736d-web-c2-eu-1"} {
				if _, ok := o.of[want]; !ok {
					t.Errorf("nobody has %s, which two remotes could want", want)
				}
			}
			t.Logf("%d names in %d versions, none passed; GlobalNetworkSet c2-eu-pay-web is of %s, EndpointSlice "+
				"gl-pay-73736d-web-c2-eu-1 of %s",
				len(o.of), o.versions, o.of["globalnetworksets /c2-eu-pay-web"],
				o.of["endpointslices semaphore/gl-pay-73736d-web-c2-eu-1"])
		})
	}
}

package apply

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

var v3 = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}

func globalSet(name string, nets ...string) *calicov3.GlobalNetworkSet {
	return &calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: bearing("c2")},
		Spec: calicov3.GlobalNetworkSetSpec{Nets: nets}}
}

// setsIn are the sets that there are.
func setsIn(t *testing.T, client *kube.CalicoClient) ([]calicov3.GlobalNetworkSet, error) {
	list, err := cache.ToListerWatcherWithContext(client.GlobalNetworkSets().ListWatch("")).ListWithContext(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.(*calicov3.GlobalNetworkSetList).Items, nil
}

// netsIn are the sets with their addresses, or why they are not known.
func netsIn(t *testing.T, client *kube.CalicoClient) string {
	sets, err := setsIn(t, client)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, s := range sets {
		out = append(out, s.Name+"="+strings.Join(s.Spec.Nets, ","))
	}
	return strings.Join(out, " ")
}

// eventsOf writes Events into a namespace once it runs.
func eventsOf(admin kubernetes.Interface, namespace string) *report.Events {
	return report.NewEvents(admin, namespace, nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
}

// quickCalico asks again soon.
func quickCalico(cfg *rest.Config) *Calico {
	c := NewCalico(cfg, slog.New(slog.DiscardHandler))
	c.again, c.againAfter = 100*time.Millisecond, 100*time.Millisecond
	return c
}

// The group in which Calico's types are served comes late, is joined by the other, goes, and comes back, while the
// loop runs.
func TestTheServedGroupChanges(t *testing.T) {
	cfg := kubetest.Start(t)
	calico := quickCalico(cfg)
	w, d := desired[*calicov3.GlobalNetworkSet]()
	w.set(globalSet("c2-shop-web", "10.2.0.1/32"))
	w.know("c2")
	observed := map[string]bool{}
	var mu sync.Mutex
	d.Observed = func(name string, _ *calicov3.GlobalNetworkSet, there bool) {
		mu.Lock()
		defer mu.Unlock()
		observed[name] = there
	}
	o := Sets(calico, nil, d, options(t))
	testkit.Run(t, o.Run)

	sets := func(gv schema.GroupVersion) string { return netsIn(t, testkit.Value(kube.CalicoIn(cfg, gv))(t)) }
	has := func(gv schema.GroupVersion, want string) func() (bool, string) {
		return func() (bool, string) {
			got := sets(gv)
			return got == want, got + "; " + calico.Problem()
		}
	}
	remove := func(gv schema.GroupVersion) {
		crds := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
		testkit.Must(t, crds.Delete(t.Context(), "globalnetworksets."+gv.Group, metav1.DeleteOptions{}))
	}

	eventually(t, "it is reported that there is no Calico", func() (bool, string) {
		return strings.Contains(calico.Problem(), "is Calico installed?"), calico.Problem()
	})
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
	eventually(t, "written when Calico came", has(kubetest.CalicoCRD, "c2-shop-web=10.2.0.1/32"))
	if p := calico.Problem(); p != "" {
		t.Errorf("problem %q", p)
	}
	// Another way to the types is no reason to change.
	kubetest.InstallCalico(t, cfg, v3, "globalnetworksets")
	w.set(globalSet("c2-shop-web", "10.2.0.2/32"))
	o.Mark("c2-shop-web", "c2", time.Now())
	eventually(t, "written where it was", has(kubetest.CalicoCRD, "c2-shop-web=10.2.0.2/32"))
	if got := sets(v3); got != "" {
		t.Errorf("in the other group: %s", got)
	}

	remove(kubetest.CalicoCRD)
	eventually(t, "written in the group that is left", has(v3, "c2-shop-web=10.2.0.2/32"))

	// An object that was deleted meanwhile is known to be deleted.
	remove(v3)
	eventually(t, "it is reported that Calico has gone", func() (bool, string) {
		return strings.Contains(calico.Problem(), "is Calico installed?"), calico.Problem()
	})
	w.unset("c2-shop-web")
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
	eventually(t, "the set is not there", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		there, known := observed["c2-shop-web"]
		return o.Synced() && known && !there, fmt.Sprint(o.Synced(), observed)
	})
	w.set(globalSet("c2-shop-web2", "10.2.0.3/32"))
	o.Mark("c2-shop-web2", "c2", time.Now())
	eventually(t, "written again", has(kubetest.CalicoCRD, "c2-shop-web2=10.2.0.3/32"))
}

// An object that the Calico API server stores has our labels in an annotation. When it is taken away, what we wrote
// through it is ours as before, also what is not wanted any more and what somebody wrote through it while we did not.
func TestTheCalicoAPIServerComesAndGoes(t *testing.T) {
	cfg := kubetest.Start(t)
	remove := kubetest.StartCalicoAPIServer(t, cfg)
	w, d := desired[*calicov3.GlobalNetworkSet]()
	w.set(globalSet("c2-shop-web", "10.2.0.1/32"))
	w.set(globalSet("c2-shop-old", "10.2.0.9/32"))
	w.know("c2")
	calico := quickCalico(cfg)
	o := Sets(calico, nil, d, options(t))
	testkit.Run(t, o.Run)

	direct := testkit.Value(kube.CalicoIn(cfg, kubetest.CalicoCRD))(t)
	uids := map[string]types.UID{}
	stands := func(name, nets, owner string) func() (bool, string) {
		return func() (bool, string) {
			s, err := direct.GlobalNetworkSets().Get(t.Context(), name)
			if err != nil {
				return nets == "" && apierrors.IsNotFound(err), err.Error()
			}
			uids[name] = s.UID
			got := fmt.Sprintf("%s of %q; %s", strings.Join(s.Spec.Nets, ","), s.Labels[naming.LabelManagedBy], calico.Problem())
			return got == fmt.Sprintf("%s of %q; ", nets, owner), got
		}
	}
	eventually(t, "written by the API server", stands("c2-shop-web", "10.2.0.1/32", ""))
	eventually(t, "written by the API server", stands("c2-shop-old", "10.2.0.9/32", ""))
	before := uids["c2-shop-web"]

	w.set(globalSet("c2-shop-web", "10.2.0.1/32", "10.2.0.2/32"))
	w.unset("c2-shop-old")
	remove()
	eventually(t, "ours, and as wanted", stands("c2-shop-web", "10.2.0.1/32,10.2.0.2/32", naming.ManagedByBroker))
	eventually(t, "gone", stands("c2-shop-old", "", ""))
	if now := uids["c2-shop-web"]; now != before {
		t.Errorf("it was made again: %s, was %s", now, before)
	}

	// Somebody adds a note to a set through the API server, which is back; we do not use it.
	kubetest.StartCalicoAPIServer(t, cfg)
	through := testkit.Value(kube.CalicoIn(cfg, v3))(t)
	eventually(t, "noted", func() (bool, string) {
		s, err := through.GlobalNetworkSets().Get(t.Context(), "c2-shop-web")
		if err == nil {
			s.Annotations = map[string]string{"note": "ours"}
			_, err = through.GlobalNetworkSets().Update(t.Context(), s)
		}
		return err == nil, fmt.Sprint(err)
	})
	w.set(globalSet("c2-shop-web", "10.2.0.3/32"))
	o.Mark("c2-shop-web", "c2", time.Now())
	eventually(t, "ours again", stands("c2-shop-web", "10.2.0.3/32", naming.ManagedByBroker))
	s := testkit.Value(direct.GlobalNetworkSets().Get(t.Context(), "c2-shop-web"))(t)
	if s.UID != before || s.Annotations["note"] != "ours" || len(finding.Texts(o.Findings())) != 0 {
		t.Errorf("%+v, problems %q", s.ObjectMeta, finding.Texts(o.Findings()))
	}
}

// Sets of semaphore-policy pass to us only when asked for, and while they do so no address is missing for a moment.
func TestAdoption(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
	client := testkit.Value(kube.Calico(cfg))(t)
	ctx := t.Context()
	theirs := func(name, tool, domain, cluster string, nets ...string) *calicov3.GlobalNetworkSet {
		t.Helper()
		s := globalSet(name, nets...)
		s.Labels = map[string]string{}
		if tool != "" {
			s.Labels = map[string]string{"managed-by": tool, domain + "/name": "n", domain + "/namespace": "shop", domain +
				"/cluster": cluster}
		}
		s = testkit.Value(client.GlobalNetworkSets().Create(ctx, s))(t)
		return s
	}
	const domain = naming.PolicyLabelDomain
	theirs("c2-shop-web", "semaphore-policy", domain, "c2", "10.2.0.1/32", "10.2.0.2/32")
	theirs("c2-shop-old", "semaphore-policy", domain, "c2", "10.2.0.9/32")
	foreign := []*calicov3.GlobalNetworkSet{
		theirs("of-an-earlier-release", "calico-global-network-sync-operator", domain, "c2", "10.2.0.3/32"),
		theirs("of-another-domain", "semaphore-policy", "semaphore.uw.systems", "c2", "10.2.0.4/32"),
		theirs("of-no-remote", "semaphore-policy", domain, "c9", "10.9.0.4/32"),
		theirs("of-someone", "", "", "", "10.2.0.5/32"),
	}
	all := func() map[string]string {
		out := map[string]string{}
		for _, s := range testkit.Value(setsIn(t, client))(t) {
			out[s.Name] = s.ResourceVersion
		}
		return out
	}
	adoption := func(from ...string) *migrate.Sets {
		adopting := &config.Broker{LabelDomains: []string{domain}, Remotes: []config.Remote{{Name: "c2"}}}
		adopting.Sets.AdoptFrom = from
		return &migrate.Sets{Config: func() *config.Broker { return adopting },
			Events: eventsOf(kubernetes.NewForConfigOrDie(cfg), "default")}
	}
	w, d := desired[*calicov3.GlobalNetworkSet]()

	before := all()
	w.set(globalSet("c2-shop-web", "10.2.0.1/32", "10.2.0.2/32"))
	o := Sets(quickCalico(cfg), adoption(), d, options(t))
	stop := testkit.Run(t, o.Run)
	reports(t, o, "sets.adoptFrom: [semaphore-policy]") // whose it is, and what to do
	stop()
	if now := all(); !maps.Equal(now, before) {
		t.Fatalf("not asked for, and changed: %v, was %v", now, before)
	}

	// Every state of the two that are taken over.
	informer := cache.NewSharedIndexInformer(client.GlobalNetworkSets().ListWatch(""),
		&calicov3.GlobalNetworkSet{}, 0, nil)
	var mu sync.Mutex
	states := map[string][]string{}
	seen := func(object any) {
		s := object.(*calicov3.GlobalNetworkSet)
		mu.Lock()
		defer mu.Unlock()
		states[s.Name] = append(states[s.Name], strings.Join(s.Spec.Nets, ","))
	}
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) },
		DeleteFunc: func(object any) {
			mu.Lock()
			defer mu.Unlock()
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if s, ok := object.(*calicov3.GlobalNetworkSet); ok {
				states[s.Name] = append(states[s.Name], "none")
			}
		}})
	testkit.Run(t, func(ctx context.Context) error { informer.RunWithContext(ctx); return ctx.Err() })
	became := func(name string, want ...string) func() (bool, string) {
		return func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(slices.Compact(slices.Clone(states[name])), want), fmt.Sprint(states[name])
		}
	}
	eventually(t, "seen", became("c2-shop-web", "10.2.0.1/32,10.2.0.2/32"))

	// Nothing has been heard of the remote yet: what was there stays.
	w.unset("c2-shop-web")
	o = Sets(quickCalico(cfg), adoption("semaphore-policy"), d, options(t))
	testkit.Run(t, o.Run)
	eventually(t, "taken over", func() (bool, string) {
		names, ok := o.Owned("c2")
		slices.Sort(names)
		return ok && slices.Equal(names, []string{"c2-shop-old", "c2-shop-web"}), fmt.Sprint(names, ok)
	})
	s := testkit.Value(client.GlobalNetworkSets().Get(ctx, "c2-shop-old"))(t)
	if s.Labels[domain+"/name"] != "n" || s.Labels["managed-by"] != "semaphore-policy" ||
		s.Annotations[naming.AnnotationSourceNamespace] != "shop" ||
		s.Annotations[naming.AnnotationSourceName] != "n" || s.Labels[naming.LabelManagedBy] != naming.ManagedByBroker ||
		len(s.Spec.Nets) != 1 {
		t.Errorf("%+v", s)
	}
	w.set(globalSet("c2-shop-web", "10.2.0.2/32", "10.2.0.3/32"))
	w.know("c2")
	o.WakeOwned("c2")
	o.Mark("c2-shop-web", "c2", time.Now())
	eventually(t, "what is wanted", became("c2-shop-web", "10.2.0.1/32,10.2.0.2/32", "10.2.0.2/32,10.2.0.3/32"))
	eventually(t, "what is not wanted any more", became("c2-shop-old", "10.2.0.9/32", "none"))
	// The tool makes another: it is adopted when it blocks the name.
	theirs("c2-shop-late", "semaphore-policy", domain, "c2", "10.2.0.7/32")
	w.set(globalSet("c2-shop-late", "10.2.0.7/32", "10.2.0.8/32"))
	o.Mark("c2-shop-late", "c2", time.Now())
	eventually(t, "taken over late", became("c2-shop-late", "10.2.0.7/32", "10.2.0.7/32,10.2.0.8/32"))

	now := all()
	for _, f := range foreign {
		if now[f.Name] != f.ResourceVersion {
			t.Errorf("%s was touched", f.Name)
		}
	}
}

// Sets of both tools, with the labels of either domain, become ours, and keep the label by which their tool marked
// them whatever is written of them later.
func TestAdoptionOfBothOriginals(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets")
	client := testkit.Value(kube.Calico(cfg))(t)
	w, d := desired[*calicov3.GlobalNetworkSet]()
	w.know("c2")
	managers := map[string]string{"c2-shop-web": "semaphore-policy", "c2-shop-old": "calico-global-network-sync-operator",
		"c2-shop-new": ""}
	const fresh = "calico-global-network-sync-operator" // sets.managedBy, that of new sets
	domains := map[string]string{"c2-shop-web": naming.PolicyLabelDomain, "c2-shop-old": naming.DefaultLabelDomain}
	for name, domain := range domains {
		s := globalSet(name, "10.2.0.1/32")
		s.Labels = map[string]string{"managed-by": managers[name], domain + "/name": "n", domain + "/namespace": "shop",
			domain + "/cluster": "c2"}
		testkit.Value(client.GlobalNetworkSets().Create(t.Context(), s))(t)
	}
	want := func(name, ip string) {
		s := globalSet(name, ip)
		s.Labels["managed-by"] = fresh
		for _, domain := range []string{naming.PolicyLabelDomain, naming.DefaultLabelDomain} {
			s.Labels[domain+"/name"], s.Labels[domain+"/namespace"], s.Labels[domain+"/cluster"] = "n", "shop", "c2"
		}
		w.set(s)
	}
	for name := range managers {
		want(name, "10.2.0.2/32")
	}
	adopting := &config.Broker{LabelDomains: []string{naming.PolicyLabelDomain, naming.DefaultLabelDomain},
		Remotes: []config.Remote{{Name: "c2"}}}
	adopting.Sets.AdoptFrom = config.Originals
	o := Sets(quickCalico(cfg), &migrate.Sets{Config: func() *config.Broker { return adopting },
		Events: eventsOf(kubernetes.NewForConfigOrDie(cfg), "default")}, d, options(t))
	testkit.Run(t, o.Run)
	become := func(what, ip string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			var wrong []string
			for name, manager := range managers {
				s, err := client.GlobalNetworkSets().Get(t.Context(), name)
				if err != nil {
					return false, err.Error()
				}
				if got := s.Labels["managed-by"]; s.Labels[naming.LabelManagedBy] != naming.ManagedByBroker ||
					!slices.Equal(s.Spec.Nets, []string{ip}) ||
					got != cmp.Or(manager, fresh) || s.Labels[naming.PolicyLabelDomain+"/name"] != "n" ||
					s.Labels[naming.DefaultLabelDomain+"/name"] != "n" {
					wrong = append(wrong, fmt.Sprint(name, s.Labels, s.Spec.Nets))
				}
			}
			return len(wrong) == 0, strings.Join(wrong, "\n")
		})
	}
	become("taken over, with the labels of both domains", "10.2.0.2/32")
	for name := range managers {
		want(name, "10.2.0.3/32")
		o.Mark(name, "c2", time.Now())
	}
	become("written later", "10.2.0.3/32")
}

func TestNetworkSets(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "networksets")
	admin := kubernetes.NewForConfigOrDie(cfg)
	ctx := t.Context()
	kubetest.Namespace(t, admin, "shop")
	kubetest.Namespace(t, admin, "bank")

	var mu sync.Mutex
	known := false
	there := map[string]bool{}
	namespaces := NewNamespaces(admin,
		func() {
			mu.Lock()
			defer mu.Unlock()
			known = there["shop"]
		},
		func(name string, is bool) {
			mu.Lock()
			defer mu.Unlock()
			there[name] = is
		}, options(t).Informers())
	testkit.Run(t, namespaces.Run)
	state := func(name string, want bool) func() (bool, string) {
		return func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return namespaces.Synced() && there[name] == want && known, fmt.Sprint(known, there)
		}
	}
	eventually(t, "namespaces are known", state("shop", true))
	eventually(t, "namespaces are known", state("bank", true))
	kubetest.Namespace(t, admin, "late")
	eventually(t, "another namespace", state("late", true))
	// Nobody finishes the deletion here, and nothing can be written there from its beginning on.
	testkit.Must(t, admin.CoreV1().Namespaces().Delete(ctx, "late", metav1.DeleteOptions{}))
	eventually(t, "a namespace that is being deleted", state("late", false))

	// The same name in two namespaces is two objects.
	set := func(ns string, nets ...string) *calicov3.NetworkSet {
		return &calicov3.NetworkSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c2-web", Labels: bearing("c2")},
			Spec: calicov3.NetworkSetSpec{Nets: nets}}
	}
	w, d := desired[*calicov3.NetworkSet]()
	put := func(s *calicov3.NetworkSet) { w.put(s.Namespace+"/"+s.Name, s) }
	put(set("shop", "10.2.0.1/32"))
	put(set("bank", "10.2.0.2/32"))
	w.know("c2")
	o := NetworkSets(quickCalico(cfg), d, options(t))
	testkit.Run(t, o.Run)
	client := testkit.Value(kube.Calico(cfg))(t)
	is := func(want string) func() (bool, string) {
		return func() (bool, string) {
			list, err := cache.ToListerWatcherWithContext(client.NetworkSets("").ListWatch(writes.Owned)).ListWithContext(ctx,
				metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			var out []string
			for _, s := range list.(*calicov3.NetworkSetList).Items {
				out = append(out, s.Namespace+"/"+s.Name+"="+strings.Join(s.Spec.Nets, ","))
			}
			got := strings.Join(out, " ")
			return got == want, got
		}
	}
	eventually(t, "made", is("bank/c2-web=10.2.0.2/32 shop/c2-web=10.2.0.1/32"))
	put(set("shop", "10.2.0.1/32", "10.2.0.3/32"))
	o.Mark("shop/c2-web", "c2", time.Now())
	eventually(t, "updated", is("bank/c2-web=10.2.0.2/32 shop/c2-web=10.2.0.1/32,10.2.0.3/32"))
	if names, _ := o.Owned("c2"); !slices.Equal(slices.Sorted(slices.Values(names)),
		[]string{"bank/c2-web", "shop/c2-web"}) {
		t.Errorf("owned: %v", names)
	}
	w.unset("bank/c2-web")
	o.Mark("bank/c2-web", "c2", time.Now())
	eventually(t, "removed", is("shop/c2-web=10.2.0.1/32,10.2.0.3/32"))
	// Somebody takes one away.
	have := testkit.Value(client.NetworkSets("shop").Get(ctx, "c2-web"))(t)
	testkit.Must(t, client.NetworkSets("shop").Delete(ctx, "c2-web", have.UID, ""))
	eventually(t, "made again", is("shop/c2-web=10.2.0.1/32,10.2.0.3/32"))
}

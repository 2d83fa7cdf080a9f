package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/deploy"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const within = 3 * time.Minute

// noTime passes the format date-time of the apiserver, and is no time for Go.
const noTime = "2026-11-26T19:00:00Ztx"

// damage is a value that the apiserver stores and the Go type cannot hold.
type damage struct {
	// field is the field of the spec or the status that gets the value; the problem must name path.
	field, path string
	value       any
}

// custom is a custom resource that others write and semaphore reads.
type custom struct {
	resource         schema.GroupVersionResource
	kind             string
	namespaced       bool
	spec             map[string]any
	inSpec, inStatus *damage
	install          func(*testing.T, *rest.Config)
	example          kube.Object
	follow           func(*testing.T, *rest.Config) func(*kube.Unread) cache.ListerWatcher
}

var condition = map[string]any{"type": "X", "status": "True", "reason": "R", "message": "",
	"lastTransitionTime": noTime}

func customs() []custom {
	calico := schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
	ofCalico := func(resource, kind string, namespaced bool, spec map[string]any, bad damage, example kube.Object,
		follow func(*kube.CalicoClient, *kube.Unread) cache.ListerWatcher) custom {
		return custom{
			resource: calico.WithResource(resource), kind: kind, namespaced: namespaced, spec: spec, inSpec: &bad,
			example: example,
			install: func(t *testing.T, cfg *rest.Config) {
				kubetest.InstallCalicoType(t, cfg, calico, resource, func(spec *apiextensions.JSONSchemaProps) {
					spec.Properties[bad.field] = anything
				})
			},
			follow: func(t *testing.T, cfg *rest.Config) func(*kube.Unread) cache.ListerWatcher {
				client := testkit.Value(kube.CalicoIn(cfg, calico))(t)
				return func(u *kube.Unread) cache.ListerWatcher { return follow(client, u) }
			},
		}
	}
	ofMCS := func(plural, kind string, spec map[string]any, bad damage, example kube.Object,
		follow func(*mcs.Client, *kube.Unread) cache.ListerWatcher) custom {
		return custom{
			resource: mcsv1beta1.SchemeGroupVersion.WithResource(plural), kind: kind, namespaced: true, spec: spec,
			inSpec:   &bad,
			inStatus: &damage{"conditions", "status.conditions[0].lastTransitionTime", []any{condition}},
			example:  example,
			install: func(t *testing.T, cfg *rest.Config) {
				for _, d := range testkit.Value(mcs.Definitions())(t) {
					define(t, cfg, d, kind, bad.field)
				}
			},
			follow: func(t *testing.T, cfg *rest.Config) func(*kube.Unread) cache.ListerWatcher {
				client := testkit.Value(mcs.New(cfg, "test"))(t)
				testkit.Eventually(t, within, "the API", func() error {
					_, err := client.Version(t.Context())
					return err
				})
				return func(u *kube.Unread) cache.ListerWatcher { return follow(client, u) }
			},
		}
	}
	nets := map[string]any{"nets": []any{"10.2.0.1/32"}}
	return []custom{
		ofCalico("globalnetworksets", "GlobalNetworkSet", false, nets, damage{"nets", "spec.nets", "10.0.0.0/8"},
			&calicov3.GlobalNetworkSet{}, func(c *kube.CalicoClient, u *kube.Unread) cache.ListerWatcher {
				return c.GlobalNetworkSets().Follow("", u)
			}),
		ofCalico("networksets", "NetworkSet", true, nets, damage{"nets", "spec.nets[1]", []any{"10.2.0.1/32", int64(7)}},
			&calicov3.NetworkSet{}, func(c *kube.CalicoClient, u *kube.Unread) cache.ListerWatcher {
				return c.NetworkSets("").Follow("", u)
			}),
		ofCalico("ippools", "IPPool", false, map[string]any{"cidr": "10.2.0.0/16", "disabled": true},
			damage{"disabled", "spec.disabled", "yes"}, &calicov3.IPPool{},
			func(c *kube.CalicoClient, u *kube.Unread) cache.ListerWatcher { return c.IPPools().Follow("", u) }),
		ofCalico("ipreservations", "IPReservation", false, map[string]any{"reservedCIDRs": []any{"10.2.0.9/32"}},
			damage{"reservedCIDRs", "spec.reservedCIDRs", "10.2.0.9/32"}, &calicov3.IPReservation{},
			func(c *kube.CalicoClient, u *kube.Unread) cache.ListerWatcher {
				return c.IPReservations().Follow("", u)
			}),
		func() custom {
			c := ofCalico("blockaffinities", "BlockAffinity", false,
				map[string]any{"node": "n1", "cidr": "10.1.2.0/26", "state": "confirmed", "deleted": "false"},
				damage{"node", "spec.node", map[string]any{}}, &kube.BlockAffinity{}, nil)
			c.follow = func(_ *testing.T, cfg *rest.Config) func(*kube.Unread) cache.ListerWatcher {
				all := kube.NewBlockAffinities(cfg)
				return func(u *kube.Unread) cache.ListerWatcher { return all.Follow(u) }
			}
			return c
		}(),
		ofMCS(mcsv1beta1.ServiceExportPluralName, mcsv1beta1.ServiceExportKindName,
			map[string]any{"exportedLabels": map[string]any{"a": "b"}},
			damage{"exportedLabels", "spec.exportedLabels.a", map[string]any{"a": int64(1)}}, &mcsv1beta1.ServiceExport{},
			func(c *mcs.Client, u *kube.Unread) cache.ListerWatcher { return c.Exports().Follow("", u) }),
		ofMCS(mcsv1beta1.ServiceImportPluralName, mcsv1beta1.ServiceImportKindName,
			map[string]any{"type": "ClusterSetIP", "ports": []any{map[string]any{"port": int64(80)}}},
			damage{"ports", "spec.ports[0].port", []any{map[string]any{"port": "http"}}}, &mcsv1beta1.ServiceImport{},
			func(c *mcs.Client, u *kube.Unread) cache.ListerWatcher { return c.Imports().Follow("", u) }),
		{
			resource: v1alpha1.RemoteClusters, kind: v1alpha1.Kind,
			spec:     map[string]any{"podSubnets": []any{"10.2.0.0/16"}},
			inSpec:   &damage{"limits", "spec.limits.nodes", map[string]any{"nodes": "many"}},
			inStatus: &damage{"lastHeard", "status.lastHeard", noTime},
			install: func(t *testing.T, cfg *rest.Config) {
				var d apiextensions.CustomResourceDefinition
				testkit.Must(t, yaml.Unmarshal(deploy.RemoteClusters, &d))
				define(t, cfg, &d, v1alpha1.Kind, "limits")
			},
		},
	}
}

// anything is the schema of a field that may have any value.
var anything = apiextensions.JSONSchemaProps{XPreserveUnknownFields: new(bool)}

func init() { *anything.XPreserveUnknownFields = true }

// define applies a definition; for a kind, its schema permits anything in one field of the spec.
func define(t *testing.T, cfg *rest.Config, d *apiextensions.CustomResourceDefinition, kind, field string) {
	t.Helper()
	if d.Spec.Names.Kind == kind {
		for _, v := range d.Spec.Versions {
			v.Schema.OpenAPIV3Schema.Properties["spec"].Properties[field] = anything
		}
	}
	kubetest.Create(t, apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions(), d)
}

// followed is what a reader knows of the objects: their specs by name, the value of the label "seen", and its problems.
type followed struct {
	specs    func() map[string]any
	seen     func(name string) string
	problems func() []string
}

// read starts a reader of the objects.
func (c custom) read(t *testing.T, cfg *rest.Config) followed {
	t.Helper()
	if c.follow == nil {
		f := follow.New(dynamic.NewForConfigOrDie(cfg), nil, slog.New(slog.DiscardHandler))
		testkit.Run(t, f.Run)
		return followed{
			specs: func() map[string]any {
				all, _ := f.Objects()
				out := map[string]any{}
				for name, o := range all {
					out[name] = testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(&o.Spec))(t)
				}
				return out
			},
			seen: func(name string) string {
				all, _ := f.Objects()
				return all[name].Spec.Encryption
			},
			problems: f.Problems,
		}
	}
	unread := &kube.Unread{}
	informer := cache.NewSharedIndexInformer(c.follow(t, cfg)(unread), c.example, 0, nil)
	unread.Earlier = func(of kube.Object) (kube.Object, bool) {
		held, ok, err := informer.GetStore().Get(of)
		if err != nil || !ok {
			return nil, false
		}
		return held.(kube.Object), true
	}
	testkit.Run(t, func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	})
	all := func() map[string]kube.Object {
		out := map[string]kube.Object{}
		for _, o := range informer.GetStore().List() {
			out[o.(kube.Object).GetName()] = o.(kube.Object)
		}
		return out
	}
	return followed{
		specs: func() map[string]any {
			out := map[string]any{}
			for name, o := range all() {
				out[name] = testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(t)["spec"]
			}
			return out
		},
		seen: func(name string) string {
			if o := all()[name]; o != nil {
				return o.GetLabels()["seen"]
			}
			return ""
		},
		problems: unread.Lines,
	}
}

// TestOneUnreadableObject: of each type that others write, one object with a value that Go cannot hold keeps its
// earlier state, costs no other object, and is a problem that names object and field; in lists and in watches, in the
// spec and in the status.
func TestOneUnreadableObject(t *testing.T) {
	for _, c := range customs() {
		t.Run(c.kind, func(t *testing.T) {
			cfg := kubetest.Start(t)
			if c.namespaced {
				kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "shop")
			}
			c.install(t, cfg)
			if c.inStatus != nil {
				t.Run("status", func(t *testing.T) { c.test(t, cfg, "status", *c.inStatus) })
			}
			t.Run("spec", func(t *testing.T) { c.test(t, cfg, "spec", *c.inSpec) })
		})
	}
}

func (c custom) test(t *testing.T, cfg *rest.Config, part string, bad damage) {
	ctx := t.Context()
	var api dynamic.ResourceInterface = dynamic.NewForConfigOrDie(cfg).Resource(c.resource)
	if c.namespaced {
		api = dynamic.NewForConfigOrDie(cfg).Resource(c.resource).Namespace("shop")
	}
	for i, name := range []string{"broken", "other"} {
		spec := runtime.DeepCopyJSON(c.spec)
		if c.kind == v1alpha1.Kind || c.kind == "IPPool" { // they must not overlap
			for key, value := range spec {
				switch subnet := fmt.Sprintf("10.%d.0.0/16", 2+i); value.(type) {
				case []any:
					spec[key] = []any{subnet}
				case string:
					spec[key] = subnet
				}
			}
		}
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": c.resource.GroupVersion().String(),
			"kind": c.kind, "metadata": map[string]any{"name": name}, "spec": spec}}
		testkit.Eventually(t, within, "create", func() error { // the definition may be served later
			_, err := api.Create(ctx, u, metav1.CreateOptions{})
			return err
		})
	}
	names := func(of followed) []string {
		var all []string
		for name := range of.specs() {
			all = append(all, name)
		}
		slices.Sort(all)
		return all
	}
	has := func(of followed, want ...string) {
		t.Helper()
		testkit.Eventually(t, within, fmt.Sprintf("a reader of %v", want), func() error {
			if got := names(of); !slices.Equal(got, want) {
				return fmt.Errorf("it has %v, and the problems %q", got, of.problems())
			}
			return nil
		})
	}
	update := func(name string, change func(u *unstructured.Unstructured), subresources ...string) {
		t.Helper()
		u := kubetest.GetObject(t, api, name)
		change(u)
		if len(subresources) > 0 {
			testkit.Value(api.UpdateStatus(ctx, u, metav1.UpdateOptions{}))(t)
		} else {
			kubetest.UpdateObject(t, api, u)
		}
	}
	mark := func(of followed, value string) {
		t.Helper()
		update("other", func(u *unstructured.Unstructured) {
			if c.kind == v1alpha1.Kind { // its reader keeps no labels
				testkit.Must(t, unstructured.SetNestedField(u.Object, value, "spec", "encryption"))
				return
			}
			u.SetLabels(map[string]string{"seen": value})
		})
		testkit.Eventually(t, within, "the change of another object", func() error {
			if got := of.seen("other"); got != value {
				return fmt.Errorf("it is %q, and the problems are %q", got, of.problems())
			}
			return nil
		})
	}
	isTold := func(of followed) {
		t.Helper()
		testkit.Eventually(t, within, "a problem", func() error {
			all := of.problems()
			for _, text := range []string{c.kind, "broken", bad.path + " "} {
				if len(all) != 1 || !strings.Contains(all[0], text) {
					return fmt.Errorf("the problems are %q; want one with %q", all, text)
				}
			}
			return nil
		})
	}

	watching := c.read(t, cfg)
	has(watching, "broken", "other")
	before := watching.specs()["broken"]
	if part == "status" {
		update("broken", func(u *unstructured.Unstructured) {
			testkit.Must(t, unstructured.SetNestedField(u.Object, bad.value, "status", bad.field))
		}, "status")
	} else {
		update("broken", func(u *unstructured.Unstructured) {
			testkit.Must(t, unstructured.SetNestedField(u.Object, bad.value, "spec", bad.field))
		})
	}
	mark(watching, "permissive")
	isTold(watching)
	if now := watching.specs()["broken"]; !reflect.DeepEqual(now, before) {
		t.Errorf("the broken object is %v; want %v as before", now, before)
	}

	listing := c.read(t, cfg)
	if part == "status" {
		has(listing, "broken", "other")
		if now := listing.specs()["broken"]; !reflect.DeepEqual(now, before) {
			t.Errorf("the broken object is listed as %v; want %v", now, before)
		}
	} else {
		has(listing, "other")
	}
	isTold(listing)
	mark(listing, "strict")
	if c.follow != nil {
		c.relist(t, cfg, part, before)
	}

	testkit.Must(t, api.Delete(ctx, "broken", metav1.DeleteOptions{}))
	for _, of := range []followed{watching, listing} {
		has(of, "other")
		testkit.Eventually(t, within, "the end of the problem", func() error {
			if all := of.problems(); len(all) > 0 {
				return fmt.Errorf("there are %q", all)
			}
			return nil
		})
	}
	testkit.Must(t, api.Delete(ctx, "other", metav1.DeleteOptions{}))
	has(watching)
}

// relist: a list has the earlier state of an object that cannot be read; a list without a reader of problems is an
// error that names the field, except if only the status is concerned.
func (c custom) relist(t *testing.T, cfg *rest.Config, part string, before any) {
	t.Helper()
	follow := c.follow(t, cfg)
	unread := &kube.Unread{Earlier: func(metadata kube.Object) (kube.Object, bool) {
		earlier := c.example.DeepCopyObject().(kube.Object)
		testkit.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"spec": before}, earlier))
		earlier.SetName(metadata.GetName())
		earlier.SetUID(metadata.GetUID())
		return earlier, true
	}}
	list, err := cache.ToListerWatcherWithContext(follow(unread)).ListWithContext(t.Context(), metav1.ListOptions{})
	testkit.Must(t, err)
	if n := meta.LenList(list); n != 2 {
		t.Errorf("a list has %d objects; want 2", n)
	}
	testkit.Must(t, meta.EachListItem(list, func(o runtime.Object) error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if o.(kube.Object).GetName() == "broken" && !reflect.DeepEqual(content["spec"], before) {
			t.Errorf("a list has %v; want %v as before", content["spec"], before)
		}
		return err
	}))
	_, err = cache.ToListerWatcherWithContext(follow(nil)).ListWithContext(t.Context(), metav1.ListOptions{})
	if (err == nil) != (part == "status") || err != nil && !strings.Contains(err.Error(), c.inSpec.path) {
		t.Errorf("a list of which nobody reads the problems: %v", err)
	}
}

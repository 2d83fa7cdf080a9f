package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

func newExport(name string, edit ...func(*mcsv1beta1.ServiceExport)) *mcsv1beta1.ServiceExport {
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", Generation: 3}}
	for _, do := range edit {
		do(e)
	}
	return e
}

func multiClusterCatalog(t *testing.T) *Catalog {
	rules := newCatalog(t).Rules()
	rules.MultiCluster, rules.Own, rules.Clusters = true, "c1", []string{"c1", "c2", "c3"}
	return New(rules)
}

// TestServiceExport: a ServiceExport exports its Service and that Service's slices, in whatever order the three come,
// and nothing else.
func TestServiceExport(t *testing.T) {
	now := time.Unix(1, 0)
	unlabelled := func(slice, service string) *discoveryv1.EndpointSlice {
		s := newSlice(slice, service, "10.1.1.1")
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		return s
	}
	put := []func(c *Catalog){
		func(c *Catalog) { c.PutService(newService("echo", nil), now) },
		func(c *Catalog) { c.PutSlice(unlabelled("echo-1", "echo"), now) },
		func(c *Catalog) { c.PutExport(newExport("echo"), now) },
	}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		c := multiClusterCatalog(t)
		c.PutService(newService("other", nil), now)
		c.PutSlice(unlabelled("other-1", "other"), now)
		for _, i := range order {
			put[i](c)
		}
		exports(t, c, "service shop/echo", "endpointslice shop/echo-1")
		if m := content(c)["service shop/echo"].GetService(); m.GetMultiCluster() == nil || m.GetMirror() || m.GetGlobal() {
			t.Errorf("order %v: the Service is %v", order, m)
		}
		// The own broker receives it: it writes the import of the own cluster.
		if echo := "service shop/echo"; !slices.Contains(sees(c, "c1"), echo) || !slices.Contains(sees(c, "c2"), echo) {
			t.Errorf("order %v: not everybody receives it", order)
		}
		c.DeleteExport("shop", "echo", now)
		exports(t, c)
		c.PutExport(newExport("echo"), now)
		exports(t, c, "service shop/echo", "endpointslice shop/echo-1")
		c.DeleteService("shop", "echo", now)
		exports(t, c)
		c.PutService(newService("echo", nil), now)
		c.DeleteSlice("shop", "echo-1", now)
		exports(t, c, "service shop/echo")
	}
}

// TestServiceExportValid: what the condition Valid says.
func TestServiceExportValid(t *testing.T) {
	now := time.Unix(1, 0)
	c := multiClusterCatalog(t)
	is := func(want mcsv1beta1.ServiceExportConditionReason, offered bool, says string) {
		t.Helper()
		all := c.ServiceExports()
		if len(all) != 1 || all[0].Valid != want || (all[0].Offer != nil) != offered ||
			!strings.Contains(all[0].Reason, says) ||
			all[0].Generation != 3 {
			t.Errorf("the exports are %+v, want %s", all, want)
		}
	}
	before := c.OffersVersion()
	c.PutExport(newExport("echo"), now)
	is(mcsv1beta1.ServiceExportReasonNoService, false, "no Service echo in namespace shop")
	if c.OffersVersion() == before {
		t.Error("the version did not change")
	}
	c.PutService(newService("echo", nil, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), now)
	is(mcsv1beta1.ServiceExportReasonInvalidServiceType, false, "ExternalName")
	exports(t, c)
	c.PutService(newService("echo", map[string]string{naming.LabelManagedBy: naming.ManagedByBroker}), now)
	is(mcsv1beta1.ServiceExportReasonInvalidServiceType, false, "export it there")
	exports(t, c)
	c.PutService(newService("echo", nil), now)
	is(mcsv1beta1.ServiceExportReasonValid, true, "")
	before = c.OffersVersion()
	c.DeleteService("shop", "echo", now)
	is(mcsv1beta1.ServiceExportReasonNoService, false, "no Service")
	if c.OffersVersion() == before {
		t.Error("the version did not change")
	}
	c.DeleteExport("shop", "echo", now)
	if all := c.ServiceExports(); len(all) != 0 {
		t.Errorf("the exports are %+v", all)
	}
}

// TestServiceExportNarrowed: export rules and the annotation, of the Service or of the ServiceExport, narrow an export.
// The own broker always receives it, and nobody else learns its name.
func TestServiceExportNarrowed(t *testing.T) {
	now := time.Unix(1, 0)
	annotation := func(value string) map[string]string { return map[string]string{naming.AnnotationExportTo: value} }
	for _, test := range []struct {
		name            string
		rule            []string // of the namespace; nil for none
		service, export string
		c2, c3          bool
		problem         string // a part of it; empty for no problem
	}{
		{name: "everybody", c2: true, c3: true},
		{name: "rule", rule: []string{"c2"}, c2: true},
		{name: "Service", service: "c3", c3: true},
		{name: "ServiceExport", export: "c2", c2: true},
		{name: "both", service: "c2,c3", export: "c3", c3: true},
		{name: "disjoint", service: "c2", export: "c3"},
		{name: "none", export: "none"},
		{name: "a Service that names another cluster, too", service: "c2,c9", export: "none",
			problem: `names "c9", for which no broker is configured: the object is exported to c2 at most`},
		{name: "the same, and disjoint", service: "c2,c9", export: "c3", problem: `names "c9"`},
		{name: "the same, and one of two", service: "c2,c3,c9", export: "c3", c3: true, problem: `names "c9"`},
		{name: "both name another cluster", service: "c2,c8", export: "c2,c9", c2: true, problem: `names "c9"`},
		{name: "unparsable", export: "C2!", problem: `"C2!" cannot be parsed`},
		{name: "another cluster, and unparsable", service: "c2,c9", export: "C2!", problem: `"C2!" cannot be parsed`},
		{name: "rule and ServiceExport", rule: []string{"c2"}, export: "c3"},
	} {
		c := multiClusterCatalog(t)
		if test.rule != nil {
			offer(c, []offering{{remotes.ExportRule{Namespaces: []string{"shop"}}, test.rule}})
		}
		c.PutExport(newExport("echo", func(e *mcsv1beta1.ServiceExport) {
			if test.export != "" {
				e.Annotations = annotation(test.export)
			}
		}), now)
		c.PutService(newService("echo", nil, func(s *corev1.Service) {
			if test.service != "" {
				s.Annotations = annotation(test.service)
			}
		}), now)
		for cluster, want := range map[string]bool{"c1": true, "c2": test.c2, "c3": test.c3} {
			if got := slices.Contains(sees(c, cluster), "service shop/echo"); got != want {
				t.Errorf("%s: %s receives it: %t", test.name, cluster, got)
			}
		}
		if p := finding.Texts(c.Findings()); len(p) > 0 != (test.problem != "") ||
			!strings.Contains(strings.Join(p, ""), test.problem) {
			t.Errorf("%s: problems %q, want %q", test.name, p, test.problem)
		}
	}
}

// TestExportedLabels: exactly the labels and annotations of the ServiceExport cross, without reserved keys.
func TestExportedLabels(t *testing.T) {
	now := time.Unix(1, 0)
	c := multiClusterCatalog(t)
	c.PutService(newService("echo", map[string]string{"app": "echo"}, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	}), now)
	c.PutExport(newExport("echo", func(e *mcsv1beta1.ServiceExport) {
		e.Spec.ExportedLabels = map[string]string{"team": "a", "app.kubernetes.io/name": "echo",
			"app.kubernetes.io/instance": "argo", "kubernetes.io/x": "y", "argocd.argoproj.io/instance": "z"}
		e.Spec.ExportedAnnotations = map[string]string{"example.org/note": "any text at all",
			"meta.helm.sh/release-name":  "r",
			"semaphore.uw.io/decided-by": "c1", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
	}), now)
	m := content(c)["service shop/echo"].GetService().GetMultiCluster()
	var got []string
	for _, l := range m.GetLabels() {
		got = append(got, l.GetKey()+"="+l.GetValue())
	}
	for _, a := range m.GetAnnotations() {
		got = append(got, a.GetKey()+": "+a.GetValue())
	}
	want := []string{"app.kubernetes.io/name=echo", "team=a", "example.org/note: any text at all"}
	if !slices.Equal(got, want) || m.GetInternalTrafficPolicy() != "Local" {
		t.Errorf("exported are %q with %q, want %q", got, m.GetInternalTrafficPolicy(), want)
	}
	problems := strings.Join(finding.Texts(c.Findings()), "\n")
	for _, key := range []string{"app.kubernetes.io/instance", "kubernetes.io/x", "argocd.argoproj.io/instance",
		"meta.helm.sh/release-name", "semaphore.uw.io/decided-by"} {
		if !strings.Contains(problems, key) {
			t.Errorf("no problem names %s: %s", key, problems)
		}
	}
	c.PutExport(newExport("echo", func(e *mcsv1beta1.ServiceExport) {
		e.Spec.ExportedAnnotations = map[string]string{"a": strings.Repeat("x", naming.MaxExportedBytes)}
	}), now)
	if m := content(c)["service shop/echo"].GetService().GetMultiCluster(); len(m.GetAnnotations()) != 0 ||
		!strings.Contains(strings.Join(finding.Texts(c.Findings()), "\n"), "use up to 64 entries") {
		t.Errorf("exported are %d annotations; problems %q", len(m.GetAnnotations()), finding.Texts(c.Findings()))
	}
}

// TestSlicesWithoutTheLabelOfTheirService: the slices of an offered Service are exported whatever their labels are, in
// either order, and until it is not offered any more; those of a Service that is not offered are not looked at.
func TestSlicesWithoutTheLabelOfTheirService(t *testing.T) {
	now := time.Unix(1, 0)
	unlabelled := func(slice, service, address string) *discoveryv1.EndpointSlice {
		s := newSlice(slice, service, address)
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service, "cluster-name": "db"}
		return s
	}
	offer := func(c *Catalog) { c.PutService(newService("db", mirrorLabels), now) }
	slice := func(c *Catalog) { c.PutSlice(unlabelled("db-1", "db", "10.1.1.1"), now) }
	for name, put := range map[string][]func(*Catalog){
		"the Service first": {offer, slice}, "the slice first": {slice, offer},
	} {
		for _, end := range []struct {
			name string
			do   func(*Catalog)
		}{
			{"its label is taken off", func(c *Catalog) { c.PutService(newService("db", nil), now) }},
			{"it is deleted", func(c *Catalog) { c.DeleteService("shop", "db", now) }},
		} {
			t.Run(name+", "+end.name, func(t *testing.T) {
				c := newCatalog(t)
				c.PutSlice(unlabelled("other-1", "other", "192.0.2.1"), now) // no pod's address, and nobody's business
				for _, do := range put {
					do(c)
				}
				exports(t, c, "service shop/db", "endpointslice shop/db-1")
				c.PutSlice(unlabelled("db-1", "db", "10.1.1.2"), now)
				s := content(c)["endpointslice shop/db-1"].GetEndpointSlice()
				if a := s.GetEndpoints()[0].GetAddresses()[0]; a != "10.1.1.2" {
					t.Errorf("the address is %s", a)
				}
				end.do(c)
				exports(t, c)
				offer(c)
				exports(t, c, "service shop/db", "endpointslice shop/db-1")
				c.DeleteSlice("shop", "db-1", now)
				exports(t, c, "service shop/db")
				if problems := finding.Texts(c.Findings()); len(problems) > 0 {
					t.Errorf("problems %q", problems)
				}
			})
		}
	}
}

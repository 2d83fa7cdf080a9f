package catalog

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// TestOffersToNobody: a Service that no cluster receives has a reason, also while no RemoteCluster has a broker.
func TestOffersToNobody(t *testing.T) {
	now := time.Unix(0, 0)
	external := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }
	for _, test := range []struct {
		name     string
		clusters []string
		service  *corev1.Service
		reason   string
	}{
		{"offered", []string{"c2"}, newService("echo", mirrorLabels), ""},
		{"no RemoteCluster", nil, newService("echo", mirrorLabels),
			"no RemoteCluster has a broker to export to: ask the operator of this cluster to link another one"},
		{"no RemoteCluster, and nothing to offer", nil, newService("echo", mirrorLabels, external),
			"spec.type ExternalName has no endpoints to offer: offer the Service it names"},
		{"no RemoteCluster, and withheld", nil, newService("echo", mirrorLabels, annotated(exportToAnnotation("none"))),
			"no RemoteCluster has a broker to export to: ask the operator of this cluster to link another one"},
		{"withheld by its owner", []string{"c2"},
			newService("echo", mirrorLabels, annotated(exportToAnnotation("none"))),
			`annotation semaphore.uw.io/export-to: "none" names none of the clusters to which RemoteClusters offer it`},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCatalog(t)
			c.SetRemotes(test.clusters, nil, now)
			c.PutService(test.service, now)
			offers := c.Offers()
			if len(offers) != 1 || offers[0].Reason != test.reason || (len(offers[0].To) > 0) != (test.reason == "") {
				t.Errorf("offers %+v, want one with the reason %q", offers, test.reason)
			}
		})
	}
}

// TestOffersVersion: whatever changes the result of Offers, or of ServiceExports, changes their version, also where
// what is exported stays the same; the same object once more does not.
func TestOffersVersion(t *testing.T) {
	now := time.Unix(0, 0)
	put := func(edit func(*corev1.Service)) func(*Catalog) {
		s := newService("echo", mirrorLabels, edit)
		return func(c *Catalog) { c.PutService(s, now) }
	}
	to := func(clusters string) func(*Catalog) { return put(annotated(exportToAnnotation(clusters))) }
	is := func(key, value string) func(*Catalog) { return put(annotated(map[string]string{key: value})) }
	spread := func(distribution string) func(*Catalog) {
		return put(func(s *corev1.Service) { s.Spec.TrafficDistribution = &distribution })
	}
	for name, test := range map[string]struct{ before, change func(*Catalog) }{
		"an ignored field is removed":      {spread("Nowhere"), put(func(*corev1.Service) {})},
		"another field is ignored":         {spread("Nowhere"), spread("Anywhere")},
		"a setting has no effect":          {put(func(*corev1.Service) {}), is(naming.AnnotationOwnName, "failover")},
		"it names another unknown cluster": {to("c7"), to("c8")},
		"it is withheld otherwise":         {to("none"), to("c8")},
		"the last RemoteCluster is removed": {put(func(*corev1.Service) {}),
			func(c *Catalog) { c.SetRemotes([]string{"c1"}, nil, now) }},
		"an exported Service is of another cluster": {func(c *Catalog) { c.PutExport(newExport("echo"), now) },
			func(c *Catalog) {
				c.PutService(newService("echo", map[string]string{naming.LabelManagedBy: naming.ManagedByBroker}), now)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			c := multiClusterCatalog(t)
			state := func() string {
				text := ""
				for _, o := range c.Offers() {
					text += fmt.Sprintln(o)
				}
				for _, x := range c.ServiceExports() {
					text += fmt.Sprintln(x.Name, x.Valid, x.Reason)
				}
				return text
			}
			test.before(c)
			before, version := state(), c.OffersVersion()
			test.change(c)
			after, changed := state(), c.OffersVersion()
			if after == before || changed == version {
				t.Errorf("version %d with %s, and then %d with %s", version, before, changed, after)
			}
		})
	}
	c := multiClusterCatalog(t)
	spread("Nowhere")(c)
	version := c.OffersVersion()
	if spread("Nowhere")(c); c.OffersVersion() != version {
		t.Error("the same Service once more changes the version")
	}
}

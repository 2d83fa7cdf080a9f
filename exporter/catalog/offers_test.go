package catalog

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

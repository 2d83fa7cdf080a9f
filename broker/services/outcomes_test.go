package services

import (
	"fmt"
	"strings"
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The outcomes that a cluster receives of its services name nothing of other clusters.
func TestOutcomes(t *testing.T) {
	p := alone(t, "podSubnets: [10.1.0.0/16]")
	long := strings.Repeat("x", 50)
	p.apply("c2",
		svc("shop", long, web(&semaphorev1.Service{Mirror: true})),
		svc("shop", "fine", web(&semaphorev1.Service{Mirror: true})),
		svc("a-shop", "secret", web(&semaphorev1.Service{Mirror: true})),
		svc("shop", "broken", web(&semaphorev1.Service{Mirror: true})),
		svc("shop", "echo", &semaphorev1.Service{Global: true,
			Ports: []*semaphorev1.Port{{Name: "web", Protocol: "TCP", Port: 81}}}),
	)
	p.apply("c2-a", svc("shop", "secret", web(&semaphorev1.Service{Mirror: true}))) // the name of c2's
	p.apply("c1", svc("shop", "echo", global()))
	p.heard("c1", "c2", "c2-a", "c3")
	failing := map[string]string{"c2-shop-73736d-broken": "cannot be written",
		"gl-shop-73736d-echo": "cannot be written either", "nobody": "x"}
	for cluster, want := range map[string]string{
		"c2":   "shop/broken WriteFailed, shop/echo WriteFailed, shop/" + long + " NameTooLong",
		"c2-a": "shop/secret NameTaken",
		"c1":   "shop/echo WriteFailed",
		"c3":   "",
	} {
		var got []string
		for _, o := range outcomes(p.servicePlan, cluster, failing) {
			got = append(got, fmt.Sprintf("%s/%s %s", o.Key.Namespace, o.Key.Name, o.Code))
			for _, other := range []string{"c1", "c2", "c2-a", "c3", "a-shop"} {
				if other != cluster && !strings.HasPrefix(cluster, other) && strings.Contains(o.Reason, other) {
					t.Errorf("%s receives %s: %s", cluster, other, o.Reason)
				}
			}
			if o.Reason == "" {
				t.Errorf("%v has no reason", o)
			}
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %s, want %s", cluster, text, want)
		}
	}
}

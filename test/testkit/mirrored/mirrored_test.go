package mirrored

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestServices: what a test expects of a reader is what the slices say. The broker decides the same again and again.
func TestServices(t *testing.T) {
	for range 5 {
		for _, s := range Services(t, corev1.ProtocolTCP) {
			var ready []string
			count := 0
			for _, slice := range s.Slices {
				for _, e := range slice.Endpoints {
					count++
					if *e.Conditions.Ready {
						ready = append(ready, e.Addresses...)
					}
				}
			}
			slices.Sort(ready)
			if want := s.Ready(); !slices.Equal(ready, want) {
				t.Errorf("%s: ready are %q, not %q", s.Name, ready, want)
			}
			if want := len(s.Endpoints); s.Own && count != want+1 || !s.Own && count != want {
				t.Errorf("%s: %d endpoints, of %d", s.Name, count, want)
			}
		}
	}
}

// TestOwnNames: beside the slice of Kubernetes are slices with c2's endpoints, under the name of the Service, while
// they are in use, and none otherwise.
func TestOwnNames(t *testing.T) {
	for _, s := range OwnNames(t, corev1.ProtocolTCP) {
		var ready []string
		count := 0
		for _, slice := range s.Slices {
			if slice.Namespace != s.Service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != s.Service.Name {
				t.Errorf("%s: slice %s/%s belongs to %v", s.Name, slice.Namespace, slice.Name, slice.Labels)
			}
			for _, e := range slice.Endpoints {
				if count++; *e.Conditions.Ready {
					ready = append(ready, e.Addresses...)
				}
			}
		}
		slices.Sort(ready)
		if want := s.Ready(); !slices.Equal(ready, want) {
			t.Errorf("%s: ready are %q, not %q", s.Name, ready, want)
		}
		if want := 1 + len(s.Endpoints); count != want || len(s.Endpoints) > 0 != s.InUse {
			t.Errorf("%s: %d endpoints, of %d", s.Name, count, want)
		}
	}
}

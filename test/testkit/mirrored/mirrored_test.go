package mirrored

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
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

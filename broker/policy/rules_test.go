package policy

import (
	"maps"
	"slices"
	"testing"
)

// R21, R22: whatever a remote calls its pods and sets, a set has single addresses, and the labels that we give it.
// Only values come from the remote.
func TestR22ASetHasNoLabelsOfTheRemotes(t *testing.T) {
	p := plan()
	p.Apply("c2", pods("shop/web-0 u1 admin 10.2.1.9 fd02::5"))
	s := p.Reserve("c2-shop-admin", start).Set
	if s == nil {
		t.Fatal("no set")
	}
	want := []string{"app.kubernetes.io/managed-by", "managed-by", "semaphore.uw.io/source-cluster",
		"semaphore.uw.systems/cluster", "semaphore.uw.systems/name", "semaphore.uw.systems/namespace"}
	if got := slices.Sorted(maps.Keys(s.Labels)); !slices.Equal(got, want) {
		t.Errorf("labels %v", got)
	}
	// A remote cannot give itself the name of another.
	if s.Labels["semaphore.uw.systems/cluster"] != "c2" || s.Labels["semaphore.uw.io/source-cluster"] != "c2" {
		t.Errorf("labels %v", s.Labels)
	}
	if !slices.Equal(s.Spec.Nets, []string{"10.2.1.9/32", "fd02::5/128"}) {
		t.Errorf("nets %v", s.Spec.Nets)
	}
}

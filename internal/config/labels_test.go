package config

import "testing"

func TestLabelKeys(t *testing.T) {
	keys := LabelKeys{"app.kubernetes.io/*", "example.org/team", "tier", "kubernetes.io/*", "managed-by"}
	for key, want := range map[string]bool{
		"app.kubernetes.io/name": true, "app.kubernetes.io/part-of": true, "example.org/team": true, "tier": true,
		"app.kubernetes.io/managed-by": false, "example.org/other": false, "team": false,
		"app.kubernetes.io": false, "": false,
		"kubernetes.io/service-name": false, "managed-by": false, "app.kubernetes.io.example.org/name": false,
	} {
		if got := keys.Takes(key); got != want {
			t.Errorf("%q: %v, want %v", key, got, want)
		}
	}
	for _, pattern := range []string{"*", "", "/*", "a b", "app.kubernetes.io/**", "mirrored-svc", "kubernetes.io/*",
		"app.kubernetes.io/managed-by", "x.semaphore.uw.io/*"} {
		p := &problems{}
		l := LabelKeys{pattern}
		if l.complete(p, "labels"); len(*p) == 0 {
			t.Errorf("%q is allowed", pattern)
		}
	}
	var absent LabelKeys
	empty := LabelKeys{}
	p := &problems{}
	absent.complete(p, "labels")
	empty.complete(p, "labels")
	if len(*p) > 0 || !absent.Takes("app.kubernetes.io/name") || empty.Takes("app.kubernetes.io/name") {
		t.Errorf("an absent list is %v and an empty one %v: %v", absent, empty, *p)
	}
}

package mirror

import (
	"fmt"
	"slices"
	"testing"
)

// Endpoints say what the slices of a Service say, and are touched with them and with nothing else.
func TestEndpoints(t *testing.T) {
	p := blank(t, "services: {endpoints: true}\nslices: {maxEndpoints: 2}")
	p.heard("c2", "c3")
	const echo, shared = "c2-shop-73736d-echo", "gl-shop-73736d-web"
	p.apply("c2", svc("shop", "echo", mirrored()),
		slc("shop", "echo-1", endpoints("echo", "10.2.0.3 10.2.0.1? 10.2.0.2 10.2.0.4~")),
		svc("shop", "web", global()), slc("shop", "web-1", endpoints("web", "10.2.1.1")))
	p.apply("c3", svc("shop", "web", global()), slc("shop", "web-1", endpoints("web", "10.4.1.1")))
	is := func(name, want string) {
		t.Helper()
		e, wanted := p.Endpoints(name)
		if !wanted || e == nil {
			t.Fatalf("%s: %v, wanted %v", name, e, wanted)
		}
		var got []string
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				got = append(got, a.IP)
			}
			for _, a := range s.NotReadyAddresses {
				got = append(got, a.IP+"?")
			}
		}
		if fmt.Sprint(got) != want || e.Name != name || e.Labels["endpointslice.kubernetes.io/skip-mirror"] != "true" {
			t.Errorf("%s: %v %v, want %s", name, got, e.Labels, want)
		}
	}
	is(echo, "[10.2.0.2 10.2.0.3 10.2.0.1?]")
	is(shared, "[10.2.1.1 10.4.1.1]")
	if e, _ := p.Endpoints(shared); e.Labels["semaphore.uw.io/source-cluster"] != "" || e.Labels["global-svc"] != "true" {
		t.Errorf("of several clusters: %v", e.Labels)
	}
	touches := p.apply("c2", slc("shop", "echo-1", endpoints("echo", "10.2.0.3")))
	if got := names(touches.Endpoints); !slices.Equal(got, []string{echo}) {
		t.Errorf("touched %v", got)
	}
	is(echo, "[10.2.0.3]")
	p.apply("c2", slc("shop", "echo-1", nil))
	is(echo, "[]")

	// Those of a Service that does not exist are not written: they would be somebody else's endpoints.
	p.ObserveService(echo, nil, p.now)
	if e, wanted := p.Endpoints(echo); e != nil || !wanted {
		t.Errorf("without a Service: %v, wanted %v", e, wanted)
	}
	p.apply("c2", svc("shop", "echo", nil))
	if e, wanted := p.Endpoints(echo); e != nil || wanted {
		t.Errorf("of nobody: %v, wanted %v", e, wanted)
	}
	if touches := blank(t).apply("c2", svc("shop", "echo", mirrored())); len(touches.Endpoints) > 0 {
		t.Errorf("not asked for, and touched: %v", touches.Endpoints)
	}
}

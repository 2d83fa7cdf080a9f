package trace

import (
	"regexp"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbHistory: the output for what the parts remember of an object.
func TestVerbHistory(t *testing.T) {
	exporter, broker := debug.NewRecorder("exporter", "c2", ""), debug.NewRecorder("broker", "c1", "")
	sockets := []string{"--socket", ctltest.Serve(t, exporter, ctltest.Well), "--socket", ctltest.Serve(t, broker,
		ctltest.Well)}
	seen := time.Now().Add(-time.Second)
	for _, r := range []struct {
		of *debug.Recorder
		debug.Event
	}{
		{exporter, debug.Event{Object: "service shop/echo", Action: "export", Detail: "to c1"}},
		{broker, debug.Event{Object: "service shop/echo", Action: "receive"}},
		{broker, debug.Event{Object: "service c2-shop-73736d-echo", Action: "create", Detail: "written to the apiserver"}},
		{broker, debug.Event{Object: "service shop/other", Action: "receive"}},
	} {
		r.Source, r.ObservedAt = "c2", seen
		r.of.Record(r.Event)
	}
	s := ctltest.NewSession(t)
	s.Call("trace --history service/shop/echo", sockets...)
	s.Call("trace --history service/shop/gone", sockets...)
	s.Call("trace --history pod/shop/echo-0", sockets...)
	s.Golden("history", regexp.MustCompile(`^TIME  `)) // an event is one line
}

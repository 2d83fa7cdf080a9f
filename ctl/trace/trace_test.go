package trace

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestParseObject(t *testing.T) {
	for text, want := range map[string]object{
		"service/shop/echo":      {kind: "service", namespace: "shop", name: "echo"},
		"service shop/echo":      {kind: "service", namespace: "shop", name: "echo"},
		"node/n1":                {kind: "node", name: "n1"},
		"setmember/shop/web-0":   {kind: "setmember", namespace: "shop", name: "web-0"},
		"endpointslice/shop/e-x": {kind: "endpointslice", namespace: "shop", name: "e-x"},
	} {
		if got, err := parseObject(text); err != nil || got.String() != want.String() {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "echo", "pod/shop/x", "service/echo", "node/a/b", "service//x"} {
		if got, err := parseObject(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestConcerns: a trace follows an object under its own name, and the objects that are derived from it.
func TestConcerns(t *testing.T) {
	for _, c := range []struct {
		object object
		source string
		yes    []string
		no     []string
	}{
		{object{kind: "service", namespace: "shop", name: "echo"}, "c2",
			[]string{"service shop/echo", "service shop/echo for c1", "service c2-shop-73736d-echo",
				"endpointslice shop/echo-x7k2",
				"endpointslice c2-shop-73736d-echo-c2-0", "service gl-shop-73736d-echo",
				"service mcs-shop-73736d-echo", "serviceimport shop/echo", "importslice shop/mcs-shop-73736d-echo-c2-1",
				"ownslice shop/gl-shop-73736d-echo-c2-1"},
			[]string{"ownslice shop/gl-shop-73736d-echo2-c2-1",
				"service shop/echo2", "service c2-shop-73736d-echo2", "service pay/echo", "endpointslice pay/echo-x",
				"node n1", "serviceimport pay/echo", "importslice shop/mcs-shop-73736d-echo2-c2-1"}},
		{object{kind: "service", namespace: "shop", name: strings.Repeat("a", 60)}, "c2",
			[]string{"service " + naming.Import("shop", strings.Repeat("a", 60)),
				"endpointslice " + naming.Import("shop", strings.Repeat("a", 60)) + "-c2-1"}, nil},
		{object{kind: "endpointslice", namespace: "shop", name: "gl-shop-73736d-echo-c2-1"}, "c2",
			[]string{"ownslice shop/gl-shop-73736d-echo-c2-1", "endpointslice shop/gl-shop-73736d-echo-c2-1"},
			[]string{"ownslice shop/gl-shop-73736d-echo-c2-2", "ownslice pay/gl-shop-73736d-echo-c2-1"}},
		{object{kind: "node", name: "n1"}, "c2", []string{"node n1", "peer c2/n1"}, []string{"peer c3/n1", "peer c2/n10"}},
		{object{kind: "setmember", namespace: "shop", name: "web-0", sets: []string{"c2-shop-web"}}, "c2",
			[]string{"setmember shop/web-0", "globalnetworkset c2-shop-web", "globalnetworkset c2-shop-web.part-2",
				"networkset shop/c2-shop-web"}, []string{"setmember shop/web-1", "globalnetworkset c2-shop-db"}},
	} {
		for _, name := range c.yes {
			if !c.object.concerns(&semaphorev1.Event{Source: c.source, Object: name}) {
				t.Errorf("%s: %q does not concern it", c.object, name)
			}
		}
		for _, name := range c.no {
			if c.object.concerns(&semaphorev1.Event{Source: c.source, Object: name}) {
				t.Errorf("%s: %q concerns it", c.object, name)
			}
		}
	}
}

func TestWatchFilter(t *testing.T) {
	e := &semaphorev1.Event{Source: "c2", Object: "service shop/echo for c1"}
	for _, f := range []watchFilter{{}, {source: "c2"}, {kind: "service"}, {namespace: "shop"}, {name: "echo"},
		{"c2", "service", "shop", "echo"}} {
		if !f.matches(e) {
			t.Errorf("%+v does not match", f)
		}
	}
	for _, f := range []watchFilter{{source: "c1"}, {kind: "node"}, {namespace: "pay"}, {name: "ech"}} {
		if f.matches(e) {
			t.Errorf("%+v matches", f)
		}
	}
}

// TestTrace asks three parts of two clusters for the history of a Service.
func TestTrace(t *testing.T) {
	recorders := []*debug.Recorder{debug.NewRecorder("exporter", "c2", ""), debug.NewRecorder("broker", "c1", ""),
		debug.NewRecorder("agent", "c1", "node-1")}
	var sockets []string
	for _, r := range recorders {
		sockets = append(sockets, "--socket", ctltest.Serve(t, r, ctltest.Well))
	}
	seen := time.Now().Add(-time.Second)
	record := func(i int, object, action, detail string) {
		recorders[i].Record(debug.Event{Source: "c2", Object: object, Action: action, Detail: detail, ObservedAt: seen})
	}
	record(0, "service shop/other", "export", "to c1")
	record(0, "service shop/echo", "export", "to c1")
	record(1, "service shop/echo", "receive", "")
	record(1, "service c2-shop-73736d-echo", "create", "written to the apiserver")
	record(1, "service c2-shop-73736d-echo", "update", "written to the apiserver")

	trace := func(verb ...string) (string, int) {
		t.Helper()
		out, code, err := ctltest.Run(t, append(verb, sockets...)...)
		if code == 1 {
			t.Log(err)
		}
		return out, code
	}
	out, code := trace("trace", "service/shop/echo")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 7 || !strings.Contains(lines[4], "exporter") || !strings.Contains(lines[5],
		"receive") ||
		!strings.Contains(lines[6], "update") {
		t.Errorf("code %d:\n%s", code, out)
	}
	if out, code := trace("trace", "service/shop/gone"); code != 1 {
		t.Errorf("an object of nobody: code %d:\n%s", code, out)
	}
	silent := filepath.Join(t.TempDir(), "silent.sock")
	must(t, os.WriteFile(silent, nil, 0o600))
	for _, args := range []string{"trace service/shop/gone", "trace --history service/shop/gone",
		"trace --history --name gone"} {
		_, code, err := ctltest.Run(t, append(append(strings.Fields(args), sockets...), "--socket", silent)...)
		if code != 1 || !strings.Contains(err.Error(), "not known: ") || strings.Contains(err.Error(), "no part") {
			t.Errorf("%s: a part does not answer: code %d, %v", args, code, err)
		}
	}
	record(1, "service shop/echo", "refuse", "InvalidPort: \x1b[31m")
	if out, code := trace("trace", "service/shop/echo", "-o", "json"); code != 2 ||
		strings.Contains(out, "\x1b") {
		t.Errorf("refused: code %d:\n%s", code, out)
	}
}

// TestLocateWithoutALeader: a part that does not lead or work does not know where an object is, and is named. One that
// keeps no objects is not.
func TestLocateWithoutALeader(t *testing.T) {
	broker := ctltest.ServeAnswers(t, debug.NewRecorder("broker", "c1", ""), ctltest.Well, debug.Answers{
		Locate: func(context.Context, *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
			return nil, grpcstatus.Error(codes.FailedPrecondition, "this broker leads, and does not work yet")
		}})
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "node-1"), ctltest.Well)
	target := fleet.Target{Access: &fleet.Access{}, Sockets: []string{broker, agent}}
	parts := testkit.Value(target.Dial(t.Context()))(t)
	places, err := locate(t.Context(), parts, object{kind: "service", namespace: "shop", name: "echo"})
	if want := broker + ": this broker leads, and does not work yet"; len(places) > 0 || err == nil ||
		err.Error() != want {
		t.Errorf("%v, %v, not %s", places, err, want)
	}
	for _, p := range parts {
		must(t, p.Close())
	}
}

// TestHops: hops are in the order of the path, with the last event of each part.
func TestHops(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	event := func(after time.Duration, part, cluster, node, object, action string) *semaphorev1.Event {
		return &semaphorev1.Event{Time: timestamppb.New(at.Add(after)), ObservedAt: timestamppb.New(at), Source: "c2",
			Part:    part,
			Cluster: cluster, Node: node, Object: object, Action: action}
	}
	all := hops([]*semaphorev1.Event{
		event(9*time.Millisecond, "agent", "c1", "n1", "peer c2/m1", "receive"),
		event(time.Millisecond, "exporter", "c2", "", "node m1", "export"),
		event(4*time.Millisecond, "broker", "c3", "", "node m1", "receive"),
		event(3*time.Millisecond, "broker", "c1", "", "node m1", "receive"),
		event(5*time.Millisecond, "broker", "c1", "", "node m1", "receive"),
	})
	var out strings.Builder
	places := []location{
		{Hop: "export", Part: "exporter", At: "c2", Object: "node m1 for c1", State: "done", Detail: "to c1, revision 4",
			ObservedAt: at},
		{Hop: "agents", Part: "broker", At: "c1", Cluster: "c2", Object: "peer c2/m1", State: "waiting",
			Detail: "1 of 2 attached agents have programmed it, not n2", ObservedAt: at, ConfirmedAt: at},
	}
	must(t, printTrace(&out, object{kind: "node", name: "m1"}, places, all, at.Add(time.Minute), "table"))
	ctltest.Golden(t, "trace", out.String())
}

// TestFollowOneChange: whatever part sends first, the lines of a change are in the order of its path, each with the
// time since the one before.
func TestFollowOneChange(t *testing.T) {
	at := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	message := func(after time.Duration, seen time.Time, part, cluster, action string) *semaphorev1.WatchResponse {
		return &semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Event{Event: &semaphorev1.Event{
			Time: timestamppb.New(seen.Add(after)), ObservedAt: timestamppb.New(seen), Source: "c2", Part: part,
			Cluster: cluster, Object: "service shop/echo", Action: action}}}
	}
	var out strings.Builder
	following := new(changes)
	o := newOrdered(func(m *semaphorev1.WatchResponse) error { return following.print(&out, m) })
	for _, m := range []*semaphorev1.WatchResponse{
		message(9*time.Millisecond, at, "broker", "c1", "update"),
		message(2*time.Millisecond, at.Add(time.Second), "exporter", "c2", "export"),
		message(4*time.Millisecond, at, "broker", "c1", "receive"),
		message(time.Millisecond, at, "exporter", "c2", "export"),
	} {
		must(t, o.take(m))
	}
	must(t, o.flush())
	var got []string
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		switch {
		case fields[0] == "change":
			got = append(got, "change")
		default:
			got = append(got, fields[0]+" "+fields[2]+" "+fields[4])
		}
	}
	if want := "change, +1ms exporter/c2 export, +3ms broker/c1 receive, +5ms broker/c1 update, " +
		"change, +2ms exporter/c2 export"; strings.Join(got, ", ") != want {
		t.Errorf("%s; want %s\n%s", strings.Join(got, ", "), want, &out)
	}
}

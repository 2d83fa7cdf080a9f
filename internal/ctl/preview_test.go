package ctl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// previewer is a part that answers previews, and records the requests.
type previewer struct {
	socket string
	asked  []*semaphorev1.PreviewRequest
	fails  error
}

func newPreviewer(t *testing.T, part, cluster string, answer func(*semaphorev1.PreviewRequest,
	*debug.Changes)) *previewer {
	t.Helper()
	p := &previewer{socket: filepath.Join(t.TempDir(), part+".sock")}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- debug.ServeSocket(ctx, p.socket, debug.NewServer(debug.NewRecorder(part, cluster, ""), well, debug.Answers{
			Preview: func(_ context.Context, req *semaphorev1.PreviewRequest) (*semaphorev1.PreviewResponse, error) {
				p.asked = append(p.asked, req)
				if p.fails != nil {
					return nil, p.fails
				}
				out := &debug.Changes{}
				answer(req, out)
				return &out.PreviewResponse, nil
			},
		}))
	}()
	t.Cleanup(func() { cancel(); must(t, <-done) })
	listens(t, p.socket)
	return p
}

// TestPreview: each part is asked about the objects that would be applied in its cluster, and a broker also with
// everything that the exporter of the other cluster would export to it. The exit code reports whether something is
// wrong.
func TestPreview(t *testing.T) {
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, []byte(`# what links two clusters
apiVersion: semaphore.uw.io/v1alpha1
kind: RemoteCluster
metadata: {name: c1}
spec: {podSubnets: [10.1.0.0/16]}
---
apiVersion: semaphore.uw.io/v1alpha1
kind: RemoteCluster
metadata: {name: c2}
spec: {podSubnets: [10.2.0.0/16]}
---
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Service, metadata: {name: echo, namespace: shop}}
`), 0o600))
	var clash bool
	exports, more := &semaphorev1.PreviewExports{Objects: []*semaphorev1.Object{{Key: &semaphorev1.ObjectKey{
		Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: "web"}}}}, uint32(0)
	nothing := func(*semaphorev1.PreviewRequest, *debug.Changes) {}
	e1 := newPreviewer(t, "exporter", "c1", func(_ *semaphorev1.PreviewRequest, out *debug.Changes) {
		out.Add(debug.Export, "service shop/echo", "c2", "", "")
	})
	b1 := newPreviewer(t, "broker", "c1", func(_ *semaphorev1.PreviewRequest, out *debug.Changes) {
		out.Add(debug.Accept, "RemoteCluster c2", "c2", "", "would be in effect\x1b[2J")
		if clash {
			out.Add(debug.Refuse, "endpointslice shop/echo-2", "c2", "ip-outside-pod-subnets",
				"endpoints[0].addresses[0]: 10.9.1.5 is outside of the pod subnets of c2, 10.2.0.0/16: correct podSubnets")
			out.Add(debug.Clash, "service semaphore/c2-shop-echo", "", "NameTaken", "it exists")
			out.Add(debug.Refuse, "", "", "export-to", "service shop/web: names c9")
		}
	})
	e2 := newPreviewer(t, "exporter", "c2", func(req *semaphorev1.PreviewRequest, out *debug.Changes) {
		if req.GetTo() == "c1" {
			out.Exports, out.MoreExports = exports, more
		}
	})
	b2 := newPreviewer(t, "broker", "c2", nothing)
	var sockets []string
	for _, p := range []*previewer{e1, b1, e2, b2} {
		sockets = append(sockets, "--socket", p.socket)
	}
	out, code, err := run(t, append([]string{"preview", "-f", file}, sockets...)...)
	if code != 0 {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
	objects := func(req *semaphorev1.PreviewRequest) (names string) {
		for _, o := range req.GetObjects() {
			for _, name := range []string{`"c1"`, `"c2"`, `"echo"`} {
				if strings.Contains(o, name) {
					names += name
				}
			}
		}
		return names
	}
	for name, test := range map[string]struct {
		asked *semaphorev1.PreviewRequest
		want  string
	}{
		"exporter of c1": {e1.asked[0], `"c2""echo"`}, "exporter of c2": {e2.asked[0], `"c1"`},
		"broker of c1": {b1.asked[0], `"c2"`}, "broker of c2": {b2.asked[0], `"c1"`},
	} {
		if got := objects(test.asked); got != test.want {
			t.Errorf("%s is asked about %s, not %s", name, got, test.want)
		}
	}
	if e := b1.asked[0].GetExports(); len(e) != 1 || e[0].GetCluster() != "c2" ||
		e[0].GetObjects()[0].GetKey().GetName() != "web" {
		t.Errorf("the broker of c1 is given %v", e)
	}
	clash = true
	out, code, _ = run(t, append([]string{"preview", "-f", file}, sockets...)...)
	if code != 2 {
		t.Errorf("a clash: code %d", code)
	}
	golden(t, "preview", out)
	if out, code, _ = run(t, append([]string{"preview", "-f", file, "-o", "json"}, sockets...)...); code != 2 ||
		!strings.Contains(out, `"code": "NameTaken"`) {
		t.Errorf("a clash: code %d\n%s", code, out)
	}

	// The request has everything that the other cluster would export, even if that is nothing, and never a part of it.
	last := func(p *previewer) *semaphorev1.PreviewRequest { return p.asked[len(p.asked)-1] }
	for what, test := range map[string]struct {
		exports *semaphorev1.PreviewExports
		more    uint32
		handed  int // -1 for no list
		said    string
	}{
		"nothing":                    {&semaphorev1.PreviewExports{}, 0, 0, "c1 broker"},
		"it publishes nothing there": {nil, 0, -1, "c1 broker"},
		"too much":                   {nil, 7, -1, "note      exports of c2: 7 objects are too many"},
		"a part, from an older exporter": {&semaphorev1.PreviewExports{Objects: []*semaphorev1.Object{{}}}, 7, -1,
			"note      exports of c2: 8 objects are too many"},
	} {
		exports, more = test.exports, test.more
		out, _, _ := run(t, append([]string{"preview", "-f", file}, sockets...)...)
		handed := -1
		for _, e := range last(b1).GetExports() {
			handed = len(e.GetObjects())
		}
		if handed != test.handed || !strings.Contains(out, test.said) {
			t.Errorf("%s: %d objects are handed over, not %d; it says\n%s", what, handed, test.handed, out)
		}
	}

	// A part that cannot be asked is listed once, also beside refused objects.
	e2.fails = grpcstatus.Error(codes.FailedPrecondition, "not yet")
	if out, code, _ = run(t, append([]string{"preview", "-f", file}, sockets...)...); code != 2 ||
		strings.Count(out, "not yet") != 1 || !strings.Contains(out, "not asked: ") || !strings.Contains(out, "clash") {
		t.Errorf("a part fails: code %d\n%s", code, out)
	}
	clash = false
	if out, code, _ = run(t, append([]string{"preview", "-f", file}, sockets...)...); code != 1 ||
		strings.Count(out, "not yet") != 1 {
		t.Errorf("a part fails, and nothing is refused: code %d\n%s", code, out)
	}

	// If the first part does not answer, Services do not count for another cluster.
	dead := filepath.Join(t.TempDir(), "dead.sock")
	must(t, os.WriteFile(dead, nil, 0o600))
	if out, code, _ = run(t, append([]string{"preview", "-f", file, "--socket", dead}, sockets...)...); code != 1 ||
		objects(last(e1)) != `"c2"` || !strings.Contains(out, "dead.sock") {
		t.Errorf("the first is not reached: code %d, the exporter of c1 is asked about %s\n%s", code, objects(last(e1)), out)
	}
	must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"), 0o600))
	if _, code, err = run(t, append([]string{"preview", "-f", file}, sockets...)...); code != 1 ||
		!strings.Contains(err.Error(), "Secret s: preview knows") {
		t.Errorf("a Secret: code %d, %v", code, err)
	}
}

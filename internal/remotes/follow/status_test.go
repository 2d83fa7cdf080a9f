package follow

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestWrittenStatusHasAnEnd: what was written of objects that are gone is forgotten, however many come and go.
func TestWrittenStatusHasAnEnd(t *testing.T) {
	w := NewStatusWriter(nil, "test", slog.New(slog.DiscardHandler))
	for i := range 2_000 {
		o := remotes.Object{Name: "c2", UID: types.UID(fmt.Sprint(i))}
		w.Keep(remotes.Objects{o.Name: o})
		w.written[o.UID] = written{}
	}
	if n := len(w.written); n > 2 {
		t.Errorf("of 2,000 objects %d are remembered", n)
	}
	w.Keep(nil)
	if n := len(w.written); n != 0 {
		t.Errorf("of no object %d are remembered", n)
	}
}

// TestOneStatusHidesNoOther: each status that is not written is a problem until it is written or its object is gone,
// whatever becomes of the others.
func TestOneStatusHidesNoOther(t *testing.T) {
	refused := map[string]bool{"c2": true, "c4": true}
	answers := kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
		code := http.StatusOK
		if refused[path.Base(path.Dir(r.URL.Path))] {
			code = http.StatusForbidden
		}
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"kind":"RemoteCluster","apiVersion":"x/v1"}`))}, nil
	})
	w := NewStatusWriter(dynamic.NewForConfigOrDie(&rest.Config{Host: "http://c1", Transport: answers}), "test",
		slog.New(slog.DiscardHandler))
	all := remotes.Objects{}
	for _, name := range []string{"c2", "c3", "c4"} {
		all[name] = remotes.Object{Name: name, UID: types.UID(name)}
	}
	report := func(want ...string) {
		t.Helper()
		for _, o := range all.ByAge() {
			w.Report(t.Context(), o, v1alpha1.RemoteClusterStatus{Problem: fmt.Sprint(len(all))})
		}
		w.Keep(all)
		if lines := w.problems(); !slices.EqualFunc(lines, want, strings.Contains) {
			t.Errorf("of %d objects: %q, want those of %v", len(all), lines, want)
		}
	}
	report("RemoteCluster c2 is", "RemoteCluster c4 is")
	delete(all, "c2")
	report("RemoteCluster c4 is")
	delete(all, "c4")
	report()
}

package follow

import (
	"fmt"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/remotes"
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

package replica

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// isStartOf reports whether a text is another one, or as much of it as fits into 253 bytes with the mark of a cut.
func isStartOf(text, of string) bool {
	start, cut := strings.CutSuffix(text, "…")
	return cut && len(text) == 253 && strings.HasPrefix(of, start) || !cut && text == of
}

// Names and values that no apiserver has, each as long as a message may be: they compress to nothing, and 10,000
// refusals are remembered.
func TestR04LongNamesTakeNoRoom(t *testing.T) {
	const long = 1 << 20
	for what, bad := range map[string]func(i int) *semaphorev1.Object{
		"names": func(i int) *semaphorev1.Object { return object(kNode, fmt.Sprint(i)+strings.Repeat("x", long), "") },
		"namespaces": func(i int) *semaphorev1.Object {
			o := object(kService, fmt.Sprint(i), "")
			o.Key.Namespace = strings.Repeat("x", long)
			return o
		},
		"values": func(i int) *semaphorev1.Object { return object(kNode, fmt.Sprint("n", i), strings.Repeat("x", long)) },
	} {
		t.Run(what, func(t *testing.T) {
			r := New("c2", "c1", "test", admission.New(&config.Remote{Name: "c2"}, nil).Check)
			s := r.Open()
			must(t, s, hello("e1", 1, 0, kNode, kService), begin(kNode, 1), end(kNode, 1, 0), begin(kService, 1),
				end(kService, 1, 0))
			before := heap()
			const n = 100
			refused := 0
			for i := range n {
				result := testkit.Value(s.Receive(now,
					changes(&semaphorev1.Change{Revision: uint64(i + 2), Change: &semaphorev1.Change_Upsert{Upsert: bad(i)}})))(t)
				refused += len(result.Refused)
				for _, f := range result.Refused {
					if size := len(f.Key.Namespace) + len(f.Key.Name) + len(f.Reason); size > 8<<10 {
						t.Fatalf("a refusal of %d bytes", size)
					}
					if sent := bad(i).GetKey(); !isStartOf(f.Key.Name, sent.GetName()) || !isStartOf(f.Key.Namespace,
						sent.GetNamespace()) {
						t.Fatalf("a refusal of %q, want as much as fits into 253 bytes of what was sent", f.Key)
					}
				}
			}
			if refused < n {
				t.Errorf("%d refusals", refused)
			}
			if used := heap() - before; used > 2<<20 {
				t.Errorf("%d refusals take %d KiB", refused, used>>10)
			}
			runtime.KeepAlive(r)
		})
	}
}

// Kinds that do not exist: any number of them, others on each stream. Those of the last stream are forgotten with the
// next.
func TestR05KindsThatDoNotExistTakeNoRoom(t *testing.T) {
	r := New("c2", "c1", "test", admission.New(&config.Remote{Name: "c2"}, nil).Check)
	for stream := range 20 {
		s := r.Open()
		var kinds []semaphorev1.Kind
		for i := range 10 {
			kinds = append(kinds, semaphorev1.Kind(1000+10*stream+i))
		}
		must(t, s, hello(fmt.Sprint("e", stream), 1, 0, kinds...))
		for _, k := range kinds {
			must(t, s, begin(k, 1), changes(upsert(1, k, "x", "")), end(k, 1, 1))
		}
		must(t, s, sent(2, 2), changes(upsert(3, kinds[0], "y", "")))
		s.Close()
	}
	if len(r.kinds) > len(semaphorev1.Kinds)+10 {
		t.Errorf("%d kinds are remembered", len(r.kinds))
	}
	var kinds []semaphorev1.Kind
	for i := range 1000 {
		kinds = append(kinds, semaphorev1.Kind(1000+i))
	}
	if _, err := r.Open().Receive(now, hello("e", 1, 0, kinds...)); err == nil {
		t.Error("an exporter may have a thousand kinds")
	}
}

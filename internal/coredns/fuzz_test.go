package coredns

import (
	"strings"
	"testing"
)

// FuzzCompare: whatever a Corefile contains, the comparison with the desired blocks ends, and reports only these
// blocks. If the printed blocks precede it, nothing is reported.
func FuzzCompare(f *testing.F) {
	want := []Block{{"c2", "c2", "semaphore", "cluster.local"}, Global("semaphore", "cluster.local")}
	var printed strings.Builder
	if err := Print(&printed, want, false); err != nil {
		f.Fatal(err)
	}
	f.Add(kubeadm)
	f.Add(kubeadm + printed.String())
	f.Add("cluster.c2 { import x")
	f.Add("dns://cluster.c2:53, cluster.global { rewrite name regex a b {\n} }")
	f.Add("\"a b\" {\n errors # }\n}\n(snippet) {\n}\n")
	f.Fuzz(func(t *testing.T, corefile string) {
		for _, fault := range Compare(corefile, want) {
			if fault.Block != want[0] && fault.Block != want[1] {
				t.Fatalf("a fault of %+v, which nobody wants", fault.Block)
			}
		}
		if faults := Compare(printed.String()+"\n"+corefile, want); len(faults) > 0 {
			t.Fatalf("the blocks are there, and of them it is said: %+v", faults)
		}
	})
}

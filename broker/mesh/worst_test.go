package mesh

import (
	"fmt"
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// BenchmarkWorstNode is the change of a node that costs most by the limits: the first of 5,000 nodes gives up the
// subnet in which the 20,000 pod CIDRs of the others are. To claim it again takes nothing from them.
func BenchmarkWorstNode(b *testing.B) {
	state := func(i int, cidrs ...string) *semaphorev1.Node {
		return &semaphorev1.Node{PodCidrs: cidrs, Wireguard: &semaphorev1.WireGuardEndpoint{
			PublicKey: fmt.Appendf(nil, "%032d", i), Address: fmt.Sprintf("172.18.%d.%d:51820", i>>8, i&255),
		}}
	}
	b.ReportAllocs()
	defer figure.Of(b, "B/op").AtMost(22_000_000)
	defer figure.Of(b, "allocs/op").AtMost(130_000)
	for b.Loop() {
		b.StopTimer()
		p := New(remotes())
		p.SetNode("c2", "node-00000", state(0, "10.2.0.0/16"))
		p.Update()
		for i := range 5000 {
			var cidrs []string
			for n := range 4 {
				at := 4*i + n
				cidrs = append(cidrs, fmt.Sprintf("10.2.%d.%d/32", at>>8, at&255))
			}
			p.SetNode("c2", fmt.Sprintf("node-%05d", i+1), state(i+1, cidrs...))
		}
		p.Update()
		p.TakeChanges("c2")
		b.StartTimer()
		p.SetNode("c2", "node-00000", state(0, "10.3.0.0/32"))
		p.Update()
		if got := len(p.TakeChanges("c2").Peers); got != 5001 {
			b.Fatalf("%d peers changed", got)
		}
	}
}

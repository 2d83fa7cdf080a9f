package policy

import (
	"slices"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// both are the plans of sets as GlobalNetworkSets and as NetworkSets.
type both struct{ global, namespaced *Plan }

func newBoth() both {
	remotes := []config.Remote{{Name: "c2"}}
	b := both{New(remotes, Options{LabelDomains: []string{"d"}, MaxSetSize: 100}),
		New(remotes, Options{LabelDomains: []string{"d"}, MaxSetSize: 100, Namespaced: true})}
	Join(b.global, b.namespaced)
	b.namespaced.Namespace("shop", true)
	return b
}

func (b both) apply(line string) {
	b.global.Apply("c2", pods(line))
	b.namespaced.Apply("c2", pods(line))
}

// write carries out what is wanted under a name, and returns its addresses and which names of the other kind may have
// waited for that.
func (b both) write(p *Plan, name string, now time.Time) (nets []string, woken []string) {
	d := p.Reserve(name, now)
	if d.Set != nil {
		nets = d.Set.Spec.Nets
	}
	return nets, b.observed(p, name, d.Set)
}

func (b both) observed(p *Plan, name string, set *calicov3.GlobalNetworkSet) (woken []string) {
	p.Observed(name, set)
	other := b.global
	if p == b.global {
		other = b.namespaced
	}
	return other.Moved(p)
}

// An address that passes to another pod joins no object of the new set, of either kind, while an object of the old one
// has it, of either kind.
func TestOneOrderOverAllKinds(t *testing.T) {
	b, now := newBoth(), time.Unix(0, 0)
	b.apply("shop/a 1 old 10.2.0.1")
	b.apply("shop/c 3 new 10.2.0.3")
	for _, name := range []string{"old", "new"} {
		b.write(b.global, "c2-shop-"+name, now)
		b.write(b.namespaced, "shop/c2-shop-"+name, now)
	}
	b.apply("shop/a")
	b.apply("shop/b 2 new 10.2.0.1")

	// The GlobalNetworkSet has lost it, the NetworkSet has it still.
	if nets, _ := b.write(b.global, "c2-shop-old", now); len(nets) != 0 {
		t.Fatalf("the old set has %v", nets)
	}
	if nets, _ := b.write(b.global, "c2-shop-new", now); !slices.Equal(nets, []string{"10.2.0.3/32"}) {
		t.Errorf("the old NetworkSet has the address, and the new GlobalNetworkSet has %v", nets)
	}
	if nets, _ := b.write(b.namespaced, "shop/c2-shop-new", now); !slices.Equal(nets, []string{"10.2.0.3/32"}) {
		t.Errorf("the old NetworkSet has the address, and the new one has %v", nets)
	}
	nets, woken := b.write(b.namespaced, "shop/c2-shop-old", now)
	if len(nets) != 0 || !slices.Contains(woken, "c2-shop-new") {
		t.Errorf("the old NetworkSet has %v; woken are %v", nets, woken)
	}
	for p, name := range map[*Plan]string{b.global: "c2-shop-new", b.namespaced: "shop/c2-shop-new"} {
		if nets, _ := b.write(p, name, now); !slices.Equal(nets, []string{"10.2.0.1/32", "10.2.0.3/32"}) {
			t.Errorf("nobody else has the address any more, and %s has %v", name, nets)
		}
	}
}

// The address of a pod that moves to another set stays in the old one until the new one has it as objects of all kinds.
func TestAMoveOverAllKinds(t *testing.T) {
	b, now := newBoth(), time.Unix(0, 0)
	b.apply("shop/a 1 old 10.2.0.1")
	b.apply("shop/x 9 old 10.2.0.9")
	b.write(b.global, "c2-shop-old", now)
	b.write(b.namespaced, "shop/c2-shop-old", now)
	b.apply("shop/a 1 new 10.2.0.1")
	b.write(b.global, "c2-shop-new", now)
	if nets, _ := b.write(b.global, "c2-shop-old", now); len(nets) != 2 {
		t.Errorf("the new NetworkSet is not there, and the old GlobalNetworkSet has %v", nets)
	}
	if _, woken := b.write(b.namespaced, "shop/c2-shop-new", now); !slices.Contains(woken, "c2-shop-old") {
		t.Errorf("woken are %v", woken)
	}
	if nets, _ := b.write(b.global, "c2-shop-old", now); !slices.Equal(nets, []string{"10.2.0.9/32"}) {
		t.Errorf("the new set is there, and the old one has %v", nets)
	}
	// One that cannot be written keeps another open for two seconds at most.
	b.apply("shop/x 9 third 10.2.0.9")
	b.write(b.global, "c2-shop-third", now)
	b.write(b.global, "c2-shop-old", now)
	if nets, _ := b.write(b.global, "c2-shop-old", now.Add(holdRemoval)); len(nets) != 0 {
		t.Errorf("after %s the old set has %v", holdRemoval, nets)
	}
}

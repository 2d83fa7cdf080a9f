package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// web are n pods of the set web, from the first on.
func web(first, n int) (lines []string) {
	for i := first; i < first+n; i++ {
		lines = append(lines, fmt.Sprintf("shop/web-%d u%d web 10.2.0.%d", i, i, i))
	}
	return lines
}

func TestASetInParts(t *testing.T) {
	p := planOf(3)
	k := newCluster(t, p)
	step := func(touched string, want string, lines ...string) {
		t.Helper()
		names := touchedNames(p.Apply("c2", pods(lines...)))
		if got := strings.Join(names, " "); got != touched {
			t.Errorf("%v touches %s, want %s", lines, got, touched)
		}
		k.settle(names...)
		if got := k.show(); got != want {
			t.Errorf("%v\n got %s\nwant %s", lines, got, want)
		}
		if wanted := p.Names(); len(wanted) != len(k.sets) {
			t.Errorf("%v are wanted", wanted)
		}
	}
	step("c2-shop-web c2-shop-web.part-2 c2-shop-web.part-3",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.5/32,10.2.0.6/32 c2-shop-web.part-3=10.2.0.7/32 "+
			"c2-shop-web=10.2.0.1/32,10.2.0.2/32,10.2.0.3/32",
		web(1, 7)...)
	for name, s := range k.sets {
		if !maps.Equal(s.Labels, k.sets["c2-shop-web"].Labels) ||
			!maps.Equal(s.Annotations, k.sets["c2-shop-web"].Annotations) {
			t.Errorf("%s has labels of its own: %v %v", name, s.Labels, s.Annotations)
		}
	}
	// One leaves: nobody moves.
	step("c2-shop-web.part-2",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.6/32 c2-shop-web.part-3=10.2.0.7/32 "+
			"c2-shop-web=10.2.0.1/32,10.2.0.2/32,10.2.0.3/32",
		"shop/web-5")
	// New ones go where there is room, from the front.
	step("c2-shop-web.part-2 c2-shop-web.part-3",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.6/32,10.2.0.8/32 c2-shop-web.part-3=10.2.0.7/32,10.2.0.9/32 "+
			"c2-shop-web=10.2.0.1/32,10.2.0.2/32,10.2.0.3/32",
		web(8, 2)...)
	// A part that is empty goes, also the first.
	step("c2-shop-web c2-shop-web.part-3",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.6/32,10.2.0.8/32",
		"shop/web-1", "shop/web-2", "shop/web-3", "shop/web-7", "shop/web-9")
	step("c2-shop-web",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.6/32,10.2.0.8/32 c2-shop-web=10.2.0.10/32",
		web(10, 1)...)
	// An IP that another pod of the set has now stays where it is.
	step("c2-shop-web.part-2",
		"c2-shop-web.part-2=10.2.0.4/32,10.2.0.6/32,10.2.0.8/32 c2-shop-web=10.2.0.10/32",
		"shop/web-4", "shop/other u99 web 10.2.0.4")
	step("c2-shop-web c2-shop-web.part-2", "", "shop/other", "shop/web-6", "shop/web-8", "shop/web-10")
}

// A broker that restarts finds every IP where it is, whether it receives first from the remote or from the cluster.
func TestPartsAfterARestart(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		before := planOf(3)
		k := newCluster(t, before)
		lines := web(1, 12)
		k.settle(touchedNames(before.Apply("c2", pods(lines...)))...)
		k.settle(touchedNames(before.Apply("c2", pods("shop/web-1", "shop/web-2", "shop/web-5", "shop/web-7", "shop/web-8",
			"shop/web-9")))...)
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return slices.Contains([]string{"1", "2", "5", "7", "8", "9"},
				strings.TrimPrefix(strings.Fields(line)[0], "shop/web-"))
		})
		written := k.show()
		// Two pods are new since then.
		if seed%2 == 1 {
			lines = append(lines, web(13, 2)...)
		}
		rng.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })

		p := planOf(3)
		k.p = p
		var names []string
		observe := func() {
			for _, name := range slices.Sorted(maps.Keys(k.sets)) {
				names = append(names, p.Observed(name, k.sets[name])...)
			}
		}
		if rng.IntN(2) == 0 {
			observe()
			names = append(names, touchedNames(p.Apply("c2", pods(lines...)))...)
		} else {
			names = append(names, touchedNames(p.Apply("c2", pods(lines...)))...)
			observe()
		}
		had := maps.Clone(k.sets)
		k.settle(append(names, p.Names()...)...)
		if seed%2 == 0 && k.show() != written {
			t.Fatalf("seed %d: %s\nwas %s", seed, k.show(), written)
		}
		for name, s := range k.sets {
			if len(s.Spec.Nets) > 3 {
				t.Fatalf("seed %d: %s has %v", seed, name, s.Spec.Nets)
			}
		}
		for name, s := range had {
			for _, net := range s.Spec.Nets {
				if k.sets[name] == nil || !slices.Contains(k.sets[name].Spec.Nets, net) {
					t.Fatalf("seed %d: %s left %s", seed, net, name)
				}
			}
		}
	}
}

// Less is allowed than before: what is there stays, and what is new goes elsewhere. After a restart the loser of a name
// is heard of first, and has the name until the winner is: its parts are then those that the cluster has under the name
// that it had, whatever parts it was given meanwhile.
func TestPartsOfASetWhoseNamePasses(t *testing.T) {
	const loser, winner = "a-b/web-%d u%d c 10.2.0.%d", "a/db u99 b-c 10.2.0.99"
	lines := []string{winner}
	for i := range 5 {
		lines = append(lines, fmt.Sprintf(loser, i, i, i))
	}
	before := planOf(2)
	k := newCluster(t, before)
	k.settle(touchedNames(before.Apply("c2", pods(lines...)))...)
	written := k.show()
	if !strings.Contains(written, "c2-a-b-c=10.2.0.99/32") || !strings.Contains(written, ".part-3=") {
		t.Fatal(written)
	}

	slices.Reverse(lines) // so that addresses are given parts in another order, and the winner comes last
	k.p = planOf(2)
	for _, name := range slices.Sorted(maps.Keys(k.sets)) {
		k.p.Observed(name, k.sets[name])
	}
	names := touchedNames(k.p.Apply("c2", pods(lines...)))
	for _, name := range append(names, k.p.Names()...) {
		k.reconcile(name)
		if got := k.show(); got != written {
			t.Fatalf("%s is written:\n got %s\nwant %s", name, got, written)
		}
	}
}

func TestPartsThatAreTooLarge(t *testing.T) {
	before := planOf(10)
	k := newCluster(t, before)
	k.settle(touchedNames(before.Apply("c2", pods(web(1, 5)...)))...)
	p := planOf(2)
	k.p = p
	names := touchedNames(p.Apply("c2", pods(web(1, 6)...)))
	for name, s := range maps.Clone(k.sets) {
		names = append(names, p.Observed(name, s)...)
	}
	k.settle(names...)
	if got, want := k.show(), "c2-shop-web.part-3=10.2.0.6/32 "+
		"c2-shop-web=10.2.0.1/32,10.2.0.2/32,10.2.0.3/32,10.2.0.4/32,10.2.0.5/32"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A set whose name passes to another keeps its parts, and its IPs are under the new names first.
func TestNamesOfParts(t *testing.T) {
	p := planOf(1)
	k := newCluster(t, p)
	k.settle(touchedNames(p.Apply("c2", pods("a-b/q u2 c 10.2.0.2", "a-b/r u3 c 10.2.0.3")))...)
	if got := k.show(); got != "c2-a-b-c.part-2=10.2.0.3/32 c2-a-b-c=10.2.0.2/32" {
		t.Fatal(got)
	}
	k.settle(touchedNames(p.Apply("c2", pods("a/p u1 b-c 10.2.0.1")))...)
	suffixed := p.fallbackName(setRef{"c2", "a-b", "c"})
	if got := k.show(); got != suffixed+".part-2=10.2.0.3/32 "+suffixed+"=10.2.0.2/32 c2-a-b-c=10.2.0.1/32" {
		t.Errorf("%s", got)
	}
	k.settle(touchedNames(p.Apply("c2", pods("a/p")))...)
	if got := k.show(); got != "c2-a-b-c.part-2=10.2.0.3/32 c2-a-b-c=10.2.0.2/32" {
		t.Errorf("%s", got)
	}
}

func TestNamespacedSets(t *testing.T) {
	p := New([]config.Remote{{Name: "c2"}}, Options{LabelDomains: []string{"semaphore.uw.systems"}, MaxSetSize: 1,
		Namespaced: true})
	k := newCluster(t, p)
	names := touchedNames(p.Apply("c2", pods("shop/p u1 web 10.2.0.1", "shop/q u2 web 10.2.0.2", "a/p u3 b-c 10.2.0.3",
		"a-b/p u4 c 10.2.0.4")))
	k.settle(names...)
	if got := k.show(); got != "" || len(p.Names()) != 0 {
		t.Errorf("no namespace is there: %s, %v wanted", got, p.Names())
	}
	k.settle(p.Namespace("shop", true)...)
	if got := k.show(); got != "shop/c2-shop-web.part-2=10.2.0.2/32 shop/c2-shop-web=10.2.0.1/32" {
		t.Errorf("%s", got)
	}
	if s := k.sets["shop/c2-shop-web.part-2"]; s.Namespace != "shop" || s.Name != "c2-shop-web.part-2" ||
		s.Labels["semaphore.uw.systems/name"] != "web" {
		t.Errorf("%v", s)
	}
	// Here they do not collide.
	k.settle(append(p.Namespace("a", true), p.Namespace("a-b", true)...)...)
	if k.sets["a/c2-a-b-c"] == nil || k.sets["a-b/c2-a-b-c"] == nil {
		t.Errorf("%s", k.show())
	}
	// A pod moves to a set that has no place here: nothing waits for that.
	p.Namespace("a", false)
	delete(k.sets, "a/c2-a-b-c") // as the apiserver does
	k.settle(p.Observed("a/c2-a-b-c", nil)...)
	k.settle(touchedNames(p.Apply("c2", pods("shop/p u1 web2 10.2.0.1")))...)
	if got := k.show(); got != "a-b/c2-a-b-c=10.2.0.4/32 "+
		"shop/c2-shop-web.part-2=10.2.0.2/32 shop/c2-shop-web2=10.2.0.1/32" {
		t.Errorf("%s", got)
	}
	k.settle(p.Namespace("shop", false)...)
	if got := k.show(); got != "a-b/c2-a-b-c=10.2.0.4/32" {
		t.Errorf("%s", got)
	}
}

// An address that waits to leave an object has its place there until it has left: it may come back to it.
func TestALeavingAddressKeepsItsPlace(t *testing.T) {
	p := planOf(2)
	k := newCluster(t, p)
	k.settle(touchedNames(p.Apply("c2", pods("a/p u1 s 10.2.0.1 10.2.0.2")))...)
	p.Apply("c2", pods("a/p u1 t 10.2.0.1 10.2.0.2", "a/q u2 s 10.2.0.3"))
	d := p.Reserve("c2-a-s", k.now)
	if d.Set == nil || !slices.Equal(d.Set.Spec.Nets, []string{"10.2.0.1/32", "10.2.0.2/32"}) || d.Again == 0 {
		t.Errorf("while they wait to leave: %+v", d)
	}
	k.settle("c2-a-t", "c2-a-s")
	if d := p.Reserve("c2-a-s", k.now); d.Set == nil || !slices.Equal(d.Set.Spec.Nets, []string{"10.2.0.3/32"}) {
		t.Errorf("when they have left: %+v", d)
	}
}

// An IP stays in the object that has it until another object of the set has it, too: a write that is under way can
// fail.
func TestAPartKeepsWhatIsOnItsWayIntoAnother(t *testing.T) {
	for _, rejoins := range []bool{false, true} {
		p := planOf(2)
		p.Apply("c2", pods("shop/web-1 u1 web 10.2.0.1"))
		const first, third = "c2-shop-web", "c2-shop-web.part-3"
		written := p.Reserve(first, start).Set
		if written == nil {
			t.Fatal("the first object is not wanted")
		}
		// Meanwhile a write of an earlier broker lands, which put the IP elsewhere.
		late := written.DeepCopy()
		late.Name = third
		p.Observed(third, late)
		if rejoins {
			p.Apply("c2", pods("shop/web-1"))
			p.Apply("c2", pods("shop/web-1 u1 web 10.2.0.1"))
		}
		if kept := p.Reserve(third, start).Set; kept == nil || len(kept.Spec.Nets) != 1 {
			t.Errorf("rejoins=%t: %s loses the IP, which is in no other object yet: %v", rejoins, third, kept)
		}
		// The write lands all the same: the IP stays in one of them.
		k := newCluster(t, p)
		k.sets[first], k.sets[third] = written, late
		k.settle(append(p.Observed(first, written), first, third)...)
		if got := k.show(); got != third+"=10.2.0.1/32" {
			t.Errorf("rejoins=%t: in the end there is %s", rejoins, got)
		}
	}
}

// An address that follows the object that has it takes the place of one that no object has.
func TestRoomForAddressesThatFollow(t *testing.T) {
	before := planOf(2)
	k := newCluster(t, before)
	k.settle(touchedNames(before.Apply("c2", pods(web(2, 2)...)))...)
	const written = "c2-shop-web=10.2.0.2/32,10.2.0.3/32"
	if got := k.show(); got != written {
		t.Fatal(got)
	}
	p := planOf(2)
	k.p = p
	names := touchedNames(p.Apply("c2", pods(web(1, 3)...))) // before it is known what exists
	for name, s := range maps.Clone(k.sets) {
		names = append(names, p.Observed(name, s)...)
	}
	k.settle(names...)
	if got, want := k.show(), "c2-shop-web.part-2=10.2.0.1/32 "+written; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// One that is being written there keeps its place.
	p = planOf(2)
	p.Apply("c2", pods(web(1, 1)...))
	p.Reserve("c2-shop-web", start)
	p.Apply("c2", pods(web(2, 2)...))
	late := k.sets["c2-shop-web"].DeepCopy()
	late.Spec.Nets = []string{"10.2.0.3/32"}
	p.Observed("c2-shop-web", late)
	var got []string
	for i := range 3 {
		got = append(got, p.objectNameOf(setRef{"c2", "shop", "web"}, netip.AddrFrom4([4]byte{10, 2, 0, byte(i + 1)})))
	}
	if want := []string{"c2-shop-web", "c2-shop-web.part-2", "c2-shop-web"}; !slices.Equal(got, want) {
		t.Errorf("the addresses belong into %v, not %v", got, want)
	}
}

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var start = time.Unix(1_800_000_000, 0)

func plan() *Plan { return planOf(1000) }

func planOf(size int) *Plan {
	return New([]config.Remote{{Name: "c2"}, {Name: "c3"}},
		Options{ManagedBy: "semaphore-policy", LabelDomains: []string{"semaphore.uw.systems"}, MaxSetSize: size})
}

// pods writes changes as text: "shop/web-0 u1 web 10.2.1.5 10.2.1.6", or "shop/web-0" for one that has gone.
func pods(lines ...string) []replica.Change {
	var out []replica.Change
	for _, line := range lines {
		f := strings.Fields(line)
		ns, name, _ := strings.Cut(f[0], "/")
		c := replica.Change{Key: replica.Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: ns, Name: name},
			ObservedAt: start}
		if len(f) > 1 {
			c.New = &semaphorev1.Object{Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: f[1],
				SetName: f[2], Ips: f[3:]}}}
		}
		out = append(out, c)
	}
	return out
}

// cluster is the sets that were written, and what may be asked of them.
type cluster struct {
	t    *testing.T
	p    *Plan
	sets map[string]*calicov3.GlobalNetworkSet
	now  time.Time
}

func newCluster(t *testing.T, p *Plan) *cluster {
	return &cluster{t, p, map[string]*calicov3.GlobalNetworkSet{}, start}
}

func touchedNames(all []Touched) []string {
	var out []string
	for _, t := range all {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// reconcile does for one name what the loop does, and returns the names it wakes.
func (c *cluster) reconcile(name string) []string {
	d := c.p.Reserve(name, c.now)
	if d.Set == nil {
		delete(c.sets, name)
	} else {
		c.sets[name] = d.Set
	}
	return c.p.Observed(name, c.sets[name])
}

// settle reconciles until nothing is left to do.
func (c *cluster) settle(names ...string) {
	for n := 0; len(names) > 0; n++ {
		if n > 1000 {
			c.t.Fatalf("does not settle: %v", names)
		}
		names = append(names[1:], c.reconcile(names[0])...)
	}
}

func (c *cluster) show() string {
	var out []string
	for name, s := range c.sets {
		out = append(out, name+"="+strings.Join(s.Spec.Nets, ","))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestSet(t *testing.T) {
	p := plan()
	touched := p.Apply("c2", pods("shop/web-1 u2 web 10.2.1.10 fd02::5", "shop/web-0 u1 web 10.2.1.9", "shop/idle u3 web"))
	if got := touchedNames(touched); !slices.Equal(got, []string{"c2-shop-web"}) || !touched[0].ObservedAt.Equal(start) ||
		touched[0].Cluster != "c2" {
		t.Errorf("touched %v", touched)
	}
	s := p.Reserve("c2-shop-web", start).Set
	if s == nil {
		t.Fatal("no set")
	}
	if !slices.Equal(s.Spec.Nets, []string{"10.2.1.9/32", "10.2.1.10/32", "fd02::5/128"}) {
		t.Errorf("nets %v", s.Spec.Nets)
	}
	if want := map[string]string{
		"managed-by": "semaphore-policy", "semaphore.uw.systems/name": "web", "semaphore.uw.systems/namespace": "shop",
		"semaphore.uw.systems/cluster": "c2",
		"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c2",
	}; !maps.Equal(s.Labels, want) {
		t.Errorf("labels %v", s.Labels)
	}
	if d := p.Reserve("c2-shop-other", start); d.Set != nil {
		t.Errorf("a set nobody wants: %+v", d)
	}
}

// Sets of a cluster whose policies select by the label of an earlier release have that, all parts of them, and the
// labels of all domains.
func TestManagedBy(t *testing.T) {
	p := New([]config.Remote{{Name: "c2"}}, Options{ManagedBy: "calico-global-network-sync-operator",
		LabelDomains: []string{"d", "e"}, MaxSetSize: 1})
	p.Apply("c2", pods("shop/web-1 u2 web 10.2.1.10", "shop/web-0 u1 web 10.2.1.9"))
	for _, name := range []string{"c2-shop-web", "c2-shop-web.part-2"} {
		s := p.Reserve(name, start).Set
		for label, want := range map[string]string{"managed-by": "calico-global-network-sync-operator", "d/name": "web",
			"d/namespace": "shop", "d/cluster": "c2", "e/name": "web", "e/namespace": "shop", "e/cluster": "c2"} {
			if s == nil || s.Labels[label] != want {
				t.Errorf("%s: the label %s is not %s: %v", name, label, want, s)
			}
		}
	}
}

func TestTransitions(t *testing.T) {
	for _, c := range []struct {
		name string
		was  []string
		then []string
		// The sets after each reconcile of the names in the order given: which order the loop takes must not matter.
		order []string
		steps []string
	}{
		{"pod gone", []string{"a/p u1 s 10.2.0.1", "a/q u2 s 10.2.0.2"}, []string{"a/p"},
			[]string{"c2-a-s"}, []string{"c2-a-s=10.2.0.2/32"}},
		{"last pod gone", []string{"a/p u1 s 10.2.0.1"}, []string{"a/p"}, []string{"c2-a-s"}, []string{""}},
		{"IP changes", []string{"a/p u1 s 10.2.0.1"}, []string{"a/p u1 s 10.2.0.2"}, []string{"c2-a-s"},
			[]string{"c2-a-s=10.2.0.2/32"}},
		{"IP reused in the set, add seen first (F14)", []string{"a/p u1 s 10.2.0.1"}, []string{"a/q u2 s 10.2.0.1", "a/p"},
			[]string{"c2-a-s"}, []string{"c2-a-s=10.2.0.1/32"}},
		{"pod of that name created again with its IP", []string{"a/p u1 s 10.2.0.1"}, []string{"a/p u2 s 10.2.0.1"},
			[]string{"c2-a-s"}, []string{"c2-a-s=10.2.0.1/32"}},
		{"IP passes to another set (F15), new one first", []string{"a/p u1 s 10.2.0.1", "a/x u9 s 10.2.0.9"},
			[]string{"a/p", "a/q u2 t 10.2.0.1"},
			[]string{"c2-a-t", "c2-a-s", "c2-a-t"}, []string{"c2-a-s=10.2.0.1/32,10.2.0.9/32", "c2-a-s=10.2.0.9/32",
				"c2-a-s=10.2.0.9/32 c2-a-t=10.2.0.1/32"}},
		{"IP passes before the end of the old pod is known", []string{"a/p u1 s 10.2.0.1"}, []string{"a/q u2 t 10.2.0.1"},
			[]string{"c2-a-t", "c2-a-s", "c2-a-t"}, []string{"c2-a-s=10.2.0.1/32", "", "c2-a-t=10.2.0.1/32"}},
		{"IP passes to a set that has others", []string{"a/p u1 s 10.2.0.1", "a/x u9 t 10.2.0.9"},
			[]string{"a/p", "a/q u2 t 10.2.0.1", "a/y u8 t 10.2.0.8"},
			[]string{"c2-a-t", "c2-a-s", "c2-a-t"}, []string{"c2-a-s=10.2.0.1/32 c2-a-t=10.2.0.8/32,10.2.0.9/32",
				"c2-a-t=10.2.0.8/32,10.2.0.9/32", "c2-a-t=10.2.0.1/32,10.2.0.8/32,10.2.0.9/32"}},
		{"label changes (F17), old one first", []string{"a/p u1 s 10.2.0.1", "a/x u9 s 10.2.0.9"},
			[]string{"a/p u1 t 10.2.0.1"},
			[]string{"c2-a-s", "c2-a-t", "c2-a-s"}, []string{"c2-a-s=10.2.0.1/32,10.2.0.9/32",
				"c2-a-s=10.2.0.1/32,10.2.0.9/32 c2-a-t=10.2.0.1/32", "c2-a-s=10.2.0.9/32 c2-a-t=10.2.0.1/32"}},
		{"label of the last pod changes", []string{"a/p u1 s 10.2.0.1"}, []string{"a/p u1 t 10.2.0.1"},
			[]string{"c2-a-s", "c2-a-t", "c2-a-s"}, []string{"c2-a-s=10.2.0.1/32", "c2-a-s=10.2.0.1/32 c2-a-t=10.2.0.1/32",
				"c2-a-t=10.2.0.1/32"}},
		{"while one pod goes, another moves", []string{"a/p u1 s 10.2.0.1", "a/q u2 s 10.2.0.2"},
			[]string{"a/p u1 t 10.2.0.1", "a/q"},
			[]string{"c2-a-s", "c2-a-t", "c2-a-s"}, []string{"c2-a-s=10.2.0.1/32", "c2-a-s=10.2.0.1/32 c2-a-t=10.2.0.1/32",
				"c2-a-t=10.2.0.1/32"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan()
			k := newCluster(t, p)
			k.settle(touchedNames(p.Apply("c2", pods(c.was...)))...)
			before := k.show()
			touched := touchedNames(p.Apply("c2", pods(c.then...)))
			for _, name := range c.order[:min(2, len(c.order))] {
				if !slices.Contains(touched, name) && c.steps[len(c.steps)-1] != before {
					t.Errorf("%s was not touched: %v", name, touched)
				}
			}
			for i, name := range c.order {
				woken := k.reconcile(name)
				if got := k.show(); got != c.steps[i] {
					t.Errorf("after %s: %q, want %q", name, got, c.steps[i])
				}
				if i == 1 && len(c.order) == 3 && !slices.Contains(woken, c.order[2]) {
					t.Errorf("%s did not wake %s, which waited: %v", name, c.order[2], woken)
				}
			}
		})
	}
}

func TestAfterARestart(t *testing.T) {
	before := plan()
	k := newCluster(t, before)
	k.settle(touchedNames(before.Apply("c2", pods("a/p u1 s 10.2.0.1", "a/q u2 s 10.2.0.2", "a/r u3 t 10.2.0.3")))...)
	written := k.show()
	// The informers come first, then the snapshot.
	p := plan()
	k.p = p
	for name, s := range k.sets {
		p.Observed(name, s)
	}
	k.settle(touchedNames(p.Apply("c2", pods("a/p u1 s 10.2.0.1", "a/q u2 s 10.2.0.2", "a/r u3 t 10.2.0.3")))...)
	if k.show() != written {
		t.Errorf("%s, was %s", k.show(), written)
	}
	// Whose IPs are whose is known again.
	p.Apply("c2", pods("a/p u1 t 10.2.0.1"))
	k.reconcile("c2-a-s")
	if k.show() != written {
		t.Errorf("removed before it was added: %s", k.show())
	}
}

func TestNamesThatCollide(t *testing.T) {
	first, second := "a/p u1 b-c 10.2.0.1", "a-b/q u2 c 10.2.0.2"
	const plain = "c2-a-b-c"
	suffixed := naming.SetWithSuffix("c2", "a-b", "c")
	want := fmt.Sprintf("%s=10.2.0.2/32 %s=10.2.0.1/32", suffixed, plain)
	for _, order := range [][]string{{first, second}, {second, first}} {
		p := plan()
		k := newCluster(t, p)
		for _, line := range order {
			k.settle(touchedNames(p.Apply("c2", pods(line)))...)
		}
		if got := k.show(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got := k.sets[suffixed].Labels["semaphore.uw.systems/namespace"]; got != "a-b" {
			t.Errorf("namespace %s", got)
		}
		// The first one goes: the other takes over the plain name, and the suffixed one goes last.
		names := touchedNames(p.Apply("c2", pods("a/p")))
		if !slices.Equal(names, []string{plain, suffixed}) {
			t.Errorf("touched %v", names)
		}
		k.settle(names...)
		if got := k.show(); got != plain+"=10.2.0.2/32" || k.sets[plain].Labels["semaphore.uw.systems/namespace"] != "a-b" {
			t.Errorf("%s", got)
		}
	}
}

// Whatever namespaces and sets remotes have, and be they made to meet, no name is that of sets of two remotes: neither
// the preferred ones, nor those with a suffix, nor those of parts.
func TestNoNameIsOfTwoRemotes(t *testing.T) {
	for _, clusters := range [][]string{{"c2", "c2-eu", "c2-eu-pay", "c2-eu-pay-web", "c3", "eu"},
		{"c2", "c2-eu-pay", "c2-eu-pay-web"}, {"c2", "c2-eu"}, {"c2", "c2.eu", "c2.eu-pay", "c2-eu.pay", "eu.c2"},
		{"c2", "c2.eu", naming.ClusterLabel("c2.eu") + "-pay", naming.ClusterLabel("c2.eu") + "-eu-pay"}} {
		noNameIsOfTwo(t, clusters)
	}
}

func noNameIsOfTwo(t *testing.T, clusters []string) {
	t.Helper()
	var remotes []config.Remote
	for _, name := range clusters {
		remotes = append(remotes, config.Remote{Name: name})
	}
	p := New(remotes, Options{ManagedBy: "semaphore-policy", LabelDomains: []string{"semaphore.uw.systems"},
		MaxSetSize: 1})
	namespaces := []string{"eu", "eu-pay", "pay", "eu-pay-web", "pay-web", "web", "part-2", "part"}
	names := []string{"web", "pay-web", "pay", "x", "pay.web", "web.part-2", "pay.part-2", "eu-pay.web", "2", "part-2"}
	of, objects := map[string]setRef{}, 0
	for round := range 2 {
		var more []string
		for _, cluster := range clusters {
			for _, namespace := range namespaces {
				for _, name := range names {
					s := setRef{cluster, namespace, name}
					for _, base := range []string{p.preferredName(s), p.fallbackName(s)} {
						for _, object := range []string{base, naming.SetPart(base, 2)} {
							if other, ok := of[object]; ok && other.cluster != cluster {
								t.Errorf("%s is of %v and of %v", object, other, s)
							}
							of[object] = s
							objects++
						}
						// Names that other remotes would give their sets to meet this one.
						for _, other := range clusters {
							for _, namespace := range namespaces {
								if rest, ok := strings.CutPrefix(base, other+"-"+namespace+"-"); ok && other != cluster && round == 0 {
									more = append(more, rest)
								}
							}
						}
					}
				}
			}
		}
		slices.Sort(more)
		if more = slices.Compact(more); len(more) == 0 {
			break
		}
		names = more
	}
	t.Logf("%v: %d names of objects", clusters, objects)
	if got := p.preferredName(setRef{"c2", "shop", "web"}); got != "c2-shop-web" {
		t.Errorf("a set that meets no other is called %s", got)
	}
}

// TestNamesFollowTheRemotes: a remote c2-eu that comes beside c2 has the names that begin with c2-eu. The sets of c2
// that had such names get others, and have their IPs at each moment; no other set is touched. When c2-eu goes they get
// their names back.
func TestNamesFollowTheRemotes(t *testing.T) {
	remotes := []config.Remote{{Name: "c2"}, {Name: "c3"}}
	options := Options{ManagedBy: "semaphore-policy", LabelDomains: []string{"semaphore.uw.systems"}, MaxSetSize: 2}
	k := newCluster(t, New(remotes, options))
	exports := pods("eu/a u1 web 10.2.0.1", "eu/b u2 web 10.2.0.2", "eu/c u3 web 10.2.0.3", "shop/d u4 web 10.2.0.4")
	k.settle(touchedNames(k.p.Apply("c2", exports))...)
	before := k.show()
	follow := func(remotes ...config.Remote) {
		t.Helper()
		names := touchedNames(k.p.Follow(remotes))
		if len(names) == 0 || slices.Contains(names, "c2-shop-web") {
			t.Errorf("touched %v", names)
		}
		for n := 0; len(names) > 0; n++ {
			if n > 1000 {
				t.Fatalf("does not settle: %v", names)
			}
			names = append(names[1:], k.reconcile(names[0])...)
			for _, ip := range []string{"10.2.0.1/32", "10.2.0.2/32", "10.2.0.3/32"} {
				if !strings.Contains(k.show(), ip) {
					t.Errorf("%s is in no set: %s", ip, k.show())
				}
			}
		}
	}
	wider := append(slices.Clone(remotes), config.Remote{Name: "c2-eu"})
	follow(wider...)
	for name := range k.sets {
		if naming.InSetsOf("c2-eu", name) {
			t.Errorf("c2 has the set %s beside c2-eu", name)
		}
	}
	fresh := newCluster(t, New(wider, options))
	fresh.settle(touchedNames(fresh.p.Apply("c2", exports))...)
	if got, want := k.show(), fresh.show(); got != want {
		t.Errorf("c2-eu came: %s, and a plan that begins with it has %s", got, want)
	}
	follow(remotes...)
	if got := k.show(); got != before {
		t.Errorf("c2-eu has gone: %s, and before it came %s", got, before)
	}
}

// A set that loses its plain name has its IPs under the new name before the old object is given away.
func TestNamePassesWithoutAGap(t *testing.T) {
	p := plan()
	k := newCluster(t, p)
	k.settle(touchedNames(p.Apply("c2", pods("a-b/q u2 c 10.2.0.2")))...)
	names := touchedNames(p.Apply("c2", pods("a/p u1 b-c 10.2.0.1")))
	k.reconcile("c2-a-b-c")
	if got := k.show(); got != "c2-a-b-c=10.2.0.2/32" ||
		k.sets["c2-a-b-c"].Labels["semaphore.uw.systems/namespace"] != "a-b" {
		t.Errorf("%s", got)
	}
	k.settle(names...)
	suffixed := naming.SetWithSuffix("c2", "a-b", "c")
	if got := k.show(); got != suffixed+"=10.2.0.2/32 c2-a-b-c=10.2.0.1/32" {
		t.Errorf("%s", got)
	}
}

// Random lives of pods, reconciled in random order: at every write, an IP joins a set only when no
// other set has it as another pod's, and leaves a set for another one of the same pod only when it is
// there; in the end every set holds what the newest claims say.
func TestOrderOfWrites(t *testing.T) {
	seeds := 2000
	if testing.Short() {
		seeds = 200
	}
	for seed := range uint64(seeds) {
		if !t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { runWrites(t, rand.New(rand.NewPCG(seed, 7))) }) {
			return
		}
	}
}

func runWrites(t *testing.T, rng *rand.Rand) {
	p := planOf(1 + rng.IntN(3))
	written := map[string]map[string]string{} // object → IP → uid of the pod whose it was
	pending := map[string]bool{}
	base := func(object string) string { // of all objects of a set
		set, _ := naming.SplitSetPart(object)
		return set
	}
	isIn := func(set, ip string) bool {
		for object, ips := range written {
			if _, in := ips[ip]; in && base(object) == set {
				return true
			}
		}
		return false
	}
	type claim struct{ uid, object string }
	claims := map[string][]claim{} // IP → claims in order
	live := map[string][]string{}  // pod → uid, set, IPs…
	uid := 0
	reconcile := func(name string) {
		delete(pending, name)
		d := p.Reserve(name, start)
		nets := map[string]bool{}
		if d.Set != nil {
			for _, n := range d.Set.Spec.Nets {
				nets[strings.TrimSuffix(n, "/32")] = true
			}
		}
		for ip := range nets {
			if _, had := written[name][ip]; had {
				continue
			}
			mine := claims[ip][len(claims[ip])-1]
			for other, ips := range written {
				if whose, has := ips[ip]; has && other != name && whose != mine.uid {
					t.Fatalf("%s joins %s as %s's while %s has it as %s's", ip, name, mine.uid, other, whose)
				}
			}
		}
		for ip, whose := range written[name] {
			if nets[ip] || len(claims[ip]) != 1 {
				continue
			}
			now := claims[ip][0]
			if now.object == base(name) {
				t.Fatalf("%s leaves %s, where it has its home", ip, name)
			}
			if now.uid == whose && !isIn(now.object, ip) {
				t.Fatalf("%s leaves %s before %s has it, and its pod is the same", ip, name, now.object)
			}
		}
		old := written[name]
		delete(written, name)
		if d.Set != nil {
			written[name] = map[string]string{}
			for ip := range nets {
				whose := old[ip]
				if all := claims[ip]; len(all) > 0 && all[len(all)-1].object == base(name) {
					whose = all[len(all)-1].uid
				}
				written[name][ip] = whose
			}
		}
		for _, woken := range p.Observed(name, d.Set) {
			pending[woken] = true
		}
	}
	pick := func() string {
		names := slices.Sorted(maps.Keys(pending))
		return names[rng.IntN(len(names))]
	}
	for range 60 {
		if len(pending) > 0 && rng.IntN(2) == 0 {
			reconcile(pick())
			continue
		}
		name := fmt.Sprint("p", rng.IntN(4))
		old := live[name]
		var now []string
		switch {
		case old == nil || rng.IntN(4) == 0: // a pod, made or made again
			uid++
			now = []string{fmt.Sprint("u", uid), fmt.Sprint("s", rng.IntN(3)), fmt.Sprint("10.2.0.", rng.IntN(3))}
		case rng.IntN(2) == 0: // another label
			now = []string{old[0], fmt.Sprint("s", rng.IntN(3)), old[2]}
		case rng.IntN(3) == 0: // another IP
			now = []string{old[0], old[1], fmt.Sprint("10.2.0.", rng.IntN(3))}
		}
		line := "a/" + name
		if now != nil {
			line += " " + strings.Join(now, " ")
		}
		// The model of the claims.
		if old != nil && (now == nil || now[0] != old[0] || now[2] != old[2]) {
			claims[old[2]] = slices.DeleteFunc(claims[old[2]], func(c claim) bool { return c.uid == old[0] })
		}
		if now != nil {
			mine := claim{now[0], "c2-a-" + now[1]}
			if i := slices.IndexFunc(claims[now[2]], func(c claim) bool { return c.uid == now[0] }); i >= 0 {
				claims[now[2]][i] = mine
			} else {
				claims[now[2]] = append(claims[now[2]], mine)
			}
		}
		if now == nil {
			delete(live, name)
		} else {
			live[name] = now
		}
		// Inside one set an IP passes from pod to pod without a write.
		for ip, all := range claims {
			if len(all) > 0 {
				last := all[len(all)-1]
				for object, ips := range written {
					if _, has := ips[ip]; has && base(object) == last.object {
						ips[ip] = last.uid
					}
				}
			}
		}
		for _, touched := range p.Apply("c2", pods(line)) {
			pending[touched.Name] = true
		}
	}
	for n := 0; len(pending) > 0; n++ {
		if n > 500 {
			t.Fatalf("does not settle: %v", pending)
		}
		reconcile(pick())
	}
	want := map[string][]string{}
	for ip, all := range claims {
		if len(all) > 0 {
			o := all[len(all)-1].object
			want[o] = append(want[o], ip)
		}
	}
	got := map[string][]string{}
	for name, ips := range written {
		// Over it are IPs alone that were on their way out, their places given away, and came back.
		if len(ips) > 2*p.options.MaxSetSize {
			t.Fatalf("%s has %d IPs", name, len(ips))
		}
		got[base(name)] = append(got[base(name)], slices.Collect(maps.Keys(ips))...)
		slices.Sort(got[base(name)])
	}
	for name := range want {
		slices.Sort(want[name])
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Fatalf("written %v, want %v", got, want)
	}
}

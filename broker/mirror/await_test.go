package mirror

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// A broker that begins while a cluster is gone leaves all unchanged, whatever it receives of others, until it knows of
// that cluster.
func TestAwait(t *testing.T) {
	for name, rules := range map[string]string{
		"no preference":   "",
		"c2 before c3":    "globalServices: {rules: [{prefer: [c2, c3]}]}",
		"c3 before c2":    "globalServices: {rules: [{prefer: [c3, c2]}]}",
		"c2 is withdrawn": "globalServices: {rules: [{whenGone: withdraw}]}",
	} {
		t.Run(name, func(t *testing.T) {
			c := blank(t, rules)
			c.apply("c2", offering(global(), "10.2.0.1")...)
			c.apply("c3", offering(global(), "10.4.0.1")...)
			c.heard("c2", "c2-a", "c3")
			c.follow(c.SetGone("c2", true, c.Now))
			const gone = "c2-1: 10.2.0.1-; c3-1: 10.4.0.1"
			c.Is("c2 is gone", glEcho, gone)
			c.Wrote()

			c = c.restartedAwaiting(rules)
			c.Is("a broker begins", glEcho, gone)
			c.apply("c3", offering(global(), "10.4.0.1")...)
			c.heard("c3")
			c.Is("c3 is heard", glEcho, gone)
			c.writes("c3 is heard")
			c.apply("c3", slc("shop", "a", endpoints("echo", "10.4.0.1 10.4.0.2")))
			c.Is("c3 has more", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1 10.4.0.2")
			c.follow(c.SetGone("c2", true, c.Now))
			c.Is("c2 is known to be gone", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1 10.4.0.2")

			// In another that begins it is there after all.
			c = c.restartedAwaiting(rules)
			c.follow(c.SetGone("c3", false, c.Now))
			c.follow(c.SetGone("c2", false, c.Now))
			want := "c2-1: 10.2.0.1; c3-1: 10.4.0.1 10.4.0.2" // for a while, even where c2 alone suffices
			if name == "c3 before c2" {
				want = "c2-1: 10.2.0.1-; c3-1: 10.4.0.1 10.4.0.2"
			}
			c.Is("c2 is there", glEcho, want)
		})
	}
}

// A cluster that was unused as nobody needed it is no cluster that was gone: a broker that begins uses it as soon as it
// is needed.
func TestAwaitUsesAnUnusedClusterThatWasNotGone(t *testing.T) {
	const notNeeded = "c1-1: 10.1.0.1; c2-1: 10.2.0.1-"
	for name, k := range map[string]struct {
		settings *semaphorev1.GlobalSettings
		gone     bool
		want     string
	}{
		"withdraw": {&semaphorev1.GlobalSettings{LocalFirst: true,
			WhenGone: semaphorev1.WhenGone_WHEN_GONE_WITHDRAW}, false, "c1-1: 10.1.0.1?; c2-1: 10.2.0.1"},
		"demote": {&semaphorev1.GlobalSettings{LocalFirst: true}, false, "c1-1: 10.1.0.1?; c2-1: 10.2.0.1"},
		"withdraw, and gone": {&semaphorev1.GlobalSettings{LocalFirst: true,
			WhenGone: semaphorev1.WhenGone_WHEN_GONE_WITHDRAW}, true, "c1-1: 10.1.0.1?; c2-1: 10.2.0.1-"},
		"demote, and gone": {&semaphorev1.GlobalSettings{LocalFirst: true}, true, "c1-1: 10.1.0.1?; c2-1: 10.2.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := blank(t, taken)
			c.apply("c1", offering(settled(k.settings), "10.1.0.1")...)
			c.apply("c2", offering(settled(k.settings), "10.2.0.1")...)
			c.heard("c1", "c2", "c2-a", "c3")
			c.Is("c2 is not needed", glEcho, notNeeded)
			c.follow(c.SetGone("c2", k.gone, c.Now))
			c.Wrote()
			c = c.restartedAwaiting(taken)
			c.Is("a broker begins", glEcho, notNeeded)
			c.writes("a broker begins")
			c.apply("c1", offering(settled(k.settings), "10.1.0.1?")...)
			c.Is("the own pods fail", glEcho, k.want)
		})
	}
}

// restartedAwaiting is restarted, of a broker that finds out whether its remotes are there.
func (c *cluster) restartedAwaiting(more ...string) *cluster {
	n := before(c.TB, more...)
	n.MarkPresenceUnknown("c2", "c2-a", "c3")
	n.Take(c.Cluster)
	n.follow(n.Begin(n.Now))
	return n
}

// A remote that has joined while the one that decides was silent is not named among the clusters of the Service. Gone,
// it is named as that as long as it has endpoints there.
func TestAwaitNamesWhoeverHasEndpoints(t *testing.T) {
	c := blank(t)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c = c.restarted()
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.follow(c.SetGone("c3", true, c.Now))
	c = c.restarted()
	c.follow(c.SetGone("c3", true, c.Now))
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.Is("c3 is gone", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1-")
	c = c.restartedAwaiting()
	c.Is("it is not known yet", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1-")
}

// A remote that the Service names as gone stays gone, and is in use if nothing else is ready; another one is there.
func TestAwaitKeepsWhatWasUsed(t *testing.T) {
	c := blank(t)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.heard("c2", "c2-a", "c3")
	c.follow(c.SetGone("c2", true, c.Now))
	c.Wrote()
	c = c.restartedAwaiting()
	c.apply("c3", offering(global(), "10.4.0.1?")...)
	c.Is("nothing else is ready", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1?")
	c = c.restartedAwaiting()
	c.Is("both were in use", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1?")
	// A broker that was stopped on its way leaves some in use: the Service says that it had begun to leave the cluster.
	c = blank(t)
	c.apply("c2", offering(global(), "10.2.0.1 10.2.0.2")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.heard("c2", "c2-a", "c3")
	c.follow(c.SetGone("c2", true, c.Now))
	c.Slices[glEcho+"-c2-1"].Endpoints[0].Conditions.Ready = ptr.To(true)
	c = c.restartedAwaiting()
	c.Is("half of it", glEcho, "c2-1: 10.2.0.1- 10.2.0.2-; c3-1: 10.4.0.1")
	// An endpoint that is unused by a drain alone says nothing about the cluster.
	c = blank(t)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.heard("c2", "c2-a", "c3")
	all := choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: "c2"}})
	c.follow(c.SetDrains(all, c.Now))
	c.Is("drained", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1")
	n := before(t)
	n.MarkPresenceUnknown("c2", "c2-a", "c3")
	n.SetDrains(all, n.Now)
	n.Take(c.Cluster)
	n.follow(n.Begin(n.Now))
	n.Is("as it was", glEcho, "c2-1: 10.2.0.1-; c3-1: 10.4.0.1")
	n.writes("as it was")
	n.follow(n.SetDrains(choice.Drains{}, n.Now))
	n.Is("undrained", glEcho, "c2-1: 10.2.0.1; c3-1: 10.4.0.1")
}

// A remote of which a new broker knows no endpoint is noted as gone, too: the next broker reads it there.
func TestARemoteWithoutEndpointsIsNotedAsGone(t *testing.T) {
	c := blank(t)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.apply("c3", slc("shop", "a", endpoints("echo", "")))
	c.heard("c2", "c2-a", "c3")
	c = c.restartedAwaiting()
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.heard("c2", "c2-a")
	c.follow(c.SetGone("c3", true, c.Now))
	if got := c.Services[glEcho].Annotations[naming.AnnotationGoneClusters]; got != "c3" {
		t.Errorf("the Service notes %q as gone, not c3", got)
	}
}

// While the cluster that decides is silent, the Service notes who goes and who comes back, and nothing else of it
// changes.
func TestWhoIsGoneIsNotedWhileTheDecidingClusterIsSilent(t *testing.T) {
	c := blank(t)
	c.apply("c2", offering(global(), "10.2.0.1")...)
	c.apply("c3", offering(global(), "10.4.0.1")...)
	c.heard("c2", "c2-a", "c3")
	was := c.Services[glEcho].DeepCopy()
	for _, after := range []struct {
		gone  bool
		noted string
	}{{true, "c3"}, {false, ""}} {
		c = c.restartedAwaiting()
		c.heard("c3")
		c.apply("c3", offering(global(), "10.4.0.1")...)
		c.follow(c.SetGone("c3", after.gone, c.Now))
		want := was.DeepCopy()
		want.Annotations[naming.AnnotationGoneClusters] = after.noted
		if diff := cmp.Diff(want, c.Services[glEcho]); diff != "" {
			t.Errorf("gone %t:\n%s", after.gone, diff)
		}
	}
}

// Two remotes that are gone are both in use, as nothing else is ready, and stay so while a new broker knows of one
// alone. Nor does a preferred one that is gone make another unused.
func TestTwoLastResorts(t *testing.T) {
	for name, rules := range map[string]string{"": "", "preferred": "globalServices: {rules: [{prefer: [c3]}]}"} {
		t.Run(name, func(t *testing.T) {
			c := blank(t, rules)
			c.apply("c2", offering(global(), "10.2.0.1")...)
			c.apply("c2-a", offering(global(), "10.3.0.1?")...)
			c.apply("c3", offering(global(), "10.4.0.1")...)
			c.heard("c2", "c2-a", "c3")
			c.follow(c.SetGone("c2", true, c.Now))
			c.follow(c.SetGone("c3", true, c.Now))
			const used = "c2-1: 10.2.0.1; c2-a-1: 10.3.0.1?; c3-1: 10.4.0.1"
			c.Is("two are gone", glEcho, used)
			c.Wrote()
			c = c.restartedAwaiting(rules)
			c.Is("a broker begins", glEcho, used)
			c.follow(c.SetGone("c2", true, c.Now))
			c.Is("one is known to be gone", glEcho, used)
			c.writes("one is known to be gone")
			c.follow(c.SetGone("c3", false, c.Now))
			c.Is("the other is there", glEcho, "c2-1: 10.2.0.1-; c2-a-1: 10.3.0.1?; c3-1: 10.4.0.1")
		})
	}
}

package replica

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// braked is a replica whose brake holds what withdraws more than half, from four objects on, for ten minutes, and
// which has taken ten members, m0 to m9, at revisions 1 to 10 of epoch e1.
type braked struct {
	*Replica
	t   *testing.T
	s   *Session
	now time.Time
}

func newBraked(t *testing.T) *braked {
	t.Helper()
	b := &braked{Replica: newReplica(), t: t, now: now}
	b.SetLimits(config.Limits{}, config.Brake{Percent: 50, AtLeast: 4, Hold: config.Duration{Duration: 10 * time.Minute}})
	b.connect("e1", 10)
	b.snapshot(10, members(0, 10)...)
	return b
}

func members(from, to int) []string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprint("m", i))
	}
	return names
}

func (b *braked) take(all ...*semaphorev1.PublishRequest) Result {
	b.t.Helper()
	var result Result
	for _, m := range all {
		var err error
		if result, err = b.s.Receive(b.now, m); err != nil {
			b.t.Fatalf("%v: %v", m, err)
		}
	}
	return result
}

func (b *braked) connect(epoch string, head uint64) *semaphorev1.Welcome {
	b.t.Helper()
	b.s = b.Open()
	return welcomeOf(b.t, b.take(hello(epoch, head, 0, kMember)))
}

func upserts(names ...string) []*semaphorev1.Change {
	var out []*semaphorev1.Change
	for i, name := range names {
		out = append(out, upsert(uint64(i+1), kMember, name, "a"))
	}
	return out
}

func (b *braked) snapshot(revision uint64, names ...string) Result {
	b.t.Helper()
	return b.take(begin(kMember, revision), changes(upserts(names...)...), end(kMember, revision, uint64(len(names))))
}

func (b *braked) remove(from uint64, names ...string) Result {
	b.t.Helper()
	var out []*semaphorev1.Change
	for i, name := range names {
		out = append(out, remove(from+uint64(i), kMember, name))
	}
	return b.take(changes(out...))
}

// want checks how many objects are held, and of those how many are retained.
func (b *braked) want(held, back int) {
	b.t.Helper()
	n, _ := b.Count(kMember)
	if got := b.Retained(kMember, 0).Total; n != held || got != back {
		b.t.Errorf("%d objects are held, %d of them retained; want %d and %d", n, got, held, back)
	}
}

func TestR24ASnapshotThatWithdrawsMost(t *testing.T) {
	b := newBraked(t)
	b.connect("e2", 20)
	res := b.snapshot(20, "m0", "m1", "new")
	// The objects that it has are accepted, those that it lacks stay.
	if show(res.Changes) != "+new" || len(res.Retained) != 1 || res.Retained[0] != (Retained{kMember, 8, 8, 10, false}) {
		t.Fatalf("changes %s, retained %v", show(res.Changes), res.Retained)
	}
	b.want(11, 8)
	if back := b.Retained(kMember, 2); len(back.Keys) != 2 || back.Keys[0].Name != "m2" || back.Keys[1].Name != "m3" ||
		back.Total != 8 || !back.Since.Equal(now) {
		t.Errorf("retained: %+v", back)
	}
	// Changes flow: to what is exported, and to what is retained and sent again.
	b.now = b.now.Add(2 * time.Minute)
	changed(t, b.take(changes(upsert(21, kMember, "m0", "b"), upsert(22, kMember, "m2", "b"),
		upsert(23, kMember, "m3", "a"))), "~m0 ~m2")
	b.want(11, 6)
	// A single end is no mass withdrawal any more.
	changed(t, b.remove(24, "new"), "-new")
	b.want(10, 6)
}

func TestR24AnotherSnapshotReleasesTheBrake(t *testing.T) {
	for name, again := range map[string]func(b *braked) Result{
		"whole": func(b *braked) Result {
			b.connect("e3", 20)
			return b.snapshot(20, "m0", "m1")
		},
		"unchanged": func(b *braked) Result {
			w := b.connect("e3", 20)
			if len(w.Held) != 1 || w.Held[0].Objects != 2 || w.ResumeRevision != 0 {
				t.Fatalf("welcome %v: what is retained was not reported", w)
			}
			return b.take(unchanged(kMember, 20, 2, digestOf(upserts("m0", "m1"))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBraked(t)
			b.connect("e2", 20)
			b.snapshot(20, "m0", "m1")
			b.want(10, 8)
			b.now = b.now.Add(9 * time.Minute)
			if res := again(b); len(res.Changes) != 0 {
				t.Errorf("released before its time: %s", show(res.Changes))
			}
			b.want(10, 8)
			b.now = b.now.Add(time.Minute)
			// The broker asks for it, by a stream that begins with a snapshot and may skip it by its digest.
			_, err := b.s.Receive(b.now, heartbeat(20))
			if status.Code(err) != codes.Aborted {
				t.Fatalf("after the time to hold a heartbeat is answered by %v", err)
			}
			b.s.Close()
			if w := b.connect("e3", 20); w.ResumeRevision != 0 || len(w.Held) != 1 {
				t.Errorf("welcome %v: want a digest and no revision to go on from", w)
			}
			res := again(b)
			if show(res.Changes) != "-m2 -m3 -m4 -m5 -m6 -m7 -m8 -m9" || len(res.Released) != 1 || res.Released[0].Objects != 8 {
				t.Errorf("changes %s, released %v", show(res.Changes), res.Released)
			}
			b.want(2, 0)
			if _, err := b.s.Receive(b.now.Add(time.Hour), heartbeat(20)); err != nil {
				t.Errorf("with nothing retained: %v", err)
			}
		})
	}
}

// TestR24AKindThatIsNoLongerExported: what a remote's exporter no longer exports at all stays, however little it is and
// whatever time passes, and counts as retained. The operator releases it, or the exporter exports it again.
func TestR24AKindThatIsNoLongerExported(t *testing.T) {
	for _, n := range []int{2, 10} { // fewer than the brake's least, and more
		b := newBraked(t)
		b.remove(11, members(n, 10)...)
		b.now = b.now.Add(time.Hour)
		b.remove(30, members(n, 10)...)
		b.Release(b.now, kMember)
		b.want(n, 0)
		b.s.Close()
		b.s = b.Open()
		unread := hello("e1", 30, 0, kService)
		unread.GetHello().UnreadKinds = []semaphorev1.Kind{kMember}
		if b.take(unread); b.Retained(kMember, 1).Unexported {
			t.Errorf("%d: what the exporter has not read yet is no longer exported", n)
		}
		res := Result{}
		for range 2 {
			b.s.Close()
			b.s = b.Open()
			res = b.take(hello("e2", 0, 0, kService))
			b.take(begin(kService, 0), end(kService, 0, 0))
			if back := b.Retained(kMember, 1); len(res.Changes) > 0 || !back.Unexported || back.Keys[0].Name != "m0" ||
				!b.Locate(back.Keys[0])[0].RetainedSince.Equal(back.Since) {
				t.Errorf("%d: changes %s, retained %+v", n, show(res.Changes), back)
			}
			b.want(n, n)
			b.now = b.now.Add(24 * time.Hour)
			if res := b.take(heartbeat(0)); len(res.Changes)+len(res.Released) > 0 {
				t.Errorf("%d: a day later changes %s, released %v", n, show(res.Changes), res.Released)
			}
		}
		if len(res.Retained) > 0 {
			t.Errorf("%d: the next stream retains once more: %v", n, res.Retained)
		}
		if n == 2 {
			if res := b.Release(b.now, kMember); show(res.Changes) != "-m0 -m1" {
				t.Errorf("the operator releases %s", show(res.Changes))
			}
			b.want(0, 0)
			if w := b.connect("e1", 50); w.ResumeRevision != 0 {
				t.Errorf("welcome %v: in its journal the exporter has what the operator released", w)
			}
			changed(t, b.snapshot(50, members(0, 2)...), "+m0 +m1")
			continue
		}
		b.s.Close()
		b.connect("e3", 50)
		b.want(n, 0)
		changed(t, b.snapshot(50, members(0, 9)...), "-m9")
		b.want(9, 0)
	}
}

// TestR24RefusedOfAKindThatIsNoLongerExported: what is refused of a kind is withdrawn with it, whether its content or
// later bounds had it refused, and however much it is. The release leaves nothing of it, and an exporter that continues
// its journal sends it again.
func TestR24RefusedOfAKindThatIsNoLongerExported(t *testing.T) {
	var many []string
	for i := range maxRefused + 2 {
		many = append(many, fmt.Sprint("bad", i))
	}
	for name, test := range map[string]struct {
		sent []string
		// held and refused count what is left while the kind is not exported.
		held, refused int
		bounds        Admit
	}{
		"some":             {append(members(0, 10), "bad1", "bad2", "half"), 11, 1, nil},
		"all":              {[]string{"bad1", "bad2"}, 0, 0, nil},
		"not remembered":   {many, 0, 0, nil},
		"by bounds, later": {members(0, 10), 2, 0, below("m2")},
	} {
		t.Run(name, func(t *testing.T) {
			b := &braked{Replica: newReplica(), t: t, now: now}
			head := uint64(len(test.sent))
			b.connect("e1", head)
			b.snapshot(head, test.sent...)
			lacking := func() {
				b.s.Close()
				b.s = b.Open()
				b.take(hello("e2", 0, 0, kService))
				b.take(begin(kService, 0), end(kService, 0, 0))
			}
			lacking()
			if test.bounds != nil {
				b.Judge(b.now, test.bounds)
				lacking()
			}
			if n, refused := b.Count(kMember); n != test.held || refused != test.refused || !b.Complete(kMember) {
				t.Errorf("%d held, %d refused", n, refused)
			}
			consistent(t, b.Replica)
			if w := b.connect("e1", head); w.ResumeRevision != 0 || len(w.Held) > 0 {
				t.Errorf("welcome %v: the exporter need not send again what was refused", w)
			}
			lacking()
			b.Release(b.now, kMember)
			if n, refused := b.Count(kMember); n+refused > 0 {
				t.Errorf("after the release %d held, %d refused", n, refused)
			}
			consistent(t, b.Replica)
		})
	}
}

// TestRetainedNamesTheFirst: each view of a link names the first of many retained objects, without a list of them all.
func TestRetainedNamesTheFirst(t *testing.T) {
	b := &braked{Replica: newReplica(), t: t, now: now}
	b.connect("e1", 5000)
	b.snapshot(5000, members(0, 5000)...)
	b.take(changes(upsert(5001, kMember, "m0", "hollow")))
	b.s.Close()
	b.s = b.Open()
	b.take(hello("e2", 0, 0, kService))
	var back RetainedObjects
	if n := testing.AllocsPerRun(5, func() { back = b.Retained(kMember, 3) }); n > 8 {
		t.Errorf("%.0f allocations", n)
	}
	if len(back.Keys) != 3 || back.Keys[0].Name != "m1" || back.Keys[1].Name != "m10" || back.Keys[2].Name != "m100" ||
		back.Total != 4999 {
		t.Errorf("retained: %+v", back)
	}
}

func TestR24SingleChangesThatWithdrawMost(t *testing.T) {
	b := newBraked(t)
	res := b.remove(11, members(0, 10)...)
	// Half may go in a minute.
	if show(res.Changes) != "-m0 -m1 -m2 -m3 -m4" || len(res.Retained) != 1 ||
		res.Retained[0] != (Retained{kMember, 5, 5, 10, false}) {
		t.Fatalf("changes %s, retained %v", show(res.Changes), res.Retained)
	}
	b.want(5, 5)
	if rev, _ := ackOf(res); rev != 20 {
		t.Errorf("ack %d: what is retained is acknowledged all the same", rev)
	}
	// The end of the stream and going on from where it was lose nothing of it.
	b.s.Close()
	if w := b.connect("e1", 20); w.ResumeRevision != 20 || w.Held[0].Objects != 0 {
		t.Errorf("welcome %v", w)
	}
	if res := b.remove(21, "m7", "unknown"); len(res.Changes) != 0 {
		t.Errorf("changes %s", show(res.Changes))
	}
	b.want(5, 5)
	if res := b.Release(b.now, kNode); len(res.Changes) != 0 {
		t.Errorf("another kind's release: %s", show(res.Changes))
	}
	if res := b.Release(b.now, kMember); show(res.Changes) != "-m5 -m6 -m7 -m8 -m9" || res.Released[0].Objects != 5 {
		t.Errorf("released %v", res)
	}
	b.want(0, 0)
}

func TestR24SlowEndsAndRolloutsAreNotBraked(t *testing.T) {
	t.Run("one a minute", func(t *testing.T) {
		b := newBraked(t)
		for i, name := range members(0, 10) {
			b.now = b.now.Add(time.Minute + time.Second)
			if res := b.remove(11+uint64(i), name); len(res.Changes) != 1 {
				t.Fatalf("%s: %s", name, show(res.Changes))
			}
		}
		b.want(0, 0)
	})
	t.Run("replaced one by one", func(t *testing.T) {
		b := newBraked(t)
		for i := range 10 {
			b.take(changes(upsert(uint64(11+2*i), kMember, fmt.Sprint("new", i), "a"),
				remove(uint64(12+2*i), kMember, fmt.Sprint("m", i))))
		}
		b.want(10, 0)
	})
	t.Run("all down, then all up", func(t *testing.T) {
		b := newBraked(t)
		b.remove(11, members(0, 10)...)
		b.want(5, 5)
		var last Result
		for i := range 8 {
			b.now = b.now.Add(time.Second)
			last = b.take(changes(upsert(uint64(21+i), kMember, fmt.Sprint("new", i), "a")))
			if i == 3 {
				b.want(9, 5)
			}
			if len(last.Released) > 0 {
				break
			}
		}
		if got := show(last.Changes); got != "+new4 -m5 -m6 -m7 -m8 -m9" {
			t.Errorf("at the end: %s", got)
		}
		b.want(5, 0)
	})
	t.Run("replaced in a snapshot", func(t *testing.T) {
		b := newBraked(t)
		b.connect("e2", 20)
		b.snapshot(20, members(10, 20)...)
		b.want(10, 0)
	})
	t.Run("fewer than the least", func(t *testing.T) {
		b := newBraked(t)
		b.now = b.now.Add(time.Hour)
		b.remove(11, members(0, 5)...)
		b.want(5, 0)
		b.now = b.now.Add(time.Hour)
		b.remove(21, members(5, 8)...)
		b.want(2, 0)
	})
	t.Run("switched off", func(t *testing.T) {
		b := newBraked(t)
		b.SetLimits(config.Limits{}, config.Brake{Percent: 100, AtLeast: 1})
		b.connect("e2", 20)
		b.snapshot(20)
		b.want(0, 0)
	})
}

// In two steps within a minute it is as in one.
func TestR24TheLastMinuteCounts(t *testing.T) {
	b := newBraked(t)
	b.remove(11, members(0, 4)...)
	b.connect("e2", 20)
	b.snapshot(20, members(8, 10)...)
	b.want(6, 4)
}

func TestR24RetainedObjectsMakeRoom(t *testing.T) {
	b := newBraked(t)
	b.limits = config.Limits{SetMembers: 12}
	b.connect("e2", 20)
	b.snapshot(20, "m0", "new1", "new2")
	// 3 are exported, and 9 of the 10 before lack; all fit.
	b.want(12, 9)
	res := b.take(changes(upsert(21, kMember, "new3", "a")))
	if n := len(res.Changes); n != 10 || res.Changes[9].Key.Name != "new3" || res.Changes[9].New == nil ||
		len(res.Refused) != 0 {
		t.Errorf("changes %s, refused %v", show(res.Changes), res.Refused)
	}
	b.want(4, 0)

	b = newBraked(t)
	b.limits = config.Limits{SetMembers: 10}
	b.connect("e2", 20)
	res = b.snapshot(20, "new1", "new2")
	if show(res.Changes) != "-m8 -m9 +new1 +new2" || res.Released[0].Objects != 2 {
		t.Errorf("changes %s, released %v", show(res.Changes), res.Released)
	}
	b.want(10, 8)
}

func TestResyncIsLimitedToOnceAMinute(t *testing.T) {
	b := newBraked(t)
	if err := b.Resync(b.now.Add(59*time.Second), "test"); err != nil {
		t.Errorf("a snapshot of less than a minute ago: %v", err)
	}
	if err := b.Resync(b.now.Add(time.Minute), "test"); status.Code(err) != codes.Aborted {
		t.Errorf("error %v", err)
	}
	if w := b.connect("e1", 10); w.ResumeRevision != 0 || len(w.Held) != 1 {
		t.Errorf("welcome %v", w)
	}
	b.want(10, 0)
}

// An object that is sent so that it is refused, or is emptied, is withdrawn.
func TestR24RefusedAndEmptiedIsWithdrawn(t *testing.T) {
	for _, version := range []string{"bad", "hollow"} {
		received := func(from uint64, names ...string) (out []*semaphorev1.Change) {
			for i, name := range names {
				out = append(out, upsert(from+uint64(i), kMember, name, version))
			}
			return out
		}
		let := "-m5 -m6 -m7 -m8 -m9"
		if version == "hollow" {
			let = "~m5 ~m6 ~m7 ~m8 ~m9"
		}
		t.Run(version+" one by one", func(t *testing.T) {
			b := newBraked(t)
			res := b.take(changes(received(11, members(0, 10)...)...))
			if n := len(res.Changes); n != 5 || len(res.Retained) != 1 ||
				res.Retained[0] != (Retained{kMember, 5, 5, 10, false}) {
				t.Fatalf("changes %s, retained %v", show(res.Changes), res.Retained)
			}
			for _, name := range members(5, 10) {
				if o, ok := b.Get(KeyOf(object(kMember, name, "").Key)); !ok || o.GetSetMember().GetSetName() != "a" {
					t.Errorf("%s is %v", name, o)
				}
			}
			consistent(t, b.Replica)
			// Sent again when the last minute is over, it stays until it is released.
			b.now = b.now.Add(2 * brakeWindow)
			if res := b.take(changes(received(21, "m5")...)); len(res.Changes) != 0 {
				t.Errorf("sent again, it changes %s", show(res.Changes))
			}
			// It is known as it was sent, so that nothing is sent again.
			b.s.Close()
			w := b.connect("e2", 20)
			if sum := digestOf(received(11, members(0, 10)...)); len(w.Held) != 1 || w.Held[0].Objects != 10 ||
				!bytes.Equal(w.Held[0].Digest, sum.Bytes()) {
				t.Errorf("welcome %v", w)
			}
			if res := b.Release(b.now, kMember); show(res.Changes) != let || res.Released[0].Objects != 5 {
				t.Errorf("released %s", show(res.Changes))
			}
			consistent(t, b.Replica)
			b.want(len(b.kinds[kMember].objects), 0)
		})
		t.Run(version+" in a snapshot", func(t *testing.T) {
			b := newBraked(t)
			for i := range 2 {
				b.connect(fmt.Sprint("e", 2+i), 20)
				res := b.take(begin(kMember, 20), changes(received(1, members(0, 10)...)...), end(kMember, 20, 10))
				if len(res.Changes) != 0 || i == 0 &&
					(len(res.Retained) != 1 || res.Retained[0] != (Retained{kMember, 10, 10, 10, false})) {
					t.Fatalf("changes %s, retained %v", show(res.Changes), res.Retained)
				}
				b.want(10, 10)
				consistent(t, b.Replica)
				b.now = b.now.Add(5 * time.Minute)
			}
			// An object that is sent again is one like any other.
			changed(t, b.take(changes(upsert(21, kMember, "m0", "a"),
				upsert(22, kMember, "m1", "b"))), "~m1")
			b.want(10, 8)
			b.now = b.now.Add(5 * time.Minute)
			b.connect("e4", 30)
			res := b.take(begin(kMember, 30),
				changes(append(received(1, members(2, 10)...), upsert(21, kMember, "m0", "a"), upsert(22, kMember, "m1", "b"))...),
				end(kMember, 30, 10))
			if len(res.Changes) != 8 || len(res.Released) != 1 || res.Released[0].Objects != 8 {
				t.Errorf("changes %s, released %v", show(res.Changes), res.Released)
			}
			consistent(t, b.Replica)
		})
	}
	t.Run("a few", func(t *testing.T) {
		b := newBraked(t)
		changed(t, b.take(changes(upsert(11, kMember, "m0", "hollow"),
			upsert(12, kMember, "m1", "bad"))), "~m0 -m1")
	})
}

// TestR24ANodeThatAnotherReplacesIsReleased: a retained node keeps neither its key nor its pod CIDRs from another node
// that its remote exports, whichever comes first.
func TestR24ANodeThatAnotherReplacesIsReleased(t *testing.T) {
	node := func(revision uint64, name string, key, subnet int) *semaphorev1.Change {
		c := upsert(revision, kNode, name, "a")
		c.GetUpsert().GetNode().PodCidrs = []string{fmt.Sprintf("10.2.%d.0/24", subnet)}
		c.GetUpsert().GetNode().Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: []byte(fmt.Sprint("key", key))}
		return c
	}
	var all, gone []*semaphorev1.Change
	for i := 1; i <= 45; i++ {
		if all = append(all, node(uint64(i), fmt.Sprint("n", i), i, i)); i > 15 {
			gone = append(gone, remove(uint64(i+100), kNode, fmt.Sprint("n", i)))
		}
	}
	wider := node(201, "m1", 201, 45)
	wider.GetUpsert().GetNode().PodCidrs = []string{"10.2.44.0/23"}
	for name, c := range map[string]struct {
		node *semaphorev1.Change
		want string
	}{
		"the pod CIDR":          {node(201, "m1", 201, 45), "+m1 -n45"},
		"a wider pod CIDR":      {wider, "+m1 -n44 -n45"},
		"the key":               {node(201, "m1", 45, 201), "+m1 -n45"},
		"the key and the CIDR":  {node(201, "m1", 44, 45), "+m1 -n44 -n45"},
		"neither":               {node(201, "m1", 201, 201), "+m1"},
		"none, as it is hollow": {upsert(201, kNode, "m1", "hollow"), "+m1"},
	} {
		t.Run(name, func(t *testing.T) {
			begun := func() *braked {
				b := &braked{Replica: newReplica(), t: t, now: now}
				b.SetLimits(config.Limits{},
					config.Brake{Percent: 50, AtLeast: 10, Hold: config.Duration{Duration: time.Hour}})
				b.s = b.Open()
				b.take(hello("e1", 45, 0, kNode), begin(kNode, 45), changes(all...), end(kNode, 45, 45))
				return b
			}
			b := begun()
			if b.take(changes(gone...)); b.Retained(kNode, 0).Total != 8 {
				t.Fatalf("%d are retained", b.Retained(kNode, 0).Total)
			}
			b.now = b.now.Add(10 * time.Minute)
			changed(t, b.take(changes(c.node)), c.want)
			consistent(t, b.Replica)
			n := len(strings.Fields(c.want)) - 1
			if got := b.Retained(kNode, 0).Total; got != 8-n {
				t.Errorf("%d are retained then", got)
			}

			b = begun() // the other one comes first
			b.take(changes(&semaphorev1.Change{Revision: 50, Change: c.node.Change}))
			b.take(changes(gone...))
			first := 7 // of 46 nodes
			if name == "none, as it is hollow" {
				first = 8
			}
			if got := b.Retained(kNode, 0).Total; got != first-n {
				t.Errorf("%d are retained after it came", got)
			}

			b = begun() // and in a snapshot
			b.s = b.Open()
			if b.take(hello("e2", 201, 0, kNode), begin(kNode, 201), changes(append(all[:15:15], c.node)...),
				end(kNode, 201, 16)); b.Retained(kNode, 0).Total != 30-n {
				t.Errorf("%d are retained after a snapshot", b.Retained(kNode, 0).Total)
			}
			consistent(t, b.Replica)
		})
	}
}

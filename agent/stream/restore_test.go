package stream

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// restored returns a state that was restored from another one.
func restored(t *testing.T, from *State) *State {
	t.Helper()
	networks, whole := from.Snapshot()
	if !whole {
		t.Fatal("nothing whole to restore")
	}
	s := NewState()
	d := s.Restore(networks)
	if diff := cmp.Diff(from.Clusters(), dirty(d)); diff != "" {
		t.Fatalf("dirty after Restore (-want +got):\n%s", diff)
	}
	return s
}

func TestRestore(t *testing.T) {
	first := NewState()
	if _, whole := first.Snapshot(); whole {
		t.Error("a state of which nothing was heard is whole")
	}
	feed(t, first, begin, attached("A", false),
		changes(device(1, "c2", 1), peer(2, "c2", "n1", "10.2.1.0/24"), device(3, "c3", 2),
			peer(4, "c3", "n1", "10.3.1.0/24")), synced(4, "c2", "c3"))

	t.Run("stays while nobody speaks", func(t *testing.T) {
		s := restored(t, first)
		if diff := cmp.Diff(held(first), held(s)); diff != "" {
			t.Error(diff)
		}
		if epoch, revision := s.Resume(); epoch != "" || revision != 0 {
			t.Errorf("it would go on from %q, %d", epoch, revision)
		}
		if _, whole := s.Snapshot(); whole || s.Current() || s.Proven("c2") || !s.Network("c2").Restored {
			t.Error("what is restored counts as said")
		}
		// The stream breaks within a snapshot.
		feed(t, s, begin, attached("B", false), changes(device(1, "c2", 9)), begin)
		if diff := cmp.Diff(held(first), held(s)); diff != "" || !s.Network("c2").Restored {
			t.Error(diff)
		}
	})
	t.Run("is what an unchanged broker means", func(t *testing.T) {
		s := restored(t, first)
		if diff := cmp.Diff(first.Held(), s.Held(), cmp.Comparer(func(a, b interface{ GetDigest() []byte }) bool {
			return string(a.GetDigest()) == string(b.GetDigest())
		})); diff != "" {
			t.Error(diff)
		}
		got := feed(t, s, begin, attached("B", false), unchanged("c2"), unchanged("c3"), synced(4, "c2", "c3"))
		// A complete snapshot marks everything dirty, because restored state was only added.
		if diff := cmp.Diff([]string{"c2", "c3"}, dirty(got...)); diff != "" {
			t.Errorf("dirty (-want +got):\n%s", diff)
		}
		if s.Network("c2").Restored || !s.Proven("c2") {
			t.Error("not confirmed")
		}
		if got := feed(t, s, begin, attached("B", true), synced(4, "c2", "c3")); len(dirty(got...)) > 0 {
			t.Errorf("dirty at the next stream: %v", dirty(got...))
		}
	})
	t.Run("gives way to what the broker says", func(t *testing.T) {
		s := restored(t, first)
		feed(t, s, begin, attached("B", false), changes(device(1, "c2", 1), peer(2, "c2", "n2", "10.2.2.0/24")),
			synced(2, "c2"))
		want := []string{"c2", "c2/n2 10.2.2.0/24", "c3", "c3/n1 10.3.1.0/24"}
		if diff := cmp.Diff(want, held(s)); diff != "" {
			t.Errorf("held (-want +got):\n%s", diff)
		}
		// c3 is not complete at the broker yet: its state stays, and is stored for the next start, too.
		if !s.Network("c3").Restored || s.Network("c2").Restored || s.Proven("c3") || !s.Proven("c2") {
			t.Error("c3 counts as said, or c2 does not")
		}
		if networks, whole := s.Snapshot(); !whole || len(networks) != 2 {
			t.Errorf("to be kept: %v, %v", networks, whole)
		}
		got := feed(t, s, changes(device(3, "c3", 2), peer(4, "c3", "n1", "10.3.1.0/24")), synced(4, "c2", "c3"))
		if diff := cmp.Diff([]string{"c3"}, dirty(got...)); diff != "" || s.Network("c3").Restored {
			t.Errorf("dirty (-want +got):\n%s", diff)
		}
	})
	t.Run("goes at the broker's word", func(t *testing.T) {
		s := restored(t, first)
		got := feed(t, s, begin, attached("B", false), synced(1, "c2"), changes(noDevice(1, "c3")))
		if diff := cmp.Diff([]string{"c2", "c3"}, dirty(got...)); diff != "" {
			t.Errorf("dirty (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string(nil), held(s)); diff != "" {
			t.Errorf("held (-want +got):\n%s", diff)
		}
	})
}

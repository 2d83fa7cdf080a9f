package replica

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// R6: nothing goes back within an epoch, and what one epoch began no other ends.
func TestR06NothingGoesBack(t *testing.T) {
	type list = []*semaphorev1.PublishRequest
	for name, in := range map[string]list{
		"a hello from before what was taken": {hello("e1", 4, 0, kNode)},
		"a snapshot from before the hello":   {hello("e1", 7, 0, kNode), begin(kNode, 6)},
		"a change that was taken":            {hello("e1", 7, 0, kNode), changes(upsert(5, kNode, "a", "old"))},
		"a change before another": {hello("e1", 9, 0, kNode), changes(upsert(7, kNode, "a", "b")),
			changes(upsert(6, kNode, "a", "old"))},
		"a change before the position": {hello("e1", 9, 0, kNode), sent(8, 8), changes(upsert(7, kNode, "a", "old"))},
		"another epoch's revisions":    {hello("e2", 1, 0, kNode), changes(upsert(6, kNode, "a", "other"))},
		"the end of another snapshot":  {hello("e2", 1, 0, kNode), begin(kNode, 1), end(kNode, 5, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplica()
			must(t, r.Open(), hello("e1", 5, 0, kNode), begin(kNode, 5), changes(upsert(5, kNode, "a", "new")), end(kNode, 5, 1))
			s := r.Open()
			must(t, s, in[:len(in)-1]...)
			before, _ := r.Get(Key{kNode, "", "a"})
			if _, err := s.Receive(now, in[len(in)-1]); status.Code(err) != codes.InvalidArgument {
				t.Errorf("error %v", err)
			}
			if after, _ := r.Get(Key{kNode, "", "a"}); after != before {
				t.Errorf("held is %v, and was %v", after, before)
			}
		})
	}
	t.Run("a kind that is ahead of another of its stream", func(t *testing.T) {
		r := newReplica()
		must(t, r.Open(), hello("e1", 5, 0, kNode, kMember), begin(kNode, 5), end(kNode, 5, 0), begin(kMember, 5),
			end(kMember, 5, 0))
		must(t, r.Open(), hello("e1", 7, 0, kNode), changes(upsert(7, kNode, "a", "new")))
		before, _ := r.Get(Key{kNode, "", "a"})
		must(t, r.Open(), hello("e1", 7, 0, kNode, kMember), changes(upsert(6, kNode, "a", "old")))
		if after, _ := r.Get(Key{kNode, "", "a"}); before == nil || after != before {
			t.Errorf("held is %v, and was %v", after, before)
		}
	})
}

// A Hello that was under way while another exporter took over is of a journal that was taken further before
// (SEED=112622 of the simulation): the epochs before the present one count, too, as many as are remembered, and one
// that comes back continues from where it was.
func TestR06AnEarlierEpochDoesNotGoBack(t *testing.T) {
	r := newReplica()
	tell := func(epoch string, at uint64) {
		t.Helper()
		must(t, r.Open(), hello(epoch, at, 0, kNode), begin(kNode, at), end(kNode, at, 0))
	}
	tell("e1", 12)
	tell("e2", 100)
	refused := func(epoch string, at uint64) {
		t.Helper()
		if _, err := r.Open().Receive(now, hello(epoch, at, 0, kNode)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a Hello of %s that ends at %d: %v", epoch, at, err)
		}
	}
	refused("e1", 8)
	tell("e1", 13)
	refused("e1", 12)
	refused("e2", 99)
	for i := range 10 * maxPast {
		tell(fmt.Sprint("other", i), 1)
	}
	if n := len(r.kinds[kNode].past); n != maxPast {
		t.Errorf("%d epochs are remembered, and %d are to be", n, maxPast)
	}
	tell("e1", 1) // forgotten
}

// R25: when a source saw a change is passed on, and decides nothing: neither what is taken nor in which order.
func TestR25WhenASourceSawAChangeDecidesNothing(t *testing.T) {
	at := func(c *semaphorev1.Change, when *timestamppb.Timestamp) *semaphorev1.Change {
		c.ObservedAt = when
		return c
	}
	r := newReplica()
	s := r.Open()
	must(t, s, hello("e1", 2, 0, kNode), begin(kNode, 2),
		changes(at(upsert(1, kNode, "a", "v1"), timestamppb.New(now.Add(100*365*24*time.Hour))),
			at(upsert(2, kNode, "b", "v1"), nil)), end(kNode, 2, 2))
	res := must(t, s, changes(
		// seen long before what it replaces
		at(upsert(3, kNode, "a", "v2"), timestamppb.New(time.Unix(0, 0))),
		at(remove(4, kNode, "b"), &timestamppb.Timestamp{Seconds: 1 << 62, Nanos: -1}),      // no time at all
		at(upsert(5, kNode, "c", "v1"), &timestamppb.Timestamp{Seconds: -62135596800 - 1}))) // before all times
	changed(t, res, "~a -b +c")
	if !res.Changes[1].ObservedAt.IsZero() || !res.Changes[2].ObservedAt.IsZero() {
		t.Errorf("times that are none are passed on: %v, %v", res.Changes[1].ObservedAt, res.Changes[2].ObservedAt)
	}
}

func TestBehind(t *testing.T) {
	r := newReplica()
	s := r.Open()
	step := func(want uint64, all ...*semaphorev1.PublishRequest) {
		t.Helper()
		must(t, s, all...)
		if got := s.Behind(); got != want {
			t.Errorf("%d revisions behind, want %d", got, want)
		}
	}
	step(5, hello("e1", 5, 0, kNode))
	step(0, begin(kNode, 5), end(kNode, 5, 0))
	step(4, heartbeat(9))
	step(3, changes(upsert(6, kNode, "a", "")))
	step(0, sent(9, 9)) // the rest was for others
	s.Close()
	s = r.Open()
	step(2, hello("e1", 11, 0, kNode)) // may go on from 9
	step(0, sent(11, 11))
}

package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func result(from, n int) Result {
	var r Result
	for i := range n {
		r.Changes = append(r.Changes, Change{Key: Key{Kind: kMember, Name: fmt.Sprint(from + i)}})
	}
	return r
}

// drain takes all that waits, and returns whose turns there were.
func drain(q *Queue, do func(Part)) (turns []string) {
	for q.Turn(func(p Part) {
		turns = append(turns, p.Cluster)
		do(p)
	}) {
	}
	return turns
}

// TestRemotesTakeTurns: what a remote sent comes in its order, its end mark last; and who has sent much waits for who
// has sent little: before its first change come a part's of the other, 32.
func TestRemotesTakeTurns(t *testing.T) {
	q := NewQueue(nil, kMember)
	q.Push("c2", result(0, 5000))
	q.Push("c2", Result{Completed: kMember})
	q.Push("c2", Result{Completed: semaphorev1.Kind_KIND_NODE}) // which is another engine's
	q.Push("c3", result(0, 1))
	got := map[string][]string{}
	completed := map[string]int{}
	turns := drain(q, func(p Part) {
		for _, c := range p.Changes {
			got[p.Cluster] = append(got[p.Cluster], c.Key.Name)
		}
		if p.Cluster == "c3" && len(got["c2"]) > 32 {
			t.Errorf("%d changes of c2 come before the one of c3", len(got["c2"]))
		}
		if p.Completed == kMember {
			completed[p.Cluster] = len(got[p.Cluster])
		}
	})
	if len(turns) < 3 || turns[0] != "c2" || turns[1] != "c3" {
		t.Errorf("turns %v", turns)
	}
	for i, name := range got["c2"] {
		if name != fmt.Sprint(i) {
			t.Fatalf("%d comes as %s", i, name)
		}
	}
	if len(got["c2"]) != 5000 || len(got["c3"]) != 1 || completed["c2"] != 5000 || len(completed) != 1 {
		t.Errorf("%d and %d changes, completed %v", len(got["c2"]), len(got["c3"]), completed)
	}
}

// TestAStreamWaitsForItsRemotesRoom: a stream waits while as much of its remote waits as may, other remotes' do not,
// and it continues when there is room.
func TestAStreamWaitsForItsRemotesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(func(c []Change) [][]Change { return [][]Change{c} }, kMember)
		for i := range maxMessages {
			if q.Room("c2") != nil {
				t.Fatalf("full after %d", i)
			}
			q.Push("c2", result(i, 1))
		}
		if q.Room("c2") == nil || q.Room("c3") != nil {
			t.Errorf("room: c2 %v, c3 %v", q.Room("c2"), q.Room("c3"))
		}
		room := q.Room("c2")
		q.Turn(func(Part) {})
		if _, open := <-room; open || q.Room("c2") != nil {
			t.Error("there is room, and the stream waits")
		}
		drain(q, func(Part) {})
		// Few messages that are large are many.
		large := Result{Changes: []Change{{Key: Key{Kind: kMember}, New: &semaphorev1.Object{
			Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{SetName: string(make([]byte, maxBytes))}}}}}}
		q.Push("c2", large)
		q.Push("c2", large)
		if q.Room("c2") == nil {
			t.Error("2 MiB wait")
		}
		q.Push("c2", result(0, 1))
		q.Push("c2", result(1, 1))
		q.Turn(func(Part) {})
		q.Turn(func(Part) {})
		if q.Room("c2") != nil {
			t.Error("what was taken counts as if it waited")
		}
	})
}

// TestRun: what is pushed is taken, and time is called when it has come.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(nil, kMember)
		ctx, cancel := context.WithCancel(t.Context())
		at := time.Now().Add(time.Minute) // only Run looks at it
		log := make(chan string, 10)
		done := make(chan error, 1)
		go func() {
			done <- q.Run(ctx, func(p Part) { log <- p.Cluster }, func() time.Time { return at }, func() {
				log <- "due"
				at = time.Time{}
			})
		}()
		synctest.Wait()
		q.Push("c2", result(0, 1))
		synctest.Wait()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if len(log) != 1 || <-log != "c2" {
			t.Error("what was pushed is not taken, or it is due too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(log) != 1 || <-log != "due" {
			t.Error("it is not due")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

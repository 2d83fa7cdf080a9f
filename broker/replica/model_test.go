package replica

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// exporter is the model of what the other end does: a journal by the book.
type exporter struct {
	rng    *rand.Rand
	epoch  int
	head   uint64
	oldest uint64
	// newest state of each object: version "" for one that has gone and is remembered.
	last map[Key]step
}

type step struct {
	revision uint64
	version  string
}

var modelVersions = []string{"v0", "v1", "v2", "v0", "v1", "v2", "hollow", "bad"}

var modelKinds = []semaphorev1.Kind{kNode, kService, kMember}

func (e *exporter) epochName() string { return fmt.Sprint("e", e.epoch) }

func (e *exporter) mutate() {
	kind := modelKinds[e.rng.IntN(len(modelKinds))]
	key := KeyOf(object(kind, fmt.Sprint("o", e.rng.IntN(8)), "").Key)
	e.head++
	if e.rng.IntN(3) == 0 {
		if s, ok := e.last[key]; ok && s.version != "" {
			e.last[key] = step{e.head, ""}
		}
		return
	}
	e.last[key] = step{e.head, modelVersions[e.rng.IntN(len(modelVersions))]}
}

// restart begins a new epoch: the journal is read again from the cluster, in another order.
func (e *exporter) restart() {
	e.epoch++
	e.head, e.oldest = 0, 0
	old := e.last
	e.last = map[Key]step{}
	for key, s := range old {
		if s.version != "" {
			e.head++
			e.last[key] = step{e.head, s.version}
		}
	}
}

// forget drops the tombstones up to now.
func (e *exporter) forget() {
	for key, s := range e.last {
		if s.version == "" {
			e.oldest = max(e.oldest, s.revision)
			delete(e.last, key)
		}
	}
}

func (e *exporter) since(revision uint64, want func(Key) bool) []*semaphorev1.Change {
	var out []*semaphorev1.Change
	for key, s := range e.last {
		if s.revision <= revision || !want(key) {
			continue
		}
		if s.version == "" {
			out = append(out, remove(s.revision, key.Kind, key.Name))
		} else {
			out = append(out, upsert(s.revision, key.Kind, key.Name, s.version))
		}
	}
	slices.SortFunc(out, func(a, b *semaphorev1.Change) int { return int(a.Revision) - int(b.Revision) })
	return out
}

// state is what the exporter exports now.
func (e *exporter) state(kind semaphorev1.Kind) map[Key]string {
	out := map[Key]string{}
	for key, s := range e.last {
		if key.Kind == kind && s.version != "" {
			out[key] = s.version
		}
	}
	return out
}

// follower receives the changes of the replica, and knows nothing else of it.
type follower struct {
	t     *testing.T
	r     *Replica
	state map[Key]*semaphorev1.Object
	now   time.Time
}

func (f *follower) take(res Result) {
	f.t.Helper()
	for _, c := range res.Changes {
		if old := f.state[c.Key]; (old == nil) != (c.Old == nil) || old != nil && !proto.Equal(old, c.Old) {
			f.t.Fatalf("%s: the change says it was %v, and it was %v", c.Key, c.Old, old)
		}
		if c.New == nil {
			if !f.r.Complete(c.Key.Kind) {
				f.t.Fatalf("%s: gone before a snapshot was complete", c.Key)
			}
			delete(f.state, c.Key)
		} else {
			f.state[c.Key] = c.New
		}
	}
}

func (f *follower) versions(kind semaphorev1.Kind) map[Key]string {
	out := map[Key]string{}
	for key, o := range f.state {
		if key.Kind == kind {
			for _, v := range modelVersions {
				if proto.Equal(o, object(kind, key.Name, v)) {
					out[key] = v
				}
			}
		}
	}
	return out
}

// Random operations, disconnections at any message, and restarts of either end; after every
// complete snapshot and every acknowledged change what is held equals what is exported.
func TestModel(t *testing.T) {
	seeds := 1000
	if testing.Short() {
		seeds = 100
	}
	for seed := range uint64(seeds) {
		if !t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { runModel(t, seed) }) {
			return
		}
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	e := &exporter{rng: rng, epoch: 1, last: map[Key]step{}}
	// A third of the runs have a brake, a third limits beside.
	var limits config.Limits
	var brake config.Brake
	if seed%3 > 0 {
		brake = config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: 3 * time.Minute}}
	}
	if seed%3 > 1 {
		limits = config.Limits{Nodes: 5, Services: 6, SetMembers: 4}
	}
	newReplica := func() *Replica {
		r := newReplica()
		r.SetLimits(limits, brake)
		return r
	}
	r := newReplica()
	f := &follower{t, r, map[Key]*semaphorev1.Object{}, now}
	for range 12 {
		for range rng.IntN(6) {
			e.mutate()
		}
		switch rng.IntN(12) {
		case 0:
			e.restart()
		case 1:
			e.forget()
		case 2: // The broker restarts: all that it held is forgotten, what it wrote remains.
			r = newReplica()
			f.r, f.state = r, map[Key]*semaphorev1.Object{}
		}
		stream(t, rng, e, r, f)
	}
}

// stream is one connection, cut at a random message.
func stream(t *testing.T, rng *rand.Rand, e *exporter, r *Replica, f *follower) {
	s := r.Open()
	defer s.Close()
	left := rng.IntN(30)
	kinds := modelKinds
	if rng.IntN(4) == 0 {
		kinds = kinds[:1+rng.IntN(len(kinds))]
	}
	before := maps.Clone(f.state)
	send := func(m *semaphorev1.PublishRequest) (Result, bool) {
		if left--; left < 0 {
			return Result{}, false
		}
		f.now = f.now.Add(time.Duration(rng.IntN(40)) * time.Second)
		res, err := s.Receive(f.now, m)
		f.take(res)
		consistent(t, r)
		if m.GetHeartbeat() != nil && status.Code(err) == codes.Aborted {
			// It asks for all again: there is a reason for it, and the next stream sends all.
			reason := false
			for _, kind := range kinds {
				k := r.kind(kind)
				reason = reason || len(k.retained) > 0 || k.overLimit > 0
			}
			if !reason {
				t.Fatalf("asked to send all again for nothing: %v", err)
			}
			return Result{}, false
		}
		if err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		return res, true
	}
	same := func(kind semaphorev1.Kind) {
		got, want := f.versions(kind), e.state(kind)
		for key, w := range r.kind(kind).retained {
			if v := want[key]; v != "" && v != "hollow" && v != "bad" || (v == "hollow") != (w.replacement != nil) {
				t.Fatalf("%s is exported as %q, and retained", key, v)
			}
			if w.replacement != nil {
				delete(want, key)
			}
			delete(got, key)
		}
		for key, refused := range r.kind(kind).refused {
			if _, held := got[key]; held || want[key] == "" {
				t.Fatalf("%s is refused (%s), held %q and exported %q", key, refused.Reason, got[key], want[key])
			}
			delete(want, key)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%s: held %v, exported %v", semaphorev1.KindName(kind), got, want)
		}
	}
	exported := func(key Key) bool { return slices.Contains(kinds, key.Kind) }
	res, ok := send(hello(e.epochName(), e.head, e.oldest, kinds...))
	if !ok {
		return
	}
	w := res.Responses[0].GetWelcome()
	position := e.head
	if w.GetResumeEpoch() == e.epochName() && w.GetResumeRevision() >= e.oldest && rng.IntN(5) > 0 {
		position = w.GetResumeRevision()
	} else {
		for _, kind := range kinds {
			all := e.since(0, func(key Key) bool { return key.Kind == kind && e.last[key].version != "" })
			if sum := digestOf(all); rng.IntN(4) > 0 && slices.ContainsFunc(w.GetHeld(), func(h *semaphorev1.KindState) bool {
				return h.GetKind() == kind && h.GetObjects() == uint64(len(all)) && bytes.Equal(h.GetDigest(), sum.Bytes())
			}) {
				if _, ok := send(unchanged(kind, e.head, uint64(len(all)), sum)); !ok {
					return
				}
				same(kind)
				continue
			}
			if _, ok := send(begin(kind, e.head)); !ok {
				return
			}
			for part := range slices.Chunk(all, 3) {
				if _, ok := send(changes(part...)); !ok {
					// Cut within the snapshot: what is held of this kind stays as it was.
					for key, o := range f.state {
						if key.Kind == kind && before[key] != o {
							t.Fatalf("%s changed by a snapshot that did not end", key)
						}
					}
					return
				}
			}
			stood := map[Key]bool{}
			for key := range r.kind(kind).objects {
				_, back := r.kind(kind).retained[key]
				stood[key] = !back
			}
			if _, ok := send(end(kind, e.head, uint64(len(all)))); !ok {
				return
			}
			same(kind)
			for key, v := range e.state(kind) {
				// Whatever the order, what is new takes no room of what existed. A pod that is of another set is new there.
				if _, held := r.kind(kind).objects[key]; stood[key] && !held && kind != kMember && v != "bad" {
					t.Fatalf("%s existed, is exported as %s, and is no longer held", key, v)
				}
			}
		}
	}
	for range rng.IntN(6) {
		for range rng.IntN(4) {
			e.mutate()
		}
		all := e.since(position, exported)
		if len(all) == 0 {
			// Later changes are for others: the position moves all the same.
			res, ok := send(sent(e.head, e.head))
			if !ok {
				return
			}
			position = e.head
			if acked, _ := ackOf(res); acked != position {
				t.Fatalf("acknowledged %d, sent up to %d", acked, position)
			}
			continue
		}
		if rng.IntN(3) == 0 { // a slow stream sends but a part
			all = all[:1+rng.IntN(len(all))]
		}
		res, ok := send(changes(all...))
		if !ok {
			return
		}
		position = all[len(all)-1].GetRevision()
		if acked, _ := ackOf(res); acked != position {
			t.Fatalf("acknowledged %d, sent up to %d", acked, position)
		}
		if len(e.since(position, exported)) == 0 {
			for _, kind := range kinds {
				same(kind)
			}
		}
	}
}

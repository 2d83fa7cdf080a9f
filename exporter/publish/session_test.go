package publish

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var kinds = []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SET_MEMBER}

func newJournal(tombstones int) *catalog.Journal {
	return streams.NewJournal[catalog.Key, catalog.Export](tombstones)
}

// put exports an object to the audience in its key, or to c2.
func put(j *catalog.Journal, key catalog.Key, object *semaphorev1.Object, now time.Time) {
	to := catalog.For("c2")
	if key.Audience != "" {
		to = catalog.For(key.Audience)
	}
	e, err := catalog.NewExport(object, to)
	if err != nil {
		panic(err)
	}
	j.Put(key, e, now)
}

// remove deletes an object, whose deletion goes to who had it.
func remove(j *catalog.Journal, key catalog.Key, now time.Time) {
	e, _ := j.Get(key)
	j.Delete(key, catalog.Export{To: e.To}, now)
}

func member(name, ip string) (catalog.Key, *semaphorev1.Object) {
	key := catalog.Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: "shop", Name: name}
	return key, &semaphorev1.Object{Key: key.Proto(),
		Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{Ips: []string{ip}}}}
}

// node is an object that only one cluster may see.
func node(audience, name, address string) (catalog.Key, *semaphorev1.Object) {
	key := catalog.Key{Audience: audience, Kind: semaphorev1.Kind_KIND_NODE, Name: name}
	return key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{
		Wireguard: &semaphorev1.WireGuardEndpoint{Address: address},
	}}}
}

func takeAll(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) { return o, nil }

// bothEnds is a session of ours and one of the real broker's replica, and what is between them.
type bothEnds struct {
	t       *testing.T
	sender  *Session
	replica *replica.Session
	// requests and responses are on their way.
	requests  []*semaphorev1.PublishRequest
	responses []*semaphorev1.PublishResponse
	// sent counts messages by their type.
	sent map[string]int
	// largest is that of any message.
	largest int
}

// dial begins a stream; Hello is on its way.
func dial(t *testing.T, sender *Session, r *replica.Replica) *bothEnds {
	w := &bothEnds{t: t, sender: sender, replica: r.Open(), sent: map[string]int{}}
	w.say(w.sender.Hello())
	return w
}

// connect begins a stream on which everything arrives at once.
func connect(t *testing.T, j *catalog.Journal, r *replica.Replica) *bothEnds {
	t.Helper()
	return connectFrom(t, source{}, j, r)
}

func connectFrom(t *testing.T, from Source, j *catalog.Journal, r *replica.Replica) *bothEnds {
	t.Helper()
	w := dial(t, NewSession("c1", "c2", "test", 0, from, kinds, j), r)
	w.arrive()
	return w
}

// say sends a message, which the broker's limits let pass.
func (w *bothEnds) say(m *semaphorev1.PublishRequest) {
	w.t.Helper()
	data, err := proto.Marshal(m)
	must(w.t, err)
	must(w.t, streams.Decode(data, &semaphorev1.PublishRequest{}, federation.MaxDecoded))
	if len(data) > federation.MaxMessage {
		w.t.Fatalf("a message of %d bytes: a broker reads %d at most", len(data), federation.MaxMessage)
	}
	w.sent[fmt.Sprintf("%T", m.GetMessage())]++
	w.largest = max(w.largest, proto.Size(m))
	w.requests = append(w.requests, m)
}

// brokerTakes has one message arrive, and is false when there is none.
func (w *bothEnds) brokerTakes() bool {
	w.t.Helper()
	if len(w.requests) == 0 {
		return false
	}
	m := w.requests[0]
	w.requests = w.requests[1:]
	result, err := w.replica.Receive(time.Now(), m)
	if err != nil {
		w.t.Fatalf("the broker on %v: %v", m, err)
	}
	w.responses = append(w.responses, result.Responses...)
	return true
}

// exporterTakes has one answer arrive, and is false when there is none.
func (w *bothEnds) exporterTakes() bool {
	w.t.Helper()
	if len(w.responses) == 0 {
		return false
	}
	m := w.responses[0]
	w.responses = w.responses[1:]
	if _, err := w.sender.Receive(m); err != nil {
		w.t.Fatalf("the exporter on %v: %v", m, err)
	}
	return true
}

// arrive has everything arrive that is on its way.
func (w *bothEnds) arrive() {
	w.t.Helper()
	for w.brokerTakes() || w.exporterTakes() {
	}
}

// step sends one message, and is false when there is none.
func (w *bothEnds) step() bool {
	w.t.Helper()
	m, err := w.sender.Next()
	must(w.t, err)
	if m == nil {
		return false
	}
	w.say(m)
	w.arrive()
	return true
}

func (w *bothEnds) drain() {
	w.t.Helper()
	for w.step() {
	}
	if n := w.sender.behind(); n != 0 {
		w.t.Errorf("everything is sent and acknowledged, and behind says %d", n)
	}
}

func (w *bothEnds) snapshots() int { return w.sent["*semaphorev1.PublishRequest_SnapshotBegin"] }
func (w *bothEnds) unchanged() int { return w.sent["*semaphorev1.PublishRequest_SnapshotUnchanged"] }

func held(r *replica.Replica) map[string]*semaphorev1.Object {
	out := map[string]*semaphorev1.Object{}
	for _, kind := range kinds {
		for key, o := range r.All(kind) {
			out[key.String()] = o
		}
	}
	return out
}

// exported is what c2 should hold.
func exported(j *catalog.Journal) map[string]*semaphorev1.Object {
	out := map[string]*semaphorev1.Object{}
	all, _ := j.Snapshot()
	for _, e := range all {
		if e.Value.To.Has("c2") {
			out[replica.KeyOf(e.Value.Object.GetKey()).String()] = e.Value.Object
		}
	}
	return out
}

func equal(t *testing.T, j *catalog.Journal, r *replica.Replica) {
	t.Helper()
	if d := cmp.Diff(exported(j), held(r), protocmp.Transform()); d != "" {
		t.Fatalf("the broker holds something else than is exported (-exported +held):\n%s", d)
	}
}

func newReplica() *replica.Replica { return replica.New("c1", "c2", "test", takeAll) }

func TestFirstConnectSendsASnapshotThenChanges(t *testing.T) {
	j, r := newJournal(10), newReplica()
	now := time.Now()
	for i := range 3 {
		k, o := member(fmt.Sprint("pod", i), fmt.Sprint("10.1.1.", i))
		put(j, k, o, now)
	}
	w := connect(t, j, r)
	if n := w.sender.behind(); n != 3 {
		t.Errorf("a snapshot of 3 objects waits, and behind says %d", n)
	}
	w.drain()
	equal(t, j, r)
	if w.snapshots() != len(kinds) {
		t.Errorf("%d snapshots, not one a kind", w.snapshots())
	}
	k, o := member("pod0", "10.1.1.99")
	put(j, k, o, now)
	if n := w.sender.behind(); n != 1 {
		t.Errorf("one change waits, and behind says %d", n)
	}
	w.drain()
	equal(t, j, r)
	k, _ = member("pod1", "")
	remove(j, k, now)
	w.drain()
	equal(t, j, r)
}

func TestReconnect(t *testing.T) {
	j, r := newJournal(10), newReplica()
	k, o := member("pod0", "10.1.1.1")
	put(j, k, o, time.Now())
	connect(t, j, r).drain()

	w := connect(t, j, r)
	w.drain()
	if w.snapshots() != 0 || w.sent["*semaphorev1.PublishRequest_Changes"] != 0 {
		t.Errorf("a reconnect with nothing changed sent %v", w.sent)
	}
	k, o = member("pod0", "10.1.1.2")
	put(j, k, o, time.Now())
	w = connect(t, j, r)
	w.drain()
	if w.snapshots() != 0 || w.sent["*semaphorev1.PublishRequest_Changes"] != 1 {
		t.Errorf("a reconnect with one change sent %v", w.sent)
	}
	equal(t, j, r)

	// Another life of the exporter, another epoch.
	again := newJournal(10)
	put(again, k, o, time.Now())
	w = connect(t, again, r)
	w.drain()
	if w.snapshots() != 0 || w.unchanged() != len(kinds) || w.sent["*semaphorev1.PublishRequest_Changes"] != 0 {
		t.Errorf("a new epoch with what the broker holds sent %v", w.sent)
	}
	equal(t, again, r)

	again = newJournal(10)
	k, o = member("pod0", "10.1.1.3")
	put(again, k, o, time.Now())
	w = connect(t, again, r)
	w.drain()
	if w.snapshots() != 1 || w.unchanged() != len(kinds)-1 {
		t.Errorf("a new epoch with another object of one kind sent %v", w.sent)
	}
	equal(t, again, r)
}

// TestAResumedStreamRepeatsRefusals: a refusal that did not arrive comes before the broker's first answer on the next
// stream, with heartbeats alone and with a change.
func TestAResumedStreamRepeatsRefusals(t *testing.T) {
	for _, changes := range []bool{false, true} {
		j := newJournal(10)
		r := replica.New("c1", "c2", "test", func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) {
			if o.GetKey().GetName() == "bad" {
				return nil, []admission.Refusal{{Code: finding.InvalidIP, Reason: "for the test"}}
			}
			return o, nil
		})
		for _, name := range []string{"good", "bad"} {
			k, o := member(name, "10.1.1.1")
			put(j, k, o, time.Now())
		}
		connect(t, j, r).drain()
		w := connect(t, j, r)
		if k, o := member("good", "10.1.1.2"); changes {
			put(j, k, o, time.Now())
		}
		m, err := w.sender.Next()
		must(t, err)
		if !changes {
			m = w.sender.Heartbeat()
		}
		w.say(m)
		w.brokerTakes()
		if len(w.responses) != 2 || w.responses[0].GetRefusal().GetKey().GetName() != "bad" ||
			w.responses[0].GetRefusal().GetRevision() != 2 || w.responses[1].GetAck() == nil {
			t.Errorf("after %v the broker answers %v, want the refusal at revision 2 and an ack", m, w.responses)
		}
	}
}

func TestABrokerThatFellBehindGetsASnapshot(t *testing.T) {
	j, r := newJournal(1), newReplica()
	put := func(i int) {
		k, o := member(fmt.Sprint("pod", i), fmt.Sprint("10.1.1.", i))
		put(j, k, o, time.Now())
	}
	for i := range 10 {
		put(i)
	}
	w := connect(t, j, r)
	w.drain()
	for i := range 9 {
		k, _ := member(fmt.Sprint("pod", i), "")
		remove(j, k, time.Now())
	}
	if _, err := w.sender.Next(); err != errFellBehind {
		t.Fatalf("deletions are forgotten, and next says %v", err)
	}
	p := &Publisher{options: Options{Heartbeat: HeartbeatInterval}}
	if err := p.send(t.Context(), nil, w.sender, nil); err != errFellBehind {
		t.Errorf("the stream ends with %v, want the same", err)
	}
	w = connect(t, j, r)
	w.drain()
	if w.snapshots()+w.unchanged() != len(kinds) || w.snapshots() == 0 {
		t.Errorf("the next stream sent %v, no snapshots", w.sent)
	}
	equal(t, j, r)
}

func TestMessagesStaySmall(t *testing.T) {
	j, r := newJournal(10), newReplica()
	for i := range 3*maxBatchObjects + 1 {
		k, o := member(fmt.Sprint("pod", i), "10.1.1.1")
		put(j, k, o, time.Now())
	}
	big, o := member("big", "")
	for range 20_000 {
		o.GetSetMember().Ips = append(o.GetSetMember().Ips, "2001:db8::ffff:ffff:ffff:ffff")
	}
	put(j, big, o, time.Now())
	w := connect(t, j, r)
	w.drain()
	equal(t, j, r)
	if limit := maxBatchBytes + proto.Size(o); w.largest > limit {
		t.Errorf("a message of %d bytes; the limit and one object are %d", w.largest, limit)
	}
	if got := w.sent["*semaphorev1.PublishRequest_Changes"]; got < 5 {
		t.Errorf("%d objects in %d messages", 3*maxBatchObjects+2, got)
	}

	// Changes that do not fit into one message are no fewer.
	for i := range 5 {
		k, o := member(fmt.Sprint("large", i), "10.1.1.1")
		for range maxBatchBytes / 2 / 30 {
			o.GetSetMember().Ips = append(o.GetSetMember().Ips, "2001:db8::ffff:ffff:ffff:ffff")
		}
		put(j, k, o, time.Now())
	}
	w.largest = 0
	before := w.sent["*semaphorev1.PublishRequest_Changes"]
	w.drain()
	equal(t, j, r)
	if got := w.sent["*semaphorev1.PublishRequest_Changes"] - before; got < 3 || w.largest > maxBatchBytes+100 {
		t.Errorf("5 large changes in %d messages, the largest of %d bytes", got, w.largest)
	}
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	s := NewSession("c1", "c2", "test", 0, source{}, kinds, newJournal(1))
	if _, err := s.Receive(welcome(&semaphorev1.Welcome{Cluster: "c3", ProtocolVersion: 1})); err == nil {
		t.Error("the welcome of another cluster is taken")
	}
	if _, err := s.Receive(ack(7)); err == nil {
		t.Error("an acknowledgement before welcome is taken")
	}

	k, o := member("pod", "10.1.1.1")
	put(s.journal, k, o, time.Now())
	_, err := s.Receive(hi())
	must(t, err)
	if _, err := s.Receive(hi()); err == nil {
		t.Error("a second welcome is taken")
	}
	if _, err := s.Receive(ack(2)); err == nil {
		t.Error("an acknowledgement of what was not sent is taken")
	}
	// An answer of a later protocol is passed over.
	if _, err := s.Receive(&semaphorev1.PublishResponse{}); err != nil {
		t.Error(err)
	}
}

// TestResumeOffers: the broker's offer is taken up only where the journal still has what comes after it. It
// may have forgotten since it said Hello.
func TestResumeOffers(t *testing.T) {
	j := newJournal(1)
	for i := range 4 {
		k, o := member(fmt.Sprint("pod", i), "10.1.1.1")
		put(j, k, o, time.Now())
	}
	for i := range 3 {
		k, _ := member(fmt.Sprint("pod", i), "")
		remove(j, k, time.Now())
	}
	if j.Oldest() != 6 || j.Head() != 7 {
		t.Fatalf("the journal goes from %d to %d", j.Oldest(), j.Head())
	}
	for _, test := range []struct {
		epoch    string
		revision uint64
		resumed  bool
		joined   uint64 // the head of the journal when the cluster joined
	}{
		{j.Epoch(), 7, true, 7},
		{j.Epoch(), 6, true, 0},
		{j.Epoch(), 6, false, 7}, // of the time before it left
		{j.Epoch(), 5, false, 0}, // a deletion after it is forgotten
		{j.Epoch(), 8, false, 0}, // never was
		{j.Epoch(), 0, false, 0},
		{"another", 7, false, 0},
		{"", 0, false, 0},
	} {
		s := NewSession("c1", "c2", "test", 0, source{}, kinds, j)
		s.notBefore = test.joined
		_, err := s.Receive(welcome(&semaphorev1.Welcome{Cluster: "c2", ProtocolVersion: 1, ResumeEpoch: test.epoch,
			ResumeRevision: test.revision}))
		must(t, err)
		m, err := s.Next()
		must(t, err)
		if snapshot := m.GetSnapshotBegin() != nil; snapshot == test.resumed {
			t.Errorf("offered revision %d of %q: snapshot is %v", test.revision, test.epoch, snapshot)
		}
	}
}

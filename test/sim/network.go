package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// detectWithin is the time after which keepalive detects a dead connection; see internal/streams.
const detectWithin = 15 * time.Second

// wire is a connection with its messages in flight, encoded. It keeps the order within a stream; there is none between
// streams.
type wire struct {
	w        *world
	id       int
	up, down [][]byte
	// stalled means that nothing is delivered, and neither end notices before keepalive does.
	stalled bool
	since   time.Time
	// slow is until when nothing is delivered; afterwards delivery continues.
	slow time.Time
	// broken means that the connection is gone, which each end notices at another time.
	broken                 bool
	clientGone, serverGone bool
}

func (c *wire) send(queue *[][]byte, m proto.Message) {
	if !c.broken { // else it is lost, and what comes after it
		*queue = append(*queue, encode(m))
	}
}

func (c *wire) take(queue *[][]byte) []byte {
	data := (*queue)[0]
	*queue = (*queue)[1:]
	return data
}

// dead reports whether an end notices that nothing passes any more.
func (c *wire) dead() bool {
	return c.broken || c.stalled && c.w.now.Sub(c.since) > detectWithin
}

// conn is a stream between an exporter and a broker.
type conn struct {
	wire
	client  *upLink
	server  *broker
	session *replica.Session
	// superseded means that the broker must end it in favour of a newer one; old, because of its age or because its
	// certificate is no longer trusted.
	superseded, old bool
	// key is the exporter's certificate.
	key int
	// acks are the broker's, as in the product. owed is since when an acknowledgement is due; zero for none.
	acks replica.Acks
	owed time.Time
	// listed are the objects of the snapshot that is being sent.
	listed map[replica.Key]bool
	// lossy means that a part of a snapshot was lost, which no connection does and a faulty program may.
	lossy bool
}

func (w *world) connect(l *upLink, b *broker) *conn {
	w.ids++
	c := &conn{wire: wire{w: w, id: w.ids}, client: l, server: b, session: b.replicas[l.x.source.name].Open(),
		key: l.x.source.key}
	w.conns = append(w.conns, c)
	return c
}

func (c *conn) deliverUp() bool {
	if len(c.up) == 0 || c.stalled || c.w.now.Before(c.slow) || c.serverGone || c.server.paused {
		return false
	}
	m := &semaphorev1.PublishRequest{}
	decode(c.take(&c.up), m)
	c.lose(m)
	c.server.receive(c, m)
	return true
}

// lose removes changes from a snapshot.
func (c *conn) lose(m *semaphorev1.PublishRequest) {
	changes := m.GetChanges()
	if changes == nil || !c.session.Staging() || c.w.lossy == 0 || !c.w.chance(c.w.lossy) {
		return
	}
	c.lossy = true
	keep := c.w.rng.IntN(len(changes.GetChanges()))
	c.w.tracef("stream %d: of %d changes of a snapshot %d arrive", c.id, len(changes.GetChanges()), keep)
	changes.Changes = changes.GetChanges()[:keep]
}

func (c *conn) deliverDown() bool {
	if len(c.down) == 0 || c.stalled || c.clientGone || c.client.x.paused {
		return false
	}
	m := &semaphorev1.PublishResponse{}
	decode(c.take(&c.down), m)
	c.client.receive(m)
	return true
}

// notice makes one end notice that the other is gone, or that it must end the stream.
func (c *conn) notice() bool {
	dead := c.dead()
	// The last messages of the other end arrive first, unless the connection was cut.
	if !c.clientGone && !c.client.x.paused && (dead || c.serverGone && !c.stalled && len(c.down) == 0) {
		c.client.fail("cut")
		return true
	}
	if !c.serverGone && !c.server.paused && (dead || c.superseded || c.old || c.clientGone && !c.stalled &&
		!c.w.now.Before(c.slow)) {
		c.server.ended(c, "cut, superseded or too old")
		return true
	}
	if c.clientGone && c.serverGone {
		c.w.conns = slices.DeleteFunc(c.w.conns, func(o *conn) bool { return o == c })
		return true
	}
	return false
}

var deterministic = proto.MarshalOptions{Deterministic: true}

func encode(m proto.Message) []byte {
	data, err := deterministic.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a message that cannot be encoded: %v", err))
	}
	return data
}

func decode(data []byte, m proto.Message) {
	if err := proto.Unmarshal(data, m); err != nil {
		panic(fmt.Sprintf("a message that cannot be decoded: %v", err))
	}
}

// brief is a message as a short text, without what differs between two runs of a seed (epochs). The text is made only
// if somebody reads the trace.
type brief struct{ *semaphorev1.PublishRequest }

func (b brief) String() string {
	switch m := b.GetMessage().(type) {
	case *semaphorev1.PublishRequest_Hello:
		return fmt.Sprintf("hello, revisions %d to %d, term %d", m.Hello.GetOldestRevision(), m.Hello.GetHeadRevision(),
			m.Hello.GetTerm())
	case *semaphorev1.PublishRequest_SnapshotBegin:
		return fmt.Sprintf("snapshot of %s at %d", semaphorev1.KindName(m.SnapshotBegin.GetKind()),
			m.SnapshotBegin.GetRevision())
	case *semaphorev1.PublishRequest_SnapshotEnd:
		return fmt.Sprintf("snapshot of %s ends with %d", semaphorev1.KindName(m.SnapshotEnd.GetKind()),
			m.SnapshotEnd.GetObjects())
	case *semaphorev1.PublishRequest_SnapshotUnchanged:
		return fmt.Sprintf("snapshot of %s unchanged with %d at %d", semaphorev1.KindName(m.SnapshotUnchanged.GetKind()),
			m.SnapshotUnchanged.GetObjects(), m.SnapshotUnchanged.GetRevision())
	case *semaphorev1.PublishRequest_Heartbeat:
		return fmt.Sprintf("heartbeat, head %d, sent %d", m.Heartbeat.GetHeadRevision(), m.Heartbeat.GetSentRevision())
	case *semaphorev1.PublishRequest_Changes:
		var text strings.Builder
		for _, c := range m.Changes.GetChanges() {
			fmt.Fprintf(&text, " %d:", c.GetRevision())
			if d := c.GetDelete(); d != nil {
				fmt.Fprintf(&text, "delete %s", replica.KeyOf(d))
			} else {
				fmt.Fprintf(&text, "%s is %s", replica.KeyOf(c.GetUpsert().GetKey()), held(c.GetUpsert()))
			}
		}
		return "changes" + text.String()
	}
	return fmt.Sprintf("%T", b.GetMessage())
}

type briefAnswer struct{ *semaphorev1.PublishResponse }

func (b briefAnswer) String() string {
	switch m := b.GetMessage().(type) {
	case *semaphorev1.PublishResponse_Welcome:
		return fmt.Sprintf("welcome, resume from %d", m.Welcome.GetResumeRevision())
	case *semaphorev1.PublishResponse_Ack:
		return fmt.Sprintf("ack %d", m.Ack.GetRevision())
	case *semaphorev1.PublishResponse_Refusal:
		return fmt.Sprintf("refusal of %s: %s", replica.KeyOf(m.Refusal.GetKey()), m.Refusal.GetCode())
	}
	return fmt.Sprintf("%T", b.GetMessage())
}

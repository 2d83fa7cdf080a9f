package sim

import (
	"errors"

	"github.com/kube-semaphore/semaphore/broker/replica"
)

// This file checks which stream counts: of all streams of a source the one that sent Hello last, and no deposed
// exporter's while the leader is connected.

// leads checks the result of a message. was is the stream that counted before it; greeted means that this one had sent
// Hello.
func (b *broker) leads(c, was *conn, greeted bool, err error) {
	source := c.client.x.source.name
	superseded := errors.Is(err, replica.ErrSuperseded)
	switch {
	case greeted && was != c && !superseded:
		b.w.fail("leader", "broker %d of %s hears stream %d of %s, from which a newer one has taken over", b.id, b.d.name,
			c.id, source)
	case greeted && was == c && superseded:
		b.w.fail("leader", "broker %d of %s ends stream %d of %s as superseded, and none has said Hello since", b.id,
			b.d.name, c.id, source)
	case greeted || !c.session.Current():
		return
	}
	if was != nil && was.client.x.term > c.client.x.term {
		b.w.fail("leader", "broker %d of %s lets an exporter of %s of term %d replace one of term %d that is connected",
			b.id, b.d.name, source, c.client.x.term, was.client.x.term)
	}
	hello := c.session.Hello()
	if acked := b.acked[[2]string{source, streamOf(hello)}]; hello.GetHeadRevision() < acked {
		b.w.fail("I3", "broker %d of %s takes a hello of %s that ends at %d, and has acknowledged %d of the same epoch",
			b.id, b.d.name, source, hello.GetHeadRevision(), acked)
	}
}

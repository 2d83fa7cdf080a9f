package sim

import (
	"slices"
	"time"
)

// This file has the faults, and what ends them.

// stall makes a stream deliver nothing, without either end noticing.
func (w *world) stall() bool {
	return any_(w, w.wires(), func(c *wire) bool {
		if c.stalled || c.broken {
			return false
		}
		c.stalled, c.since = true, w.now
		w.tracef("stream %d stalls", c.id)
		return true
	})
}

func (w *world) unstall() bool {
	return any_(w, w.wires(), func(c *wire) bool {
		if !c.stalled || c.clientGone || c.serverGone {
			return false
		}
		c.stalled = false
		w.tracef("stream %d flows again", c.id)
		return true
	})
}

// cut breaks a stream; messages in flight may still arrive.
func (w *world) cut() bool {
	return any_(w, w.wires(), func(c *wire) bool {
		if c.broken {
			return false
		}
		c.broken, c.stalled = true, false
		if w.chance(0.5) {
			c.up = c.up[:w.rng.IntN(len(c.up)+1)]
			c.down = c.down[:w.rng.IntN(len(c.down)+1)]
		}
		w.tracef("stream %d is cut with %d up and %d down under way", c.id, len(c.up), len(c.down))
		return true
	})
}

// halfOpen makes the exporter lose a stream; the broker notices only by keepalive.
func (w *world) halfOpen() bool {
	return any_(w, w.conns, func(c *conn) bool {
		if c.broken || c.clientGone || c.client.x.paused {
			return false
		}
		c.client.fail("lost")
		c.stalled, c.since = true, w.now
		return true
	})
}

// overlap makes the exporter lose a stream and begin another while the last messages of the first are still in flight.
func (w *world) overlap() bool {
	return any_(w, w.conns, func(c *conn) bool {
		if c.broken || c.stalled || c.clientGone || c.client.x.paused {
			return false
		}
		c.client.fail("given up")
		c.client.redial = w.now
		return true
	})
}

// hesitate makes the exporter begin a stream, end it immediately and begin another; the first one reaches the broker
// later.
func (w *world) hesitate() bool {
	return any_(w, w.links(), func(l *upLink) bool {
		if l.x.paused {
			return false
		}
		if l.conn != nil {
			l.fail("given up")
		}
		l.redial = w.now
		if !l.dial() || l.conn == nil {
			return false
		}
		l.conn.slow = w.now.Add(time.Duration(w.rng.IntN(12_000)) * time.Millisecond)
		l.fail("given up")
		l.redial = w.now
		return l.dial()
	})
}

// age makes a broker end a stream of the maximal age.
func (w *world) age() bool {
	if w.chance(0.5) {
		return any_(w, w.agentConns, func(c *agentConn) bool {
			was := c.old
			c.old = true
			return !was
		})
	}
	return any_(w, w.conns, func(c *conn) bool {
		was := c.old
		c.old = true
		return !was
	})
}

// rotate is one step of a change of a source's certificates: the source uses a new one, which a destination may not
// trust yet, or a destination trusts the new one, or only that one, and ends the streams that were opened with another.
func (w *world) rotate() bool {
	s, d := pick(w, w.sources), pick(w, w.dests)
	switch trusted := d.trusts[s.name]; {
	case w.chance(0.4):
		s.key++
		w.tracef("%s has certificate %d", s.name, s.key)
	case !trusted[s.key]:
		trusted[s.key] = true
		w.tracef("%s trusts certificate %d of %s", d.name, s.key, s.name)
	case len(trusted) > 1:
		d.trusts[s.name] = map[int]bool{s.key: true}
		w.tracef("%s trusts no certificate of %s but %d", d.name, s.name, s.key)
		for _, c := range w.conns {
			if c.server.d == d && c.client.x.source == s && c.key != s.key {
				c.old = true
			}
		}
	default:
		return false
	}
	return true
}

// blackout ends a broker; while none leads, a source withdraws most of what it exports of a kind.
func (w *world) blackout() bool {
	d := pick(w, w.dests)
	if !w.braked || d.leader == nil {
		return false
	}
	d.leader.crash()
	return pick(w, w.sources).withdraw()
}

// release is an operator's order to remove what the brakes retain of a source.
func (w *world) release() bool {
	d, s := pick(w, w.dests), pick(w, w.sources)
	if b := d.leader; w.braked && b != nil && !b.paused && w.chance(0.2) {
		b.release(s)
		return true
	}
	return false
}

// splitExporter starts a second exporter beside one that still runs: the lease has passed on, and the first has not
// noticed.
func (w *world) splitExporter() bool {
	return any_(w, w.sources, func(s *source) bool {
		n := 0
		for _, x := range w.exporters {
			if x.source == s {
				n++
			}
		}
		if n != 1 {
			return false
		}
		w.newExporter(s)
		return true
	})
}

// crashAgent ends the process on a node and starts another, which finds the devices as they are.
func (w *world) crashAgent() bool { return any_(w, w.agents(), (*agent).crash) }

func (w *world) crashExporter() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		x.crash(w.chance(0.5))
		return true
	})
}

// startExporter starts an exporter if none runs.
func (w *world) startExporter() bool {
	return any_(w, w.sources, func(s *source) bool {
		if slices.ContainsFunc(w.exporters, func(x *exporter) bool { return x.source == s && !x.paused }) {
			return false
		}
		w.newExporter(s)
		return true
	})
}

// pauseExporter stops a process for a time; another may become the leader meanwhile.
func (w *world) pauseExporter() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		if x.paused {
			return false
		}
		x.paused = true
		x.tracef("is stopped")
		return true
	})
}

func (w *world) resumeExporter() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		if !x.paused {
			return false
		}
		x.paused = false
		x.tracef("continues")
		return true
	})
}

// deposed makes an exporter notice that another leads.
func (w *world) deposed() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		if x.paused || !slices.ContainsFunc(w.exporters, func(o *exporter) bool {
			return o.source == x.source &&
				o.term > x.term
		}) {
			return false
		}
		x.crash(true)
		return true
	})
}

func (w *world) crashBroker() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		b.crash()
		return true
	})
}

// startBroker starts a broker if none leads.
func (w *world) startBroker() bool {
	return any_(w, w.dests, func(d *dest) bool {
		if d.leader != nil && !d.leader.paused {
			return false
		}
		d.newBroker()
		return true
	})
}

func (w *world) pauseBroker() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		if b.paused {
			return false
		}
		b.paused = true
		b.tracef("is stopped")
		return true
	})
}

// resumeBroker continues a stopped broker. If another leads by now, it notices soon: requests in flight reach the
// apiserver, and it may decide a few more from its old state.
func (w *world) resumeBroker() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		if !b.paused {
			return false
		}
		b.paused = false
		b.tracef("continues")
		if b.d.leader == b {
			return true
		}
		b.d.writing = b
		for range w.rng.IntN(8) {
			any_(w, b.loops, runner.reconcile)
			any_(w, b.loops, func(l runner) bool { return l.land(false, false) })
		}
		b.crash()
		return true
	})
}

// lateWrite executes, or loses, a write of a broker that ended.
func (w *world) lateWrite() bool {
	return any_(w, w.dests, func(d *dest) bool {
		if len(d.late) == 0 {
			return false
		}
		i := w.rng.IntN(len(d.late))
		write := d.late[i]
		d.late = slices.Delete(d.late, i, i+1)
		if w.chance(0.6) {
			write()
		}
		return true
	})
}

// unreachable makes a destination unreachable, or ends that.
func (w *world) unreachable() bool {
	d := pick(w, w.dests)
	d.unreachable = !d.unreachable
	d.tracef("unreachable: %t", d.unreachable)
	return true
}

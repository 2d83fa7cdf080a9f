package sim

import "slices"

// This file has what goes wrong, and what ends it.

// stall keeps a stream from delivering anything, and from being noticed to.
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

// cut breaks a stream; of what is under way some may still arrive.
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

// halfOpen has the exporter lose a stream of which the broker notices nothing until keepalive does.
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

// crashAgent ends the process on a node; another begins, and finds the devices as they are.
func (w *world) crashAgent() bool { return any_(w, w.agents(), (*agent).crash) }

func (w *world) crashExporter() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		x.crash(w.chance(0.5))
		return true
	})
}

// startExporter starts one where none runs.
func (w *world) startExporter() bool {
	return any_(w, w.sources, func(s *source) bool {
		if slices.ContainsFunc(w.exporters, func(x *exporter) bool { return x.source == s && !x.paused }) {
			return false
		}
		w.newExporter(s)
		return true
	})
}

// pauseExporter stops a process for a while; another may come to lead meanwhile.
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
		x.tracef("goes on")
		return true
	})
}

// deposed has an exporter find out that another leads.
func (w *world) deposed() bool {
	return any_(w, w.exporters, func(x *exporter) bool {
		if x.paused || !slices.ContainsFunc(w.exporters, func(o *exporter) bool { return o.source == x.source && o.term > x.term }) {
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

// startBroker starts one where none leads.
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

// resumeBroker lets a stopped one go on. When another leads by now it does little before it finds that out: what
// was under way reaches the apiserver, and more may, decided by what it knew.
func (w *world) resumeBroker() bool {
	return any_(w, w.brokers(), func(b *broker) bool {
		if !b.paused {
			return false
		}
		b.paused = false
		b.tracef("goes on")
		if b.d.leader == b {
			return true
		}
		b.d.writing = b
		for range w.rng.IntN(4) {
			any_(w, b.loops, runner.reconcile)
			any_(w, b.loops, func(l runner) bool { return l.land(false, false) })
		}
		b.crash()
		return true
	})
}

// lateWrite carries out, or loses, a write of a broker that has gone.
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

// unreachable makes a destination one that nobody can dial, or ends that.
func (w *world) unreachable() bool {
	d := pick(w, w.dests)
	d.unreachable = !d.unreachable
	d.tracef("unreachable: %t", d.unreachable)
	return true
}

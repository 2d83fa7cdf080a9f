package sim

import (
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file checks the brake (R24) from outside: a snapshot that lacks most of what a source exported removes nothing,
// and the first snapshot of a new broker does not remove most of what an earlier one wrote. Both checks err on one
// side: the product may retain more.

// ledger is what one broker holds of a source.
type ledger struct {
	held map[replica.Key]bool
	// hollow are those of held from which nothing follows: the brake counts them as missing.
	hollow map[replica.Key]bool
	// withdrawn are those of held that the sender no longer exports.
	withdrawn map[replica.Key]bool
}

func newLedger() *ledger {
	return &ledger{map[replica.Key]bool{}, map[replica.Key]bool{}, map[replica.Key]bool{}}
}

// exported counts the held objects of a kind that the sender still exports.
func (l *ledger) exported(of semaphorev1.Kind) int {
	n := 0
	for key := range l.held {
		if key.Kind == of && !l.withdrawn[key] && !l.hollow[key] {
			n++
		}
	}
	return n
}

func (l *ledger) change(c replica.Change) {
	delete(l.hollow, c.Key)
	if c.New != nil {
		l.held[c.Key] = true
		if isHollow(c.New) {
			l.hollow[c.Key] = true
		}
		return
	}
	delete(l.held, c.Key)
	delete(l.withdrawn, c.Key)
}

// isHollow reports whether nothing follows from an object.
func isHollow(o *semaphorev1.Object) bool {
	switch {
	case o.GetNode() != nil:
		return o.GetNode().GetWireguard() == nil || len(o.GetNode().GetPodCidrs()) == 0
	case o.GetService() != nil:
		return !o.GetService().GetMirror() && !o.GetService().GetGlobal() && o.GetService().GetMultiCluster() == nil
	}
	return len(heldAddresses(o)) == 0
}

// follow records what a message exports or withdraws, after its effect was checked.
func (l *ledger) follow(c *conn, m *semaphorev1.PublishRequest) {
	switch {
	case m.GetSnapshotBegin() != nil:
		c.listed = map[replica.Key]bool{}
	case m.GetSnapshotEnd() != nil:
		for key := range l.held {
			if key.Kind == m.GetSnapshotEnd().GetKind() {
				l.note(key, !c.listed[key])
			}
		}
		c.listed = nil
	case c.listed != nil:
		for _, change := range m.GetChanges().GetChanges() {
			c.listed[replica.KeyOf(change.GetUpsert().GetKey())] = true
		}
	default:
		for _, change := range m.GetChanges().GetChanges() {
			if d := change.GetDelete(); d != nil {
				l.note(replica.KeyOf(d), true)
			} else {
				l.note(replica.KeyOf(change.GetUpsert().GetKey()), false)
			}
		}
	}
}

func (l *ledger) note(key replica.Key, withdrawn bool) {
	if withdrawn && l.held[key] {
		l.withdrawn[key] = true
	} else {
		delete(l.withdrawn, key)
	}
}

// brakes checks a complete snapshot, before the ledger follows it.
func (b *broker) brakes(c *conn, source string, m *semaphorev1.PublishRequest, result replica.Result) {
	end, l := m.GetSnapshotEnd(), b.ledgers[source]
	if end == nil {
		return
	}
	exported := l.exported(end.GetKind())
	if !b.d.config.Brake.Brakes(exported-int(end.GetObjects()), exported) {
		return
	}
	for _, change := range result.Changes {
		if change.New == nil && change.Key.Kind == end.GetKind() && !l.withdrawn[change.Key] && !l.hollow[change.Key] {
			b.w.fail("brake",
				"broker %d of %s removes %s of %s at once with most of the kind: a snapshot has %d, and %d were exported", b.id,
				b.d.name, change.Key, source, end.GetObjects(), exported)
		}
	}
}

// doubted are the objects of one kind that earlier brokers wrote for a source.
type doubted struct{ cluster, kind string }

// doubt is since when the first snapshot of a source seems to withdraw most of them.
type doubt struct {
	since   time.Time
	settled bool
}

// doubt checks whether the first snapshots withdraw most of what earlier brokers wrote. It must be called before the
// effect of a change is checked.
func (b *broker) doubt() {
	if !b.w.braked {
		return
	}
	var services, setNames map[string]bool
	for _, r := range b.d.config.Remotes {
		if b.complete[r.Name][semaphorev1.Kind_KIND_SERVICE] && !b.settled(r.Name, "service") {
			if services == nil {
				services = map[string]bool{}
				for name := range want(b.view()).services {
					services[name] = true
				}
			}
			names, ok := b.services.Owned(r.Name)
			b.doubtOf(doubted{r.Name, "service"}, names, ok, services)
		}
		if b.complete[r.Name][semaphorev1.Kind_KIND_SET_MEMBER] && !b.settled(r.Name, "set") {
			if setNames == nil {
				setNames = map[string]bool{}
				for set := range sets(b.view()) {
					setNames[set.object] = true
				}
			}
			names, ok := b.sets.Owned(r.Name)
			b.doubtOf(doubted{r.Name, "set"}, names, ok, setNames)
		}
	}
}

func (b *broker) settled(cluster, kind string) bool {
	d := b.doubts[doubted{cluster, kind}]
	return d != nil && d.settled
}

func (b *broker) doubtOf(of doubted, there []string, ok bool, wanted map[string]bool) {
	if !ok {
		return
	}
	d := b.doubts[of]
	if d == nil {
		d = &doubt{since: b.w.now}
		b.doubts[of] = d
	}
	withdrawn := 0
	for _, name := range there {
		if of.kind == "set" {
			name, _ = naming.SplitSetPart(name)
		}
		if !wanted[name] {
			withdrawn++
		}
	}
	// Later the product may have removed them because of another snapshot.
	d.settled = !b.d.config.Brake.Brakes(withdrawn, len(there)) || b.w.now.Sub(d.since) >= b.d.config.Brake.Hold.Duration
}

// mayDelete checks the delete of an object that came from a cluster.
func (b *broker) mayDelete(kind, name, cluster string) {
	if d := b.doubts[doubted{cluster, kind}]; b.w.braked && d != nil && !d.settled {
		b.w.fail("brake",
			"broker %d of %s deletes %s %s of %s: the first snapshot withdraws most of what an earlier broker wrote", b.id,
			b.d.name, kind, name, cluster)
	}
}

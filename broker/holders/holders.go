// Package holders remembers which remote pod had which IP while it was in a set, for as many changes as it has room
// for. Remotes share the room: where it is full, the remote with the most changes loses its oldest one, so that one
// remote's changes never push out those of another that has fewer.
//
// It is pure: changes of a replica and the time go in, the holders of an address come out. It keeps no pod that never
// changed: who has an address now is for the caller, who has the sets. It is not safe for concurrent use.
//
// Of the broker's packages it may import replica.
package holders

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Room is how many changes a broker remembers: of some 150 bytes each, and enough for a day of 16,000 pods that start
// or end.
const Room = 32_768

// Holder is a pod that has or had an address.
type Holder struct{ Cluster, Namespace, Pod, UID, Set string }

// change is that a pod began or ceased to have an address.
type change struct {
	at     time.Time
	ip     netip.Addr
	holder Holder
	holds  bool
}

// Memory is a queue of changes for each remote.
type Memory struct {
	room int
	// slots are those of all queues; there are never more than room.
	slots  []slot
	queues map[string]*queue
	began  time.Time
}

// slot holds a change, and the index of the next one in its queue.
type slot struct {
	change
	next int
}

// queue is the changes of a remote, oldest first.
type queue struct {
	first, last, n int
	// since is when what the queue has begins to be complete.
	since time.Time
}

// New makes a memory of so many changes that begins now.
func New(room int, now time.Time) *Memory {
	return &Memory{room: room, queues: map[string]*queue{}, began: now}
}

// Take remembers changes. Objects of a first snapshot may have existed for long: they are no changes.
func (m *Memory) Take(cluster string, changes []replica.Change, now time.Time) {
	for _, c := range changes {
		if c.Key.Kind != semaphorev1.Kind_KIND_SET_MEMBER || c.Old == nil && c.ObservedAt.IsZero() {
			continue
		}
		was, is := c.Old.GetSetMember(), c.New.GetSetMember()
		same := was.GetPodUid() == is.GetPodUid() && was.GetSetName() == is.GetSetName()
		one := func(of, other *semaphorev1.SetMember, holds bool) {
			for _, text := range of.GetIps() {
				ip, err := netip.ParseAddr(text)
				if err != nil || same && slices.Contains(other.GetIps(), text) {
					continue // admission checked it; or it had it before
				}
				m.add(change{now, ip, Holder{cluster, c.Key.Namespace, c.Key.Name, of.GetPodUid(), of.GetSetName()}, holds})
			}
		}
		one(was, is, false)
		one(is, was, true)
	}
}

func (m *Memory) add(c change) {
	q := m.queues[c.holder.Cluster]
	if q == nil {
		q = &queue{since: m.began}
		m.queues[c.holder.Cluster] = q
	}
	at := len(m.slots)
	if at < m.room {
		m.slots = append(m.slots, slot{})
	} else {
		at = m.evict(q)
	}
	m.slots[at] = slot{change: c}
	if q.n == 0 {
		q.first = at
	} else {
		m.slots[q.last].next = at
	}
	q.last = at
	q.n++
}

// evict takes the slot of the oldest change of the remote that has the most: of several, the one that needs the slot.
func (m *Memory) evict(of *queue) int {
	most, name := of, ""
	for cluster, q := range m.queues {
		if q.n > most.n || q.n == most.n && most != of && cluster < name {
			most, name = q, cluster
		}
	}
	at := most.first
	most.first, most.since = m.slots[at].next, m.slots[at].at // what is older than the change after it is not complete
	most.n--
	return at
}

// Holders returns who had an address, newest first, and since when that is complete. now are those who have it.
func (m *Memory) Holders(ip netip.Addr, now []Holder) ([]*semaphorev1.Holder, time.Time) {
	var out []*semaphorev1.Holder
	clusters := map[string]bool{}
	add := func(h Holder) *semaphorev1.Holder {
		clusters[h.Cluster] = true
		out = append(out, &semaphorev1.Holder{Cluster: h.Cluster, Namespace: h.Namespace, Pod: h.Pod, Uid: h.UID, Set: h.Set})
		return out[len(out)-1]
	}
	open := map[Holder]*semaphorev1.Holder{}
	for _, cluster := range slices.Sorted(maps.Keys(m.queues)) {
		q := m.queues[cluster]
		for i, at := 0, q.first; i < q.n; i, at = i+1, m.slots[at].next {
			c := &m.slots[at].change
			switch is := open[c.holder]; {
			case c.ip != ip:
			case c.holds:
				open[c.holder] = add(c.holder)
				open[c.holder].From = timestamppb.New(c.at)
			default:
				if is == nil {
					is = add(c.holder)
				}
				is.Until = timestamppb.New(c.at)
				delete(open, c.holder)
			}
		}
	}
	for _, h := range now {
		if open[h] == nil {
			add(h)
		}
	}
	slices.SortStableFunc(out, func(a, b *semaphorev1.Holder) int { return until(b).Compare(until(a)) })
	return out, m.since(clusters)
}

// since is when what is known of these remotes begins to be complete; of all remotes where none had the address, as it
// may have been any of them.
func (m *Memory) since(clusters map[string]bool) time.Time {
	since := m.began
	for cluster, q := range m.queues {
		if (len(clusters) == 0 || clusters[cluster]) && q.since.After(since) {
			since = q.since
		}
	}
	return since
}

// until is far away for one who still has the address.
func until(h *semaphorev1.Holder) time.Time {
	if h.GetUntil() == nil {
		return time.Unix(1<<40, 0)
	}
	return h.GetUntil().AsTime()
}

// At returns those of some holders who had the address at a time, as far as is known.
func At(all []*semaphorev1.Holder, at time.Time) []*semaphorev1.Holder {
	return slices.DeleteFunc(all, func(h *semaphorev1.Holder) bool {
		return h.GetFrom() != nil && h.GetFrom().AsTime().After(at) || !until(h).After(at)
	})
}

package policy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file remembers which remote pod of a set had which IP, for a bounded number of changes. Remotes share the room:
// when it is full, the remote with the most changes loses its oldest one, so that the changes of a remote never
// displace those of one that has fewer.
//
// Its input are changes of a replica and the time, its output are the holders of an address. It does not store pods
// that never changed: the caller, who has the sets, knows who has an address now. It is not safe for concurrent use.

// Room is the number of changes that a broker remembers. At about 150 bytes each, it is enough for a day in which
// 16,000 pods start or end.
const Room = 32_768

type Holder struct{ Cluster, Namespace, Pod, UID, Set string }

// change is the start or the end of a pod's having an address.
type change struct {
	at     time.Time
	ip     netip.Addr
	holder Holder
	holds  bool
}

// Holders is a queue of changes for each remote.
type Holders struct {
	room, n int
	queues  map[string]*queue
	began   time.Time
}

// queue has the changes of a remote, oldest first.
type queue struct {
	changes []change
	// since is the time from which the queue is complete.
	since time.Time
}

func NewHolders(room int, now time.Time) *Holders {
	return &Holders{room: room, queues: map[string]*queue{}, began: now}
}

// Take records changes. Objects of a first snapshot may have existed for long, so they are no changes.
func (m *Holders) Take(cluster string, changes []replica.Change, now time.Time) {
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

// End records that the pods of a remote, which was removed, have no address any more.
func (m *Holders) End(cluster string, pods map[podRef]*pod, now time.Time) {
	for _, ref := range slices.SortedFunc(maps.Keys(pods), podRef.compare) {
		for _, ip := range pods[ref].ips {
			m.add(change{now, ip, Holder{cluster, ref.namespace, ref.name, pods[ref].uid, pods[ref].set.name}, false})
		}
	}
}

func (m *Holders) add(c change) {
	q := m.queues[c.holder.Cluster]
	if q == nil {
		q = &queue{since: m.began}
		m.queues[c.holder.Cluster] = q
	}
	if m.n == m.room {
		m.evict(q)
	}
	q.changes = append(q.changes, c)
	m.n++
}

// evict removes the oldest change of the remote with the most changes. If several have as many, it prefers the remote
// that needs the room.
func (m *Holders) evict(of *queue) {
	most, name := of, ""
	for cluster, q := range m.queues {
		if n := len(q.changes); n > len(most.changes) || n == len(most.changes) && most != of && cluster < name {
			most, name = q, cluster
		}
	}
	most.since = most.changes[0].at // complete only from the removed change on
	most.changes[0] = change{}
	most.changes = most.changes[1:]
	m.n--
}

// Holders returns the holders of an address, newest first, and the time from which the list is complete. now are the
// current holders.
func (m *Holders) Holders(ip netip.Addr, now []Holder) ([]*semaphorev1.Holder, time.Time) {
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
		for i := range q.changes {
			c := &q.changes[i]
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

// since returns the time from which the memory of these remotes is complete. If none of them had the address, it is the
// time for all remotes, as any of them may have had it.
func (m *Holders) since(clusters map[string]bool) time.Time {
	since := m.began
	for cluster, q := range m.queues {
		if (len(clusters) == 0 || clusters[cluster]) && q.since.After(since) {
			since = q.since
		}
	}
	return since
}

// until returns when a pod ceased to have the address; for a current holder it is far in the future.
func until(h *semaphorev1.Holder) time.Time {
	if h.GetUntil() == nil {
		return time.Unix(1<<40, 0)
	}
	return h.GetUntil().AsTime()
}

// At returns the pods among all that had the address at a time, as far as is known.
func At(all []*semaphorev1.Holder, at time.Time) []*semaphorev1.Holder {
	return slices.DeleteFunc(all, func(h *semaphorev1.Holder) bool {
		return h.GetFrom() != nil && h.GetFrom().AsTime().After(at) || !until(h).After(at)
	})
}

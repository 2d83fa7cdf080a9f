package peering

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxSilentKept is how many silent peers are kept of what a node tells of one remote; the number of them is kept in
	// any case.
	maxSilentKept = 20
	// maxNodeName is that of Kubernetes.
	maxNodeName = 253
	maxReason   = 160
	// maxPairs is how many pairs a status lists.
	maxPairs = 200
	// talkLasts is how long a node that told that it talks is taken at its word. It tells anew when its newest handshake or its
	// numbers have changed, at most every 30 s, and one of both does within the 180 s that a session lasts.
	talkLasts = 4 * time.Minute
)

// talks is how one node talks with those of one remote, as its agent says.
type talks struct {
	talking, silent uint32
	newest          time.Time
	peers           []*semaphorev1.SilentPeer
	clear           clear
}

// clear is what passes in the clear between one node, or all, and a permissive remote.
type clear struct {
	permissive bool
	out, in    uint64
	last       time.Time
	peers      uint32
}

// talksOf takes what a report says of a device's peers; false for an agent that does not tell.
func talksOf(d *semaphorev1.DeviceReport) (talks, bool) {
	t := talks{talking: d.GetPeersTalking(), silent: d.GetPeersSilent()}
	if t.talking+t.silent+d.GetPeersIdle() == 0 && d.GetPeers() > 0 && !d.GetPermissive() {
		return t, false
	}
	if d.GetPermissive() {
		t.clear = clear{true, d.GetClearOut(), d.GetClearIn(), time.Time{}, d.GetPeersClear()}
		if d.GetLastClear().IsValid() {
			t.clear.last = d.GetLastClear().AsTime()
		}
	}
	if d.GetLastHandshake().IsValid() {
		t.newest = d.GetLastHandshake().AsTime()
	}
	for _, p := range d.GetSilent()[:min(len(d.GetSilent()), maxSilentKept)] {
		since := p.GetSince()
		if !since.IsValid() {
			since = nil
		}
		t.peers = append(t.peers, &semaphorev1.SilentPeer{Node: cut(p.GetNode(), maxNodeName), Since: since, Reason: cut(p.GetReason(), maxReason)})
	}
	t.silent = max(t.silent, uint32(len(t.peers)))
	return t, true
}

// cut is so much of a text as is kept: a character cut in two would make the status that holds it unsendable.
func cut(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// Tunnels is how the own nodes talk with those of one remote: what says whether a remote that is not heard of is really gone.
type Tunnels struct {
	// Nodes that are attached and have told; of those, the ones that talk with at least one node of the remote, by
	// a session of less than 180 s, as they told in the last 4 min, and those that get no answer from at least one.
	Nodes, Talking, Silent int
	// SilentPairs is how many pairs of nodes do not talk.
	SilentPairs int
	// Newest handshake of any node, on that node's clock; zero for none. It can be 30 s older than the truth, as numbers are told
	// every 30 s at most.
	Newest time.Time
	// Heard is when a node last told of it, on the clock here; zero for never. While nothing changes nothing is told.
	Heard time.Time
}

// Tunnels is how the own nodes talk with those of each remote, by cluster. A remote of which no attached node has told is
// in it with no nodes: nothing can be said of it then.
func (s *Server) Tunnels() map[string]Tunnels {
	out := make(map[string]Tunnels, len(s.configured))
	for cluster := range s.configured {
		out[cluster] = Tunnels{}
	}
	now := s.now()
	s.eachReport(func(_ string, r *Report, heard time.Time) {
		for cluster, t := range r.talks {
			all := out[cluster]
			all.Nodes++
			if t.talking > 0 && now.Sub(heard) < talkLasts {
				all.Talking++
			}
			if t.silent > 0 {
				all.Silent++
			}
			all.SilentPairs += int(t.silent)
			if t.newest.After(all.Newest) {
				all.Newest = t.newest
			}
			if heard.After(all.Heard) {
				all.Heard = heard
			}
			out[cluster] = all
		}
	})
	return out
}

// TalkStatus adds to a status who talks with whom, and which pairs of nodes do not, the longest silent first.
func (s *Server) TalkStatus(out *semaphorev1.GetStatusResponse) {
	for cluster, t := range s.Tunnels() {
		status := &semaphorev1.TunnelsStatus{
			Cluster: cluster, Nodes: uint32(t.Nodes), NodesTalking: uint32(t.Talking), NodesSilent: uint32(t.Silent),
		}
		if !t.Newest.IsZero() {
			status.LastHandshake = timestamppb.New(t.Newest)
		}
		out.Tunnels = append(out.Tunnels, status)
		out.SilentPairsTotal += uint64(t.SilentPairs)
	}
	slices.SortFunc(out.Tunnels, func(a, b *semaphorev1.TunnelsStatus) int { return cmp.Compare(a.Cluster, b.Cluster) })
	byCluster := map[string]*semaphorev1.TunnelsStatus{}
	for _, t := range out.Tunnels {
		byCluster[t.GetCluster()] = t
	}
	s.eachReport(func(node string, r *Report, _ time.Time) {
		for cluster, t := range r.talks {
			if status := byCluster[cluster]; status != nil && t.clear.permissive {
				status.Permissive = true
				status.ClearOut += t.clear.out
				status.ClearIn += t.clear.in
				if t.clear.out+t.clear.in > 0 {
					status.NodesClear++
				}
				if t.clear.peers > 0 {
					status.NodesWaiting++
				}
				if last := timestamppb.New(t.clear.last); !t.clear.last.IsZero() && last.AsTime().After(status.GetLastClear().AsTime()) {
					status.LastClear = last
				}
			}
			for _, p := range t.peers {
				out.SilentPairs = append(out.SilentPairs, &semaphorev1.SilentPair{
					Node: node, Cluster: cluster, RemoteNode: p.GetNode(), Since: p.GetSince(), Reason: p.GetReason(),
				})
			}
		}
	})
	slices.SortFunc(out.SilentPairs, func(a, b *semaphorev1.SilentPair) int {
		return cmp.Or(a.GetSince().AsTime().Compare(b.GetSince().AsTime()), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.RemoteNode, b.RemoteNode))
	})
	out.SilentPairs = out.SilentPairs[:min(len(out.SilentPairs), maxPairs)]
}

// eachReport calls f with the last report of every agent that is attached, and when that came.
func (s *Server) eachReport(f func(node string, r *Report, heard time.Time)) {
	s.mu.Lock()
	attached := make([]*attachment, 0, len(s.attached))
	for _, a := range s.attached {
		attached = append(attached, a)
	}
	s.mu.Unlock()
	for _, a := range attached {
		a.mu.Lock()
		report, heard := a.report, a.reported
		a.mu.Unlock()
		if report != nil {
			f(a.agent.Node, report, heard)
		}
	}
}

package peering

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxSilentKept bounds the silent peers that are kept of one node's report on one remote; their number is kept in
	// any case.
	maxSilentKept = 20
	// maxNodeName is the limit of Kubernetes.
	maxNodeName = 253
	maxReason   = 160
	maxPairs    = 200
	// talkingFor is how long a report that a node talks with a remote is valid. An agent reports again when its newest
	// handshake or its counters change, at most every 30 s, and one of them changes within the 180 s of a session.
	talkingFor = 4 * time.Minute
)

// handshakeStats are the handshakes of one node with the nodes of one remote, as its agent reports them.
type handshakeStats struct {
	talking, silent uint32
	// total are all peers, and unanswered those that were probed and did not answer.
	total, unanswered uint32
	mtu               uint32
	newest            time.Time
	peers             []*semaphorev1.SilentPeer
	clear             clearTraffic
	// sent and received are bytes per second.
	sent, received uint64
}

// clearTraffic is the clear traffic between one node, or all, and a permissive remote.
type clearTraffic struct {
	permissive bool
	out, in    uint64
	last       time.Time
	peers      uint32
}

// handshakeStatsOf returns the handshakes in a device's report; false for an agent that does not report them.
func handshakeStatsOf(d *semaphorev1.DeviceReport) (handshakeStats, bool) {
	t := handshakeStats{talking: d.GetPeersTalking(), silent: d.GetPeersSilent(), mtu: min(d.GetMtu(), maxMTU),
		sent: min(d.GetSentPerSecond(), maxRate), received: min(d.GetReceivedPerSecond(), maxRate)}
	t.total, t.unanswered = t.talking+t.silent+d.GetPeersIdle(), d.GetPeersUnanswered()
	if t.total == 0 && d.GetPeers() > 0 && !d.GetPermissive() {
		return t, false
	}
	if d.GetPermissive() {
		t.clear = clearTraffic{true, d.GetClearOut(), d.GetClearIn(), time.Time{}, d.GetPeersClear()}
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
		t.peers = append(t.peers, &semaphorev1.SilentPeer{Node: finding.CleanTo(p.GetNode(), maxNodeName), Since: since,
			Reason: finding.CleanTo(p.GetReason(), maxReason)})
	}
	t.silent = max(t.silent, uint32(len(t.peers)))
	return t, true
}

// leastProbed is how many peers a node must have probed in vain, if it has as many: one remote node that is down says
// nothing about the others.
const leastProbed = 3

const maxMTU = 65535

// maxRate exceeds the bytes per second that a node's links carry. It keeps values of an agent from overflowing a sum.
const maxRate = 1 << 44

// Tunnels are the handshakes of own nodes with one remote. They show whether a remote without a stream is really gone.
type Tunnels struct {
	// Nodes is the number of attached nodes that report on the remote. Talking is the number of those that reported,
	// within talkingFor, a session of less than 180 s with at least one node of the remote. Silent is the number of
	// those that get no answer from at least one.
	Nodes, Talking, Silent int
	// Unanswered is the number of those without a session that probed some nodes of the remote, as ProbePeers orders, and
	// got no answer from any.
	Unanswered int
	// MTU is the smallest of the devices in bytes; 0 if none reports it.
	MTU         int
	SilentPairs int
	// Newest is the newest handshake of any node, on that node's clock; zero for none. It can be 30 s old, the
	// interval of reports.
	Newest time.Time
	// Sent and Received are bytes per second of all nodes, as they last reported them.
	Sent, Received uint64
}

// Tunnels returns the handshakes of own nodes with each remote, by cluster. A remote on which no attached node reports
// has Nodes 0: nothing is known of it.
func (s *Server) Tunnels() map[string]Tunnels {
	return s.TunnelsTo(slices.Collect(maps.Keys(s.remotes())))
}

// TunnelsTo is Tunnels of some remotes. Its cost grows with the agents times these remotes.
func (s *Server) TunnelsTo(remotes []string) map[string]Tunnels {
	out := make(map[string]Tunnels, len(remotes))
	for _, cluster := range remotes {
		out[cluster] = Tunnels{}
	}
	now := s.now()
	s.eachReport(func(_ string, r *Report, heard time.Time) {
		for cluster, all := range out {
			t, reported := r.handshakes[cluster]
			if !reported {
				continue
			}
			all.Nodes++
			if n := int(t.mtu); n > 0 && (all.MTU == 0 || n < all.MTU) {
				all.MTU = n
			}
			if t.talking > 0 && now.Sub(heard) < talkingFor {
				all.Talking++
			}
			if t.silent > 0 {
				all.Silent++
			}
			if t.talking == 0 && t.total > 0 && t.unanswered >= min(leastProbed, t.total) {
				all.Unanswered++
			}
			all.SilentPairs += int(t.silent)
			all.Sent += t.sent
			all.Received += t.received
			if t.newest.After(all.Newest) {
				all.Newest = t.newest
			}
			out[cluster] = all
		}
	})
	return out
}

// TunnelStatus adds to a status the handshakes with each remote, and the silent pairs of nodes, the longest silent
// first.
func (s *Server) TunnelStatus(out *semaphorev1.GetStatusResponse) {
	for cluster, t := range s.Tunnels() {
		status := &semaphorev1.TunnelsStatus{
			Cluster: cluster, Nodes: uint32(t.Nodes), NodesTalking: uint32(t.Talking), NodesSilent: uint32(t.Silent),
			SentPerSecond: t.Sent, ReceivedPerSecond: t.Received,
		}
		status.LastHandshake = semaphorev1.Time(t.Newest)
		out.Tunnels = append(out.Tunnels, status)
		out.SilentPairsTotal += uint64(t.SilentPairs)
	}
	slices.SortFunc(out.Tunnels, func(a, b *semaphorev1.TunnelsStatus) int { return cmp.Compare(a.Cluster, b.Cluster) })
	byCluster := map[string]*semaphorev1.TunnelsStatus{}
	for _, t := range out.Tunnels {
		byCluster[t.GetCluster()] = t
	}
	s.eachReport(func(node string, r *Report, _ time.Time) {
		for cluster, t := range r.handshakes {
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
				if last := timestamppb.New(t.clear.last); !t.clear.last.IsZero() &&
					last.AsTime().After(status.GetLastClear().AsTime()) {
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
		return cmp.Or(a.GetSince().AsTime().Compare(b.GetSince().AsTime()), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.RemoteNode, b.RemoteNode))
	})
	out.SilentPairs = out.SilentPairs[:min(len(out.SilentPairs), maxPairs)]
}

func (r *Report) count() {
	remotes := 0
	for cluster, t := range r.handshakes {
		if t.silent > 0 {
			remotes++
			r.silent += int(t.silent)
			r.silentIn = cluster
		}
	}
	if remotes > 1 {
		r.silentIn = ""
	}
}

// Overview adds to a status only what its findings need: those of the nodes that have no agent, and the number of
// silent pairs. Its cost grows with the nodes, and not with the remotes that each reports on. exempt is as for Status.
func (s *Server) Overview(out *semaphorev1.GetStatusResponse, nodes []string, exempt func(node string) string) {
	attached := s.byNode()
	for _, name := range nodes {
		if attached[name] == nil {
			out.Nodes = append(out.Nodes, &semaphorev1.NodeStatus{Node: name, WithoutEncryption: exempt(name)})
		}
	}
	in := map[string]bool{}
	s.eachReport(func(_ string, r *Report, _ time.Time) {
		if r.silent > 0 {
			out.SilentPairsTotal += uint64(r.silent)
			in[r.silentIn] = true
		}
	})
	for cluster := range in {
		out.SilentPairs = append(out.SilentPairs, &semaphorev1.SilentPair{Cluster: cluster})
	}
}

// attachments returns the attached agents, so that they can be read without the lock of all.
func (s *Server) attachments() []*attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(make([]*attachment, 0, len(s.attached)), maps.Values(s.attached))
}

func (s *Server) byNode() map[string]*attachment {
	attached := s.attachments()
	all := make(map[string]*attachment, len(attached))
	for _, a := range attached {
		all[a.agent.Node] = a
	}
	return all
}

// Applied returns the revisions of the state that the attached agents have applied.
func (s *Server) Applied() (revisions []uint64) {
	for _, a := range s.attachments() {
		a.mu.Lock()
		revisions = append(revisions, a.session.Applied())
		a.mu.Unlock()
	}
	return revisions
}

// eachReport calls f with the last report of every attached agent, and the time of the report.
func (s *Server) eachReport(f func(node string, r *Report, heard time.Time)) {
	for _, a := range s.attachments() {
		a.mu.Lock()
		report, heard := a.report, a.reported
		a.mu.Unlock()
		if report != nil {
			f(a.agent.Node, report, heard)
		}
	}
}

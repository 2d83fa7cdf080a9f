package peering

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/nodes"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// A batch of changes stays far below gRPC's limit of 4 MiB.
	maxBatch      = 1000
	maxBatchBytes = 512 << 10
	// Limits of what an agent sends: devices of one report, remotes that it holds, and bytes of a name or a problem.
	maxDevices = 256
	maxHeld    = 256
	maxName    = 64
	maxProblem = 512
	// Further problems of a node are dropped.
	maxProblems = 64
)

// Session is the broker's side of one agent's stream as peering.proto defines it: messages in, messages out. It starts
// no goroutine, reads no clock and opens no socket: the server, or a simulation, drives it. It is not safe for
// concurrent use; State is.
//
//	s := state.Open(cluster, node, configured)
//	received, err := s.Receive(m)   for each message of the agent; an error ends the stream
//	frame, err := s.Next()          until it is nil, after each Receive and whenever changed is closed
type Session struct {
	state      *State
	cluster    string
	node       string
	configured map[string]bool
	// network is the pod network of the node, nil if unknown; networkSent is the last one that was sent.
	network, networkSent *semaphorev1.NodeNetwork
	// notices wait to be sent, before any change; nil for none.
	notices [numberOfNotices]*semaphorev1.AttachResponse

	hello    *semaphorev1.AgentHello
	attached bool
	// position is the revision up to which changes were sent.
	position uint64
	// snapshot are the entries of the whole state that remain to be sent, and unchanged are the messages in place of
	// those that the agent has.
	snapshot  []*entry
	unchanged []*semaphorev1.Unchanged
	// held are the digests of the agent's objects by remote, until something of the remote was sent or it was removed.
	held map[string]streams.Digest
	// skip are the updates whose content the agent has.
	skip map[string]span
	// synced means that an end mark was sent; syncedClusters are the clusters that it named.
	synced         bool
	syncedClusters []string
	// foreign are devices that the agent reports and no configured remote has; deleted are those whose deletion was
	// sent.
	foreign []string
	deleted map[string]bool
	// reported are the clusters of the devices in the last report.
	reported  []string
	rotations []*semaphorev1.RotateKey
	// changed is closed once the state differs from the one last read. current means that all of that was sent, and
	// knownClusters are the complete clusters then.
	changed       <-chan struct{}
	current       bool
	knownClusters []string

	applied uint64
	lag     lag
	resumed bool
}

type Received struct {
	// Hello means that it was the first: the agent speaks for its node from now on.
	Hello  bool
	Report *Report
	// Token is the agent's newest token, if it sent one. It must not be logged.
	Token      string
	Propagated []Propagated
}

// Report is an agent's report of its node's devices, validated.
type Report struct {
	// Tunnels are the node's tunnel endpoints for configured remotes, by cluster.
	Tunnels map[string]nodes.Tunnel
	// Devices is the number of devices, those of no configured remote included.
	Devices int
	// Problems of the node, then of its devices, a line each.
	Problems []string
	// Findings of the node and its devices, as verdict.Findings reads them.
	Findings []*semaphorev1.Finding
	// handshakes are the node's handshakes with configured remotes, by cluster, if the agent reports them.
	handshakes map[string]handshakeStats
	// silent is how many of the node's peers do not answer, and silentIn their remote; empty for none or several.
	silent   int
	silentIn string
	// ClearPackets is the number of clear packets that the guard dropped.
	ClearPackets uint64
	// traffic are the agent's counters by ClusterIP. Only the server that received the report reads it, immediately.
	traffic []*semaphorev1.ServiceTraffic
	// Guarded means that the agent guards everything that Session.SetGuard named.
	Guarded bool
}

// Open begins a session with the agent of a node. cluster is the own cluster, configured are the remotes.
func (s *State) Open(cluster, node string, configured map[string]bool) *Session {
	return &Session{
		state: s, cluster: cluster, node: node, configured: configured,
		held: map[string]streams.Digest{}, skip: map[string]span{}, deleted: map[string]bool{},
	}
}

// setNetwork sets the pod network of the agent's node, which is immutable; nil if unknown.
func (s *Session) setNetwork(network *semaphorev1.NodeNetwork) {
	if network != nil {
		s.network = network
	}
}

// Configure replaces the remotes of Open, and their guard. Neither argument may be modified afterwards. A device that
// the agent reported for a missing remote is removed, and what the agent holds of it does not count any more.
func (s *Session) Configure(configured map[string]bool, guard *semaphorev1.Guard) {
	s.configured = configured
	if guard != nil {
		s.notify(ofGuard, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: guard}})
	}
	maps.DeleteFunc(s.held, func(cluster string, _ streams.Digest) bool { return !configured[cluster] })
	maps.DeleteFunc(s.deleted, func(cluster string, _ bool) bool { return configured[cluster] })
	s.foreign = slices.DeleteFunc(s.foreign, func(cluster string) bool { return configured[cluster] })
	s.deleteForeign()
}

// deleteForeign queues the deletion of devices that the agent reported and no configured remote has. Each deletion is
// sent once; an agent that reports ever more devices gets a limited number.
func (s *Session) deleteForeign() {
	for _, cluster := range s.reported {
		if !s.configured[cluster] && !s.deleted[cluster] && len(s.deleted) < maxDevices {
			s.deleted[cluster] = true
			s.foreign = append(s.foreign, cluster)
		}
	}
}

// notice is what a message is about that concerns the node or all remotes, and not a change. They are sent in order.
type notice int

const (
	ofGuard notice = iota
	ofUndelivered
	ofClosely
	ofProbe
	numberOfNotices
)

// notify has a message sent in place of an earlier one about the same that is not sent yet. Older agents ignore a
// notice that they do not know. The message must not be modified.
func (s *Session) notify(about notice, m *semaphorev1.AttachResponse) { s.notices[about] = m }

// Applied returns the revision up to which the agent has applied everything to its kernel.
func (s *Session) Applied() uint64 { return s.applied }

// Receive handles one message of the agent. It fails if the message is out of turn, invalid or above a limit: the error
// is a gRPC status and ends the stream.
func (s *Session) Receive(m *semaphorev1.AttachRequest) (Received, error) {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachRequest_Hello:
		return Received{Hello: true}, s.handleHello(m.Hello)
	case *semaphorev1.AttachRequest_Report:
		if s.hello == nil {
			return Received{}, status.Error(codes.InvalidArgument, "report before hello")
		}
		report, err := s.checkReport(m.Report)
		return Received{Report: report}, err
	case *semaphorev1.AttachRequest_Applied:
		if s.hello == nil {
			return Received{}, status.Error(codes.InvalidArgument, "applied before hello")
		}
		// At most what was sent: a larger revision would hide that the agent falls behind.
		s.applied = min(m.Applied.GetRevision(), s.position)
		return Received{Propagated: s.lag.applied(s.applied)}, nil
	case *semaphorev1.AttachRequest_Token:
		if token := m.Token.GetToken(); token == "" || len(token) > maxToken {
			return Received{}, status.Errorf(codes.InvalidArgument, "token: %d bytes exceed the limit of %d",
				len(token), maxToken)
		}
		return Received{Token: m.Token.GetToken()}, nil
	}
	// An unknown message belongs to a later protocol version, and may be ignored.
	return Received{}, nil
}

func (s *Session) handleHello(hello *semaphorev1.AgentHello) error {
	switch {
	case s.hello != nil:
		return status.Error(codes.InvalidArgument, "hello twice")
	case len(hello.GetHeld()) > maxHeld:
		return status.Errorf(codes.InvalidArgument, "hello.held: %d remotes exceed the limit of %d",
			len(hello.GetHeld()), maxHeld)
	}
	if hello == nil {
		hello = &semaphorev1.AgentHello{}
	}
	s.hello = hello
	for _, h := range hello.GetHeld() {
		// An invalid digest belongs to a later protocol version; without it the agent receives everything.
		if d, ok := streams.ParseDigest(h.GetDigest()); ok && s.configured[h.GetCluster()] {
			s.held[h.GetCluster()] = d
		}
	}
	return nil
}

// checkReport returns what a report says. A device that no agent reports becomes a problem. It does not end the stream,
// which has the devices of all remotes.
func (s *Session) checkReport(r *semaphorev1.AgentReport) (*Report, error) {
	if len(r.GetDevices()) > maxDevices {
		return nil, status.Errorf(codes.InvalidArgument, "report.devices: %d devices exceed the limit of %d",
			len(r.GetDevices()), maxDevices)
	}
	out := &Report{Tunnels: map[string]nodes.Tunnel{}, handshakes: map[string]handshakeStats{},
		Devices: len(r.GetDevices()), ClearPackets: r.GetClearPackets(), Guarded: r.GetGuarded(),
		traffic: r.GetServiceTraffic()}
	for _, problem := range r.GetProblems()[:min(len(r.GetProblems()), maxProblems)] {
		out.Problems = append(out.Problems, finding.CleanTo(problem, maxProblem))
	}
	out.Findings = findingsOf(r.GetFindings())
	var reported []string
	for _, d := range r.GetDevices() {
		if len(d.GetCluster()) > maxName || len(d.GetInterface()) > maxName {
			out.Problems = append(out.Problems, fmt.Sprintf(
				"report of a device: a cluster of %d and an interface of %d bytes exceed the limit of %d",
				len(d.GetCluster()), len(d.GetInterface()), maxName))
			continue
		}
		if problem := d.GetProblem(); problem != "" {
			out.Problems = append(out.Problems,
				"device "+finding.CleanTo(d.GetInterface(), maxName)+": "+finding.CleanTo(problem, maxProblem))
		}
		reported = append(reported, d.GetCluster())
		if !s.configured[d.GetCluster()] {
			continue
		}
		if t, ok := handshakeStatsOf(d); ok {
			out.handshakes[d.GetCluster()] = t
		}
		if len(d.GetPublicKey()) == 0 || d.GetListenPort() == 0 {
			continue // the key is not durable yet, or the device is not up
		}
		if len(d.GetPublicKey()) != 32 || d.GetListenPort() > 65535 {
			out.Problems = append(out.Problems, fmt.Sprintf("report of the device for %s: a key of %d bytes, port %d",
				d.GetCluster(), len(d.GetPublicKey()), d.GetListenPort()))
			continue
		}
		out.Tunnels[d.GetCluster()] = nodes.Tunnel{PublicKey: [32]byte(d.GetPublicKey()),
			ListenPort: uint16(d.GetListenPort())}
	}
	out.count()
	s.reported = reported
	s.deleteForeign()
	return out, nil
}

// Next returns the next message to send; nil if there is none until changed is closed or the agent sends something.
// An error is a gRPC status and ends the stream.
func (s *Session) Next() (*Frame, error) {
	if s.hello == nil {
		return nil, nil
	}
	if !s.attached {
		return s.attachedFrame(), nil
	}
	if m := s.nextOfNode(); m != nil {
		return &Frame{message: m}, nil
	}
	for {
		if len(s.unchanged) > 0 {
			m := s.unchanged[0]
			s.unchanged = s.unchanged[1:]
			return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Unchanged{Unchanged: m}}},
				nil
		}
		if len(s.snapshot) > 0 {
			f, n, err := s.state.batch(s.snapshot)
			if s.snapshot = s.snapshot[n:]; len(s.snapshot) == 0 {
				s.snapshot = nil // releases the entries that were sent
			}
			return f, err
		}
		// A change is sent to thousands of agents at once: a stream that is current reads the shared state once for
		// each.
		if s.current && !s.isChanged() {
			return s.idleFrame(s.knownClusters), nil
		}
		entries, next, known, err := s.readJournal()
		s.current = false
		switch {
		case err != nil:
			return nil, err
		case len(s.unchanged) > 0: // send these first, in place of a part of the changes
		case len(entries) > 0:
			f, n, err := s.state.batch(entries)
			switch s.position = next; {
			case n < len(entries):
				s.position = f.revision
			case known != nil:
				s.current, s.knownClusters = true, *known
			}
			if s.synced || s.resumed { // else the change may have happened long ago
				for _, e := range entries[:n] {
					s.lag.sent(e.Revision, e.Key.cluster, e.ObservedAt)
				}
			}
			return f, err
		case known == nil: // everything was skipped, and there is more
			s.position = next
		default:
			s.position, s.current, s.knownClusters = next, true, *known
			return s.idleFrame(s.knownClusters), nil
		}
	}
}

// nextOfNode returns the next message that concerns the node or all remotes, and not a change; nil for none.
func (s *Session) nextOfNode() *semaphorev1.AttachResponse {
	for about, m := range s.notices {
		if m != nil {
			s.notices[about] = nil
			return m
		}
	}
	sent := s.networkSent
	if s.networkSent = s.network; !proto.Equal(s.network, sent) {
		return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_NodeNetwork{NodeNetwork: s.network}}
	}
	return nil
}

func (s *Session) isChanged() bool {
	select {
	case <-s.changed:
		return true
	default:
		return false
	}
}

// attachedFrame returns the answer to Hello, and decides how the state is sent.
func (s *Session) attachedFrame() *Frame {
	s.attached = true
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	j := st.journal
	s.changed = st.changed()
	s.position = s.hello.GetResumeRevision()
	s.resumed = s.hello.GetResumeEpoch() == j.Epoch() && s.position <= j.Head() && s.position >= j.Oldest()
	if !s.resumed {
		all, revision := j.Snapshot()
		s.position = 0
		s.skipHeld(func(t *remoteState) span { return span{0, revision, t.digest} })
		s.position, s.snapshot = revision, s.unskipped(all)
	}
	return &Frame{
		message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{
			Node: s.node, Cluster: s.cluster, Epoch: j.Epoch(), Resumed: s.resumed,
		}}},
	}
}

// readJournal returns the next entries to send, and the revision to continue from after them. known is set if there
// are no more: the complete clusters. All of it belongs to one moment between two updates, so that an end mark never
// names a cluster with changes that were not sent.
func (s *Session) readJournal() (entries []*entry, next uint64, known *[]string, err error) {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s.changed = st.changed()
	maps.DeleteFunc(s.skip, func(_ string, of span) bool { return of.upTo <= s.position })
	s.skipHeld(func(t *remoteState) span { return t.first })
	if len(s.unchanged) > 0 {
		return nil, s.position, nil, nil
	}
	entries, next, ok := st.journal.Since(s.position, maxBatch)
	if !ok {
		return nil, s.position, nil,
			status.Error(codes.Aborted, "the agent is too far behind: attach again for the whole state")
	}
	if next == st.journal.Head() {
		complete := st.complete
		known = &complete
	}
	return s.unskipped(entries), next, known, nil
}

// skipHeld sends Unchanged in place of the update of each remote whose digest after it is that of what the agent holds.
// A remote without an update may get one later. The caller must hold the lock of the state.
func (s *Session) skipHeld(update func(*remoteState) span) {
	for _, cluster := range slices.Sorted(maps.Keys(s.held)) {
		t := s.state.remotes[cluster]
		if t == nil {
			continue
		}
		// An earlier stream may have sent a part of the update, which the agent's digest includes. The update can be
		// skipped only as a whole.
		if of := update(t); s.position <= of.after && of.digest == s.held[cluster] {
			s.unchanged = append(s.unchanged, &semaphorev1.Unchanged{Cluster: cluster, Revision: of.upTo})
			s.skip[cluster] = of
		}
		delete(s.held, cluster)
	}
}

// unskipped returns the entries that the agent needs. The argument may be shared.
func (s *Session) unskipped(entries []*entry) []*entry {
	if len(s.skip) == 0 {
		return entries
	}
	var out []*entry
	for _, e := range entries {
		if of, ok := s.skip[e.Key.cluster]; !ok || e.Revision <= of.after || e.Revision > of.upTo {
			out = append(out, e)
		}
	}
	return out
}

// idleFrame returns the message to send after all changes: an end mark, a deletion of a foreign device or a rotation;
// nil for none.
func (s *Session) idleFrame(known []string) *Frame {
	if !s.synced || !slices.Equal(s.syncedClusters, known) {
		s.synced, s.syncedClusters = true, known
		return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{
			Synced: &semaphorev1.Synced{Revision: s.position, Clusters: known},
		}}}
	}
	if len(s.foreign) == 0 {
		return s.nextRotation()
	}
	cluster := s.foreign[0]
	s.foreign = s.foreign[1:]
	return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{
		Changes: &semaphorev1.PeeringChanges{Changes: []*semaphorev1.PeeringChange{{
			Revision: s.position, Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: cluster},
		}}},
	}}}
}

const maxFindings = 16

// findingsOf returns a bounded copy of an agent's findings, because the message may be large.
func findingsOf(all []*semaphorev1.Finding) (out []*semaphorev1.Finding) {
	for _, f := range all[:min(len(all), maxFindings)] {
		kept := &semaphorev1.Finding{Code: finding.CleanTo(f.GetCode(), maxName),
			Cluster: finding.CleanTo(f.GetCluster(), maxName), Count: max(1, f.GetCount()), Since: f.GetSince()}
		for _, line := range f.GetFirst()[:min(len(f.GetFirst()), finding.Shown)] {
			kept.First = append(kept.First, finding.Clean(line))
		}
		out = append(out, kept)
	}
	return out
}

package peering

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// A batch of changes stays far under gRPC's 4 MiB.
	maxBatch      = 1000
	maxBatchBytes = 512 << 10
	// What an agent may say: devices of one report, remotes it holds something of, and bytes of a name or a problem.
	maxDevices = 256
	maxHeld    = 256
	maxName    = 64
	maxProblem = 512
	// Problems of a node beyond these are not kept.
	maxProblems = 64
)

// Session is the broker's end of one agent's stream as peering.proto has it: messages in, messages out. It
// starts no goroutine, asks no clock and opens no socket: the server pumps it, and a simulation can. It is not
// safe for concurrent use; State is.
//
//	s := state.Open(cluster, node, configured)
//	received, err := s.Receive(m)   for each message of the agent; an error ends the stream
//	frame, err := s.Next()          until it is nil, after each Receive and whenever Changed is closed
type Session struct {
	state   *State
	cluster string
	node    string
	// configured are the remotes.
	configured map[string]bool
	// network is that of the node; nil for unknown. networkSent is the last one that was sent.
	network, networkSent *semaphorev1.NodeNetwork
	// guard is sent once, before any change; nil for not at all.
	guard *semaphorev1.Guard
	// undelivered is the newest word of remotes that do not receive what is published, and undeliveredSent the last one that was
	// sent; nil for none that is one.
	undelivered, undeliveredSent *semaphorev1.Undelivered

	hello    *semaphorev1.AgentHello
	attached bool
	// position is the revision up to which the agent has been told.
	position uint64
	// snapshot is what is left to send of a whole state, and unchanged are the words that stand
	// for the parts of it that the agent has.
	snapshot  []*entry
	unchanged []*semaphorev1.Unchanged
	// held are the digests of what the agent has of those remotes that it has not been told of.
	held map[string]digest.Digest
	// skip are the updates that tell what the agent has.
	skip map[string]span
	// synced says that an end mark was sent, which named the clusters of told.
	synced bool
	told   []string
	// foreign are devices that the agent reports and no configured remote has; deleted are those it was
	// told so of.
	foreign []string
	deleted map[string]bool
	// rotations are words of operators that the agent is to be told.
	rotations []*semaphorev1.RotateKey
	// changed is closed once the state differs from what was last read of it, and current is set where all of that was sent: then
	// known are the clusters that are known whole.
	changed <-chan struct{}
	current bool
	known   []string

	applied uint64
	lag     lag
	counts  Counts
}

// Counts are how a session has told of remotes.
type Counts struct {
	// Resumed is 1 where the stream went on from an earlier one.
	Resumed int
	// Unchanged are remotes of which the agent had all.
	Unchanged int
	// Changes that were sent.
	Changes int
}

// Received is what one message told.
type Received struct {
	// Greeted says that it was the first: the agent speaks for its node from now on.
	Greeted bool
	// Report is set by a report.
	Report *Report
	// Token is the agent's newest, where it sent one. It is not for logs.
	Token string
	// Applied says that Session.Applied has grown.
	Applied bool
	// Propagated are changes that are in the agent's kernel now.
	Propagated []Propagated
}

// Report is what an agent says of its node's devices, checked.
type Report struct {
	// Tunnels are the node's ends of the tunnels to configured remotes, by cluster.
	Tunnels map[string]apply.Tunnel
	// Devices is the number of them, those of no configured remote too.
	Devices int
	// Problems are a line each: those of the node, then those of its devices.
	Problems []string
	// talks are how the node talks with those of configured remotes, by cluster, where the agent tells.
	talks map[string]talks
	// ClearPackets are those that were stopped in the clear.
	ClearPackets uint64
	// Guarded says that the agent guards all that Session.Guard named.
	Guarded bool
}

// Open begins a session with the agent of a node. cluster is the broker's own, configured the remotes.
func (s *State) Open(cluster, node string, configured map[string]bool) *Session {
	return &Session{
		state: s, cluster: cluster, node: node, configured: configured,
		held: map[string]digest.Digest{}, skip: map[string]span{}, deleted: map[string]bool{},
	}
}

// SetNetwork takes the pod network of the agent's node, which nobody changes any more; nil for unknown.
func (s *Session) SetNetwork(network *semaphorev1.NodeNetwork) {
	if network != nil {
		s.network = network
	}
}

// Guard has the agent guard the pod subnets of all configured remotes before it is sent anything else. It is called before the
// first Next; the message must not change any more.
func (s *Session) Guard(m *semaphorev1.Guard) { s.guard = m }

// Undelivered has the agent told which remotes do not receive what is published, where that is news; nil for none. The message must
// not change any more.
func (s *Session) Undelivered(m *semaphorev1.Undelivered) { s.undelivered = m }

// sameNetwork says whether the network says what was sent already, and then takes it for sent.
func (s *Session) sameNetwork() bool {
	if s.networkSent == nil || !proto.Equal(s.network, s.networkSent) {
		return false
	}
	s.networkSent = s.network
	return true
}

// NetworkSent is the last pod network that was sent; nil for none.
func (s *Session) NetworkSent() *semaphorev1.NodeNetwork { return s.networkSent }

// Applied is the revision up to which the agent has all in its kernel.
func (s *Session) Applied() uint64 { return s.applied }

// Counts of what was sent so far.
func (s *Session) Counts() Counts { return s.counts }

// Changed is closed once the state has changed since Next last returned nil.
func (s *Session) Changed() <-chan struct{} { return s.changed }

// Receive takes one message of the agent. An error, which is a gRPC status, ends the stream.
func (s *Session) Receive(m *semaphorev1.AttachRequest) (Received, error) {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachRequest_Hello:
		return Received{Greeted: true}, s.greet(m.Hello)
	case *semaphorev1.AttachRequest_Report:
		if s.hello == nil {
			return Received{}, status.Error(codes.InvalidArgument, "report before hello")
		}
		report, err := s.report(m.Report)
		return Received{Report: report}, err
	case *semaphorev1.AttachRequest_Applied:
		if s.hello == nil {
			return Received{}, status.Error(codes.InvalidArgument, "applied before hello")
		}
		// No more than was sent: what an agent says of the future would hide that it stays behind.
		s.applied = min(m.Applied.GetRevision(), s.position)
		return Received{Applied: true, Propagated: s.lag.applied(s.applied)}, nil
	case *semaphorev1.AttachRequest_Token:
		if token := m.Token.GetToken(); token == "" || len(token) > maxToken {
			return Received{}, status.Errorf(codes.InvalidArgument, "token: %d bytes, and %d is the most", len(token), maxToken)
		}
		return Received{Token: m.Token.GetToken()}, nil
	}
	// A message of no known kind is a later protocol's, and may be passed over.
	return Received{}, nil
}

func (s *Session) greet(hello *semaphorev1.AgentHello) error {
	switch {
	case s.hello != nil:
		return status.Error(codes.InvalidArgument, "hello twice")
	case len(hello.GetHeld()) > maxHeld:
		return status.Errorf(codes.InvalidArgument, "hello.held: %d, and %d is the most", len(hello.GetHeld()), maxHeld)
	}
	if hello == nil {
		hello = &semaphorev1.AgentHello{}
	}
	s.hello = hello
	for _, h := range hello.GetHeld() {
		// One that makes no sense is a later protocol's; without it the agent is told all.
		if d, ok := digest.Parse(h.GetDigest()); ok && s.configured[h.GetCluster()] {
			s.held[h.GetCluster()] = d
		}
	}
	return nil
}

func (s *Session) report(r *semaphorev1.AgentReport) (*Report, error) {
	if len(r.GetDevices()) > maxDevices {
		return nil, status.Errorf(codes.InvalidArgument, "report.devices: %d, and %d is the most", len(r.GetDevices()), maxDevices)
	}
	out := &Report{Tunnels: map[string]apply.Tunnel{}, talks: map[string]talks{}, Devices: len(r.GetDevices()), ClearPackets: r.GetClearPackets(), Guarded: r.GetGuarded()}
	for _, problem := range r.GetProblems()[:min(len(r.GetProblems()), maxProblems)] {
		out.Problems = append(out.Problems, cut(problem, maxProblem))
	}
	var foreign []string
	for _, d := range r.GetDevices() {
		if len(d.GetCluster()) > maxName || len(d.GetInterface()) > maxName {
			return nil, status.Errorf(codes.InvalidArgument, "report of a device: a cluster of %d and an interface of %d bytes, and %d is the most",
				len(d.GetCluster()), len(d.GetInterface()), maxName)
		}
		if problem := d.GetProblem(); problem != "" {
			out.Problems = append(out.Problems, "device "+d.GetInterface()+": "+cut(problem, maxProblem))
		}
		if !s.configured[d.GetCluster()] {
			foreign = append(foreign, d.GetCluster())
			continue
		}
		if t, ok := talksOf(d); ok {
			out.talks[d.GetCluster()] = t
		}
		if len(d.GetPublicKey()) == 0 {
			continue // not durable yet
		}
		if len(d.GetPublicKey()) != 32 || d.GetListenPort() == 0 || d.GetListenPort() > 65535 {
			return nil, status.Errorf(codes.InvalidArgument, "report of the device for %s: a key of %d bytes, port %d", d.GetCluster(), len(d.GetPublicKey()), d.GetListenPort())
		}
		out.Tunnels[d.GetCluster()] = apply.Tunnel{PublicKey: [32]byte(d.GetPublicKey()), ListenPort: uint16(d.GetListenPort())}
	}
	for _, cluster := range foreign {
		// Each is told once; an agent that makes up ever more is told of so many.
		if !s.deleted[cluster] && len(s.deleted) < maxDevices {
			s.deleted[cluster] = true
			s.foreign = append(s.foreign, cluster)
		}
	}
	return out, nil
}

// Next is the next message to send; nil when there is nothing to say until Changed is closed or
// the agent has said something. An error, which is a gRPC status, ends the stream.
func (s *Session) Next() (*Frame, error) {
	if s.hello == nil {
		return nil, nil
	}
	if !s.attached {
		return s.attach(), nil
	}
	if s.guard != nil {
		m := s.guard
		s.guard = nil
		return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Guard{Guard: m}}}, nil
	}
	if s.undelivered != s.undeliveredSent {
		m := s.undelivered
		s.undeliveredSent = m
		if m == nil {
			m = &semaphorev1.Undelivered{}
		}
		return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Undelivered{Undelivered: m}}}, nil
	}
	if s.network != s.networkSent && !s.sameNetwork() {
		s.networkSent = s.network
		return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_NodeNetwork{NodeNetwork: s.network}}}, nil
	}
	for {
		if len(s.unchanged) > 0 {
			m := s.unchanged[0]
			s.unchanged = s.unchanged[1:]
			s.counts.Unchanged++
			return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Unchanged{Unchanged: m}}}, nil
		}
		if len(s.snapshot) > 0 {
			f, n, err := s.batch(s.snapshot)
			if s.snapshot = s.snapshot[n:]; len(s.snapshot) == 0 {
				s.snapshot = nil // lets go of the entries that were sent
			}
			return f, err
		}
		// A change goes to thousands of agents at once: a stream that has all reads the shared state once for each.
		if s.current && !s.isChanged() {
			return s.mark(s.known), nil
		}
		entries, next, known, err := s.look()
		s.current = false
		switch {
		case err != nil:
			return nil, err
		case len(s.unchanged) > 0: // first the word that stands for part of what has changed
		case len(entries) > 0:
			f, n, err := s.batch(entries)
			switch s.position = next; {
			case n < len(entries):
				s.position = f.revision
			case known != nil:
				s.current, s.known = true, *known
			}
			if s.synced || s.counts.Resumed > 0 { // else it tells how things have long been
				for _, e := range entries[:n] {
					s.lag.sent(e.Revision, e.Key.cluster, e.ObservedAt)
				}
			}
			return f, err
		case known == nil: // all was skipped, and there is more
			s.position = next
		default:
			s.position, s.current, s.known = next, true, *known
			return s.mark(s.known), nil
		}
	}
}

// isChanged says whether the state has changed since it was last read.
func (s *Session) isChanged() bool {
	select {
	case <-s.changed:
		return true
	default:
		return false
	}
}

// attach answers the hello, and decides how the agent is told.
func (s *Session) attach() *Frame {
	s.attached = true
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	j := st.journal
	s.changed = st.changed
	s.position = s.hello.GetResumeRevision()
	known := s.hello.GetResumeEpoch() == j.Epoch() && s.position <= j.Head()
	resumed := known && s.position >= j.Oldest()
	if resumed {
		s.counts.Resumed = 1
	} else {
		var all []*entry
		var revision uint64
		if known {
			all, revision = s.goOn()
		} else {
			all, revision = j.Snapshot()
		}
		s.position = revision
		for _, cluster := range slices.Sorted(maps.Keys(s.held)) {
			held, t := s.held[cluster], st.told[cluster]
			switch {
			case t == nil: // perhaps later
				continue
			case t.digest == held:
				s.unchanged = append(s.unchanged, &semaphorev1.Unchanged{Cluster: cluster, Revision: revision})
				s.skip[cluster] = span{0, revision, held}
			}
			delete(s.held, cluster)
		}
		s.snapshot = s.unskipped(all)
	}
	return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{
		Node: s.node, Cluster: s.cluster, Epoch: j.Epoch(), Resumed: resumed, PodCidrs: s.network.GetPodPrefixes(),
	}}}}
}

// goOn is what to tell an agent that comes back after so long that not all deletions since are remembered. Of those remotes of which they are it goes on
// with what it has, so that one which removes many peers does not have others told again. The caller holds the state's lock.
func (s *Session) goOn() (rest []*entry, revision uint64) {
	j := s.state.journal
	goesOn := map[string]bool{}
	for _, cluster := range slices.Sorted(maps.Keys(s.held)) {
		if t := s.state.told[cluster]; t != nil && t.digest != s.held[cluster] && !j.Misses(cluster, s.position) && t.had(s.position, s.held[cluster]) {
			goesOn[cluster] = true
			s.unchanged = append(s.unchanged, &semaphorev1.Unchanged{Cluster: cluster, Revision: s.position})
			delete(s.held, cluster)
		}
	}
	return j.Rest(s.position, func(cluster string) bool { return goesOn[cluster] })
}

// look reads on in the journal: what the agent is to be told next, and the revision to go on from after
// that. known is set when there is no more now: the clusters that are known whole by then. All of it is of
// one moment between two updates, so that an end mark never names a cluster of which something is unsaid.
func (s *Session) look() (entries []*entry, next uint64, known *[]string, err error) {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	s.changed = st.changed
	maps.DeleteFunc(s.skip, func(_ string, of span) bool { return of.upTo <= s.position })
	for _, cluster := range slices.Sorted(maps.Keys(s.held)) {
		held, t := s.held[cluster], st.told[cluster]
		if t == nil {
			continue
		}
		// What the agent was told in between, by an earlier stream, is in its digest and not to be told again
		// only if the whole update is.
		if s.position <= t.first.after && t.first.digest == held {
			s.unchanged = append(s.unchanged, &semaphorev1.Unchanged{Cluster: cluster, Revision: t.first.upTo})
			s.skip[cluster] = t.first
		}
		delete(s.held, cluster)
	}
	if len(s.unchanged) > 0 {
		return nil, s.position, nil, nil
	}
	entries, next, ok := st.journal.Since(s.position, maxBatch)
	if !ok {
		return nil, s.position, nil, status.Error(codes.Aborted, "fell too far behind: attach again for the whole state")
	}
	if next == st.journal.Head() {
		complete := st.complete
		known = &complete
	}
	return s.unskipped(entries), next, known, nil
}

// unskipped are those entries that tell the agent something. What it is given may be shared.
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

func (s *Session) batch(entries []*entry) (*Frame, int, error) {
	f, n, err := s.state.batch(entries)
	if err != nil {
		return nil, 0, status.Error(codes.Internal, err.Error())
	}
	s.counts.Changes += n
	return f, n, nil
}

// mark is what there is to say to an agent that has been told all changes; nil for nothing.
func (s *Session) mark(known []string) *Frame {
	if !s.synced || !slices.Equal(s.told, known) {
		s.synced, s.told = true, known
		return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{
			Synced: &semaphorev1.Synced{Revision: s.position, Clusters: known},
		}}}
	}
	if len(s.foreign) == 0 {
		return s.rotation()
	}
	cluster := s.foreign[0]
	s.foreign = s.foreign[1:]
	return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{
		Changes: &semaphorev1.PeeringChanges{Changes: []*semaphorev1.PeeringChange{{
			Revision: s.position, Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: cluster},
		}}},
	}}}
}

package stream

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Session is the agent's side of the streams to its broker. It is safe for concurrent use.
type Session struct {
	cluster, broker string // the own cluster and the broker's address
	events          *events.Sink
	send            func(*semaphorev1.AttachRequest)

	mu    sync.Mutex
	state *State
	// changed and observed are the next results of Take.
	changed  Dirty
	observed Observed
	// confirmedAt is when a broker last confirmed the desired state of a cluster, for clusters that none confirms now.
	confirmedAt map[string]time.Time
	// restoredAt is when the restored state was confirmed; zero if none was restored.
	restoredAt time.Time

	attached bool
	// node is this node's name at the broker; empty before the broker has sent it.
	node string
	// stream counts the streams: reports and positions of an earlier one are not sent on this one.
	stream       int
	since, heard time.Time
	lastError    string
	// report and applied were last sent on this stream.
	report  *semaphorev1.AgentReport
	applied *uint64
}

type Position struct {
	Stream   int
	Revision uint64
	// Current means that the stream had sent its complete state by then.
	Current bool
}

// Changes are possible differences from the desired state at the last Take.
type Changes struct {
	Dirty
	Observed Observed
	Position Position
}

// NewSession returns the session of a cluster's agent with its broker. send must not block.
func NewSession(cluster, broker string, sink *events.Sink, send func(*semaphorev1.AttachRequest)) *Session {
	return &Session{
		cluster: cluster, broker: broker, events: sink, send: send,
		state: NewState(), changed: plan.NewChanges(), observed: Observed{},
		confirmedAt: map[string]time.Time{}, since: time.Now(),
	}
}

// Restore loads the state that a broker sent to an earlier agent, before the first stream.
func (s *Session) Restore(networks map[string]*plan.Desired, confirmed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Add(s.state.Restore(networks))
	s.restoredAt = confirmed
	for cluster := range networks {
		s.confirmedAt[cluster] = confirmed
	}
}

// Begin starts a stream, and returns its first messages. report is the current one.
func (s *Session) Begin(report *semaphorev1.AgentReport) []*semaphorev1.AttachRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Begin()
	s.stream++
	epoch, revision := s.state.Resume()
	s.report, s.applied = report, nil
	return []*semaphorev1.AttachRequest{
		Hello(epoch, revision, s.state.Held()),
		{Message: &semaphorev1.AttachRequest_Report{Report: report}},
	}
}

// Receive handles one message of the broker. changed means that the desired state may have changed, or is confirmed
// now. It fails for one that breaks the protocol, which ends the stream.
func (s *Session) Receive(m *semaphorev1.AttachResponse) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = time.Now()
	dirty, err := s.state.Receive(m)
	if err != nil {
		return false, err
	}
	if attached := m.GetAttached(); attached != nil {
		s.attached, s.since, s.lastError, s.node = true, time.Now(), "", attached.GetNode()
	}
	s.observed.changes(m.GetChanges().GetChanges(), dirty)
	s.changed.Add(dirty)
	s.record(m) // with the lock, so that a message is recorded before it is applied
	return !dirty.Empty() || m.GetSynced() != nil, nil
}

func (s *Session) record(m *semaphorev1.AttachResponse) {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		s.events.SetNode(m.Attached.GetNode())
		how := "with the whole state"
		if m.Attached.GetResumed() {
			how = "going on"
		}
		s.events.Emit(events.Event{Cluster: s.cluster, Object: "broker " + s.cluster, Action: "connect", Detail: how}.
			Info("attached", "node", m.Attached.GetNode(), "how", how))
	case *semaphorev1.AttachResponse_Unchanged:
		s.events.Emit(events.Device(m.Unchanged.GetCluster(), "receive", "unchanged"))
	case *semaphorev1.AttachResponse_Changes:
		for _, c := range m.Changes.GetChanges() {
			s.events.Emit(eventOf(c))
		}
	}
}

func eventOf(m *semaphorev1.PeeringChange) events.Event {
	c, action := changeOf(m), "receive"
	if c.device == nil && c.peer == nil {
		action = "delete"
	}
	e := events.Device(c.cluster, action, "")
	if c.kind == aPeer {
		e = events.Peer(c.cluster, c.node, action, c.peer.GetWireguard().GetAddress())
	}
	if m.GetObservedAt().IsValid() {
		e.ObservedAt = m.GetObservedAt().AsTime()
	}
	return e
}

// Ended records why a stream, or the attempt to open one, ended. The desired state remains.
func (s *Session) Ended(err error) {
	if err == nil {
		err = errors.New("the stream ended")
	}
	s.mu.Lock()
	was, known := s.attached, s.lastError == err.Error()
	if was {
		now := time.Now()
		for _, cluster := range s.state.Clusters() {
			s.confirmedAt[cluster] = s.confirmed(cluster, now)
		}
		s.attached, s.since = false, now
	}
	s.lastError = err.Error()
	s.mu.Unlock()
	if was || !known {
		event := events.Event{Cluster: s.cluster, Object: "broker " + s.cluster, Action: "disconnect", Detail: err.Error()}
		s.events.Emit(event.Warn("not attached to the broker; devices remain as they are; the agent retries",
			"broker", s.broker, "error", err))
	}
}

// Take returns the changes since the last call, and the position up to which they are complete.
func (s *Session) Take() Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Changes{s.changed, s.observed, Position{s.stream, s.state.Revision(), s.state.Current()}}
	s.changed, s.observed = plan.NewChanges(), Observed{}
	return out
}

// Observe returns a change that a round did not program.
func (s *Session) Observe(cluster, node string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observed.Add(cluster, node, at)
}

// RestoredTaken reports whether an earlier agent's state was restored, and Take has returned all its devices.
func (s *Session) RestoredTaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.restoredAt.IsZero() && len(s.changed.Networks) == 0
}

// Listens reports whether a broker is attached that has sent its complete state.
func (s *Session) Listens() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached && s.state.Current()
}

// Attached reports whether the stream of a position is still open, and had sent its complete state by then.
func (s *Session) Attached(at Position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachedAt(at)
}

func (s *Session) attachedAt(at Position) bool {
	return s.attached && at.Current && at.Stream == s.stream
}

// Send sends the node's report if it differs from the last one and, if done, the position as applied. It returns false
// and sends nothing if the position is not one of this stream: revisions of two brokers cannot be compared.
func (s *Session) Send(at Position, report *semaphorev1.AgentReport, done bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.attachedAt(at) {
		return false
	}
	if !proto.Equal(report, s.report) {
		s.send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{Report: report}})
		s.report = report
	}
	if done && (s.applied == nil || *s.applied != at.Revision) {
		applied := &semaphorev1.Applied{Revision: at.Revision}
		s.send(&semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Applied{Applied: applied}})
		s.applied = &at.Revision
	}
	return true
}

// with calls do with the desired network of a cluster, if there is one.
func (s *Session) with(cluster string, do func(*plan.Desired)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.state.Network(cluster); n != nil {
		do(n)
	}
}

func (s *Session) Device(cluster string) (device *semaphorev1.Device) {
	s.with(cluster, func(n *plan.Desired) { device = n.Device })
	return device
}

// Network returns the desired device to a cluster with its peers; nil for none. The caller owns the map of peers.
func (s *Session) Network(cluster string) (out *plan.Desired) {
	s.with(cluster, func(n *plan.Desired) {
		out = &plan.Desired{Device: n.Device, Peers: maps.Clone(n.Peers), Restored: n.Restored}
	})
	return out
}

// Peers returns the desired peers of some nodes, nil for a node that should have none; a nil map for a cluster without
// a device.
func (s *Session) Peers(cluster string, nodes map[string]bool) (out map[string]*semaphorev1.Peer) {
	s.with(cluster, func(n *plan.Desired) {
		out = make(map[string]*semaphorev1.Peer, len(nodes))
		for node := range nodes {
			out[node] = n.Peers[node]
		}
	})
	return out
}

func (s *Session) Endpoints(cluster string, most int) (to []netip.Addr) {
	s.with(cluster, func(n *plan.Desired) { to = plan.Addresses(n.Peers, most) })
	return to
}

func (s *Session) Nodes(cluster string, keys []wgtypes.Key) []string {
	names := make([]string, len(keys))
	s.with(cluster, func(n *plan.Desired) { names = n.Nodes(keys) })
	return names
}

func (s *Session) Clusters() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Clusters()
}

// Current reports whether the desired state is complete, as the current stream or the last one sent it.
func (s *Session) Current() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Current()
}

// Snapshot returns the desired state for a later agent and when the oldest part of it was last confirmed; false before
// a broker has sent its complete state.
func (s *Session) Snapshot() (StateFile, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	networks, complete := s.state.Snapshot()
	now := time.Now()
	oldest := now
	for cluster := range networks {
		if at := s.confirmed(cluster, now); at.Before(oldest) {
			oldest = at
		}
	}
	return StateFile{Networks: networks, Confirmed: oldest}, complete
}

// confirmed returns when a broker last confirmed the desired state of a cluster: now, while it is attached and has sent
// its complete state. It must be called with mu held.
func (s *Session) confirmed(cluster string, now time.Time) time.Time {
	if s.attached && s.state.Proven(cluster) {
		return now
	}
	return s.confirmedAt[cluster]
}

// Forget discards the age of a removed device.
func (s *Session) Forget(cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.confirmedAt, cluster)
}

type View struct {
	Attached, Current bool
	Node              string
	Since, Heard      time.Time
	LastError         string
	Remotes           []Remote // by name
}

type Remote struct {
	Cluster string
	Peers   int
	// Source is the broker, or the cache for a restored state that no broker has sent since.
	Source semaphorev1.StateSource
	// ConfirmedAt is when a broker last confirmed it: now, if it does. Zero for never.
	ConfirmedAt time.Time
}

// Age returns the time since a broker last confirmed the state. It is unknown if that time is ahead of the node's
// clock, which was then set back.
func (r Remote) Age(now time.Time) (age time.Duration, known bool) {
	age = now.Sub(r.ConfirmedAt)
	return max(0, age), age > -time.Second // it may be confirmed after now was read
}

func (r Remote) Device() string { return naming.Device(r.Cluster) }

func (s *Session) View(now time.Time) View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := View{
		Attached: s.attached, Current: s.state.Current(), Node: s.node,
		Since: s.since, Heard: s.heard, LastError: s.lastError,
	}
	for _, cluster := range s.state.Clusters() {
		n := s.state.Network(cluster)
		r := Remote{Cluster: cluster, Peers: len(n.Peers), Source: semaphorev1.StateSource_STATE_SOURCE_BROKER,
			ConfirmedAt: s.confirmed(cluster, now)}
		if n.Restored {
			r.Source = semaphorev1.StateSource_STATE_SOURCE_CACHE
		}
		v.Remotes = append(v.Remotes, r)
	}
	return v
}

func (v View) Remote(cluster string) (Remote, bool) {
	for _, r := range v.Remotes {
		if r.Cluster == cluster {
			return r, true
		}
	}
	return Remote{}, false
}

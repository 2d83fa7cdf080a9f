// Package peering serves the agents of the own nodes: PeeringService. It admits an agent for the node that its token
// is bound to, sends the same devices and peers to all agents from one journal, to each at its own pace, and passes on
// their reports.
//
// A slow agent is only a position in the journal: it costs other agents nothing, and receives only the newest states
// when it catches up. Nothing of a remote is sent before its nodes are complete.
//
// State and Session are the protocol without I/O; Server does the I/O, and Admission authenticates agents.
package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const helloTimeout = 10 * time.Second

// maxOpen is how many streams of a node may be open: the newest, the one that it replaces, and one whose end has not
// been noticed.
const maxOpen = 3

type Reports interface {
	// Report is called with guarded when the node guards the pod subnets of all configured remotes.
	Report(node string, uid types.UID, tunnels map[string]nodes.Tunnel, guarded bool)
}

type Options struct {
	Cluster string // the own one
	Remotes []config.Remote
	Agents  config.Agents
	Kube    kubernetes.Interface
	Nodes   LiveNodes
	// PodsKnown reports whether PodDeleted is called for each pod that ends from now on; no agent is admitted before.
	PodsKnown func() bool
	// Network returns the pod network of a node, which is immutable; nil while it is unknown. If the function is nil,
	// no network is known.
	Network func(node string) *semaphorev1.NodeNetwork
	Reports Reports
	// Traffic receives the agents' counters by ClusterIP; nil to drop them.
	Traffic Traffic
	State   *State
	Metrics *Metrics
	// Propagation records how long changes took until a node applied them; may be nil.
	Propagation *report.Tracker
	Recorder    *debug.Recorder
	Log         *slog.Logger
}

// Traffic receives the counters of a node's agent by ClusterIP.
type Traffic interface {
	Report(node string, all []*semaphorev1.ServiceTraffic, now time.Time)
}

// Server is the broker's side of all Attach streams.
type Server struct {
	semaphorev1.UnimplementedPeeringServiceServer
	*Admission
	options Options
	now     func() time.Time

	mu sync.Mutex
	// configured are the remotes, and guard what agents guard for them. Both are replaced as a whole, and never
	// modified.
	configured map[string]bool
	guard      *semaphorev1.Guard

	attached map[types.UID]*attachment // by UID of the node
	// undelivered is why remotes do not receive this cluster's objects.
	undelivered map[string]string
	// closely and probe are the last orders to watch peers closely, and to probe those of remotes.
	closely, probe order
	// perNode are the open streams of each node, oldest first, attached or not.
	perNode map[types.UID][]*attachment
	// endedPods are the pods that ended recently, as long as one may be between its admission and its stream.
	endedPods map[types.UID]time.Time
}

var errPodEnded = status.Error(codes.PermissionDenied, "the pod has ended")

type attachment struct {
	agent Agent
	since time.Time
	// ctx ends with the stream, or before it when the stream must end. Its cause is the first reason that stop was given.
	ctx  context.Context
	stop context.CancelCauseFunc
	// received is signalled when the agent has sent something that may need an answer.
	received chan struct{}

	// ended is guarded by the server's lock.
	ended bool

	// mu guards the protocol and the last report.
	mu       sync.Mutex
	session  *Session
	report   *Report
	reported time.Time
	// token is the newest token of the agent, and unreviewed why it could not be reviewed lately, if so.
	token      string
	unreviewed string
}

// wake makes the sender check whether there is something to send.
func (a *attachment) wake() {
	select {
	case a.received <- struct{}{}:
	default:
	}
}

func New(options Options) *Server {
	if options.Network == nil {
		options.Network = func(string) *semaphorev1.NodeNetwork { return nil }
	}
	s := &Server{options: options, now: time.Now, attached: map[types.UID]*attachment{},
		perNode:   map[types.UID][]*attachment{},
		endedPods: map[types.UID]time.Time{}}
	s.Admission = newAdmission(options)
	s.Follow(options.Remotes)
	options.Metrics.streams(s)
	return s
}

// Follow replaces the configured remotes. Streams continue: their agents receive the remotes to guard now, and remove
// the devices of missing remotes.
func (s *Server) Follow(remotes []config.Remote) {
	configured, guard := make(map[string]bool, len(remotes)), guardOf(remotes)
	for _, r := range remotes {
		configured[r.Name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := proto.Equal(guard, s.guard)
	if s.configured, s.guard = configured, guard; same {
		return // the guard names all that agents receive of the configuration beside devices
	}
	for _, open := range s.perNode {
		for _, a := range open {
			a.mu.Lock()
			a.session.Configure(configured, guard)
			a.mu.Unlock()
			a.wake()
		}
	}
}

// remotes are the configured remotes. The map must not be modified.
func (s *Server) remotes() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.configured
}

// guardOf returns what agents guard before they receive any device.
func guardOf(remotes []config.Remote) *semaphorev1.Guard {
	m := &semaphorev1.Guard{}
	for i := range remotes {
		d := mesh.Device(&remotes[i])
		m.Remotes = append(m.Remotes, &semaphorev1.GuardedRemote{Cluster: d.GetCluster(), PodSubnets: d.GetPodSubnets(),
			Permissive: d.GetPermissive()})
	}
	return m
}

func (s *Server) NodeDeleted(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.attached[uid]; a != nil {
		a.stop(status.Error(codes.PermissionDenied, "the node was deleted"))
	}
}

// PodDeleted ends the stream of a pod that was deleted or has ended, even if it attaches later: its token may remain
// valid for a while, possibly in an attacker's hands.
func (s *Server) PodDeleted(uid types.UID) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.endedPods, func(_ types.UID, since time.Time) bool { return now.Sub(since) > admissionTimeout })
	s.endedPods[uid] = now
	for _, a := range s.attached {
		if a.agent.PodUID == uid {
			a.stop(errPodEnded)
		}
	}
}

// Attach implements semaphorev1.PeeringServiceServer. Its error is always the reason why the stream ended.
func (s *Server) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	who, ok := call.Context().Value(admittedKey{}).(admitted)
	if !ok {
		return status.Error(codes.Internal, "the call was not admitted")
	}
	a := &attachment{
		agent: who.agent, token: who.token, since: time.Now(), received: make(chan struct{}, 1),
		session: s.options.State.Open(s.options.Cluster, who.agent.Node, nil),
	}
	a.session.setNetwork(s.options.Network(who.agent.Node))
	a.ctx, a.stop = context.WithCancelCause(context.WithoutCancel(call.Context()))
	defer context.AfterFunc(call.Context(), func() { a.stop(status.FromContextError(call.Context().Err()).Err()) })()
	defer s.trackOpen(a)()
	// Recv, and Send to an agent that does not read, return only when the call ends: these goroutines end just after
	// this function.
	go func() { a.stop(s.receive(a, call)) }()
	go func() { a.stop(s.send(a, call)) }()
	s.reviewUntilEnd(a)
	why := context.Cause(a.ctx)
	if errors.Is(why, io.EOF) {
		why = nil // the agent has closed it
	}
	s.detach(a, why)
	return why
}

// trackOpen records that a stream is open, and ends the oldest of the node if there are too many. The returned
// function records its end.
func (s *Server) trackOpen(a *attachment) (closed func()) {
	uid := a.agent.NodeUID
	s.mu.Lock()
	defer s.mu.Unlock()
	a.session.Configure(s.configured, s.guard) // with the lock, so that it misses no change of them
	s.perNode[uid] = append(s.perNode[uid], a)
	if len(s.perNode[uid]) > maxOpen {
		s.perNode[uid][0].stop(status.Errorf(codes.Aborted, "the node has newer streams: the limit is %d", maxOpen))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.perNode[uid] = slices.DeleteFunc(s.perNode[uid],
			func(o *attachment) bool { return o == a }); len(s.perNode[uid]) == 0 {
			delete(s.perNode, uid)
		}
	}
}

// NetworkChanged sends a node's pod network to its agent if it has changed.
func (s *Server) NetworkChanged(node string) {
	if a := s.ofNode(node); a != nil {
		s.readNetwork(a)
	}
}

// ofNode returns the attached agent of a node; nil for none.
func (s *Server) ofNode(name string) *attachment {
	uid, ok := s.options.Nodes.UID(name)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[uid]
}

// KnowsNetwork reports whether the agent of a node is attached and was sent the node's current pod network.
func (s *Server) KnowsNetwork(node string) bool {
	a := s.ofNode(node)
	if a == nil {
		return false
	}
	now := s.options.Network(node)
	a.mu.Lock()
	defer a.mu.Unlock()
	return now != nil && a.session.networkSent == now
}

func (s *Server) readNetwork(a *attachment) {
	a.mu.Lock()
	a.session.setNetwork(s.options.Network(a.agent.Node)) // read under the lock, so that the last caller has the newest
	a.mu.Unlock()
	a.wake()
}

// attach makes a the current stream of its node, and ends an earlier one.
func (s *Server) attach(a *attachment) {
	s.mu.Lock()
	if a.ended {
		s.mu.Unlock()
		return
	}
	older := s.attached[a.agent.NodeUID]
	s.attached[a.agent.NodeUID] = a
	if len(s.undelivered) > 0 {
		a.mu.Lock() // with s.mu held: a newer list comes after this one
		a.session.notify(ofUndelivered, undelivered(s.undelivered))
		a.mu.Unlock()
	}
	_, podEnded := s.endedPods[a.agent.PodUID]
	s.mu.Unlock()
	if podEnded { // it ended between its admission and here
		a.stop(errPodEnded)
		return
	}
	if older != nil {
		older.stop(status.Error(codes.Aborted, "a newer stream of this node replaced this one"))
	}
	// NodeDeleted finds attached streams only; this finds a node that was deleted between admission and here.
	if uid, ok := s.options.Nodes.UID(a.agent.Node); !ok || uid != a.agent.NodeUID {
		a.stop(status.Error(codes.PermissionDenied, "the node was deleted"))
		return
	}
	s.readNetwork(a) // NetworkChanged, too, finds attached streams only
	s.options.Log.Info("agent attached", "node", a.agent.Node, "pod", a.agent.Pod)
	s.options.Recorder.Record(debug.Event{Object: "node " + a.agent.Node, Action: "attach", Detail: "pod " + a.agent.Pod})
}

func (s *Server) detach(a *attachment, err error) {
	s.mu.Lock()
	a.ended = true
	current := s.attached[a.agent.NodeUID] == a
	if current {
		delete(s.attached, a.agent.NodeUID)
	}
	s.mu.Unlock()
	if !current {
		return
	}
	detail := "closed by the agent"
	if err != nil {
		detail = status.Convert(err).Message()
	}
	s.options.Log.Info("agent detached", "node", a.agent.Node, "reason", detail)
	s.options.Recorder.Record(debug.Event{Object: "node " + a.agent.Node, Action: "detach", Detail: detail})
}

func (s *Server) receive(a *attachment, call grpc.BidiStreamingServer[semaphorev1.AttachRequest,
	semaphorev1.AttachResponse]) error {
	for {
		m, err := call.Recv()
		if err != nil {
			return err
		}
		a.mu.Lock()
		received, err := a.session.Receive(m)
		if received.Report != nil {
			a.report, a.reported = received.Report, time.Now()
		}
		if received.Token != "" {
			a.token = received.Token
		}
		a.mu.Unlock()
		if err != nil {
			return err
		}
		if received.Hello {
			s.attach(a) // before the report that follows is attributed to an older stream
		}
		for _, p := range received.Propagated {
			s.options.Propagation.Observe(p.Cluster, writes.Node, time.Since(p.ObservedAt))
		}
		if received.Report != nil && s.current(a) {
			s.options.Reports.Report(a.agent.Node, a.agent.NodeUID, received.Report.Tunnels,
				received.Report.Guarded)
			if s.options.Traffic != nil {
				s.options.Traffic.Report(a.agent.Node, received.Report.traffic, time.Now())
				received.Report.traffic = nil
			}
		}
		if received.Hello || received.Report != nil { // nothing else is answered
			a.wake()
		}
	}
}

// current reports whether a is the newest stream of its node; reports of others are ignored.
func (s *Server) current(a *attachment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[a.agent.NodeUID] == a
}

// send sends the state and then its changes until the stream ends.
func (s *Server) send(a *attachment, call grpc.BidiStreamingServer[semaphorev1.AttachRequest,
	semaphorev1.AttachResponse]) error {
	noHello := time.After(helloTimeout)
	for {
		a.mu.Lock()
		frame, err := a.session.Next()
		changed, greeted := a.session.changed, a.session.hello != nil
		a.mu.Unlock()
		if err != nil {
			return err
		}
		if frame != nil {
			if err := call.SendMsg(frame); err != nil {
				return err
			}
			continue
		}
		if greeted {
			noHello = nil
		}
		select {
		case <-changed:
		case <-a.received:
		case <-noHello:
			return status.Errorf(codes.InvalidArgument, "no hello within %s", helloTimeout)
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
	}
}

// Status returns the status of the agent on each of the given nodes, and on any other node that has one. exempt returns
// why no agent is expected on a node; empty if one is.
func (s *Server) Status(nodes []string, exempt func(node string) string) []*semaphorev1.NodeStatus {
	byNode := map[string]*semaphorev1.NodeStatus{}
	for _, a := range s.attachments() {
		out := &semaphorev1.NodeStatus{
			Node: a.agent.Node, Attached: true, Since: timestamppb.New(a.since),
		}
		a.mu.Lock()
		applied := a.session.Applied()
		if a.report != nil {
			out.Devices, out.Problems = uint32(a.report.Devices), slices.Clone(a.report.Problems)
			out.ClearPackets = a.report.ClearPackets
		}
		if a.unreviewed != "" {
			out.Problems = append(out.Problems, "its token cannot be reviewed: "+a.unreviewed)
		}
		a.mu.Unlock()
		out.Behind = uint64(s.options.State.journal.Pending(applied))
		byNode[a.agent.Node] = out
	}
	for _, name := range nodes {
		if byNode[name] != nil {
			continue
		}
		byNode[name] = &semaphorev1.NodeStatus{Node: name, Problems: []string{"no agent is attached"}}
		if why := exempt(name); why != "" {
			byNode[name] = &semaphorev1.NodeStatus{Node: name, WithoutEncryption: why}
		}
	}
	out := make([]*semaphorev1.NodeStatus, 0, len(byNode))
	withProblems := 0
	for _, n := range byNode {
		out = append(out, n)
		if len(n.Problems) > 0 {
			withProblems++
		}
	}
	for _, n := range out {
		n.Problems = truncateLines(n.Problems, maxStatusProblems/max(withProblems, 1))
	}
	slices.SortFunc(out, func(a, b *semaphorev1.NodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// Findings returns the peers that are not sent to agents, and the findings that attached agents report, by node; the
// lines of the latter are in the status of the nodes. An agent that reports problems without findings is of an older
// version.
func (s *Server) Findings() []finding.Finding {
	found := s.options.State.Findings()
	attached := s.attachments()
	slices.SortFunc(attached, func(a, b *attachment) int { return cmp.Compare(a.agent.Node, b.agent.Node) })
	for _, a := range attached {
		before := "node " + a.agent.Node + ": "
		a.mu.Lock()
		report, unreviewed := a.report, a.unreviewed
		a.mu.Unlock()
		if unreviewed != "" {
			found = append(found, finding.New(finding.TokenUnreviewed, "", 1, before+unreviewed))
		}
		if report != nil {
			found = append(found, finding.Findings(report.Findings, before)...)
		}
	}
	return found
}

// maxStatusProblems is the limit of the problems of all nodes in a status, in bytes. Nodes with problems share it
// evenly.
const maxStatusProblems = 1 << 20

// truncateLines returns the lines that fit, the first of them at least in part, and the number of the others.
func truncateLines(lines []string, most int) []string {
	size := 0
	for i, line := range lines {
		if size += len(line); size <= most {
			continue
		}
		if i == 0 {
			lines[i] = finding.CleanTo(line, most)
			i++
		}
		if rest := len(lines) - i; rest > 0 {
			return append(slices.Clip(lines[:i]), fmt.Sprintf("%d more problems", rest))
		}
		return lines[:i]
	}
	return lines
}

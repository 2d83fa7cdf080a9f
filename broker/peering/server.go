// Package peering serves the agents of the own nodes: PeeringService. It admits an agent for the node
// that its token is bound to, tells all of them the same devices and peers from one journal, each at its own
// pace, and hands on what they report.
//
// An agent that is slow is a revision that stands: it costs the others nothing, and catches up with the newest
// states only. Nothing of a remote is told before its nodes are known whole.
//
// State and Session are the protocol, without I/O; Server carries it, and Admission says who may speak.
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
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/propagation"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// helloTimeout is how long an agent may say nothing after it was admitted.
const helloTimeout = 10 * time.Second

// maxOpen is how many streams of a node may be open: the newest, one that it takes over from, and one whose end has not been
// noticed.
const maxOpen = 3

// Reports takes what agents report of their nodes.
type Reports interface {
	Report(node string, uid types.UID, tunnels map[string]apply.Tunnel)
	// Guarded says that a node guards the pod subnets of all configured remotes.
	Guarded(node string, uid types.UID)
}

// Options of a Server.
type Options struct {
	// Cluster is the own one.
	Cluster string
	Remotes []config.Remote
	Agents  config.Agents
	Kube    kubernetes.Interface
	Nodes   LiveNodes
	// Network is the pod network of the live node of a name, which nobody changes any more; nil while it is not known, and without it no network is.
	Network func(node string) *semaphorev1.NodeNetwork
	Reports Reports
	State   *State
	Metrics *Metrics
	// Propagation is told how long changes took to be programmed on a node; nil for nobody.
	Propagation *propagation.Tracker
	// Recorder and Log are told who comes and goes.
	Recorder *debug.Recorder
	Log      *slog.Logger
}

// Server is the broker's end of all Attach streams.
type Server struct {
	semaphorev1.UnimplementedPeeringServiceServer
	*Admission
	options    Options
	configured map[string]bool
	guard      *semaphorev1.Guard
	now        func() time.Time

	mu       sync.Mutex
	attached map[types.UID]*attachment // by node
	// undelivered is what each agent is told of remotes that do not receive what is published; nil for nothing.
	undelivered *semaphorev1.Undelivered
	reasons     map[string]string
	// perNode are the streams of each node, the oldest first, attached or not.
	perNode map[types.UID][]*attachment
	// gonePods are the pods that have ended for as long as one of them may be on its way from its admission to its stream.
	gonePods map[types.UID]time.Time
}

var errPodGone = status.Error(codes.PermissionDenied, "the pod has ended")

// attachment is one agent's stream.
type attachment struct {
	agent Agent
	since time.Time
	// ctx ends with the stream, or before it when the stream is to end; why says why.
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	why    error
	// more says that the agent has said something, which may have to be answered.
	more chan struct{}

	// ended is guarded by the server's lock.
	ended bool

	// mu guards the protocol and what was last reported.
	mu      sync.Mutex
	session *Session
	report  *Report
	// reported is when the report came.
	reported time.Time
	// token is the newest that the agent has shown, and unreviewed why it could not be reviewed lately, if so.
	token      string
	unreviewed string
}

// wake has the stream look whether there is something to say.
func (a *attachment) wake() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

func (a *attachment) stop(why error) {
	a.once.Do(func() {
		a.why = why
		a.cancel()
	})
}

// New makes a server.
func New(options Options) *Server {
	if options.Network == nil {
		options.Network = func(string) *semaphorev1.NodeNetwork { return nil }
	}
	s := &Server{options: options, configured: map[string]bool{}, now: time.Now, attached: map[types.UID]*attachment{}, perNode: map[types.UID][]*attachment{},
		gonePods: map[types.UID]time.Time{}}
	s.Admission = newAdmission(options)
	for _, r := range options.Remotes {
		s.configured[r.Name] = true
	}
	s.guard = guardOf(options.Remotes)
	options.Metrics.streams(s)
	return s
}

// guardOf is what agents guard before they know of any device.
func guardOf(remotes []config.Remote) *semaphorev1.Guard {
	m := &semaphorev1.Guard{}
	for i := range remotes {
		d := mesh.Device(&remotes[i])
		m.Remotes = append(m.Remotes, &semaphorev1.GuardedRemote{Cluster: d.GetCluster(), PodSubnets: d.GetPodSubnets(), Permissive: d.GetPermissive()})
	}
	return m
}

// NodeGone ends the stream of a node that was deleted.
func (s *Server) NodeGone(uid types.UID) {
	s.mu.Lock()
	a := s.attached[uid]
	s.mu.Unlock()
	if a != nil {
		a.stop(status.Error(codes.PermissionDenied, "the node was deleted"))
	}
}

// PodGone ends the stream of a pod that was deleted or has ended, also if it attaches only now: its token may be good for a
// while yet, in other hands too.
func (s *Server) PodGone(uid types.UID) {
	now := time.Now()
	s.mu.Lock()
	maps.DeleteFunc(s.gonePods, func(_ types.UID, since time.Time) bool { return now.Sub(since) > admissionTimeout })
	s.gonePods[uid] = now
	var gone []*attachment
	for _, a := range s.attached {
		if a.agent.PodUID == uid {
			gone = append(gone, a)
		}
	}
	s.mu.Unlock()
	for _, a := range gone {
		a.stop(errPodGone)
	}
}

// Attach implements semaphorev1.PeeringServiceServer.
func (s *Server) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	who, ok := call.Context().Value(admittedKey{}).(admitted)
	if !ok {
		return status.Error(codes.Internal, "a call that nobody admitted")
	}
	a := &attachment{
		agent: who.agent, token: who.token, since: time.Now(), more: make(chan struct{}, 1),
		session: s.options.State.Open(s.options.Cluster, who.agent.Node, s.configured),
	}
	a.session.SetNetwork(s.options.Network(who.agent.Node))
	a.session.Guard(s.guard)
	a.ctx, a.cancel = context.WithCancel(call.Context())
	defer s.opened(a)()
	// Recv, and Send to an agent that reads nothing, can be left only by the end of the call: these goroutines
	// end just after this function.
	go func() { a.stop(s.listen(a, call)) }()
	go func() { a.stop(s.tell(a, call)) }()
	s.renew(a)
	a.stop(status.FromContextError(call.Context().Err()).Err()) // unless it is known better
	s.detach(a, a.why)
	return a.why
}

// opened notes that a stream is open; where its node has too many, the oldest ends. The function returned notes its end.
func (s *Server) opened(a *attachment) (closed func()) {
	uid := a.agent.NodeUID
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perNode[uid] = append(s.perNode[uid], a)
	if len(s.perNode[uid]) > maxOpen {
		s.perNode[uid][0].stop(status.Errorf(codes.Aborted, "newer streams of this node: %d is the most", maxOpen))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.perNode[uid] = slices.DeleteFunc(s.perNode[uid], func(o *attachment) bool { return o == a }); len(s.perNode[uid]) == 0 {
			delete(s.perNode, uid)
		}
	}
}

// NetworkChanged has the agent of a node learn the node's pod network, which may have changed.
func (s *Server) NetworkChanged(node string) {
	uid, ok := s.options.Nodes.UID(node)
	if !ok {
		return
	}
	s.mu.Lock()
	a := s.attached[uid]
	s.mu.Unlock()
	if a != nil {
		s.readNetwork(a)
	}
}

// KnowsNetwork says whether the agent of a node is connected and was sent the node's pod network as it is now.
func (s *Server) KnowsNetwork(node string) bool {
	uid, ok := s.options.Nodes.UID(node)
	if !ok {
		return false
	}
	s.mu.Lock()
	a := s.attached[uid]
	s.mu.Unlock()
	if a == nil {
		return false
	}
	now := s.options.Network(node)
	a.mu.Lock()
	defer a.mu.Unlock()
	return now != nil && a.session.NetworkSent() == now
}

func (s *Server) readNetwork(a *attachment) {
	a.mu.Lock()
	a.session.SetNetwork(s.options.Network(a.agent.Node)) // read with the lock held: the last to come has the newest
	a.mu.Unlock()
	a.wake()
}

// attach makes a the stream of its node; an earlier one of that node ends.
func (s *Server) attach(a *attachment) {
	s.mu.Lock()
	if a.ended {
		s.mu.Unlock()
		return
	}
	older := s.attached[a.agent.NodeUID]
	s.attached[a.agent.NodeUID] = a
	undelivered := s.undelivered
	_, podGone := s.gonePods[a.agent.PodUID]
	s.mu.Unlock()
	if podGone { // between its admission and here
		a.stop(errPodGone)
		return
	}
	a.mu.Lock()
	a.session.Undelivered(undelivered)
	a.mu.Unlock()
	if older != nil {
		older.stop(status.Error(codes.Aborted, "a newer stream of this node has taken over"))
	}
	// NodeGone finds those that are attached only: one whose node went between its admission and here is told here.
	if uid, ok := s.options.Nodes.UID(a.agent.Node); !ok || uid != a.agent.NodeUID {
		a.stop(status.Error(codes.PermissionDenied, "the node was deleted"))
		return
	}
	s.readNetwork(a) // NetworkChanged, too, finds only those that are attached
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

// listen takes what the agent says until the call ends.
func (s *Server) listen(a *attachment, call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	for {
		m, err := call.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
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
		if received.Greeted {
			s.attach(a) // before the report that follows is taken for an older stream's
		}
		for _, p := range received.Propagated {
			s.options.Propagation.Observe(p.Cluster, semaphorev1.KindName(semaphorev1.Kind_KIND_NODE), time.Since(p.ObservedAt))
		}
		if received.Report != nil && s.current(a) {
			s.options.Reports.Report(a.agent.Node, a.agent.NodeUID, received.Report.Tunnels)
			if received.Report.Guarded {
				s.options.Reports.Guarded(a.agent.Node, a.agent.NodeUID)
			}
		}
		if received.Greeted || received.Report != nil { // nothing else is answered
			a.wake()
		}
	}
}

// current says whether a is the newest stream of its node: only that one speaks for it.
func (s *Server) current(a *attachment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[a.agent.NodeUID] == a
}

// tell sends the state and then its changes, until the stream ends.
func (s *Server) tell(a *attachment, call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	silent := timer.C
	for {
		a.mu.Lock()
		frame, err := a.session.Next()
		changed, greeted := a.session.Changed(), a.session.hello != nil
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
			silent = nil
		}
		select {
		case <-changed:
		case <-a.more:
		case <-silent:
			return status.Errorf(codes.InvalidArgument, "no hello within %s", helloTimeout)
		case <-a.ctx.Done():
			return status.FromContextError(a.ctx.Err()).Err()
		}
	}
}

// Problems are what of the remotes agents are not told, a line each.
func (s *Server) Problems() []string { return s.options.State.Problems() }

// Status is what is known of the agent on each of the nodes named, and on any other that has one.
func (s *Server) Status(nodes []string) []*semaphorev1.NodeStatus {
	s.mu.Lock()
	attached := make([]*attachment, 0, len(s.attached))
	for _, a := range s.attached {
		attached = append(attached, a)
	}
	s.mu.Unlock()
	byNode := map[string]*semaphorev1.NodeStatus{}
	for _, name := range nodes {
		byNode[name] = &semaphorev1.NodeStatus{Node: name, Problems: []string{"no agent is attached"}}
	}
	for _, a := range attached {
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
	out := make([]*semaphorev1.NodeStatus, 0, len(byNode))
	told := 0
	for _, n := range byNode {
		out = append(out, n)
		if len(n.Problems) > 0 {
			told++
		}
	}
	for _, n := range out {
		n.Problems = fit(n.Problems, maxStatusProblems/max(told, 1))
	}
	slices.SortFunc(out, func(a, b *semaphorev1.NodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// maxStatusProblems is how many bytes the problems of all nodes may have in a status. Those that have any share them.
const maxStatusProblems = 1 << 20

// fit are the lines that there is room for, the first of them at least in part, and how many more there are.
func fit(lines []string, most int) []string {
	size := 0
	for i, line := range lines {
		if size += len(line); size <= most {
			continue
		}
		if i == 0 {
			lines[i] = cut(line, most)
			i++
		}
		if rest := len(lines) - i; rest > 0 {
			return append(slices.Clip(lines[:i]), fmt.Sprintf("%d more problems", rest))
		}
		return lines[:i]
	}
	return lines
}

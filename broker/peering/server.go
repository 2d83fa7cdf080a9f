// Package peering serves the agents of the own nodes: PeeringService. It admits an agent for the node
// that its token is bound to, tells all of them the same devices and peers from one journal, each at its own
// pace, and hands on what they report.
//
// An agent that is slow is a revision that stands: it costs the others nothing, and catches up with the newest
// states only. Nothing of a remote is told before its nodes are known whole.
package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/journal"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// helloTimeout is how long an agent may say nothing after it was admitted.
	helloTimeout = 10 * time.Second
	// A batch of changes stays far under gRPC's 4 MiB.
	maxBatch      = 1000
	maxBatchBytes = 512 << 10
	// What one report may hold.
	maxDevices = 256
	maxProblem = 512
)

// Reports takes what agents report of their nodes.
type Reports interface {
	Report(node string, uid types.UID, tunnels map[string]apply.Tunnel)
}

// Options of a Server.
type Options struct {
	// Cluster is the own one.
	Cluster string
	Remotes []config.Remote
	Agents  config.Agents
	Kube    kubernetes.Interface
	Nodes   LiveNodes
	Reports Reports
	State   *State
	Metrics *Metrics
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

	mu       sync.Mutex
	attached map[types.UID]*attachment // by node
}

// attachment is one agent's stream.
type attachment struct {
	agent Agent
	since time.Time
	// end is closed with why the stream is to end.
	end  chan struct{}
	once sync.Once
	why  error
	// applied is the revision that the agent has in its kernel.
	applied atomic.Uint64
	// foreign are devices that the agent reports and no configured remote has.
	foreign chan string

	// ended is guarded by the server's lock.
	ended bool

	mu     sync.Mutex
	report *semaphorev1.AgentReport
}

func (a *attachment) stop(why error) {
	a.once.Do(func() {
		a.why = why
		close(a.end)
	})
}

// New makes a server.
func New(options Options) *Server {
	s := &Server{options: options, configured: map[string]bool{}, attached: map[types.UID]*attachment{}}
	s.Admission = &Admission{kube: options.Kube, agents: options.Agents, nodes: options.Nodes, refuse: options.Metrics.refused}
	for _, r := range options.Remotes {
		s.configured[r.Name] = true
	}
	options.Metrics.streams(s)
	return s
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

// Attach implements semaphorev1.PeeringServiceServer.
func (s *Server) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	agent, ok := agentOf(call.Context())
	if !ok {
		return status.Error(codes.Internal, "a call that nobody admitted")
	}
	a := &attachment{agent: agent, since: time.Now(), end: make(chan struct{}), foreign: make(chan string, maxDevices)}
	hello := make(chan *semaphorev1.AgentHello, 1)
	// Recv can be left only by the end of the call, so its goroutine ends just after this function.
	go func() { a.stop(s.listen(a, hello, call)) }()
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case h := <-hello:
		err := s.tell(a, h, call)
		s.detach(a, err)
		return err
	case <-a.end:
		s.detach(a, a.why)
		return a.why
	case <-timeout.C:
		err := status.Errorf(codes.InvalidArgument, "no hello within %s", helloTimeout)
		s.detach(a, err)
		return err
	}
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
	s.mu.Unlock()
	if older != nil {
		older.stop(status.Error(codes.Aborted, "a newer stream of this node has taken over"))
	}
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
func (s *Server) listen(a *attachment, hello chan<- *semaphorev1.AgentHello, call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	greeted := false
	for {
		m, err := call.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch m := m.GetMessage().(type) {
		case *semaphorev1.AttachRequest_Hello:
			if greeted {
				return status.Error(codes.InvalidArgument, "hello twice")
			}
			greeted = true
			s.attach(a) // before the report that follows is taken for an older stream's
			hello <- m.Hello
		case *semaphorev1.AttachRequest_Report:
			if !greeted {
				return status.Error(codes.InvalidArgument, "report before hello")
			}
			if err := s.report(a, m.Report); err != nil {
				return err
			}
		case *semaphorev1.AttachRequest_Applied:
			a.applied.Store(m.Applied.GetRevision())
		default:
			// Something of a later version, which we did not ask for.
			s.options.Log.Debug("ignored a message of no known kind", "node", a.agent.Node)
		}
	}
}

// report takes an agent's report: tunnels of configured remotes go on to the node's annotations.
func (s *Server) report(a *attachment, r *semaphorev1.AgentReport) error {
	if len(r.GetDevices()) > maxDevices {
		return status.Errorf(codes.InvalidArgument, "report.devices: %d, and %d is the most", len(r.GetDevices()), maxDevices)
	}
	tunnels := map[string]apply.Tunnel{}
	for _, d := range r.GetDevices() {
		if len(d.GetProblem()) > maxProblem {
			// A character cut in two would make the status that holds it unsendable.
			d.Problem = strings.ToValidUTF8(d.GetProblem()[:maxProblem], "")
		}
		if !s.configured[d.GetCluster()] {
			select {
			case a.foreign <- d.GetCluster():
			default: // told already, or said again with the next report
			}
			continue
		}
		if len(d.GetPublicKey()) == 0 {
			continue // not durable yet
		}
		if len(d.GetPublicKey()) != 32 || d.GetListenPort() == 0 || d.GetListenPort() > 65535 {
			return status.Errorf(codes.InvalidArgument, "report of the device for %s: a key of %d bytes, port %d", d.GetCluster(), len(d.GetPublicKey()), d.GetListenPort())
		}
		tunnels[d.GetCluster()] = apply.Tunnel{PublicKey: [32]byte(d.GetPublicKey()), ListenPort: uint16(d.GetListenPort())}
	}
	a.mu.Lock()
	a.report = r
	a.mu.Unlock()
	// Only the node's newest stream speaks for it.
	s.mu.Lock()
	current := s.attached[a.agent.NodeUID]
	s.mu.Unlock()
	if current == a {
		s.options.Reports.Report(a.agent.Node, a.agent.NodeUID, tunnels)
	}
	return nil
}

// tell sends the state and then its changes, until the stream ends.
func (s *Server) tell(a *attachment, hello *semaphorev1.AgentHello, call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse]) error {
	j := s.options.State.journal
	position := hello.GetResumeRevision()
	resumed := hello.GetResumeEpoch() == j.Epoch() && position >= j.Oldest() && position <= j.Head()
	if err := call.Send(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{
		Node: a.agent.Node, Cluster: s.options.Cluster, Epoch: j.Epoch(), Resumed: resumed,
	}}}); err != nil {
		return err
	}
	if !resumed {
		all, revision := j.Snapshot()
		if err := send(call, all); err != nil {
			return err
		}
		position = revision
	}
	var told []string
	synced := false
	deleted := map[string]bool{}
	for {
		// In this order: what is known whole now is in the journal up to its present head.
		known, more := s.options.State.known()
		for head := j.Head(); position < head; {
			changes, next, ok := j.Since(position, maxBatch)
			if !ok {
				return status.Error(codes.Aborted, "fell too far behind: attach again for the whole state")
			}
			if err := send(call, changes); err != nil {
				return err
			}
			position = next
		}
		if !synced || !slices.Equal(told, known) {
			if err := call.Send(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{
				Synced: &semaphorev1.Synced{Revision: position, Clusters: known},
			}}); err != nil {
				return err
			}
			told, synced = known, true
		}
		select {
		case <-j.Changed(position):
		case <-more:
		case cluster := <-a.foreign:
			if deleted[cluster] {
				continue
			}
			deleted[cluster] = true
			if err := call.Send(changesOf(&semaphorev1.PeeringChange{
				Revision: position, Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: cluster},
			})); err != nil {
				return err
			}
		case <-a.end:
			return a.why
		case <-call.Context().Done():
			return status.FromContextError(context.Cause(call.Context())).Err()
		}
	}
}

func changesOf(all ...*semaphorev1.PeeringChange) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{Changes: all}}}
}

// send sends entries of the journal in batches of a bounded size.
func send(call grpc.BidiStreamingServer[semaphorev1.AttachRequest, semaphorev1.AttachResponse], entries []*journal.Entry[key, *semaphorev1.PeeringChange]) error {
	var batch []*semaphorev1.PeeringChange
	size := 0
	for i, e := range entries {
		c := message(e)
		batch = append(batch, c)
		size += proto.Size(c)
		if len(batch) < maxBatch && size < maxBatchBytes && i < len(entries)-1 {
			continue
		}
		if err := call.Send(changesOf(batch...)); err != nil {
			return err
		}
		batch, size = nil, 0
	}
	return nil
}

// message is an entry as it is sent. It shares the entry's value, which nobody changes.
func message(e *journal.Entry[key, *semaphorev1.PeeringChange]) *semaphorev1.PeeringChange {
	out := &semaphorev1.PeeringChange{Revision: e.Revision}
	if !e.ObservedAt.IsZero() {
		out.ObservedAt = timestamppb.New(e.ObservedAt)
	}
	switch {
	case !e.Deleted:
		out.Change = e.Value.GetChange()
	case e.Key.node == "":
		out.Change = &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: e.Key.cluster}
	default:
		out.Change = &semaphorev1.PeeringChange_DeletePeer{DeletePeer: &semaphorev1.PeerKey{Cluster: e.Key.cluster, Node: e.Key.node}}
	}
	return out
}

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
			Behind: uint64(s.options.State.journal.Pending(a.applied.Load())),
		}
		a.mu.Lock()
		for _, d := range a.report.GetDevices() {
			out.Devices++
			if d.GetProblem() != "" {
				out.Problems = append(out.Problems, fmt.Sprintf("device %s: %s", d.GetInterface(), d.GetProblem()))
			}
		}
		a.mu.Unlock()
		byNode[a.agent.Node] = out
	}
	out := make([]*semaphorev1.NodeStatus, 0, len(byNode))
	for _, n := range byNode {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *semaphorev1.NodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

package federation

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Engines receive the held objects of the remotes. All but Sink may be nil.
type Engines struct {
	Sink Sink
	// Room returns nil if the Sink has room for another message of a cluster; else a channel that is closed when there
	// may be.
	Room func(cluster string) <-chan struct{}
	// ResyncDue reports whether an engine needs a snapshot of a remote. It is called at heartbeats.
	ResyncDue func(cluster string) bool
	// Retained returns how many objects that an earlier broker wrote for a kind of a remote an engine retains, and since
	// when. The remote's link is locked.
	Retained func(cluster string, kind semaphorev1.Kind) (objects int, since time.Time)
	// Outcomes returns the unexpected outcomes of a cluster's services. It is called at heartbeats.
	Outcomes func(cluster string) []*semaphorev1.Outcome
}

var (
	errRemoved = status.Error(codes.PermissionDenied, "this cluster no longer imports from yours")
	errChanged = status.Error(codes.Aborted, "the configuration for your cluster has changed here: begin another stream")
)

// Begin accepts these remotes, and the own cluster's exporter like one if own has its limits (config.Broker.Own; nil if
// it is not accepted), and passes their exports to engines from now on. A leader calls it when it knows its remotes.
func (s *Server) Begin(remotes []config.Remote, own *config.Remote, to Engines) {
	s.engines = &to
	s.Change(remotes, own)
}

// Change replaces the remotes. Streams of unchanged remotes continue. A remote with other bounds keeps what these allow
// of its objects, and its exporter begins another stream. A new remote begins with nothing held, and a removed one is
// refused. The engines must know a remote as it is now before Change is called, and receive nothing more of a removed
// one once Change has returned. Calls must not overlap.
func (s *Server) Change(remotes []config.Remote, own *config.Remote) {
	was, links := s.all(), map[string]*link{}
	add := func(remote config.Remote, kinds []semaphorev1.Kind, admit replica.Admit) {
		if l, ok := was[remote.Name]; ok {
			s.change(l, remote, admit)
			links[remote.Name] = l
			return
		}
		links[remote.Name] = s.newLink(remote, kinds, admit)
	}
	for i := range remotes {
		add(remotes[i], semaphorev1.Kinds, admissionOf(remotes, i, s.options.Local))
	}
	if own != nil {
		kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
		add(*own, kinds, admission.Own(own).Check)
	}
	s.links.Store(&links)
	for cluster, l := range was {
		if links[cluster] == nil {
			l.remove(errRemoved)
		}
	}
}

// Restore makes a replica begin with the nodes that an earlier broker had of a remote, and returns those that are
// admissible, in the order of their names; see replica.Restore. It must be called before a stream begins, and does
// nothing if nodes is nil: they are not known.
func (s *Server) Restore(cluster string, nodes map[string]*semaphorev1.Node) []replica.Change {
	l := s.all()[cluster]
	if l == nil || nodes == nil {
		return nil
	}
	var objects []*semaphorev1.Object
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		objects = append(objects, &semaphorev1.Object{
			Key:  &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
			Spec: &semaphorev1.Object_Node{Node: nodes[name]},
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica.Restore(semaphorev1.Kind_KIND_NODE, objects)
}

// admissionOf returns the rules of admission for one of several remotes. local are the own cluster's subnets.
func admissionOf(remotes []config.Remote, of int, local []netip.Prefix) replica.Admit {
	var others []netip.Prefix
	for i := range remotes {
		if i != of {
			others = append(others, remotes[i].PodPrefixes...)
		}
	}
	return admission.New(&remotes[of], local, others...).Check
}

func (s *Server) change(l *link, remote config.Remote, admit replica.Admit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remote.Limits != remote.Limits {
		l.limit(remote.Limits)
	}
	was := l.remote
	l.remote = remote
	l.replica.SetLimits(remote.Limits, s.options.Brake)
	if sameAdmission(was, remote) {
		l.replica.SetAdmit(admit)
		return
	}
	s.deliver(l, l.replica.Judge(time.Now(), admit))
	if l.current != nil {
		l.current.stop(errChanged)
	}
}

// sameAdmission reports whether the same objects are accepted from both remotes, limits aside.
func sameAdmission(a, b config.Remote) bool {
	return reflect.DeepEqual(a.PodPrefixes, b.PodPrefixes) && reflect.DeepEqual(a.NodePrefixes, b.NodePrefixes)
}

// remove ends the link permanently: its streams have no effect any more.
func (l *link) remove(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.current.stop(why)
	}
	l.to = nil
}

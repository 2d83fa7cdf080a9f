package federation

import (
	"context"
	"errors"
	"net/netip"
	"reflect"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Engines take what is held of the remotes. All but Sink may be nil; Options says what each does.
type Engines struct {
	Sink        Sink
	WaitForRoom func(ctx context.Context, cluster string, waits func() error) error
	ResyncDue   func(cluster string) bool
	Outcomes    func(cluster string) []*semaphorev1.Outcome
}

// engines are those that take at the moment.
type engines struct {
	Engines
	// replaced is closed when others take.
	replaced chan struct{}
}

// errReplaced ends the wait for room of engines that no longer take.
var errReplaced = errors.New("other engines take what follows")

// The ends of streams that a change of the remotes ends.
var (
	errRemoved = status.Error(codes.PermissionDenied, "this cluster takes nothing from yours any more")
	errChanged = status.Error(codes.Aborted, "what this cluster takes from yours has changed: begin another stream")
)

// Follow has other engines take what remotes export from now on, of these remotes. Streams of remotes that are as they
// were go on; the engines begin with all that is held of those. A remote that is another now begins with nothing held,
// and one that is gone is refused.
func (s *Server) Follow(remotes []config.Remote, own *config.Remote, to Engines) {
	replaced := s.engines
	s.engines = &engines{Engines: to, replaced: make(chan struct{})}
	s.follow(remotes, own)
	if replaced != nil {
		close(replaced.replaced)
	}
}

// Change has the same engines take what remotes export, of these remotes. The engines must know a remote before it is
// added here, and are sent nothing more of a remote once Change has returned without it. It must not be called together
// with Follow.
func (s *Server) Change(remotes []config.Remote, own *config.Remote) { s.follow(remotes, own) }

func (s *Server) follow(remotes []config.Remote, own *config.Remote) {
	next := s.engines
	was, links := s.all(), map[string]*link{}
	add := func(remote config.Remote, kinds []semaphorev1.Kind, admit replica.Admit) {
		if l, ok := was[remote.Name]; ok && l.goesOn(remote, s.options.Brake, admit, next) {
			links[remote.Name] = l
			return
		}
		links[remote.Name] = s.newLink(remote, kinds, admit, next)
	}
	for i := range remotes {
		add(remotes[i], semaphorev1.Kinds, Admission(remotes, i, s.options.Local))
	}
	if own != nil {
		kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
		add(*own, kinds, admission.Own(own).Check)
	}
	s.links.Store(&links)
	for cluster, l := range was {
		switch links[cluster] {
		case l:
		case nil:
			l.remove(errRemoved)
		default:
			l.remove(errChanged)
		}
	}
}

// Admission decides what is accepted of one of several remotes. local are the own cluster's subnets.
func Admission(remotes []config.Remote, of int, local []netip.Prefix) replica.Admit {
	var others []netip.Prefix
	for i := range remotes {
		if i != of {
			others = append(others, remotes[i].PodPrefixes...)
		}
	}
	return admission.New(&remotes[of], local, others...).Check
}

// goesOn reports whether a link of before serves a remote as it is now. If so the engines have all that it holds.
func (l *link) goesOn(remote config.Remote, brake config.Brake, admit replica.Admit, to *engines) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !SameAdmission(l.remote, remote) {
		return false
	}
	if l.remote.Limits != remote.Limits {
		l.limit(remote.Limits)
	}
	l.remote = remote
	l.replica.SetAdmit(admit)
	l.replica.SetLimits(remote.Limits, brake)
	if l.to != to {
		l.to = to
		for _, r := range l.replica.Held() {
			to.Sink.Take(l.cluster, r)
		}
	}
	return true
}

// SameAdmission reports whether the same objects are taken from both remotes, limits aside.
func SameAdmission(a, b config.Remote) bool {
	return reflect.DeepEqual(a.PodPrefixes, b.PodPrefixes) && reflect.DeepEqual(a.NodePrefixes, b.NodePrefixes) &&
		a.WireGuard.AddressFamily == b.WireGuard.AddressFamily && a.ServicePrefix == b.ServicePrefix
}

// remove ends the link for good: streams of it lead to nothing.
func (l *link) remove(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.current.stop(why)
	}
	l.to = nil
}

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

// Engines receive what is held of the remotes. All but Sink may be nil; Options documents each.
type Engines struct {
	Sink        Sink
	WaitForRoom func(ctx context.Context, cluster string, waits func() error) error
	ResyncDue   func(cluster string) bool
	Outcomes    func(cluster string) []*semaphorev1.Outcome
}

// engines are the current ones.
type engines struct {
	Engines
	// replaced is closed when other engines replace them.
	replaced chan struct{}
}

// errReplaced ends the wait for room in engines that were replaced.
var errReplaced = errors.New("other engines replaced these")

// Why a change of the remotes ends a stream.
var (
	errRemoved = status.Error(codes.PermissionDenied, "this cluster no longer imports from yours")
	errChanged = status.Error(codes.Aborted, "the configuration for your cluster has changed here: begin another stream")
)

// Follow passes what these remotes export to other engines from now on. Streams of unchanged remotes continue; the
// engines begin with everything held of them. A changed remote begins with nothing held, and a removed one is refused.
func (s *Server) Follow(remotes []config.Remote, own *config.Remote, to Engines) {
	replaced := s.engines
	s.engines = &engines{Engines: to, replaced: make(chan struct{})}
	s.follow(remotes, own)
	if replaced != nil {
		close(replaced.replaced)
	}
}

// Change passes what these remotes export to the same engines. The engines must know a remote before it is added here,
// and receive nothing more of a remote once Change has returned without it. It must not be called together with Follow.
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

// Admission returns the decision what is accepted of one of several remotes. local are the own cluster's subnets.
func Admission(remotes []config.Remote, of int, local []netip.Prefix) replica.Admit {
	var others []netip.Prefix
	for i := range remotes {
		if i != of {
			others = append(others, remotes[i].PodPrefixes...)
		}
	}
	return admission.New(&remotes[of], local, others...).Check
}

// goesOn reports whether a link of before can serve a remote as it is now. If so the engines have all that it holds.
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

// SameAdmission reports whether the same objects are accepted from both remotes, limits aside.
func SameAdmission(a, b config.Remote) bool {
	return reflect.DeepEqual(a.PodPrefixes, b.PodPrefixes) && reflect.DeepEqual(a.NodePrefixes, b.NodePrefixes) &&
		a.WireGuard.AddressFamily == b.WireGuard.AddressFamily && a.ServicePrefix == b.ServicePrefix
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

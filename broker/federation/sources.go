package federation

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// A certificate shows for which cluster an exporter speaks, and not which one it reads: a cluster that was restored
// from a backup beside the original has its certificate. So the broker remembers the cluster that connected first, by
// the UID of its namespace kube-system, and refuses another one until an operator lets it in.

// refusedFor is how long a refused exporter counts after its last attempt. It tries every 15 seconds, or every two
// minutes after it has tried too often.
const refusedFor = 5 * time.Minute

// plainUID is the form of a UID that can be shown in a command. It is the same as that of spec.sourceID.
var plainUID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,62}[A-Za-z0-9])?$`)

// uidOf returns the UID of a source's cluster: Hello.source_id also counts the restores of its etcd, after which it is
// the same cluster.
func uidOf(sourceID string) string {
	uid, _, _ := strings.Cut(sourceID, "/")
	return uid
}

// anotherSource decides whether an exporter that reads the cluster offered is refused where stands is the cluster that
// stands. connected is the cluster that the connected exporter reads. All are UIDs; empty for unknown, which is no
// other cluster: it is refused only where it would displace a known one.
func anotherSource(stands, connected, offered string) bool {
	if offered == "" {
		return connected != ""
	}
	return stands != "" && stands != offered
}

// sources are the UIDs of the clusters that stand for remotes. They outlive links, which a change of a remote replaces.
type sources struct {
	mu     sync.Mutex
	stands map[string]string
}

func (s *sources) of(cluster string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stands[cluster]
}

func (s *sources) learn(cluster, uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stands == nil {
		s.stands = map[string]string{}
	}
	if s.stands[cluster] == "" {
		s.stands[cluster] = uid
	}
}

func (s *Server) Sources() map[string]string {
	s.sources.mu.Lock()
	defer s.sources.mu.Unlock()
	return maps.Clone(s.sources.stands)
}

// SetSources sets the UIDs of the clusters that stand, by remote. It keeps its knowledge of a remote whose UID is
// empty, and forgets that of others. A stream of another cluster ends.
func (s *Server) SetSources(stands map[string]string) {
	s.sources.mu.Lock()
	known := s.sources.stands
	s.sources.stands = map[string]string{}
	for cluster, uid := range stands {
		if uid == "" {
			uid = known[cluster]
		}
		s.sources.stands[cluster] = uid
	}
	changed := !maps.Equal(known, s.sources.stands)
	s.sources.mu.Unlock()
	if !changed {
		return
	}
	for cluster, l := range s.all() {
		l.mu.Lock()
		if st := l.current; st != nil {
			offered, stands := uidOf(st.session.Hello().GetSourceId()), s.sources.of(cluster)
			if offered != "" && anotherSource(stands, "", offered) {
				st.stop(s.sourceRefused(l, stands, offered))
			}
		}
		l.mu.Unlock()
	}
}

// checkSource returns an error if an exporter must not speak for a remote because it reads another cluster. The own
// exporter reads the cluster to which the broker writes. The caller must hold l.mu.
func (s *Server) checkSource(l *link, st *stream, hello *semaphorev1.Hello, now time.Time) error {
	if l.cluster == s.options.Cluster {
		return nil
	}
	offered := uidOf(hello.GetSourceId())
	stands, refused := s.refuses(l, offered)
	switch {
	case offered != "" && !plainUID.MatchString(offered):
		return status.Errorf(codes.InvalidArgument,
			"hello.source_id %.80q: a UID has at most 64 letters, digits, '-' and '.'", offered)
	case !refused:
		return nil
	}
	isNew := l.refusedSource != offered || now.Sub(l.refusedAt) > refusedFor
	l.refusedSource, l.refusedAt, l.refusedFrom = offered, now, st.address
	if isNew {
		line := s.secondSource(l, now)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: "cluster " + l.cluster, Action: "refuse",
			Detail: line})
		s.options.Warn("", line, finding.SourceRefused, line)
	}
	return s.sourceRefused(l, stands, offered)
}

// refuses decides whether a remote's exporter that reads the cluster offered is refused now, and returns the one that
// stands. The caller must hold l.mu.
func (s *Server) refuses(l *link, offered string) (stands string, refused bool) {
	connected := ""
	if l.current != nil {
		connected = uidOf(l.current.session.Hello().GetSourceId())
	}
	stands = s.sources.of(l.cluster)
	return stands, anotherSource(stands, connected, offered)
}

// sourceRefused is the error by which the refused exporter learns why.
func (s *Server) sourceRefused(l *link, stands, offered string) error {
	if offered == "" {
		return status.Errorf(codes.AlreadyExists, "hello.source_id is empty, and an exporter of cluster %s is connected "+
			"that has one: let this one read the namespace kube-system", l.cluster)
	}
	return status.Errorf(codes.AlreadyExists, "another cluster stands as %s in cluster %s: its namespace kube-system has "+
		"the UID %s, and this exporter reads one with %s; stop this exporter if its cluster is a copy, or let it in, in %s: "+
		"%s", l.cluster, s.options.Cluster, stands, offered, s.options.Cluster, letIn(l.cluster, offered))
}

func letIn(cluster, uid string) string {
	return fmt.Sprintf(`kubectl patch remotecluster %s --type merge -p '{"spec":{"sourceID":"%s"}}'`, cluster, uid)
}

// secondSource describes the exporter that is refused because it reads another cluster; empty for none, or once it is
// let in. The caller must hold l.mu.
func (s *Server) secondSource(l *link, now time.Time) string {
	stands, refused := s.refuses(l, l.refusedSource)
	if !refused || l.refusedAt.IsZero() || now.Sub(l.refusedAt) > refusedFor {
		return ""
	}
	if l.refusedSource == "" {
		return fmt.Sprintf("an exporter from %s with the certificate of %s does not say which cluster it reads, and is "+
			"refused while that of %s is connected", l.refusedFrom, l.cluster, stands)
	}
	return fmt.Sprintf("a second cluster says that it is %s: its exporter at %s reads the cluster with the UID %s, and "+
		"is refused because the one with %s stands; stop it there if it is a copy, or let it in: %s", l.cluster,
		l.refusedFrom, l.refusedSource, stands, letIn(l.cluster, l.refusedSource))
}

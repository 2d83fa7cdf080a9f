package peering

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func (s *Server) notifyAll(about notice, m *semaphorev1.AttachResponse) {
	for _, a := range s.attachments() {
		a.mu.Lock()
		a.session.notify(about, m)
		a.mu.Unlock()
		a.wake()
	}
}

// After an order, agents watch their peers closely, or probe peers of remotes, for orderFor. The orders are repeated
// every closelyAgain while a client requests the state of the tunnels, and every probeAgain while the exporters of the
// remotes are silent, also to agents that have attached meanwhile.
const orderFor, closelyAgain, probeAgain = 30 * time.Second, 10 * time.Second, 5 * time.Second

// WatchClosely makes all agents watch their peers closely for a while, because a client currently requests the state of
// the tunnels. It may be called at any rate.
func (s *Server) WatchClosely() {
	if s.again(&s.closely, closelyAgain, nil) {
		s.notifyAll(ofClosely, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_WatchClosely{
			WatchClosely: &semaphorev1.WatchClosely{For: durationpb.New(orderFor)}}})
	}
}

// ProbePeers makes all agents find out whether nodes of some remotes answer. It may be called at any rate.
func (s *Server) ProbePeers(clusters []string) {
	if s.again(&s.probe, probeAgain, clusters) {
		s.notifyAll(ofProbe, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_ProbePeers{
			ProbePeers: &semaphorev1.ProbePeers{Clusters: clusters, For: durationpb.New(orderFor)}}})
	}
}

// order is when an order was last sent, and of which clusters.
type order struct {
	at       time.Time
	clusters []string
}

func (s *Server) again(last *order, every time.Duration, clusters []string) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(last.at) < every && slices.Equal(last.clusters, clusters) {
		return false
	}
	*last = order{now, slices.Clone(clusters)}
	return true
}

// undeliveredInterval is how often the undelivered remotes are evaluated. Agents postpone or resume rotations at most
// so long after a change.
const undeliveredInterval = time.Second

// WatchUndelivered sends to agents which remotes do not receive this cluster's objects, by cluster with the reason,
// until ctx ends, and returns ctx's error.
func (s *Server) WatchUndelivered(ctx context.Context, undelivered func(time.Time) map[string]string) error {
	wait.UntilWithContext(ctx, func(context.Context) { s.SetUndelivered(undelivered(s.now())) }, undeliveredInterval)
	return ctx.Err()
}

// undelivered is the message to agents with the remotes that do not receive this cluster's objects, and why.
func undelivered(reasons map[string]string) *semaphorev1.AttachResponse {
	all := &semaphorev1.Undelivered{}
	for _, cluster := range slices.Sorted(maps.Keys(reasons)) {
		all.Remotes = append(all.Remotes, &semaphorev1.UndeliveredRemote{Cluster: cluster, Reason: reasons[cluster]})
	}
	return &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Undelivered{Undelivered: all}}
}

// SetUndelivered sends every agent, if it changed, which remotes do not receive what this cluster publishes, and why.
func (s *Server) SetUndelivered(reasons map[string]string) {
	s.mu.Lock()
	was := s.undelivered
	s.undelivered = maps.Clone(reasons)
	s.mu.Unlock()
	if maps.Equal(was, reasons) {
		return
	}
	for cluster, why := range reasons {
		if was[cluster] != why {
			s.options.Log.Warn("a remote does not receive what this cluster publishes; agents do not rotate their keys for it",
				"cluster", cluster, "reason", why)
			s.options.Recorder.Record(debug.Event{Source: cluster, Object: "cluster " + cluster, Action: "undelivered",
				Detail: why})
		}
	}
	for cluster := range was {
		if _, still := reasons[cluster]; !still {
			s.options.Log.Info("a remote receives again what this cluster publishes", "cluster", cluster)
			s.options.Recorder.Record(debug.Event{Source: cluster, Object: "cluster " + cluster, Action: "delivered"})
		}
	}
	s.notifyAll(ofUndelivered, undelivered(reasons))
}

// Undelivered returns why a remote does not receive what this cluster publishes; empty if it does, or nothing is
// known.
func (s *Server) Undelivered(cluster string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undelivered[cluster]
}

package broker

import (
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// listSets answers semaphorectl; nil where policy is off.
func (b *broker) listSets() debug.Sets {
	if !b.cfg.Features.Has(config.Policy) {
		return nil
	}
	return func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		if err := b.elector.Standby(); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "%v: ask the broker that leads", err)
		}
		var address netip.Addr
		if text := req.GetAddress(); text != "" {
			var err error
			if address, err = netip.ParseAddr(text); err != nil {
				return nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
			}
			address = address.Unmap()
		}
		out := b.sets.Sets(req, address)
		links := b.federation.Status()
		for _, s := range out {
			i := slices.IndexFunc(links, func(l *semaphorev1.LinkStatus) bool { return l.GetCluster() == s.GetCluster() })
			if i < 0 {
				continue // of a remote that is configured no more
			}
			s.Connected = links[i].GetConnected()
			for _, k := range links[i].GetKinds() {
				if k.GetKind() == semaphorev1.KindName(semaphorev1.Kind_KIND_SET_MEMBER) {
					s.LastHeard, s.Complete = k.GetLastHeard(), k.GetComplete()
				}
			}
			if !s.Complete {
				s.Leftover = nil // it stays until the remote has been heard
			}
		}
		return out, nil
	}
}

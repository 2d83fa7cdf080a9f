package operator

import (
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/policy"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Holders returns the holders of an address as semaphorectl asks for them.
func Holders(req *semaphorev1.ListHoldersRequest, e *policy.Engine) (*semaphorev1.ListHoldersResponse, error) {
	address, err := netip.ParseAddr(req.GetAddress())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
	}
	all, since := e.Holders(address.Unmap())
	if req.GetAt() != nil {
		all = policy.At(all, req.GetAt().AsTime())
	}
	return &semaphorev1.ListHoldersResponse{Holders: all, Since: timestamppb.New(since)}, nil
}

// Sets returns the policy sets as semaphorectl asks for them. links are the status of the remotes' streams.
func Sets(req *semaphorev1.ListSetsRequest, e *policy.Engine,
	links []*semaphorev1.LinkStatus) ([]*semaphorev1.PolicySet, error) {
	var address netip.Addr
	if text := req.GetAddress(); text != "" {
		var err error
		if address, err = netip.ParseAddr(text); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
		}
		address = address.Unmap()
	}
	out := e.Sets(req, address)
	for _, s := range out {
		i := slices.IndexFunc(links, func(l *semaphorev1.LinkStatus) bool { return l.GetCluster() == s.GetCluster() })
		if i < 0 {
			continue // the remote is no longer configured
		}
		s.Connected = links[i].GetConnected()
		for _, k := range links[i].GetKinds() {
			if k.GetKind() == semaphorev1.Kind_KIND_SET_MEMBER {
				s.LastHeard, s.Complete = k.GetLastHeard(), k.GetComplete()
			}
		}
		if !s.Complete {
			s.Leftover = nil // it stays until the remote is complete
		}
	}
	return out, nil
}

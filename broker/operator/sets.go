package operator

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Holders serves the holders of an address to semaphorectl.
func Holders(list func(netip.Addr) ([]*semaphorev1.Holder, time.Time)) debug.Holders {
	return func(req *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
		address, err := netip.ParseAddr(req.GetAddress())
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
		}
		all, since := list(address.Unmap())
		if req.GetAt() != nil {
			all = policy.At(all, req.GetAt().AsTime())
		}
		return &semaphorev1.ListHoldersResponse{Holders: all, Since: timestamppb.New(since)}, nil
	}
}

// Sets serves the policy sets to semaphorectl. links returns the status of the remotes' streams.
func Sets(
	list func(*semaphorev1.ListSetsRequest, netip.Addr) []*semaphorev1.PolicySet,
	links func() []*semaphorev1.LinkStatus,
) debug.Sets {
	return func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		var address netip.Addr
		if text := req.GetAddress(); text != "" {
			var err error
			if address, err = netip.ParseAddr(text); err != nil {
				return nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
			}
			address = address.Unmap()
		}
		out := list(req, address)
		links := links()
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
}

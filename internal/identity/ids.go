package identity

import (
	"context"
	"errors"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

func Exporter(cluster string) spiffeid.ID { return IDOf(cluster, "exporter") }

func Broker(cluster string) spiffeid.ID { return IDOf(cluster, "broker") }

func Semaphorectl(cluster string) spiffeid.ID { return IDOf(cluster, "semaphorectl") }

// IDOf returns the ID of one of Parts. It panics on a name that is no trust domain; configurations that passed
// config.Load have none.
func IDOf(cluster, part string) spiffeid.ID {
	return spiffeid.RequireFromPath(spiffeid.RequireTrustDomainFromString(cluster), "/"+part)
}

func ClusterOf(id spiffeid.ID) string { return id.TrustDomain().Name() }

// PeerID returns the authenticated ID at the other end of a gRPC stream. It fails on a stream without TLS, or whose
// other end showed no certificate with a SPIFFE ID.
func PeerID(ctx context.Context) (spiffeid.ID, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return spiffeid.ID{}, errors.New("no peer in the context of the call")
	}
	id, err := OfAuthInfo(p.AuthInfo)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("the peer %s: %w", p.Addr, err)
	}
	return id, nil
}

// OfAuthInfo returns the ID in the certificate that was shown in a handshake. It fails if none was shown, or if it has
// no SPIFFE ID.
func OfAuthInfo(auth credentials.AuthInfo) (spiffeid.ID, error) {
	info, ok := auth.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return spiffeid.ID{}, errors.New("no certificate was shown")
	}
	return x509svid.IDFromCert(info.State.PeerCertificates[0])
}

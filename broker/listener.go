package broker

import (
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// The connections of the listeners. An exporter or an operator has one, and more until a dead one is noticed. Agents
// that all connect at the same time, to a new broker, wait unauthenticated until their tokens are reviewed.
var (
	federationConnections = conns.Limits{All: 4_096, Unproven: 1_024, Each: 8}
	peeringConnections    = conns.Limits{All: 16_384, Unproven: 8_192, Each: 4}
)

func owner(info credentials.AuthInfo) string {
	id, err := identity.OfAuthInfo(info)
	if err != nil {
		return "" // no identity; refused before this is called
	}
	return id.String()
}

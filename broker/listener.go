package broker

import (
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// The connections of the listeners. An exporter or an operator has one, and more for the time that a dead one is not noticed.
// Agents that all come at once, to a new broker, wait unproven until their tokens are reviewed.
var (
	federationConnections = conns.Limits{All: 4_096, Unproven: 1_024, Each: 8}
	peeringConnections    = conns.Limits{All: 16_384, Unproven: 8_192, Each: 4}
)

// owner is whose certificate was shown on a connection.
func owner(info credentials.AuthInfo) string {
	id, err := identity.OfAuthInfo(info)
	if err != nil {
		return "" // nobody's, and refused before this is asked
	}
	return id.String()
}

// Package migration moves a node between semaphore-wireguard and semaphore and back, and pairs a cluster that runs the
// one with a cluster that runs the other: two real apiservers, real packets through real tunnels, and broker, exporter
// and agent as they are. Of semaphore-wireguard there is a stand-in that does on a node and in a cluster what that
// does.
package migration

// Package migration moves a node between semaphore-wireguard and semaphore in both directions, and pairs a cluster that
// runs one with a cluster that runs the other. It uses two real apiservers, real packets through real tunnels, and the
// real broker, exporter and agent. A stand-in plays semaphore-wireguard on a node and in a cluster.
package migration

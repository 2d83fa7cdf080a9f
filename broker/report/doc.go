// Package report reports the broker's work: in Events on the namespace of the mirrors, in the status of each
// RemoteCluster, and in the times that changes of remote clusters took to take effect.
package report

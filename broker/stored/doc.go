// Package stored keeps ConfigMaps of the own cluster: the next leader's knowledge before a remote connects, which is
// the agents' peers and the operators' drains, and semaphore's server blocks for CoreDNS.
package stored

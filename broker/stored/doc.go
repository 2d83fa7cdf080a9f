// Package stored keeps ConfigMaps of the own cluster: what the next leader must know before a remote connects, which
// peers the agents have and what operators have drained, and semaphore's server blocks for CoreDNS.
package stored

// Package stored keeps in ConfigMaps of the own cluster what the next leader must know before a remote connects: which
// peers the agents have, and what operators have drained.
package stored

// Package redteam attacks the broker: hostile exporters, agents, nodes and strangers that speak the protocol
// themselves, over the real listeners of a real process with the configuration and the limits as they are shipped in
// deploy/.
//
// Each attack is a test whose name docs/security.md gives beside what it proves. A test states its bound in bytes or
// counts, and logs what the attack cost. The package holds tests only; nothing imports it.
package redteam

// Package redteam attacks the broker with hostile exporters, agents, nodes and strangers. They speak the protocol
// themselves, over the real listeners of a real process with the configuration, the RemoteClusters and the limits that
// deploy/ ships.
//
// docs/rules.md names the test of each attack and what it proves. A test states its bound in bytes or counts and
// logs the cost of the attack. The package has only tests; nothing imports it.
package redteam

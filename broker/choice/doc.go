// Package choice decides which of the endpoints that remotes export are used: those that a tunnel reaches, that no
// operator has drained, and that belong to the clusters a global Service prefers. It also decides which settings and
// ports a Service of several clusters has, where these differ.
//
// It is pure: it takes peers, drains, counts of ready endpoints and the time, and has no clock, goroutine or socket.
package choice

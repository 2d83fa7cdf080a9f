package testkit

import (
	"net"
	"sync"
	"testing"
)

// Serve has a server of gRPC serve until the test ends or stop is called, and waits for its end.
func Serve(tb testing.TB, listener net.Listener, server interface {
	Serve(net.Listener) error
	Stop()
}) (stop func()) {
	tb.Helper()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

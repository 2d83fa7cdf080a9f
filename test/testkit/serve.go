package testkit

import (
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
)

// Serve has a server of gRPC serve until the test ends or stop is called, and waits for its end.
func Serve(tb testing.TB, listener net.Listener, server *grpc.Server) (stop func()) {
	tb.Helper()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		// It may not have begun yet.
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			tb.Error(err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

package kubetest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// NoLeaks fails the test if goroutines that start after this call outlive the cleanups that follow it. cfgs are those
// of the apiservers that the test uses.
//
// Connections that client-go keeps for later do not count: it dials another one whenever two requests find none, the
// test's own requests among them, and an apiserver of another test may have ended those from before. They are closed
// first. One whose last request has just ended is in use for a moment longer, so this waits. One on which a request was
// cancelled before it began stays reserved, and its read loop does not count: what does not end a stream has goroutines
// of its own.
func NoLeaks(t testing.TB, cfgs ...*rest.Config) {
	t.Helper()
	already := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		testkit.Eventually(t, time.Minute, "no goroutine is left", func() error {
			for _, cfg := range cfgs {
				transport := testkit.Value(rest.TransportFor(cfg))(t)
				utilnet.CloseIdleConnectionsFor(transport)
			}
			return goleak.Find(already, goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"))
		})
	})
}

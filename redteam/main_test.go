package redteam

import (
	"os"
	"runtime"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
)

func TestMain(m *testing.M) {
	// What a client waits for is to be the broker, not the attacker in the same process.
	runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	loopback.Enter(kubetest.Prepare)
	os.Exit(m.Run())
}

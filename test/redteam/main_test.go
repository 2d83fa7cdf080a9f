package redteam

import (
	"os"
	"runtime"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	// Give the test enough threads, so that a client waits for the broker and not for the attacker in the same process.
	runtime.GOMAXPROCS(max(8, runtime.GOMAXPROCS(0)))
	loopback.Enter(kubetest.Prepare)
	os.Exit(kubetest.Reusing(m).Run())
}

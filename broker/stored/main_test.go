package stored

import (
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// The tests run in a network namespace of their own, so that no port is anybody else's.
func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	kubetest.Reusing(m).Run()
}

package follow

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

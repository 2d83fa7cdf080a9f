package pools_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/internal/kube/kubetest"
	"github.com/kube-semaphore/semaphore/internal/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(m)
}

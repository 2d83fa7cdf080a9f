package kubetest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(Prepare)
	goleak.VerifyTestMain(m)
}

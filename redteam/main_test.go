package redteam

import (
	"os"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/kube/kubetest"
	"github.com/kube-semaphore/semaphore/internal/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	os.Exit(m.Run())
}

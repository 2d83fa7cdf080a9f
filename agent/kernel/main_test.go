package kernel_test

import (
	"testing"

	"github.com/kube-semaphore/semaphore/test/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

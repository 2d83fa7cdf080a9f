package agent

import (
	"testing"

	"github.com/kube-semaphore/semaphore/agent/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

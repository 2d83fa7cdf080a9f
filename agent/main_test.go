package agent

import (
	"os"
	"slices"
	"testing"

	"github.com/kube-semaphore/semaphore/agent/nodetest"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(agentVariable); file != "" && !slices.Contains(os.Args, wireguard.UserspaceCommand) {
		runAgentAlone(file)
	}
	nodetest.Main(m)
}

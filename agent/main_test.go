package agent

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// asAgent is the environment variable with the configuration file of a process that runs as an agent.
const asAgent = "SEMAPHORE_TEST_AGENT"

func TestMain(m *testing.M) {
	if file := os.Getenv(asAgent); file != "" && len(os.Args) == 1 {
		if err := agentProcess(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	nodetest.Main(m)
}

// agentProcess runs an agent as cmd/semaphore-agent does.
func agentProcess(file string) error {
	cfg, err := LoadConfig(file)
	if err != nil {
		return err
	}
	cfg.UserspaceSocket = os.Getenv("SEMAPHORE_USERSPACE_SOCKET")
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if err := Run(ctx, cfg); ctx.Err() == nil {
		return err
	}
	return nil
}

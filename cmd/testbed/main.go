// Command testbed brings up real Kubernetes clusters on this machine, lets a person look around in them, and removes
// them. See docs/testbed.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// ranError is how a command ended that a person asked for by name: it has said itself what was wrong.
type ranError struct{ *exec.ExitError }

// ran is the error of such a command.
func ran(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return ranError{exit}
	}
	return err
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		for n := 0; ; n++ {
			<-interrupted
			cancel()
			if n > 0 {
				fmt.Fprintln(os.Stderr, "\nstill cleaning up; what is left if it is killed, `testbed clean` removes")
			}
		}
	}()
	root := &cobra.Command{
		Use:           "testbed",
		Short:         "real Kubernetes clusters on one machine",
		Version:       program.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		upCommand(), downCommand(), listCommand(), cleanCommand(), demoCommand(),
		shellCommand(), kubectlCommand(), execCommand(), ctlCommand(), logsCommand(),
		buildCommand(), depsCommand(), testKernelCommand(),
		echoCommand(), helloCommand(), sleepCommand(),
	)
	err := root.ExecuteContext(ctx)
	var ran ranError
	switch {
	case err == nil:
	case errors.As(err, &ran) && ran.ExitCode() >= 0:
		os.Exit(ran.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "testbed:", err)
		os.Exit(1)
	}
}

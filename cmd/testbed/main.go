// Command testbed brings up real Kubernetes clusters on this machine, gives access to them, and removes them. See
// docs/testbed.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/test/testbed/echo"
)

// ranError is the exit of a command that the user named. The command has printed its own error.
type ranError struct{ *exec.ExitError }

// ran converts the exit of such a command to a ranError.
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
				fmt.Fprintln(os.Stderr, "\nstill cleaning up; if it is killed, `testbed clean` removes the rest")
			}
		}
	}()
	if filepath.Base(os.Args[0]) == "socat" { // in a pod
		if err := echo.Socat(ctx, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && filepath.IsAbs(os.Args[1]) { // in a pod whose image has another program as its entry point
		err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
		fmt.Fprintln(os.Stderr, "testbed:", err)
		os.Exit(1)
	}
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

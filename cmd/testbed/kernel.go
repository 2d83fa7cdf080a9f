package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/machine"
)

// slowness is the factor for test timeouts in the machine: emulation is five to ten times slower.
const slowness = 10

func testKernelCommand() *cobra.Command {
	builder, arguments := components.Builder{}, ""
	tests := machine.Tests{
		Using: components.Module + "/test/nodetest",
		Env: []string{"SEMAPHORE_TEST_BACKEND=kernel", fmt.Sprintf("SEMAPHORE_TEST_SLOWNESS=%d", slowness),
			"SEMAPHORE_TEST_OWN_KERNEL=1", "CI=true"},
	}
	cmd := &cobra.Command{
		Use:   "test-kernel [PACKAGE[=REGEXP]...]",
		Short: "run the agent's tests on WireGuard of a real kernel, in an emulated machine",
		Long: `Builds the tests of packages (./agent/... if none are named) that need a node, those that import
test/nodetest, and runs them in an emulated machine with Debian's kernel, on the kernel's WireGuard. Of a package with
a regular expression only the tests are run whose names match it.

Where no such machine can be had that is said and is no failure, but for CI=true.`,
		Example: "  testbed test-kernel\n  testbed test-kernel --run TestHealing --count 5 ./agent\n" +
			"  testbed test-kernel ./agent/guard './agent=TestHealing|TestMoves'",
	}
	cmd.Flags().StringVar(&builder.Repository, "repo", "", "the checkout (default: the one around the working directory)")
	cmd.Flags().StringVar(&tests.Run, "run", "", "only tests whose names match, as of go test")
	cmd.Flags().StringVar(&tests.Bench, "bench", "", "instead of tests the benchmarks whose names match, as of go test")
	cmd.Flags().StringVar(&arguments, "append", "", "more arguments of the kernel, such as ipv6.disable=1")
	cmd.Flags().IntVar(&tests.Count, "count", 1, "how often to run each test")
	cmd.Flags().DurationVar(&tests.Timeout, "timeout", 30*time.Minute, "for the tests of one package")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		builder.Progress = out
		m, err := machine.New(cmd.Context(), &builder, out)
		if errors.Is(err, machine.ErrUnavailable) && os.Getenv("CI") != "true" {
			fmt.Fprintf(out, "NOT TESTED: WireGuard of a real kernel: %v\n", err)
			return nil
		}
		if err != nil {
			return err
		}
		m.Append = arguments
		return m.Test(cmd.Context(), out, testsOf(tests, args)...)
	}
	return cmd
}

// testsOf returns the tests of the packages in the arguments, by default ./agent/...
func testsOf(tests machine.Tests, args []string) []machine.Tests {
	if len(args) == 0 {
		args = []string{"./agent/..."}
	}
	var out []machine.Tests
	whole := tests
	for _, arg := range args {
		if name, run, ok := strings.Cut(arg, "="); ok {
			one := tests
			one.Packages, one.Run = []string{name}, run
			out = append(out, one)
		} else {
			whole.Packages = append(whole.Packages, arg)
		}
	}
	if len(whole.Packages) > 0 {
		out = append([]machine.Tests{whole}, out...)
	}
	return out
}

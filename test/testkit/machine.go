package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// Lacks ends a test that needs something which the machine lacks. It skips the test; with CI=true, and where everything
// is to be tested, it fails the test.
func Lacks(tb testing.TB, format string, args ...any) {
	tb.Helper()
	text := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		tb.Fatalf("%s, and CI=true does not allow a skip", text)
	}
	if tier.All() {
		tb.Fatalf("%s %s", tier.Marker, text)
	}
	tb.Skip(tier.Marker + " " + text)
}

// NeedsRoot ends a test that does not run as root, as Lacks does. what says what root is needed for.
func NeedsRoot(tb testing.TB, what string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		Lacks(tb, "%s", "needs root: "+what)
	}
}

// Command runs a program and returns its output. If the program fails, Command ends the test with the output.
func Command(tb testing.TB, program string, args ...string) string {
	tb.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// IP runs ip(8) with arguments separated by spaces, as Command does.
func IP(tb testing.TB, args string) string {
	tb.Helper()
	return Command(tb, "ip", strings.Fields(args)...)
}

// Namespace is a network namespace, such as a *netns.Namespace.
type Namespace interface {
	Name() string
	Do(f func() error) error
}

// CommandIn runs a program in a network namespace.
func CommandIn(ns Namespace, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s %s in %s: %w\n%s", program, strings.Join(args, " "), ns.Name(), err, out.String())
	}
	return nil
}

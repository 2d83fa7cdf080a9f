package nodetest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Bench runs f, a complete benchmark, on a node of its own, with the kernel's WireGuard if there is one. It prints the
// results as those of this benchmark. It needs root, and is skipped without.
func Bench(b *testing.B, f func(b *testing.B)) {
	b.Helper()
	if os.Getenv(inside) == b.Name() {
		prepare(b)
		f(b)
		return
	}
	backends, problem := backends()
	if problem != "" {
		b.Skip(problem)
	}
	cmd := exec.CommandContext(b.Context(), "/proc/self/exe", "-test.run=^$", "-test.bench=^"+b.Name()+"$",
		"-test.benchtime="+flag.Lookup("test.benchtime").Value.String())
	cmd.Env = append(os.Environ(), inside+"="+b.Name(), backendVariable+"="+backends[len(backends)-1])
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	for line := range strings.Lines(output.String()) {
		if strings.HasPrefix(line, "Benchmark") || strings.HasPrefix(line, "pkg: ") { // of which the table makes its rows
			fmt.Print(line)
		}
	}
	if err != nil {
		b.Fatalf("on its node: %v\n%s", err, output.String())
	}
	b.SkipNow() // it was measured there
}

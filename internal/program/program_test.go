package program

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// runAsProgram makes the test binary run the tested program: Main ends its process.
const runAsProgram = "SEMAPHORE_TEST_RUN_AS_PROGRAM"

func TestMain(m *testing.M) {
	if how := os.Getenv(runAsProgram); how != "" {
		Main(Command(Part[settings]{Name: "semaphore-test", Short: "is tested", Load: load, Run: behave[how], Threads: 64}))
		os.Exit(0)
	}
	loopback.Enter()
	goleak.VerifyTestMain(m)
}

type settings struct{ text string }

func load(path string) (*settings, error) {
	b, err := os.ReadFile(path)
	return &settings{string(b)}, err
}

// behave has the program's behaviours by name.
var behave = map[string]func(context.Context, *settings) error{
	"print": func(_ context.Context, s *settings) error {
		fmt.Printf("settings: %s\nthreads: %d\n", s.text, runtime.GOMAXPROCS(0))
		slog.Debug("a debug line")
		slog.Info("an info line", "key", "value")
		return nil
	},
	"repeat": func(context.Context, *settings) error {
		for range 10 * lineBurst {
			slog.Warn("a line that a retry repeats", "object", "shop/echo")
		}
		return nil
	},
	"fail": func(context.Context, *settings) error { return errors.New("it does not go") },
	"exit code": func(context.Context, *settings) error {
		return fmt.Errorf("while waiting: %w", ExitError{7, errors.New("lease lost")})
	},
	"wait": func(ctx context.Context, _ *settings) error {
		fmt.Println("waiting")
		<-ctx.Done()
		fmt.Println("asked to stop")
		return ctx.Err()
	},
	"wait and fail": func(ctx context.Context, _ *settings) error {
		fmt.Println("waiting")
		<-ctx.Done()
		return errors.New("could not clean up")
	},
	"ignore": func(ctx context.Context, _ *settings) error {
		fmt.Println("waiting")
		<-ctx.Done()
		fmt.Println("ignored")
		select {}
	},
	"cancelled by itself": func(context.Context, *settings) error {
		return fmt.Errorf("stream to the broker: %w", context.Canceled)
	},
}

// program returns the command that runs the program with a configuration file.
func program(t *testing.T, how string, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{
		runAsProgram + "=" + how, "SEMAPHORE_CONFIG=" + file(t, "from the environment"),
		"GORACE=atexit_sleep_ms=0", // the default adds a second to the end of each process
	}
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := t.TempDir() + "/config.yaml"
	testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestFlagsAndEnvironment(t *testing.T) {
	other := file(t, "from the flag")
	for _, test := range []struct {
		name   string
		how    string
		args   []string
		env    []string
		code   int
		stdout string
		// Standard error must contain wants, and must not contain nots.
		wants, nots []string
	}{
		{name: "environment", how: "print", stdout: "settings: from the environment",
			wants: []string{`level=INFO msg="an info line" key=value`, "msg=starting", "program=semaphore-test", "msg=stopped"},
			nots:  []string{"debug line"}},
		{name: "threads", how: "print", stdout: "threads: 64\n"},
		{name: "threads by environment", how: "print", env: []string{"GOMAXPROCS=3"}, stdout: "threads: 3\n"},
		{name: "a flag is stronger", how: "print", args: []string{"--config", other}, stdout: "settings: from the flag"},
		{name: "level by flag", how: "print", args: []string{"--log-level", "debug"}, stdout: "settings:",
			wants: []string{"a debug line"}},
		{name: "level by environment", how: "print", env: []string{"SEMAPHORE_LOG_LEVEL=error"}, stdout: "settings:",
			nots: []string{"an info line"}},
		{name: "format by flag", how: "print", args: []string{"--log-format=json"}, stdout: "settings:",
			wants: []string{`"msg":"an info line","key":"value"`}},
		{name: "format by environment", how: "print", env: []string{"SEMAPHORE_LOG_FORMAT=json"}, stdout: "settings:",
			wants: []string{`"msg":"an info line"`}},
		{name: "bad level", how: "print", args: []string{"--log-level", "loud"}, code: 1,
			wants: []string{`semaphore-test: --log-level "loud": use debug, info, warn or error`}},
		{name: "bad format", how: "print", env: []string{"SEMAPHORE_LOG_FORMAT=xml"}, code: 1,
			wants: []string{`--log-format "xml": use text or json`}},
		{name: "no configuration", how: "print", args: []string{"--config", "/no/such/file"}, code: 1,
			wants: []string{"semaphore-test: open /no/such/file"}},
		{name: "unknown flag", how: "print", args: []string{"--nonsense"}, code: 1,
			wants: []string{"unknown flag: --nonsense"}, nots: []string{"Usage"}},
		{name: "an argument", how: "print", args: []string{"nonsense"}, code: 1,
			wants: []string{`unknown command "nonsense"`}},
		{name: "version", how: "print", args: []string{"--version"}, stdout: "semaphore-test version development"},
		{name: "help", how: "print", args: []string{"--help"}, stdout: "is tested"},
		{name: "failure", how: "fail", code: 1, wants: []string{"semaphore-test: it does not go\n"},
			nots: []string{"stopped", "Usage"}},
		{name: "exit code", how: "exit code", code: 7, wants: []string{"semaphore-test: while waiting: lease lost"}},
		{name: "cancelled without having been asked", how: "cancelled by itself", code: 1,
			wants: []string{"stream to the broker: context canceled"}},
		{name: "profiles on a port that is none", how: "wait", args: []string{"--pprof-listen=127.0.0.1:99999"}, code: 1,
			stdout: "waiting", wants: []string{"HTTP listener: listen tcp: address 99999"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, stderr := program(t, test.how, test.args...)
			cmd.Env = append(cmd.Env, test.env...)
			stdout, err := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d (%v); want %d", code, err, test.code)
			}
			if !strings.Contains(string(stdout), test.stdout) {
				t.Errorf("standard output %q; want %q in it", stdout, test.stdout)
			}
			for _, want := range test.wants {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("standard error lacks %q:\n%s", want, stderr)
				}
			}
			for _, not := range test.nots {
				if strings.Contains(stderr.String(), not) {
					t.Errorf("standard error has %q:\n%s", not, stderr)
				}
			}
		})
	}
}

// TestLogOfAProgramIsLimited: the log of a program has the bounds, in both formats.
func TestLogOfAProgramIsLimited(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		cmd, stderr := program(t, "repeat", "--log-format="+format)
		testkit.Must(t, cmd.Run())
		if n := strings.Count(stderr.String(), "a line that a retry repeats"); n != lineBurst {
			t.Errorf("%s: %d lines, want %d:\n%s", format, n, lineBurst, stderr)
		}
	}
}

func TestSignals(t *testing.T) {
	for _, test := range []struct {
		name    string
		how     string
		signals []os.Signal
		// said is the program's output after each signal.
		said   string
		code   int
		killed syscall.Signal
		stderr string
	}{
		{name: "TERM", how: "wait", signals: []os.Signal{syscall.SIGTERM}, said: "asked to stop", stderr: "msg=stopped"},
		{name: "INT", how: "wait", signals: []os.Signal{os.Interrupt}, said: "asked to stop", stderr: "msg=stopped"},
		{name: "a failure at the end", how: "wait and fail", signals: []os.Signal{syscall.SIGTERM}, code: 1,
			stderr: "semaphore-test: could not clean up"},
		{name: "a second signal", how: "ignore", signals: []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, said: "ignored",
			code: -1, killed: syscall.SIGTERM},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, stderr := program(t, test.how)
			pipe := testkit.Value(cmd.StdoutPipe())(t)
			testkit.Must(t, cmd.Start())
			defer cmd.Process.Kill()
			lines := bufio.NewScanner(pipe)
			expect := func(want string) {
				t.Helper()
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("the program says %q, %v; want %q", lines.Text(), lines.Err(), want)
				}
			}
			expect("waiting")
			for i, s := range test.signals {
				testkit.Must(t, cmd.Process.Signal(s))
				if i == 0 && test.said != "" {
					expect(test.said)
				}
			}
			ended := make(chan struct{})
			go func() { cmd.Wait(); close(ended) }()
			for begin := time.Now(); ; {
				select {
				case <-ended:
				case <-time.After(50 * time.Millisecond):
					if time.Since(begin) > time.Minute {
						cmd.Process.Kill()
					} else if len(test.signals) > 1 {
						// The signal ends the process only after the handler of the first one was removed, which
						// happens shortly after it ran.
						_ = cmd.Process.Signal(test.signals[1])
					}
					continue
				}
				break
			}
			state := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if cmd.ProcessState.ExitCode() != test.code || (test.killed != 0 && state.Signal() != test.killed) {
				t.Errorf("ended with %s; want code %d, signal %v", cmd.ProcessState, test.code, test.killed)
			}
			if !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("standard error lacks %q:\n%s", test.stderr, stderr)
			}
		})
	}
}

func TestVersionOf(t *testing.T) {
	for _, c := range []struct {
		linked string
		from   debug.Module
		want   string
	}{
		{unknown, debug.Module{Version: "v1.2.3", Sum: "h1:x="}, "v1.2.3"},
		{unknown, debug.Module{Version: "v1.2.4-0.20261126080000-0123456789ab+dirty"}, unknown},
		{unknown, debug.Module{Version: "(devel)"}, unknown},
		{"v1.2.4", debug.Module{Version: "v1.2.3", Sum: "h1:x="}, "v1.2.4"},
	} {
		if got := versionOf(c.linked, c.from); got != c.want {
			t.Errorf("linked with %s, from %v: %s, want %s", c.linked, c.from, got, c.want)
		}
	}
}

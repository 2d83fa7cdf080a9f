// Package program starts and stops a part: flags and environment, the configuration file, the log, signals, and the
// HTTP listener for probes and metrics.
//
// It knows no part; main packages pass their Run to Command.
package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// Version is set when a release is built: -ldflags "-X …/internal/program.Version=v1.2.3". A program that go install
// PATH@VERSION builds has that version.
var Version = unknown

const unknown = "development"

func init() {
	if info, ok := debug.ReadBuildInfo(); ok {
		Version = versionOf(Version, info.Main)
	}
}

// versionOf returns the version of a program that was linked with one, or with none, from a module. Only a module that
// was downloaded has a checksum; a checkout has the version of its commit, for which there is no image.
func versionOf(linked string, from debug.Module) string {
	if linked == unknown && from.Sum != "" {
		return from.Version
	}
	return linked
}

// Part has the values in which the programs with a configuration file differ.
type Part[C any] struct {
	// Name of the program, such as "semaphore-broker".
	Name string
	// Short is one line for --help.
	Short string
	// Load reads and validates the configuration file.
	Load func(path string) (*C, error)
	// Threads is the least GOMAXPROCS, whatever the number of cores is; 0 for one per core. GOMAXPROCS in the
	// environment overrides it.
	Threads int
	// Run runs the part until ctx ends, or returns the error that ended it.
	Run func(ctx context.Context, cfg *C) error
}

// Command returns the part as a command, with flags --config, --log-level and --log-format, each of which can be given
// in the environment as SEMAPHORE_CONFIG and so on.
func Command[C any](p Part[C]) *cobra.Command {
	var configFile, level, format, profiling string
	cmd := &cobra.Command{
		Use:           p.Name,
		Short:         p.Short,
		Args:          cobra.NoArgs,
		Version:       Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return setUpLog(level, format)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := p.Load(configFile)
			if err != nil {
				return err
			}
			slog.Info("starting", "program", p.Name, "version", Version, "config", configFile)
			if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < p.Threads {
				runtime.GOMAXPROCS(p.Threads)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			g, ctx := errgroup.WithContext(ctx)
			g.Go(func() error { return serveProfiles(ctx, profiling) })
			g.Go(func() error {
				defer cancel()
				return p.Run(ctx, cfg)
			})
			// If a part was asked to stop, a cancelled context is its regular end; otherwise it is a failure.
			if err := g.Wait(); err != nil && (cmd.Context().Err() == nil || !errors.Is(err, context.Canceled)) {
				return err
			}
			slog.Info("stopped", "program", p.Name)
			return nil
		},
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&configFile, "config", fromEnv("config", "/etc/semaphore/config.yaml"), "configuration file (YAML)")
	flags.StringVar(&level, "log-level", fromEnv("log-level", "info"), "debug, info, warn or error")
	flags.StringVar(&format, "log-format", fromEnv("log-format", "text"), "text or json")
	flags.StringVar(&profiling, "pprof-listen", fromEnv("pprof-listen", ""),
		"host:port to serve net/http/pprof on, such as 127.0.0.1:6060; empty for not at all")
	return cmd
}

// fromEnv returns a flag's default: the value in the environment, else fallback.
func fromEnv(flag, fallback string) string {
	if v, ok := os.LookupEnv("SEMAPHORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))); ok {
		return v
	}
	return fallback
}

// setUpLog creates slog's default logger, on standard error. It bounds how often a line is written (see limited).
func setUpLog(level, format string) error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("--log-level %q: use debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(os.Stderr, options)
	case "json":
		handler = slog.NewJSONHandler(os.Stderr, options)
	default:
		return fmt.Errorf("--log-format %q: use text or json", format)
	}
	slog.SetDefault(slog.New(newLimited(handler)))
	return nil
}

// Main runs a command until it ends or a signal stops it, and ends the process. The output of the command and of its
// error cannot control a terminal.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	out, problems := NewClean(os.Stdout), NewClean(os.Stderr)
	cmd.SetOut(out)
	cmd.SetErr(problems)
	err := cmd.ExecuteContext(ctx)
	stop()
	if failed := out.Close(); err == nil {
		err = failed
	}
	if err == nil {
		return
	}
	fmt.Fprintf(problems, "%s: %v\n", cmd.DisplayName(), err)
	_ = problems.Close()
	code := 1
	if exit, is := errors.AsType[ExitError](err); is {
		code = exit.Code
	}
	os.Exit(code)
}

type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

func (e ExitError) Unwrap() error { return e.Err }

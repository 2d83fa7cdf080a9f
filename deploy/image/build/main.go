// Command build builds the product's image from this checkout, without a container engine: `make image`.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var out, push string
	cmd := &cobra.Command{
		Use:           "image",
		Short:         "build the product's image for all architectures, with its SBOM",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), cmd.OutOrStdout(), out, push)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "directory for the archive and the SBOMs (default: bin/image of the checkout)")
	cmd.Flags().StringVar(&push, "push", "", "also send it to a registry, under this reference")
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, out, push string) error {
	repo, err := components.FindRepository()
	if err != nil {
		return err
	}
	if out == "" {
		out = filepath.Join(repo, "bin", "image")
	}
	created, err := commitTime(ctx, repo)
	if err != nil {
		return err
	}
	release := image.Release{Version: components.Version(ctx, repo), Created: created}
	release.Revision, _ = git(ctx, repo, "rev-parse", "HEAD") // empty if the checkout is no repository
	builder := &components.Builder{Repository: repo, Progress: w}
	var platforms []image.Platform
	for _, release.Arch = range image.Architectures {
		if release.Programs, err = builder.ProgramsFor(ctx, release.Arch, image.Programs); err != nil {
			return err
		}
		platform, err := image.WithSBOM(release)
		if err != nil {
			return err
		}
		platforms = append(platforms, platform)
	}
	written, err := image.WriteRelease(out, release.Version, platforms...)
	if err != nil {
		return err
	}
	for _, line := range written {
		fmt.Fprintln(w, line)
	}
	if push == "" {
		fmt.Fprintln(w, "to send it to a registry: make image PUSH=REGISTRY/semaphore:TAG")
		return nil
	}
	pushed, err := image.Push(ctx, push, platforms...)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "pushed %s with its SBOMs as referrers\n", pushed)
	return nil
}

// commitTime returns the time of the checked-out commit. SOURCE_DATE_EPOCH overrides it
// (https://reproducible-builds.org/specs/source-date-epoch). It is 1970 if the checkout is no repository.
func commitTime(ctx context.Context, repo string) (time.Time, error) {
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		var err error
		if seconds, err = git(ctx, repo, "log", "-1", "--format=%ct"); err != nil {
			return time.Unix(0, 0).UTC(), nil
		}
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: want seconds since 1970: %w", err)
	}
	return time.Unix(n, 0).UTC(), nil
}

func git(ctx context.Context, repo string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = repo
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

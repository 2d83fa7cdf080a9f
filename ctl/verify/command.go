package verify

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/program"
)

type Traffic struct {
	// Image of the pods; empty for that of the cluster's broker.
	Image string
	// Clean is set to only remove the objects of a call that was killed.
	Clean bool
	Bench bool
	// Timeout bounds the wait for the pods, and for each check to pass.
	Timeout time.Duration
	Format  string
}

// Run sends traffic between the clusters of the flags, prints the results, and fails, with the exit code's error, if a
// check fails or cannot be made.
func (t Traffic) Run(cmd *cobra.Command, access *fleet.Access) error {
	v := verifier{Traffic: t, access: access, progress: &progress{w: cmd.ErrOrStderr(), began: time.Now()}}
	if t.Clean {
		return v.clean(cmd.Context(), cmd.OutOrStdout())
	}
	if len(access.Contexts) < 2 {
		return errors.New("--context: give two or more clusters")
	}
	report, err := v.run(cmd.Context())
	if err != nil {
		return err
	}
	if err := report.Print(cmd.OutOrStdout(), t.Format); err != nil {
		return err
	}
	switch {
	case report.Failed > 0:
		return program.ExitError{Code: show.ExitWrong, Err: errors.New(report.Verdict)}
	case !report.Well():
		return program.ExitError{Code: show.ExitUnknown, Err: errors.New(report.Verdict)}
	}
	return nil
}

type progress struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%5.1fs  %s\n", time.Since(p.began).Seconds(), show.Printable(fmt.Sprintf(format, args...)))
}

func (p *progress) Write(lines []byte) (int, error) {
	p.say("%s", strings.TrimSpace(string(lines)))
	return len(lines), nil
}

// removeWithin bounds the removal, however the checks ended.
const removeWithin = 90 * time.Second

package events

import (
	"errors"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: a report has bounded lines of printable, valid text, whatever a kernel or a broker has said.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxProblem, TruncateProblem)
	testkit.OneLine(t, maxProblem, func(text string) string { return AddProblem("before", errors.New(text)) })
}

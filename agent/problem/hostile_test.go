package problem

import (
	"errors"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/testkit"
)

// TestHostileText: a report has bounded lines of printable, valid text, whatever a kernel or a broker has said.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxText, Truncate)
	testkit.OneLine(t, maxText, func(text string) string { return With("before", errors.New(text)) })
}

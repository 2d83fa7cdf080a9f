package admission

import (
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: the reason of a refusal that quotes another cluster is one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxReason, func(text string) string {
		c := &check{}
		c.refuse(finding.Malformed, "%s", text)
		return c.refusals[0].Reason
	})
}

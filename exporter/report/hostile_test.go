package report

import (
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) { testkit.OneLine(t, maxMessage, truncate) }

package finding

import (
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: a text of another cluster becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, 50, func(text string) string { return CleanTo(text, 50) })
}

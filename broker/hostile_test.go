package broker

import (
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, len("lost: ")+maxBecause, func(text string) string {
		return because("lost", &semaphorev1.LinkStatus{LastError: text})
	})
}

package dns

import (
	"regexp"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbCoreDNS: lines of the blocks may be as long as in CoreDNS's format.
func TestVerbCoreDNS(t *testing.T) {
	s := ctltest.NewSession(t)
	s.Call("coredns --remote c2")
	s.Call("coredns --remote c2=9x")
	s.Golden("coredns", regexp.MustCompile(`^        (name|answer) `))
}

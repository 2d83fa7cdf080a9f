package show

import (
	"fmt"
	"io"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Nodes prints a line for each node that a broker knows.
func Nodes(w io.Writer, s *semaphorev1.GetStatusResponse) {
	if len(s.GetNodes()) == 0 {
		return
	}
	fmt.Fprintln(w, "\nNODE\tAGENT\tFOR\tBEHIND\tDEVICES\tSTOPPED")
	for _, n := range s.GetNodes() {
		state := "attached"
		switch {
		case n.GetWithoutEncryption() != "":
			state = "none: " + n.GetWithoutEncryption()
		case !n.GetAttached():
			state = "missing"
		}
		// STOPPED counts packets of remote pods in the clear that the guard dropped.
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", n.GetNode(), state, Since(s, n.GetSince()), n.GetBehind(),
			n.GetDevices(), n.GetClearPackets())
	}
}

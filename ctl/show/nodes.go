package show

import (
	"fmt"
	"io"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func Nodes(w io.Writer, s *semaphorev1.GetStatusResponse) {
	// STOPPED counts packets of remote pods in the clear that the guard dropped.
	Section(w, "NODE\tAGENT\tFOR\tBEHIND\tDEVICES\tSTOPPED", s.GetNodes(), 0, func(n *semaphorev1.NodeStatus) string {
		state := "attached"
		switch {
		case n.GetWithoutEncryption() != "":
			state = "none: " + n.GetWithoutEncryption()
		case !n.GetAttached():
			state = "missing"
		}
		return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d", n.GetNode(), state, Since(s, n.GetSince()), n.GetBehind(),
			n.GetDevices(), n.GetClearPackets())
	})
}

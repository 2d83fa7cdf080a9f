package show

import (
	"fmt"
	"io"
	"strings"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TargetName returns a name such as "cluster c2", "service c2:shop/echo" or "node c2/n1".
func TargetName(t *semaphorev1.DrainTarget) string {
	switch {
	case t.GetNode() != "":
		return "node " + t.GetCluster() + "/" + t.GetNode()
	case t.GetService() == "":
		return "cluster " + t.GetCluster()
	case t.GetCluster() == "":
		return "service " + t.GetNamespace() + "/" + t.GetService()
	}
	return "service " + t.GetCluster() + ":" + t.GetNamespace() + "/" + t.GetService()
}

func Drains(w io.Writer, s *semaphorev1.GetStatusResponse) {
	Section(w, "DRAINED\tFOR\tLEFT\tENDPOINTS\tSERVICES\tBY\tSUBNETS", s.GetDrains(), 0,
		func(d *semaphorev1.DrainStatus) string {
			left := "until undrained"
			if d.GetUntil() != nil {
				left = Short(max(0, d.GetUntil().AsTime().Sub(s.GetNow().AsTime())))
			}
			return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s\t%s", TargetName(d.GetTarget()), Since(s, d.GetSince()), left,
				d.GetEndpoints(), d.GetServices(), Printable(d.GetBy()), strings.Join(d.GetPrefixes(), " "))
		})
}

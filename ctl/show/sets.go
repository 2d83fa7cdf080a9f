package show

import (
	"fmt"
	"strings"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func SetName(s *semaphorev1.PolicySet) string {
	return s.GetCluster() + "/" + s.GetNamespace() + "/" + s.GetName()
}

const AsDesired = "as desired"

// SetState describes the state of a set besides its numbers.
func SetState(s *semaphorev1.PolicySet) string {
	var out []string
	if s.GetProblem() != "" {
		out = append(out, s.GetProblem())
	}
	if n := len(s.GetMissing()); n > 0 {
		out = append(out, fmt.Sprintf("%d not there yet (%s)", n, SomeOf(s.GetMissing())))
	}
	if n := len(s.GetLeftover()); n > 0 {
		out = append(out, fmt.Sprintf("%d to go (%s)", n, SomeOf(s.GetLeftover())))
	}
	switch {
	case !s.GetConnected():
		out = append(out, s.GetCluster()+" is not connected; the set stays at its last update")
	case !s.GetComplete():
		out = append(out, s.GetCluster()+" has not sent all its pods yet")
	}
	if len(out) == 0 {
		return AsDesired
	}
	return strings.Join(out, "; ")
}

// SomeOf lists the first few names.
func SomeOf(all []string) string {
	const few = 3
	if len(all) > few {
		return strings.Join(all[:few], ", ") + ", …"
	}
	return strings.Join(all, ", ")
}

// Age is the time from at to now; "-" for an unknown one.
func Age(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return Short(max(now.Sub(at), 0))
}

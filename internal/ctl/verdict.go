package ctl

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// staleAfter is when what is held of a remote is called stale. An exporter speaks every 5 s, and a connection
// that is dead is found within 15 s.
const staleAfter = 15 * time.Second

// summary is the verdict in one line.
func summary(s *semaphorev1.GetStatusResponse) string {
	if wrong := verdict(s); len(wrong) > 0 {
		return strings.Join(wrong, "; ")
	}
	if s.GetStandby() {
		return "all is well: a standby"
	}
	return "all is well"
}

// role says who of several does the work, where the part elects one.
func role(s *semaphorev1.GetStatusResponse) string {
	switch {
	case s.GetStandby() && s.GetLeader() != "":
		return ", standby of " + s.GetLeader()
	case s.GetStandby():
		return ", standby of nobody known"
	case s.GetLeader() != "":
		return ", leader (" + s.GetLeader() + ")"
	}
	return ""
}

// verdict is what is wrong, a few words each; nothing when all is well.
func verdict(s *semaphorev1.GetStatusResponse) []string {
	var wrong []string
	if s.GetStandby() {
		// It has no streams, because another does the work.
		if s.GetLeader() == "" {
			wrong = append(wrong, "a standby, and no leader is known")
		}
		return append(wrong, problems(s)...)
	}
	if !s.GetReady() {
		wrong = append(wrong, "not ready")
	}
	if stale := staleness(s); stale != "" {
		wrong = append(wrong, stale)
	}
	for _, l := range s.GetLinks() {
		// One that is stale is told of above, and its last error below.
		if !l.GetConnected() && (!tellsAge(s) || age(s, l.GetLastHeard()) <= staleAfter) {
			wrong = append(wrong, fmt.Sprintf("%s not connected for %s", l.GetCluster(), since(s, l.GetSince())))
		}
		for _, k := range l.GetKinds() {
			if k.GetHeldBack() > 0 {
				wrong = append(wrong, fmt.Sprintf("%s withdrew %d %s objects, which the brake holds for %s",
					l.GetCluster(), k.GetHeldBack(), k.GetKind(), since(s, k.GetHeldBackSince())))
			}
			if k.GetRefused() > 0 {
				wrong = append(wrong, fmt.Sprintf("%d %s objects of %s refused", k.GetRefused(), k.GetKind(), l.GetCluster()))
			}
		}
	}
	for _, n := range s.GetNodes() {
		if !n.GetAttached() {
			wrong = append(wrong, fmt.Sprintf("no agent on node %s", n.GetNode()))
		}
	}
	if n := s.GetSilentPairsTotal(); n > 0 {
		wrong = append(wrong, number(n, "pair of nodes does not talk", "pairs of nodes do not talk"))
	}
	for _, d := range s.GetDevices() {
		if n := d.GetPaths().GetSilent(); n > 0 {
			wrong = append(wrong, fmt.Sprintf("device %s: %s", d.GetInterface(), number(uint64(n), "peer does not answer", "peers do not answer")))
		}
		switch {
		case d.GetProblem() != "":
			wrong = append(wrong, fmt.Sprintf("device %s: %s", d.GetInterface(), d.GetProblem()))
		case d.GetPeersPresent() != d.GetPeersWanted():
			wrong = append(wrong, fmt.Sprintf("device %s has %d peers, %d are wanted", d.GetInterface(), d.GetPeersPresent(), d.GetPeersWanted()))
		}
		if d.GetConfirmedAt() != nil && age(s, d.GetConfirmedAt()) > staleAfter {
			wrong = append(wrong, fmt.Sprintf("device %s stale %s: traffic flows on the last known state, from the %s", d.GetInterface(), since(s, d.GetConfirmedAt()), d.GetSource()))
		}
	}
	return append(wrong, problems(s)...)
}

// number is such as "1 peer does not answer".
func number(n uint64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func problems(s *semaphorev1.GetStatusResponse) []string {
	if n := len(s.GetProblems()); n > 0 {
		return []string{fmt.Sprintf("%d problems", n)}
	}
	return nil
}

// tellsAge says whether the part hears of the others all the time: a broker of its exporters.
func tellsAge(s *semaphorev1.GetStatusResponse) bool { return s.GetPart() == "broker" }

// staleness is such as "3 of 4 remotes fresh; c2 stale 4m12s: traffic flows on the last known state"; empty when
// all are fresh, or their age is not known.
func staleness(s *semaphorev1.GetStatusResponse) string {
	if !tellsAge(s) {
		return ""
	}
	var stale, unheard []string
	for _, l := range s.GetLinks() {
		switch {
		case l.GetLastHeard() == nil:
			unheard = append(unheard, l.GetCluster()+" never heard")
		case age(s, l.GetLastHeard()) > staleAfter:
			stale = append(stale, fmt.Sprintf("%s stale %s", l.GetCluster(), since(s, l.GetLastHeard())))
		default:
			// The stream stands, and yet nothing is said of one kind.
			for _, k := range l.GetKinds() {
				if k.GetLastHeard() != nil && age(s, k.GetLastHeard()) > staleAfter {
					stale = append(stale, fmt.Sprintf("%s objects of %s stale %s", k.GetKind(), l.GetCluster(), since(s, k.GetLastHeard())))
				}
			}
		}
	}
	if len(stale)+len(unheard) == 0 {
		return ""
	}
	fresh := 0
	for _, l := range s.GetLinks() {
		if l.GetLastHeard() != nil && age(s, l.GetLastHeard()) <= staleAfter {
			fresh++
		}
	}
	out := fmt.Sprintf("%d of %d remotes fresh", fresh, len(s.GetLinks()))
	if len(stale) > 0 {
		out += "; " + strings.Join(stale, ", ") + ": traffic flows on the last known state"
	}
	if len(unheard) > 0 {
		out += "; " + strings.Join(unheard, ", ")
	}
	return out
}

// age is how old something last heard at t was when the status was made, by the part's own clock. What was never
// heard is older than anything.
func age(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) time.Duration {
	if t == nil {
		return 1<<63 - 1
	}
	return s.GetNow().AsTime().Sub(t.AsTime())
}

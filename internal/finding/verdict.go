package finding

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file judges the status of a part: which findings follow from it, and their summary in one line. Each part judges
// its own status before it answers, so that semaphorectl of any version, the metrics and a RemoteCluster report the
// same; semaphorectl joins the answers.

// StaleAfter is the age at which the held objects of a remote are stale. An exporter sends at least every 5 s, and a
// dead connection is detected within 15 s.
const StaleAfter = 15 * time.Second

// Judge adds to a status its findings: those that follow from it, and these of the part, whose lines become its
// problems.
func Judge(s *semaphorev1.GetStatusResponse, found ...Finding) {
	s.Problems = Texts(found)
	s.Findings = Messages(Found(s, found...))
}

// Found returns these findings of a part and those that follow from its status, merged.
func Found(s *semaphorev1.GetStatusResponse, found ...Finding) []Finding {
	coded := map[string]bool{} // remotes whose refused objects have a code
	because := false           // a finding has the reason why the part is not ready
	for _, f := range found {
		coded[f.Cluster] = coded[f.Cluster] || f.Code.Definition().Area == Refusals
		because = because || f.Code == NotReady
	}
	for _, f := range follows(s) {
		if !(f.Code == Refused && coded[f.Cluster]) && !(f.Code == NotReady && because) {
			found = append(found, f)
		}
	}
	return Merge(found)
}

func Messages(all []Finding) []*semaphorev1.Finding {
	var out []*semaphorev1.Finding
	for _, f := range all {
		d := f.Code.Definition()
		m := &semaphorev1.Finding{Code: string(f.Code), Level: semaphorev1.LevelOf(string(d.Level)), Meaning: d.Meaning,
			Side: semaphorev1.SideOf(string(d.Side)), Command: d.Command, Cluster: f.Cluster, Count: f.Count, First: f.First}
		if f.Cluster != "" {
			m.Command = strings.ReplaceAll(m.Command, "CLUSTER", f.Cluster)
		}
		if f.Node != "" {
			m.Command = strings.ReplaceAll(m.Command, "NODE", f.Node)
		}
		m.Since = semaphorev1.Time(f.Since)
		out = append(out, m)
	}
	return out
}

// Findings converts messages to findings, such as those that an agent reports to its broker. It cleans and bounds them,
// whatever their origin. before is added before each line.
func Findings(all []*semaphorev1.Finding, before string) []Finding {
	const most = 32
	var out []Finding
	for _, m := range all[:min(len(all), most)] {
		f := New(Code(Clean(m.GetCode())), m.GetCluster(), 1)
		if f.Code.Definition().Area == "" {
			f.Code = UnknownCode // of a newer agent
		}
		f.Count = min(max(1, m.GetCount()), 1_000_000)
		for _, line := range m.GetFirst()[:min(len(m.GetFirst()), Shown)] {
			f.First = append(f.First, Clean(before+line))
		}
		if m.GetSince().IsValid() {
			f.Since = m.GetSince().AsTime()
		}
		out = append(out, f)
	}
	return out
}

func follows(s *semaphorev1.GetStatusResponse) (found []Finding) {
	if s.GetStandby() {
		// It has no streams, because another replica leads.
		if s.GetLeader() == "" {
			found = append(found, New(NoLeader, "", 1, "a standby, and no leader is known"))
		}
		return found
	}
	if !s.GetReady() {
		found = append(found, New(NotReady, "", 1, "not ready"))
	}
	for _, l := range s.GetLinks() {
		found = append(found, ofLink(s, l)...)
	}
	for _, n := range s.GetNodes() {
		if !n.GetAttached() && n.GetWithoutEncryption() == "" {
			found = append(found, New(NoAgent, "", 1, "no agent on node "+n.GetNode()).
				At(TimeOf(n.GetSince())).On(n.GetNode()))
		}
	}
	pairs := map[string][]*semaphorev1.SilentPair{}
	for _, p := range s.GetSilentPairs() {
		pairs[p.GetCluster()] = append(pairs[p.GetCluster()], p)
	}
	if n := s.GetSilentPairsTotal(); n > 0 {
		f := ofPairs(s.GetSilentPairs(), func(p *semaphorev1.SilentPair) string { return p.GetNode() + " → " })
		if len(pairs) > 1 {
			f.Cluster = ""
		}
		f.Count = max(n, f.Count)
		found = append(found, f)
	}
	for _, d := range s.GetDevices() {
		found = append(found, ofDevice(s, d)...)
	}
	return found
}

func ofPairs(pairs []*semaphorev1.SilentPair, from func(*semaphorev1.SilentPair) string) Finding {
	var first []string
	var since time.Time
	cluster := ""
	for _, p := range pairs {
		first = append(first, fmt.Sprintf("%s%s/%s: %s", from(p), p.GetCluster(), p.GetRemoteNode(), p.GetReason()))
		cluster = p.GetCluster()
		if at := TimeOf(p.GetSince()); !at.IsZero() && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	f := New(SilentPairs, cluster, len(pairs), first...).At(since)
	if len(pairs) > 0 {
		f = f.On(pairs[0].GetNode())
	}
	return f
}

// ofLink judges the stream with a cluster.
func ofLink(s *semaphorev1.GetStatusResponse, l *semaphorev1.LinkStatus) (found []Finding) {
	cluster := l.GetCluster()
	var because []string
	if l.GetLastError() != "" {
		because = []string{"the last error: " + l.GetLastError()}
	}
	of := func(code Code, format string, args ...any) Finding {
		return New(code, cluster, 1, append([]string{fmt.Sprintf(format, args...)}, because...)...)
	}
	switch hears := s.GetPart() == "broker"; { // exporters send to it regularly
	case hears && l.GetLastHeard() == nil:
		found = append(found, of(NeverConnected, "%s never heard", cluster))
	case hears && Age(s, l.GetLastHeard()) > StaleAfter:
		found = append(found, of(Stale, "%s stale %s%s", cluster, Since(s, l.GetLastHeard()), traffic(s, cluster)).
			At(TimeOf(l.GetLastHeard())))
	case !l.GetConnected():
		found = append(found, of(Disconnected, "%s not connected for %s", cluster, Since(s, l.GetSince())).
			At(TimeOf(l.GetSince())))
	}
	fresh := l.GetLastHeard() != nil && Age(s, l.GetLastHeard()) <= StaleAfter
	for _, k := range l.GetKinds() {
		kind := semaphorev1.KindName(k.GetKind())
		if at := k.GetAwaitedSince(); s.GetPart() == "broker" && fresh && at != nil && Age(s, at) > StaleAfter {
			found = append(found, New(KindStale, cluster, 1,
				fmt.Sprintf("%s objects of %s stale %s", kind, cluster, Since(s, at))).At(TimeOf(at)))
		}
		if n := k.GetRetained(); n > 0 {
			found = append(found, New(Retained, cluster, int(n), fmt.Sprintf(
				"%s withdrew %d %s objects, which the brake retains for %s", cluster, n, kind, Since(s, k.GetRetainedSince()))).
				At(TimeOf(k.GetRetainedSince())))
		}
		if n := k.GetRefused(); n > 0 {
			found = append(found, New(Refused, cluster, int(n),
				fmt.Sprintf("%d %s objects of %s refused", n, kind, cluster)))
		}
	}
	return found
}

// traffic describes what happens to the traffic with a stale remote, as far as a broker knows it from its agents.
func traffic(s *semaphorev1.GetStatusResponse, cluster string) string {
	for _, t := range s.GetTunnels() {
		switch {
		case t.GetCluster() != cluster || t.GetNodes() == 0:
		case t.GetNodesTalking() == 0:
			return ", no tunnel answers"
		default:
			return ", tunnels alive: traffic flows on the last known state"
		}
	}
	return ": the last known state stays in use"
}

func ofDevice(s *semaphorev1.GetStatusResponse, d *semaphorev1.DeviceStatus) (found []Finding) {
	if n := d.GetPaths().GetSilent(); n > 0 {
		f := ofPairs(d.GetPaths().GetSilentPeers(), func(*semaphorev1.SilentPair) string { return d.GetInterface() + " → " })
		f.Cluster, f.Count = d.GetCluster(), uint64(n)
		found = append(found, f)
	}
	if d.GetProblem() == "" && d.GetPeersPresent() != d.GetPeersDesired() {
		found = append(found, New(PeerCountDiffers, d.GetCluster(), 1, fmt.Sprintf(
			"device %s has %d peers, %d are desired", d.GetInterface(), d.GetPeersPresent(), d.GetPeersDesired())))
	}
	if d.GetConfirmedAt() != nil && Age(s, d.GetConfirmedAt()) > StaleAfter {
		found = append(found, New(DeviceStale, d.GetCluster(), 1, fmt.Sprintf(
			"device %s stale %s: traffic flows on the last known state, from the %s", d.GetInterface(),
			Since(s, d.GetConfirmedAt()), semaphorev1.StateSourceName(d.GetSource()))).At(TimeOf(d.GetConfirmedAt())))
	}
	return found
}

// Age is the time between t and the status, by the part's own clock. A state that was never received is older than
// anything.
func Age(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) time.Duration {
	if t == nil {
		return 1<<63 - 1
	}
	return s.GetNow().AsTime().Sub(t.AsTime())
}

// Since is the time between t and the status, by the part's own clock; "-" if t is not set.
func Since(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return Short(Age(s, t))
}

func Short(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		return d.Round(time.Millisecond).String()
	case d.Abs() < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d.Abs() < 24*time.Hour:
		return d.Round(time.Second).String()
	default:
		return fmt.Sprintf("%dd%s", d/(24*time.Hour), (d % (24 * time.Hour)).Round(time.Hour))
	}
}

// TimeOf converts a time that may be unset.
func TimeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// fresh counts the fresh remotes of a broker, and all. The own cluster's exporter, which publishes to its own broker
// for global services, is not one.
func fresh(s *semaphorev1.GetStatusResponse) (fresh, all int) {
	for _, l := range s.GetLinks() {
		if l.GetCluster() == s.GetCluster() {
			continue
		}
		all++
		if l.GetLastHeard() != nil && Age(s, l.GetLastHeard()) <= StaleAfter {
			fresh++
		}
	}
	return fresh, all
}

// Summary is the verdict in one line: how many remotes are fresh if not all are, and the faults.
func Summary(s *semaphorev1.GetStatusResponse) string {
	wrong := Wrong(s)
	switch {
	case len(wrong) > 0:
		return strings.Join(wrong, "; ")
	case s.GetStandby():
		return "all is well: a standby"
	}
	return "all is well"
}

// Wrong lists the faults in a few words each; nothing when all is well.
func Wrong(s *semaphorev1.GetStatusResponse) (wrong []string) {
	all := s.GetFindings()
	ages := []string{string(Stale), string(KindStale), string(NeverConnected)}
	if slices.ContainsFunc(all, func(f *semaphorev1.Finding) bool { return slices.Contains(ages, f.GetCode()) }) {
		fresh, of := fresh(s)
		wrong = append(wrong, fmt.Sprintf("%d of %d remotes fresh", fresh, of))
	}
	for _, f := range all[:min(len(all), maxTexts)] {
		wrong = append(wrong, Text(f))
	}
	if more := len(all) - maxTexts; more > 0 {
		wrong = append(wrong, fmt.Sprintf("and %d more findings", more))
	}
	return wrong
}

const maxTexts = 5

// Text is a finding in a few words: its only line, or its meaning and count.
func Text(f *semaphorev1.Finding) string {
	// has the number in its line
	counts := f.GetCode() == string(Retained) || f.GetCode() == string(Refused)
	const most = 120
	if n := len(f.GetFirst()); (f.GetCount() <= 1 && n > 0 || n == 1 && counts) && len(f.GetFirst()[0]) <= most {
		return f.GetFirst()[0]
	}
	text := Cut(f.GetMeaning(), most)
	if f.GetCluster() != "" {
		text += " (" + Cut(f.GetCluster(), most) + ")"
	}
	if f.GetCount() > 1 {
		text += fmt.Sprintf(": %d", f.GetCount())
		if n := len(f.GetFirst()); n > 0 {
			text += " such as " + Cut(f.GetFirst()[0], most)
		}
	}
	return text
}

package choice

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file compares the Services that clusters export under one name.

// Differences lists the settings of a source that differ from the one that decides, or have no IP family of the Service
// that there is; with ruled, an operator's rule has those that choose clusters.
func Differences(decides, s *semaphorev1.Service, families []string, ruled bool) []string {
	var out []string
	is := func(what string, other, decided any) {
		if a, b := fmt.Sprint(other), fmt.Sprint(decided); a != b {
			out = append(out, fmt.Sprintf("%s %s, not %s", what, cmp.Or(a, "none"), cmp.Or(b, "none")))
		}
	}
	is("ports", portsText(s), portsText(decides))
	if apart(s.GetIpFamilies(), families) {
		is("IP families", strings.Join(s.GetIpFamilies(), ","), strings.Join(families, ","))
	}
	is("headless", s.GetHeadless(), decides.GetHeadless())
	is("publishNotReadyAddresses", s.GetPublishNotReadyAddresses(), decides.GetPublishNotReadyAddresses())
	is("session affinity", affinityText(s), affinityText(decides))
	is("trafficDistribution", s.GetTrafficDistribution(), decides.GetTrafficDistribution())
	if !ruled {
		a, b := s.GetGlobalSettings(), decides.GetGlobalSettings()
		is("prefer-clusters", strings.Join(a.GetPrefer(), ","), strings.Join(b.GetPrefer(), ","))
		is("min-ready", SettingsOf(a).MinReadyText(), SettingsOf(b).MinReadyText())
		const demote = semaphorev1.WhenGone_WHEN_GONE_DEMOTE
		is("when-gone", semaphorev1.WhenGoneName(cmp.Or(a.GetWhenGone(), demote)),
			semaphorev1.WhenGoneName(cmp.Or(b.GetWhenGone(), demote)))
		is("local-first", a.GetLocalFirst(), b.GetLocalFirst())
	}
	return out
}

// apart reports whether two lists of IP families are known, and have none in common.
func apart(a, b []string) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(f string) bool { return slices.Contains(b, f) })
}

func affinityText(s *semaphorev1.Service) string {
	if s.GetClientIpAffinitySeconds() == 0 {
		return string(corev1.ServiceAffinityNone)
	}
	return fmt.Sprintf("%s (%d s)", corev1.ServiceAffinityClientIP, s.GetClientIpAffinitySeconds())
}

// portsText lists the ports of a Service by name: their order has no meaning.
func portsText(s *semaphorev1.Service) string {
	var all []string
	for _, p := range s.GetPorts() {
		text := fmt.Sprintf("%d/%s", p.GetPort(), p.GetProtocol())
		if p.GetName() != "" {
			text = p.GetName() + " " + text
		}
		if p.GetAppProtocol() != "" {
			text += " (" + p.GetAppProtocol() + ")"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

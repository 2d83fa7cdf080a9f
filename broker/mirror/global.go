package mirror

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/broker/prefer"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds the rules for global services: which cluster is authoritative, and which clusters they use.

// remoteZone is the hinted zone of endpoints of other clusters, as in semaphore-service-mirror. No node is in it.
const remoteZone = "remote"

const topologyAuto = "Auto"

// authoritative returns the exported service that defines the target: the source of a mirror, or the first source of
// a global service. It is nil while the authoritative cluster is not complete; then the existing Service does not
// change.
func (t *target) authoritative() *semaphorev1.Service {
	if t.imported() {
		return t.merged
	}
	if !t.shared() {
		if h := t.perCluster[t.of.cluster]; h != nil && h.source != nil {
			return h.source.service
		}
		return nil
	}
	for _, cluster := range t.plan.clusters {
		if h := t.perCluster[cluster]; h != nil && h.source != nil {
			return h.source.service
		}
		if t.offeredBefore(cluster) {
			return nil
		}
	}
	return nil
}

// updateServedPorts determines the ports that an endpoint must serve to count as ready, and counts again if they
// changed.
func (t *target) updateServedPorts() {
	authoritative, existing := t.authoritative(), t.existing()
	if t.served != nil && t.servedBy == [2]any{authoritative, existing} {
		return
	}
	t.servedBy = [2]any{authoritative, existing}
	now := map[portName]int{}
	if authoritative != nil {
		for _, p := range authoritative.GetPorts() {
			now[portName{p.GetName(), p.GetProtocol()}] = len(now)
		}
	} else if existing != nil {
		for _, p := range existing.Spec.Ports {
			now[portName{p.Name, string(p.Protocol)}] = len(now)
		}
	}
	if t.served != nil && maps.EqualFunc(t.served, now, func(int, int) bool { return true }) {
		return
	}
	t.served = now
	for _, h := range t.perCluster {
		h.families = [2]int{}
		for g, b := range h.groups {
			if b.serves = h.serves(g); b.serves {
				h.families[b.family] += b.ready
			}
		}
	}
}

// offeredBefore reports whether a cluster that is not complete was part of the global service before.
func (t *target) offeredBefore(cluster string) bool {
	if t.imported() {
		return t.exportedBefore(cluster)
	}
	s := t.existing()
	return s != nil && !t.plan.complete[cluster] &&
		slices.Contains(strings.Split(s.Annotations[naming.AnnotationGlobalClusters], ","), cluster)
}

// offeringClusters returns the clusters of a global service, including those of the existing Service that are not
// complete.
func (t *target) offeringClusters() []string {
	var all []string
	for _, cluster := range t.plan.clusters {
		if h := t.perCluster[cluster]; h != nil && h.source != nil || t.offeredBefore(cluster) {
			all = append(all, cluster)
		}
	}
	return all
}

// rule returns the operator's rule for a global service; nil for none.
func (p *Plan) rule(of ref) *config.GlobalRule {
	for i := range p.global.Rules {
		if r := &p.global.Rules[i]; r.Matches(of.namespace, of.name) {
			return r
		}
	}
	return nil
}

// offer returns the source that a cluster contributes to a global service; nil for none, or if a rule excludes the
// cluster.
func (p *Plan) offer(cluster string, r ref) *source {
	s := p.sources[ref{cluster, r.namespace, r.name}]
	if s == nil || !s.service.GetGlobal() {
		return nil
	}
	if rule := p.rule(r); rule != nil && !rule.Takes(cluster) {
		return nil
	}
	return s
}

// sourceName returns the namespace and name of a global service in its clusters.
func (t *target) sourceName() ref {
	if s := t.existing(); t.of.name == "" && s != nil {
		return ref{"", s.Annotations[naming.AnnotationSourceNamespace], s.Annotations[naming.AnnotationSourceName]}
	}
	return t.of
}

// hints reports whether local-first is implemented by topology hints rather than by an order of clusters.
func (w *work) hints(t *target, s *semaphorev1.Service) bool {
	return s.GetGlobalSettings().GetLocalFirst() && len(w.global.LocalZones) > 0 && w.rule(t.sourceName()) == nil
}

// settings returns the settings of a global service: those of the operator's rule, else of the authoritative source.
func (t *target) settings() prefer.Settings {
	s := t.rawSettings()
	s.MinReady, s.WhenGone = max(1, s.MinReady), cmp.Or(s.WhenGone, config.Demote)
	return s
}

func (t *target) rawSettings() prefer.Settings {
	if r := t.plan.rule(t.sourceName()); r != nil {
		return prefer.Settings{Prefer: r.Prefer, MinReady: r.MinReady, WhenGone: r.WhenGone}
	}
	if service := t.authoritative(); service != nil {
		g := service.GetGlobalSettings()
		out := prefer.Settings{Prefer: g.GetPrefer(), MinReady: int(g.GetMinReady()),
			WhenGone: config.WhenGone(semaphorev1.WhenGoneName(g.GetWhenGone()))}
		if g.GetLocalFirst() && !t.shape.hints {
			out.Prefer = append([]string{t.plan.own},
				slices.DeleteFunc(slices.Clone(out.Prefer), func(c string) bool { return c == t.plan.own })...)
		}
		return out
	}
	s := t.existing() // as the previous broker wrote it
	if s == nil {
		return prefer.Settings{}
	}
	out := prefer.Settings{WhenGone: config.WhenGone(s.Annotations[naming.AnnotationWhenGone])}
	if text := s.Annotations[naming.AnnotationPreferClusters]; text != "" {
		out.Prefer = strings.Split(text, ",")
	}
	if n, err := strconv.Atoi(s.Annotations[naming.AnnotationMinReady]); err == nil {
		out.MinReady = n
	}
	return out
}

func (w *work) choose(t *target, now time.Time) {
	delete(w.waiting, t)
	t.due = time.Time{}
	if w.targets[t.name] != t {
		return
	}
	var offers []prefer.Offer
	if t.shared() {
		t.updateServedPorts()
		for _, cluster := range w.clusters {
			if h := t.perCluster[cluster]; h != nil {
				offers = append(offers, prefer.Offer{Cluster: cluster, Ready: h.ready(), Gone: h.treatedAsGone()})
			}
		}
	}
	inUse, again := w.chooser.InUse(t.name, t.settings(), offers, now)
	for cluster, h := range t.perCluster {
		unused := t.shared() && !inUse[cluster]
		if unused != h.unused {
			h.unused = unused
			w.touchSlices(h)
		}
	}
	if again > 0 {
		t.due = now.Add(again)
		w.waiting[t] = true
		heap.Push(&w.dues, due{t.due, t})
		w.touchAny(t) // the loop then asks Slice, which returns due
	}
}

// touchAny touches one slice of a target.
func (w *work) touchAny(t *target) {
	var first *slice
	for _, h := range t.perCluster {
		for _, s := range h.all() {
			if first == nil || s.name < first.name {
				first = s
			}
		}
	}
	if first != nil {
		w.touchSlice(first)
	}
}

// updateDifferences determines which settings of the sources differ from the authoritative one.
func (t *target) updateDifferences() {
	t.differences = nil
	decides := t.authoritative()
	if decides == nil || !t.shared() || t.imported() {
		return
	}
	ruled := t.plan.rule(t.of) != nil
	for _, cluster := range t.plan.clusters {
		h := t.perCluster[cluster]
		if h == nil || h.source == nil || h.source.service == decides {
			continue
		}
		if differs := differences(decides, h.source.service, ruled); len(differs) > 0 {
			if t.differences == nil {
				t.differences = map[string][]string{}
			}
			t.differences[cluster] = differs
		}
	}
}

// differences lists the settings of a source that differ from the authoritative one.
func differences(decides, s *semaphorev1.Service, ruled bool) []string {
	var out []string
	is := func(what string, other, decided any) {
		if a, b := fmt.Sprint(other), fmt.Sprint(decided); a != b {
			out = append(out, fmt.Sprintf("%s %s, not %s", what, cmp.Or(a, "none"), cmp.Or(b, "none")))
		}
	}
	is("ports", portsText(s), portsText(decides))
	is("headless", s.GetHeadless(), decides.GetHeadless())
	is("publishNotReadyAddresses", s.GetPublishNotReadyAddresses(), decides.GetPublishNotReadyAddresses())
	is("session affinity", affinityText(s), affinityText(decides))
	is("trafficDistribution", s.GetTrafficDistribution(), decides.GetTrafficDistribution())
	if !ruled {
		a, b := s.GetGlobalSettings(), decides.GetGlobalSettings()
		is("prefer-clusters", strings.Join(a.GetPrefer(), ","), strings.Join(b.GetPrefer(), ","))
		is("min-ready", max(1, a.GetMinReady()), max(1, b.GetMinReady()))
		const demote = semaphorev1.WhenGone_WHEN_GONE_DEMOTE
		is("when-gone", semaphorev1.WhenGoneName(cmp.Or(a.GetWhenGone(), demote)),
			semaphorev1.WhenGoneName(cmp.Or(b.GetWhenGone(), demote)))
		is("local-first", a.GetLocalFirst(), b.GetLocalFirst())
	}
	return out
}

func affinityText(s *semaphorev1.Service) string {
	if s.GetClientIpAffinitySeconds() == 0 {
		return string(corev1.ServiceAffinityNone)
	}
	return fmt.Sprintf("%s (%d s)", corev1.ServiceAffinityClientIP, s.GetClientIpAffinitySeconds())
}

// portsText sorts the ports by name: their order in a Service has no meaning.
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

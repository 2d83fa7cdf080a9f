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

// This file is about global services: who says what they are, and which clusters they use.

// remoteZone is the zone that endpoints of other clusters are hinted to, as semaphore-service-mirror has it: no node is in it.
const remoteZone = "remote"

const topologyAuto = "Auto"

// decisive is what the target is like: the source of a mirror; of a global service what the first cluster says that offers it. It is nil while
// that cluster has not been heard: then the Service stays as it stands.
func (t *target) decisive() *semaphorev1.Service {
	if !t.global() {
		if h := t.shares[t.of.cluster]; h != nil && h.source != nil {
			return h.source.service
		}
		return nil
	}
	for _, cluster := range t.plan.clusters {
		if h := t.shares[cluster]; h != nil && h.source != nil {
			return h.source.service
		}
		if t.expects(cluster) {
			return nil
		}
	}
	return nil
}

// serve takes the ports of the target for those that an endpoint has to have to count as ready, and counts anew where they
// are others than before.
func (t *target) serve() {
	decides, stands := t.decisive(), t.stands()
	if t.served != nil && t.servedBy == [2]any{decides, stands} {
		return
	}
	t.servedBy = [2]any{decides, stands}
	now := map[portName]int{}
	if decides != nil {
		for _, p := range decides.GetPorts() {
			now[portName{p.GetName(), p.GetProtocol()}] = len(now)
		}
	} else if stands != nil {
		for _, p := range stands.Spec.Ports {
			now[portName{p.Name, string(p.Protocol)}] = len(now)
		}
	}
	if t.served != nil && maps.EqualFunc(t.served, now, func(int, int) bool { return true }) {
		return
	}
	t.served = now
	for _, h := range t.shares {
		h.families = [2]int{}
		for g, b := range h.groups {
			if b.serves = g.serves(now); b.serves {
				h.families[b.family] += b.ready
			}
		}
	}
}

// expects says whether a cluster that has not been heard whole was among those of the global service.
func (t *target) expects(cluster string) bool {
	s := t.stands()
	return s != nil && !t.plan.whole[cluster] && slices.Contains(strings.Split(s.Annotations[naming.AnnotationGlobalClusters], ","), cluster)
}

// offering are the clusters that offer a global service, or did when it was written and have not been heard whole.
func (t *target) offering() []string {
	var all []string
	for _, cluster := range t.plan.clusters {
		if h := t.shares[cluster]; h != nil && h.source != nil || t.expects(cluster) {
			all = append(all, cluster)
		}
	}
	return all
}

// rule is that of the operator for a global service; nil for none.
func (p *Plan) rule(of ref) *config.GlobalRule {
	for i := range p.global.Rules {
		if r := &p.global.Rules[i]; r.Matches(of.namespace, of.name) {
			return r
		}
	}
	return nil
}

// offer is what a cluster has of the global service that r names; nil for nothing, also where the operator's rule has it take no part.
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

// named is the namespace and name that the sources of a global service have.
func (t *target) named() ref {
	if s := t.stands(); t.of.name == "" && s != nil {
		return ref{"", s.Annotations[naming.AnnotationSourceNamespace], s.Annotations[naming.AnnotationSourceName]}
	}
	return t.of
}

// hints says whether local-first is by hints in the slices, and not by an order of clusters.
func (w *work) hints(t *target, s *semaphorev1.Service) bool {
	return s.GetGlobalSettings().GetLocalFirst() && len(w.global.LocalZones) > 0 && w.rule(t.named()) == nil
}

// settings are those of a global service: of the operator's rule, else what its deciding source says.
func (t *target) settings() prefer.Settings {
	s := t.said()
	s.MinReady, s.WhenGone = max(1, s.MinReady), cmp.Or(s.WhenGone, config.Demote)
	return s
}

// said are the settings without defaults.
func (t *target) said() prefer.Settings {
	if r := t.plan.rule(t.named()); r != nil {
		return prefer.Settings{Prefer: r.Prefer, MinReady: r.MinReady, WhenGone: r.WhenGone}
	}
	if service := t.decisive(); service != nil {
		g := service.GetGlobalSettings()
		out := prefer.Settings{Prefer: g.GetPrefer(), MinReady: int(g.GetMinReady()), WhenGone: config.WhenGone(g.GetWhenGone())}
		if g.GetLocalFirst() && !t.shape.hints {
			out.Prefer = append([]string{t.plan.own}, slices.DeleteFunc(slices.Clone(out.Prefer), func(c string) bool { return c == t.plan.own })...)
		}
		return out
	}
	s := t.stands() // as an earlier broker wrote it
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

// choose decides which clusters a target uses.
func (w *work) choose(t *target, now time.Time) {
	delete(w.waiting, t)
	t.due = time.Time{}
	if w.targets[t.name] != t {
		return
	}
	var offers []prefer.Offer
	if t.global() {
		t.serve()
		for _, cluster := range w.clusters {
			if h := t.shares[cluster]; h != nil {
				offers = append(offers, prefer.Offer{Cluster: cluster, Ready: h.ready(), Gone: h.takenForGone()})
			}
		}
	}
	inUse, again := w.chooser.InUse(t.name, t.settings(), offers, now)
	for cluster, h := range t.shares {
		unused := t.global() && !inUse[cluster]
		if unused != h.unused {
			h.unused = unused
			w.touchSlices(h)
		}
	}
	if again > 0 {
		t.due = now.Add(again)
		w.waiting[t] = true
		heap.Push(&w.dues, due{t.due, t})
		w.touchOne(t) // whoever looks at it asks again when that is due
	}
}

// touchOne touches one slice of a target.
func (w *work) touchOne(t *target) {
	var first *slice
	for _, h := range t.shares {
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

// clash notes what the clusters of a global service do not agree on.
func (t *target) clash() {
	t.clashes = nil
	decides := t.decisive()
	if decides == nil || !t.global() {
		return
	}
	ruled := t.plan.rule(t.of) != nil
	for _, cluster := range t.plan.clusters {
		h := t.shares[cluster]
		if h == nil || h.source == nil || h.source.service == decides {
			continue
		}
		if differs := differences(decides, h.source.service, ruled); len(differs) > 0 {
			if t.clashes == nil {
				t.clashes = map[string][]string{}
			}
			t.clashes[cluster] = differs
		}
	}
}

// differences are what a Service says that is not as in the one that decides.
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
		is("when-gone", cmp.Or(a.GetWhenGone(), string(config.Demote)), cmp.Or(b.GetWhenGone(), string(config.Demote)))
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

// portsText has the ports in the order of their names: that in which a Service lists them says nothing.
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

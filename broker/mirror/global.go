package mirror

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
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
	if t.derived() {
		if t.merged == nil {
			return nil
		}
		return t.merged.Service
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

// defined is the authoritative service, or its ports and families as the existing Service has them while that is not
// known; nil for neither.
func (t *target) defined() *semaphorev1.Service {
	if s := t.authoritative(); s != nil {
		return s
	}
	return choice.SourceOf(t.existing())
}

// ipFamilies returns the IP families of the Service: those of the existing one, because a cluster may lack one that is
// defined, and of a headless one, which the apiserver gives such a family, too, those of the cluster's subnets. None
// are any.
func (t *target) ipFamilies() []string {
	families := choice.SourceOf(t.existing()).GetIpFamilies()
	if len(families) == 0 {
		families = t.defined().GetIpFamilies()
	}
	if t.shape.headless {
		return choice.CommonFamilies(t.plan.families, families)
	}
	return families
}

// updateServed determines the ports that an endpoint must serve to count as ready, and the families that it may have,
// and counts again if they changed.
func (t *target) updateServed() {
	now := map[replica.PortName]int{}
	for _, p := range t.defined().GetPorts() {
		now[replica.PortName{Name: p.GetName(), Protocol: p.GetProtocol()}] = len(now)
	}
	families := t.ipFamilies()
	if t.served != nil && slices.Equal(t.families, families) &&
		maps.EqualFunc(t.served, now, func(int, int) bool { return true }) {
		return
	}
	t.served, t.families = now, families
	for _, h := range t.perCluster {
		h.families, h.known = [2]int{}, [2]int{}
		for g, b := range h.groups {
			if b.serves = h.serves(g); b.serves {
				h.families[b.family] += b.ready
				h.known[b.family] += b.known
			}
		}
	}
}

// clustersBefore returns the clusters of the Service as the previous broker wrote it, in its order.
func (t *target) clustersBefore() []string {
	s := t.existing()
	if s == nil {
		return nil
	}
	return strings.Split(s.Annotations[t.clustersAnnotation()], ",")
}

// clustersAnnotation is the annotation of a Service of several clusters that lists these.
func (t *target) clustersAnnotation() string {
	if t.derived() {
		return naming.AnnotationExportingClusters
	}
	return naming.AnnotationGlobalClusters
}

// offeredBefore reports whether a cluster that is not complete was part of the Service before.
func (t *target) offeredBefore(cluster string) bool {
	return !t.plan.complete[cluster] && slices.Contains(t.clustersBefore(), cluster)
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

// operators returns the operator's rule for a global service; nil for none.
func (p *Plan) operators(of ref) *config.GlobalRule {
	for i := range p.global.Rules {
		if r := &p.global.Rules[i]; r.Matches(of.namespace, of.name) {
			return r
		}
	}
	return nil
}

// offers reports whether a cluster contributes to a Service of several clusters; false if a rule excludes it.
func (p *Plan) offers(cluster string, r ref) bool {
	s := p.sources[ref{cluster, r.namespace, r.name}]
	if s == nil || r.cluster == "" && !s.service.GetGlobal() ||
		r.cluster == clusterSet && s.service.GetMultiCluster() == nil {
		return false
	}
	rule := p.operators(r)
	return rule == nil || rule.Takes(cluster)
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
	return s.GetGlobalSettings().GetLocalFirst() && len(w.global.LocalZones) > 0 && w.operators(t.sourceName()) == nil
}

func (t *target) Settings() choice.Settings {
	first := t.plan.own
	if t.shape.hints {
		first = ""
	}
	return choice.Decide(t.plan.operators(t.sourceName()), t.authoritative(), t.existing(), first)
}

func (w *work) choose(t *target, now time.Time) {
	before := t.due
	t.due = time.Time{}
	if w.targets[t.name] != t {
		return
	}
	var offers []choice.Offer
	if t.shared() {
		t.updateServed()
		for _, cluster := range w.clusters {
			if h := t.perCluster[cluster]; h != nil {
				offers = append(offers, choice.Offer{Cluster: cluster, Ready: h.ready(), All: h.notEnding(),
					Gone: t.isGone(cluster)})
			}
		}
	}
	settings := t.Settings()
	inUse, again := w.chooser.InUse(t.name, settings, offers, now)
	for cluster, h := range t.perCluster {
		unused := t.shared() && !inUse[cluster]
		if unused != h.unused {
			h.unused = unused
			w.touchSlices(h)
		}
	}
	if own := w.lend(t, settings, offers, now); again == 0 || own > 0 && own < again {
		again = own
	}
	if again > 0 {
		t.due = now.Add(again)
		if !t.due.Equal(before) {
			// Behind those of the same time; all wait equally long, so that it is nearly always the last.
			i := sort.Search(len(w.dues), func(i int) bool { return w.dues[i].at.After(t.due) })
			w.dues = slices.Insert(w.dues, i, due{t.due, t})
		}
	}
}

package mirror

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type target struct {
	plan *Plan
	name string
	// of is the owner of the name: a service of a cluster, or a global service. It is zero while no cluster exports
	// one and the target only has unconfirmed endpoints.
	of         ref
	perCluster map[string]*clusterEndpoints
	shape      shape
	hostnames  problem.Duplicates
	// merged is the rule's decision about a derived Service; nil for another one, and before Begin.
	merged *choice.Merged
	// served are the ports that an endpoint must serve to count as ready, and families those that it may have, none for
	// any.
	served   map[replica.PortName]int
	families []string
	// ownUse is how the own name leads to other clusters; empty for not at all.
	ownUse string
	// lost are the last clusters to which it led, while the newest Event says that none is left; nil otherwise.
	lost []string
	// due is the time at which the target chooses again which clusters it uses; zero for never.
	due time.Time
}

// shape is what all slices of a target share.
type shape struct{ headless, hints bool }

// shared reports whether the target has the endpoints of several clusters: a global or a derived one.
func (t *target) shared() bool {
	if t.of.name == "" {
		s := t.existing()
		return s != nil && s.Labels[naming.LabelGlobal] == "true" || t.derived()
	}
	return t.of.shared()
}

// shared reports whether a ref names the services of several clusters.
func (r ref) shared() bool { return r.cluster == "" || r.cluster == clusterSet }

// existing is the Service as it exists in the own cluster; nil for none.
func (t *target) existing() *corev1.Service { return t.plan.existing[t.name] }

func (w *work) target(name string) *target {
	t := w.targets[name]
	if t == nil {
		t = &target{plan: w.Plan, name: name, perCluster: map[string]*clusterEndpoints{}}
		w.targets[name] = t
	}
	return t
}

func (t *target) endpointsOf(cluster string) *clusterEndpoints {
	h := t.perCluster[cluster]
	if h == nil {
		h = &clusterEndpoints{target: t, cluster: cluster, sliceOf: map[replica.EndpointKey]*slice{},
			groups: map[replica.PortGroup]*sliceGroup{}, number: 1}
		t.perCluster[cluster] = h
	}
	return h
}

// collect deletes the entry of a cluster, and the target, if nothing needs them.
func (w *work) collect(t *target, cluster string) {
	if h := t.perCluster[cluster]; h != nil && h.source == nil && len(h.sliceOf) == 0 {
		delete(t.perCluster, cluster)
		w.markDirty(t)
	}
	if len(t.perCluster) == 0 && t.of.name == "" {
		delete(w.targets, t.name)
		delete(w.dirty, t)
		t.due = time.Time{}
		w.problemsDirty[t.name] = true
		w.chooser.Forget(t.name)
		w.chooser.Forget(ownChoice(t))
		delete(w.lenders, t)
	}
}

// markDirty makes a target choose again which clusters it uses.
func (w *work) markDirty(t *target) {
	if t.shared() {
		w.dirty[t] = true
	}
}

// setService sets what a cluster exports for a service; nil for nothing.
func (w *work) setService(r ref, s *semaphorev1.Service) {
	if s == nil && w.sources[r] == nil {
		return
	}
	source := w.source(r)
	source.service = s
	names := []string{naming.Global(r.namespace, r.name)}
	w.claimShared(names[0], ref{"", r.namespace, r.name})
	if prefix, remote := w.prefixes[r.cluster]; remote {
		mirror := naming.Mirror(prefix, r.namespace, r.name)
		names = append(names, mirror)
		w.setClaim(mirror, r, s.GetMirror())
	}
	if w.rule != nil {
		derived := naming.Import(r.namespace, r.name)
		names = append(names, derived)
		w.claimShared(derived, ref{clusterSet, r.namespace, r.name})
	}
	for _, name := range names {
		w.rebindSources(name)
	}
	w.collectSource(source)
}

// claimShared adds or removes the claim of what clusters offer together to a name.
func (w *work) claimShared(name string, of ref) {
	offered := slices.ContainsFunc(w.clusters, func(cluster string) bool { return w.offers(cluster, of) })
	if of.cluster == clusterSet && w.rule.Denied(of.namespace) != "" {
		if delete(w.denied, name); offered {
			w.denied[name] = of
		}
		offered = false
	}
	w.setClaim(name, of, offered)
}

func (w *work) setClaim(name string, claimant ref, wanted bool) {
	claims := w.claims
	if len(name) > maxServiceName {
		claims = w.tooLong
	}
	if wanted {
		claims.Add(name, claimant)
	} else {
		claims.Remove(name, claimant)
	}
	w.problemsDirty[name] = true
}

// rebindSources connects a target with the sources of the service that owns its name.
func (w *work) rebindSources(name string) {
	of, claimed := w.claims.Winner(name)
	wanted := map[string]*source{}
	if claimed {
		for _, r := range w.exportedAs(of) {
			wanted[r.cluster] = w.sources[r]
		}
	}
	t := w.targets[name]
	if t == nil {
		if !claimed {
			return
		}
		t = w.target(name)
	}
	if t.of = of; !claimed {
		t.of = ref{}
	}
	var ports map[string]replica.Ports
	if !t.derived() {
		t.merged = nil
	} else if w.merge(t, wanted); t.merged != nil {
		ports = t.merged.Ports
	}
	w.touchService(name)
	for _, cluster := range slices.Sorted(maps.Keys(t.perCluster)) {
		h := t.perCluster[cluster]
		if h.source != nil && (h.source != wanted[cluster] || !h.ports.Equal(ports[cluster])) {
			w.detach(h)
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(wanted)) {
		if h := t.endpointsOf(cluster); h.source == nil && !t.waitsFor(cluster) {
			h.ports = ports[cluster]
			w.attach(h, wanted[cluster])
		}
	}
	w.updateShape(t)
	w.markDirty(t)
	w.touchLent(t)
	for _, cluster := range slices.Sorted(maps.Keys(t.perCluster)) {
		w.collect(t, cluster)
	}
	w.collect(t, "")
}

// waitsFor reports whether a mirror must not place the endpoints of a cluster yet: the existing Service belongs to
// another cluster, which is not complete and may still claim the name.
func (t *target) waitsFor(cluster string) bool {
	s := t.existing()
	if s == nil || t.shared() {
		return false
	}
	other := s.Labels[naming.LabelSourceCluster]
	return other != cluster && slices.Contains(t.plan.clusters, other) && !t.plan.complete[other]
}

func (w *work) updateShape(t *target) {
	now := shape{}
	if s := t.authoritative(); s != nil {
		now.headless = s.GetHeadless()
		now.hints = t.shared() && w.hints(t, s)
	} else if s := t.existing(); s != nil {
		now.headless = s.Spec.ClusterIP == corev1.ClusterIPNone
		now.hints = s.Annotations[corev1.AnnotationTopologyMode] == topologyAuto
	}
	if now != t.shape {
		t.shape = now
		for _, h := range t.perCluster {
			w.touchSlices(h)
		}
	}
	w.problemsDirty[t.name] = true
}

// setSlice sets what a cluster exports for one of its slices; nil for nothing.
func (w *work) setSlice(r ref, now *semaphorev1.EndpointSlice) {
	old := w.exportedSlices[r]
	if now == nil {
		delete(w.exportedSlices, r)
	} else {
		w.exportedSlices[r] = now
	}
	if old != nil && (now == nil || old.GetService() != now.GetService()) {
		w.replaceSlice(w.source(serviceOf(r, old)), r.name, old, nil)
		old = nil
	}
	if now != nil {
		w.replaceSlice(w.source(serviceOf(r, now)), r.name, old, now)
	}
}

func serviceOf(r ref, s *semaphorev1.EndpointSlice) ref {
	return ref{r.cluster, r.namespace, s.GetService()}
}

// source is what a cluster exports for one service.
type source struct {
	ref
	replica.Endpoints
	// service is nil while only its slices are known.
	service *semaphorev1.Service
	// users are the targets that use the endpoints.
	users []*clusterEndpoints
}

func (w *work) source(r ref) *source {
	s := w.sources[r]
	if s == nil {
		s = &source{ref: r, Endpoints: replica.NewEndpoints()}
		w.sources[r] = s
	}
	return s
}

// replaceSlice records the endpoints that a slice changes. flush evaluates them after the whole message: an endpoint
// that moves from one slice of its source to another is not withdrawn.
func (w *work) replaceSlice(s *source, slice string, old, now *semaphorev1.EndpointSlice) {
	s.Replace(slice, old, now, func(k replica.EndpointKey) {
		if of := (endpointRef{s, k}); !w.isPending[of] {
			w.isPending[of] = true
			w.pending = append(w.pending, pendingEndpoint{of, w.observedAt})
		}
	})
	w.collectSource(s)
}

func (w *work) collectSource(s *source) {
	if s.service == nil && s.Len() == 0 {
		delete(w.sources, s.ref)
	}
}

type endpointRef struct {
	source *source
	key    replica.EndpointKey
}

type pendingEndpoint struct {
	endpointRef
	observedAt time.Time
}

// flush removes withdrawn endpoints and then adds or updates the others, so that new endpoints find the room of
// removed ones.
func (w *work) flush() {
	each := func(do func(h *clusterEndpoints, k replica.EndpointKey, e *semaphorev1.Endpoint)) {
		for _, u := range w.pending {
			w.observedAt = u.observedAt
			for _, h := range u.source.users {
				if k, ok := u.key.Only(h.ports); ok {
					do(h, k, u.source.Get(k, h.ports))
				}
			}
		}
	}
	if w.begun {
		each(func(h *clusterEndpoints, k replica.EndpointKey, e *semaphorev1.Endpoint) {
			if e == nil {
				w.remove(h, k)
			}
		})
		each(func(h *clusterEndpoints, k replica.EndpointKey, e *semaphorev1.Endpoint) {
			if e != nil {
				w.upsert(h, k, member{exported: e})
			}
		})
	}
	w.pending, w.isPending = nil, map[endpointRef]bool{}
}

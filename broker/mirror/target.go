package mirror

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// target is a Service of ours.
type target struct {
	plan *Plan
	name string
	// of is who has the name: a service of a cluster, or without one the global service. It is zero while nobody has told of
	// one, and there is only what is remembered.
	of     ref
	shares map[string]*share
	shape  shape
	// clashes are what of the sources differs from what the target is, by cluster.
	clashes map[string][]string
	hosts   hosts
	// served are the ports that an endpoint has to have to count as ready, and servedBy what they were taken from.
	served   map[portName]int
	servedBy [2]any
	// due is when time alone changes which clusters are used; zero for never.
	due time.Time
}

// shape is what all slices of a target have in common.
type shape struct{ headless, hints bool }

func (t *target) global() bool {
	if t.of.name == "" {
		s := t.stands()
		return s != nil && s.Labels[naming.LabelGlobal] == "true"
	}
	return t.of.cluster == ""
}

// stands is the Service of ours that is in the cluster; nil for none.
func (t *target) stands() *corev1.Service { return t.plan.standing[t.name] }

// target is that of a name, made if there is none.
func (w *work) target(name string) *target {
	t := w.targets[name]
	if t == nil {
		t = &target{plan: w.Plan, name: name, shares: map[string]*share{}}
		w.targets[name] = t
	}
	return t
}

// share is that of a cluster, made if there is none.
func (t *target) share(cluster string) *share {
	h := t.shares[cluster]
	if h == nil {
		h = &share{target: t, cluster: cluster, home: map[key]*slice{}, groups: map[group]*bundle{}, number: 1}
		t.shares[cluster] = h
	}
	return h
}

// tidy forgets a share, and a target, that nobody needs.
func (w *work) tidy(t *target, cluster string) {
	if h := t.shares[cluster]; h != nil && h.source == nil && len(h.home) == 0 {
		delete(t.shares, cluster)
		w.redecide(t)
	}
	if len(t.shares) == 0 && t.of.name == "" {
		delete(w.targets, t.name)
		delete(w.dirty, t)
		delete(w.waiting, t)
		w.troubled[t.name] = true
		w.chooser.Forget(t.name)
	}
}

// redecide has it decided anew which clusters a target uses.
func (w *work) redecide(t *target) {
	if t.global() {
		w.dirty[t] = true
	}
}

// service takes what a cluster says of a service; nil for nothing any more.
func (w *work) service(r ref, s *semaphorev1.Service) {
	if s == nil && w.sources[r] == nil {
		return
	}
	source := w.source(r)
	source.service = s
	names := []string{naming.Global(r.namespace, r.name)}
	w.claim(names[0], ref{"", r.namespace, r.name}, slices.ContainsFunc(w.clusters, func(cluster string) bool {
		return w.offer(cluster, r) != nil
	}))
	if prefix, remote := w.prefixes[r.cluster]; remote {
		mirror := naming.Mirror(prefix, r.namespace, r.name)
		names = append(names, mirror)
		w.claim(mirror, r, s.GetMirror())
	}
	for _, name := range names {
		w.feed(name)
	}
	w.leave(source)
}

// claim has a claimant want a name, or not.
func (w *work) claim(name string, claimant ref, wanted bool) {
	w.unclaim(name, claimant)
	w.troubled[name] = true
	switch {
	case !wanted:
		w.claims.Remove(name, claimant)
	case len(name) > maxServiceName:
		w.tooLong[name] = append(w.tooLong[name], claimant)
		slices.SortFunc(w.tooLong[name], ref.compare)
	default:
		w.claims.Add(name, claimant)
	}
}

// feed gives a target the sources of who has its name.
func (w *work) feed(name string) {
	of, claimed := w.claims.Winner(name)
	wanted := map[string]*source{}
	switch {
	case claimed && of.cluster != "":
		wanted[of.cluster] = w.sources[of]
	case claimed:
		for _, cluster := range w.clusters {
			if s := w.offer(cluster, of); s != nil {
				wanted[cluster] = s
			}
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
	w.touchService(name)
	for _, cluster := range slices.Sorted(maps.Keys(t.shares)) {
		if h := t.shares[cluster]; h.source != nil && h.source != wanted[cluster] {
			w.detach(h)
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(wanted)) {
		if h := t.share(cluster); h.source == nil && !t.awaits(cluster) {
			w.attach(h, wanted[cluster])
		}
	}
	w.reshape(t)
	w.redecide(t)
	for _, cluster := range slices.Sorted(maps.Keys(t.shares)) {
		w.tidy(t, cluster)
	}
	w.tidy(t, "")
}

// awaits says whether the endpoints of a cluster have no place yet in a mirror, as it was another's when it was
// written, which may want it still.
func (t *target) awaits(cluster string) bool {
	s := t.stands()
	if s == nil || t.global() {
		return false
	}
	other := s.Labels[naming.LabelSourceCluster]
	return other != cluster && slices.Contains(t.plan.clusters, other) && !t.plan.whole[other]
}

// reshape looks anew at what all slices of a target have in common.
func (w *work) reshape(t *target) {
	now := shape{}
	if s := t.decisive(); s != nil {
		now.headless = s.GetHeadless()
		now.hints = t.global() && w.hints(t, s)
	} else if s := t.stands(); s != nil {
		now.headless = s.Spec.ClusterIP == corev1.ClusterIPNone
		now.hints = s.Annotations[corev1.AnnotationTopologyMode] == topologyAuto
	}
	if now != t.shape {
		t.shape = now
		for _, h := range t.shares {
			w.touchSlices(h)
		}
	}
	t.clash()
	w.troubled[t.name] = true
}

// slice takes what a cluster says of one of its slices; nil for nothing any more.
func (w *work) slice(r ref, now *semaphorev1.EndpointSlice) {
	old := w.told[r]
	if now == nil {
		delete(w.told, r)
	} else {
		w.told[r] = now
	}
	if old != nil && (now == nil || old.GetService() != now.GetService()) {
		w.say(w.source(serviceOf(r, old)), r.name, old, nil)
		old = nil
	}
	if now != nil {
		w.say(w.source(serviceOf(r, now)), r.name, old, now)
	}
}

func serviceOf(r ref, s *semaphorev1.EndpointSlice) ref {
	return ref{r.cluster, r.namespace, s.GetService()}
}

// source is that of a service, made if there is none.
func (w *work) source(r ref) *source {
	s := w.sources[r]
	if s == nil {
		s = &source{ref: r, endpoints: map[key]statement{}}
		w.sources[r] = s
	}
	return s
}

// say notes which endpoints a slice speaks of. What comes of it is looked at when all of a message has been taken: an endpoint
// that passes from one slice of its source to another has not gone.
func (w *work) say(s *source, slice string, old, now *semaphorev1.EndpointSlice) {
	s.say(slice, old, now, func(k key) {
		if of := (spokenOf{s, k}); !w.spoken[of] {
			w.spoken[of] = true
			w.speech = append(w.speech, utterance{of, w.observedAt})
		}
	})
	w.leave(s)
}

// leave forgets a source of which nothing is known any more.
func (w *work) leave(s *source) {
	if s.service == nil && len(s.endpoints) == 0 {
		delete(w.sources, s.ref)
	}
}

type spokenOf struct {
	source *source
	key    key
}

type utterance struct {
	spokenOf
	observedAt time.Time
}

// hear gives the endpoints of which slices spoke their places, or ends those. What goes leaves room for what comes.
func (w *work) hear() {
	each := func(do func(h *share, k key, st statement, there bool)) {
		for _, u := range w.speech {
			w.observedAt = u.observedAt
			st, there := u.source.endpoints[u.key]
			for _, h := range u.source.shares {
				do(h, u.key, st, there)
			}
		}
	}
	if w.begun {
		each(func(h *share, k key, _ statement, there bool) {
			if !there {
				w.drop(h, k)
			}
		})
		each(func(h *share, k key, st statement, there bool) {
			if there {
				w.put(h, k, member{told: st.endpoint})
			}
		})
	}
	w.speech, w.spoken = nil, map[spokenOf]bool{}
}

package mirror

import (
	"fmt"
	"maps"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file holds the own names of Services: a Service of the own cluster that is part of a global service can have its
// own name lead to the endpoints of other clusters, too. They are in slices beside those of Kubernetes, one for each
// slice of the global service that is lent (docs/adr/0053-own-name.md).

func ownChoice(t *target) string { return t.name + " own" }

// ownName returns how the own name of a Service leads to other clusters, empty for not at all, and the UID of the
// Service, empty while it is not known. A misspelled value changes nothing, and an unknown one stays: then the last
// write of the broker counts.
func (t *target) ownName() (use string, uid types.UID) {
	p := t.plan
	if !p.global.OwnNames || !t.shared() || t.derived() || p.deniesOwnName(t.sourceName()) {
		return "", ""
	}
	before := ""
	if s := t.existing(); s != nil && naming.IsOwnNameUse(s.Annotations[naming.AnnotationOwnName]) {
		before = s.Annotations[naming.AnnotationOwnName]
	}
	h := t.perCluster[p.own]
	if h == nil || h.source == nil {
		if t.offeredBefore(p.own) {
			return before, ""
		}
		return "", ""
	}
	asked := h.source.service.GetOwnName()
	switch {
	case asked == nil:
		return "", ""
	case !naming.IsOwnNameUse(asked.GetUse()):
		return before, types.UID(asked.GetUid())
	}
	return asked.GetUse(), types.UID(asked.GetUid())
}

// deniesOwnName reports whether nothing is written beside a Service.
func (p *Plan) deniesOwnName(of ref) bool {
	return of.namespace == p.namespace || config.SystemNamespace(of.namespace) ||
		of.namespace == metav1.NamespaceDefault && of.name == "kubernetes" // by which every pod finds the apiserver
}

// ownNameProblem says why the own name of a Service does not lead to other clusters as its owner asks, as the rest of a
// sentence; empty if it does.
func (t *target) ownNameProblem() string {
	p := t.plan
	h := t.perCluster[p.own]
	if h == nil || h.source == nil || t.derived() || h.source.service.GetOwnName() == nil {
		return ""
	}
	asks := "asks by the annotation " + naming.AnnotationOwnName + " for endpoints of other clusters under its own name, "
	switch _, moved := t.Settings().OwnFirst(p.own); {
	case !p.global.OwnNames:
		return asks + "and gets none: globalServices.ownNames of the broker is off; ask the operator of this cluster to " +
			"install the component own-names"
	case p.deniesOwnName(t.of):
		return asks + "and gets none: it belongs to the cluster itself or to semaphore"
	case moved:
		return fmt.Sprintf("%sand prefers %s to this one: Kubernetes always uses the endpoints of its own cluster, so %s "+
			"comes first under the own name", asks, t.Settings().Prefer[0], p.own)
	}
	return ""
}

// lend chooses the clusters to which the own name of a target leads, and returns after how long that changes by time; 0
// for never. The own cluster comes first: its endpoints belong to Kubernetes, which uses all that are ready. A cluster
// that has nothing to lend is none of them.
func (w *work) lend(t *target, s choice.Settings, offers []choice.Offer, now time.Time) (again time.Duration) {
	use, uid := t.ownName()
	inUse := map[string]bool{}
	if use == "" {
		w.chooser.Forget(ownChoice(t))
		delete(w.lenders, t)
		t.lost = nil
	} else {
		if w.lenders[t] = true; use == naming.OwnNameFailover || slices.Contains(s.Prefer, w.own) {
			s, _ = s.OwnFirst(w.own)
		}
		inUse, again = w.chooser.InUse(ownChoice(t), s, offers, now)
	}
	was := t.lent()
	for cluster, h := range t.perCluster {
		lent := inUse[cluster] && cluster != w.own && h.lends()
		if lent != h.lent || h.lent && use != t.ownUse {
			w.touchSlices(h)
		}
		h.lent = lent
	}
	if use != t.ownUse {
		t.ownUse = use
		w.touchService(t.name)
	}
	is := t.leads(s)
	if t.lost != nil && is.Suffices && len(is.Clusters) == 0 {
		was = t.lost
	}
	if !slices.Equal(was, is.Clusters) {
		of := t.sourceName()
		w.touches.Lent = append(w.touches.Lent, choice.Lent{Namespace: of.namespace, Name: of.name, UID: uid,
			OwnName: is, Before: was})
		if t.lost = nil; is.Fails() {
			t.lost = was
		}
	}
	return again
}

// Own describes where the own name of a Service leads; nil if its owner does not ask for other clusters.
func (t *target) Own() *choice.OwnName {
	if t.ownUse == "" {
		return nil
	}
	o := t.leads(t.Settings())
	return &o
}

// leads describes where the own name of a target leads by these settings, also to its own cluster alone.
func (t *target) leads(s choice.Settings) choice.OwnName {
	o := choice.OwnName{Use: t.ownUse, Clusters: t.lent(), Enough: s.MinReadyText()}
	if h := t.perCluster[t.plan.own]; h != nil {
		o.Ready, o.All = h.ready(), h.notEnding()
	}
	o.Suffices = s.Suffices(o.Ready, o.All)
	return o
}

// lent returns the clusters to which the own name leads, sorted.
func (t *target) lent() (clusters []string) {
	for _, cluster := range slices.Sorted(maps.Keys(t.perCluster)) {
		if t.perCluster[cluster].lent {
			clusters = append(clusters, cluster)
		}
	}
	return clusters
}

// touchLent touches the slices under the own name of a target, whose ports, hostnames or owner may have changed.
func (w *work) touchLent(t *target) {
	for _, h := range t.perCluster {
		if h.lent {
			w.touchSlices(h)
		}
	}
}

// EachOwn calls do with the namespace and name of each desired slice under an own name.
func (p *Plan) EachOwn(do func(namespace, name string)) {
	for t := range p.lenders {
		for _, name := range p.SlicesOf(t.name) {
			if own := p.OwnSlice(name); own != nil {
				do(own.Namespace, own.Name)
			}
		}
	}
}

// OwnSlice returns the desired slice under the own name of a Service that has the endpoints of a slice of the global
// service; nil for none. An endpoint that is not in use or does not serve is in no such slice: no reader can mistake it
// for a part of the Service. The Service says which ports and families it has, and a hostname of the own cluster is no
// other's.
func (p *Plan) OwnSlice(name string) *discoveryv1.EndpointSlice {
	s := p.slices[name]
	if s == nil || !s.owner.lent {
		return nil
	}
	t := s.owner.target
	use, uid := t.ownName()
	ports, fits := s.ownPorts()
	if use == "" || !fits {
		return nil
	}
	of := t.sourceName()
	out := p.emptySlice(s, of, of.name)
	out.Namespace, out.Ports = of.namespace, ports
	delete(out.Labels, naming.LabelGlobal)
	out.Labels[naming.LabelOwnName] = use
	if uid != "" { // Kubernetes deletes it with the Service
		out.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: of.name, UID: uid}}
	}
	for i := range s.members {
		m := &s.members[i]
		if !m.lendable() {
			continue
		}
		e := m.endpoint(t.shape.headless)
		if t.shape.headless && t.hostnames.Has(ptr.Deref(e.Hostname, ""), p.own) {
			e.Hostname = nil
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	if len(out.Endpoints) == 0 {
		return nil
	}
	return out
}

// lends reports whether some endpoint of a cluster can be under the own name.
func (h *clusterEndpoints) lends() bool {
	return slices.ContainsFunc(h.all(), func(s *slice) bool {
		_, fits := s.ownPorts()
		return fits && slices.ContainsFunc(s.members, func(m member) bool { return m.lendable() })
	})
}

// lendable reports whether an endpoint is under the own name of a Service that leads to its cluster.
func (m *member) lendable() bool {
	return m.usable() && *choice.ExportedConditions(m.exported).Serving
}

// ownPorts returns the ports of a slice that the Service of this cluster has, with its protocols of applications. The
// slice fits if it has one of them, or the Service has none, and an address of the family.
func (s *slice) ownPorts() (out []discoveryv1.EndpointPort, fits bool) {
	defined := s.owner.target.defined()
	if families := defined.GetIpFamilies(); len(families) > 0 && !slices.Contains(families, string(s.Family())) {
		return nil, false
	}
	protocols := map[replica.PortName]*string{}
	for _, p := range defined.GetPorts() {
		protocols[replica.PortName{Name: p.GetName(), Protocol: p.GetProtocol()}] = choice.Optional(p.GetAppProtocol())
	}
	for _, port := range s.EndpointPorts() {
		protocol, has := protocols[replica.PortName{Name: *port.Name, Protocol: string(*port.Protocol)}]
		if port.AppProtocol = protocol; has {
			out = append(out, port)
		}
	}
	return out, len(out) > 0 || len(protocols) == 0
}

package sim

import (
	"fmt"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file has the checks of each step. Those of the end are in quiet.go.

// follow checks what a message did to a replica.
func (b *broker) follow(c *conn, source string, m *semaphorev1.PublishRequest, result replica.Result, err error) {
	if err != nil && !b.expected(c, err) {
		b.w.fail("protocol", "broker %d of %s refuses what an exporter of %s says: %v", b.id, b.d.name, source, err)
		return
	}
	// Revisions of streams with other kinds cannot be compared.
	stream := streamOf(c.session.Hello())
	for _, r := range result.Responses {
		at := [2]string{source, stream}
		if ack := r.GetAck(); ack != nil {
			if ack.GetRevision() < b.acked[at] {
				b.w.fail("I3", "broker %d of %s acknowledges %d of %s, after %d of the same epoch", b.id, b.d.name,
					ack.GetRevision(), source, b.acked[at])
			}
			b.acked[at] = ack.GetRevision()
		}
		if w := r.GetWelcome(); w.GetResumeRevision() > 0 && w.GetResumeRevision() < b.acked[at] {
			b.w.fail("I3", "broker %d of %s offers %s to go on from %d, and has acknowledged %d of the same epoch", b.id,
				b.d.name, source, w.GetResumeRevision(), b.acked[at])
		}
	}
	if err == nil {
		switch {
		case m.GetSnapshotEnd() != nil:
			b.complete[source][m.GetSnapshotEnd().GetKind()] = true
		case m.GetSnapshotUnchanged() != nil:
			b.complete[source][m.GetSnapshotUnchanged().GetKind()] = true
		}
	}
	for _, change := range m.GetChanges().GetChanges() {
		key := change.GetDelete()
		if change.GetUpsert() != nil {
			key = change.GetUpsert().GetKey()
		}
		if !c.client.x.source.mayKnow(b.d, key) {
			b.w.fail("R26", "%s receives %s of %s, which was never exported to it", b.d.name, replica.KeyOf(key), source)
		}
	}
	if b.w.braked && err == nil {
		b.brakes(c, source, m, result)
	}
	b.changed(c.client.x.source, result.Changes)
	if b.w.braked && err == nil {
		b.ledgers[source].follow(c, m)
	}
}

// changed checks a change of a replica.
func (b *broker) changed(s *source, changes []replica.Change) {
	for _, change := range changes {
		b.w.active++
		b.views = nil
		for _, ip := range heldAddresses(change.New) {
			if !s.owns(ip) {
				b.w.fail("I4", "broker %d of %s takes %s of %s with %s, which is none of its pods", b.id, b.d.name, change.Key,
					s.name, ip)
			}
		}
		if invariant, problem := b.reached[s.name].follow(change); problem != "" {
			b.w.fail(invariant, "broker %d of %s, of %s: %s", b.id, b.d.name, s.name, problem)
		}
		b.ledgers[s.name].change(change)
	}
}

// streamOf names streams whose revisions can be compared.
func streamOf(h *semaphorev1.Hello) string { return h.GetEpoch() + fmt.Sprint(h.GetKinds()) }

// heldAddresses returns the addresses of an object in a replica.
func heldAddresses(o *semaphorev1.Object) []string {
	out := slices.Clone(o.GetSetMember().GetIps())
	for _, e := range o.GetEndpointSlice().GetEndpoints() {
		out = append(out, e.GetAddresses()...)
	}
	for _, cidr := range o.GetNode().GetPodCidrs() {
		out = append(out, address(cidr))
	}
	return out
}

// expected reports whether a stream may end so.
func (b *broker) expected(c *conn, err error) bool {
	if c.lossy && strings.Contains(err.Error(), "its end mark counts") {
		return true
	}
	// An exporter that was deposed, a hello that a later one overtook, or a snapshot that is requested again.
	return strings.Contains(err.Error(), "hello.term") || strings.Contains(err.Error(), "hello.head_revision") ||
		strings.Contains(err.Error(), "send snapshots on another stream")
}

// preparedService checks a write before it is sent, against the replicas, which the checks above have followed.
func (b *broker) preparedService(name string, have, want_ *corev1.Service) {
	text := ""
	if want_ != nil {
		text = textService(want_)
		if have != nil {
			keepsName(b, "service", name, have, want_)
		}
	} else {
		b.mayDelete("service", name, have.Labels[naming.LabelSourceCluster])
	}
	mayGo(b, "service", name, have, text, want(b.view()).services[name], semaphorev1.Kind_KIND_SERVICE)
}

// preparedSlice checks that what is written follows from the replicas, or existed before (what of that should be gone
// shows after convergence); and that nothing is removed of a cluster that is not complete.
func (b *broker) preparedSlice(name string, have, want_ *discoveryv1.EndpointSlice) {
	stands, stays := map[string]bool{}, map[string]bool{}
	if have != nil {
		for _, line := range textEndpoints(have) {
			stands[line] = true
		}
	}
	if want_ != nil {
		if have != nil {
			keepsName(b, "slice", name, have, want_)
		}
		told := map[string]bool{}
		for line := range want(b.view()).endpoints[part(want_)] {
			told[nameless(line)] = true
		}
		for _, line := range textEndpoints(want_) {
			stays[addressOf(line)] = true
			if !told[nameless(line)] && !b.d.stood[line] {
				b.w.fail("I2", "broker %d of %s writes %q into slice %s, of which nobody tells", b.id, b.d.name, line, name)
			}
		}
	}
	for line := range stands {
		if !stays[addressOf(line)] {
			b.known("slice", name, have.Labels[naming.LabelSourceCluster], semaphorev1.Kind_KIND_SERVICE,
				semaphorev1.Kind_KIND_ENDPOINT_SLICE)
		}
	}
	if want_ == nil && len(stands) == 0 {
		b.known("slice", name, have.Labels[naming.LabelSourceCluster], semaphorev1.Kind_KIND_SERVICE,
			semaphorev1.Kind_KIND_ENDPOINT_SLICE)
	}
}

// keepsName checks that no name passes from one source to another: none may create names that another one's objects can
// have.
func keepsName[T writes.Object](b *broker, kind, name string, have, want T) {
	was, is := have.GetLabels()[naming.LabelSourceCluster], want.GetLabels()[naming.LabelSourceCluster]
	if was != is && !b.d.relabelled[kind+" "+name] {
		b.w.fail("names", "broker %d of %s gives %s %s of %s to %s", b.id, b.d.name, kind, name, was, is)
	}
}

// nameless is a line of textEndpoints without the hostname. While it is unknown which cluster decides about a global
// service, it may have names or none; that it has the right ones shows after convergence.
func nameless(line string) string { return line[:strings.LastIndex(line, " ")+1] }

// addressOf returns the address of a line of textEndpoints.
func addressOf(line string) string { return strings.Fields(line)[2] }

// mayGo checks that what is written follows from the replicas, and that nothing is removed of a cluster that is not
// complete.
func mayGo[T writes.Object](b *broker, kind, name string, have T, written, wanted string, of ...semaphorev1.Kind) {
	if written != wanted {
		b.w.fail("I2", "broker %d of %s writes %s %s as %q, and it should be %q", b.id, b.d.name, kind, name, written, wanted)
		return
	}
	if written != "" {
		return
	}
	b.known(kind, name, have.GetLabels()[naming.LabelSourceCluster], of...)
}

// known checks that a cluster is complete, or is not configured.
func (b *broker) known(kind, name, cluster string, of ...semaphorev1.Kind) {
	complete, configured := b.complete[cluster]
	if !configured {
		return
	}
	for _, k := range of {
		if !complete[k] {
			b.w.fail("I2", "broker %d of %s removes (from) %s %s of %s, whose %ss it has not heard whole", b.id, b.d.name, kind,
				name, cluster, semaphorev1.KindName(k))
		}
	}
}

// preparedSet checks a write of a set: addresses may be added or removed late, but none that belongs to the set is
// removed, and no other is added.
func (b *broker) preparedSet(name string, have, want *calicov3.GlobalNetworkSet) {
	had, has := addresses(have), addresses(want)
	b.owners[name] = map[string][]string{}
	of := have
	if want != nil {
		of = want
		if have != nil {
			keepsName(b, "set", name, have, want)
		}
	} else {
		b.mayDelete("set", name, have.Labels[naming.LabelSourceCluster])
	}
	cluster := of.Labels[naming.LabelSourceCluster]
	set := ref{of.Annotations[naming.AnnotationSourceNamespace], of.Annotations[naming.AnnotationSourceName]}
	belongs, elsewhere := map[string]bool{}, map[string]bool{}
	for _, v := range b.view() {
		if v.source != cluster {
			continue
		}
		for r, m := range v.members {
			for _, ip := range m.ips {
				if (ref{r.namespace, m.set}) == set {
					belongs[ip] = true
					b.owners[name][ip] = append(b.owners[name][ip], m.uid)
				} else {
					elsewhere[ip] = true
				}
			}
		}
	}
	outside := func(ip string) bool { // of the subnets, so that nothing keeps it
		of := have.Labels[naming.LabelSourceCluster]
		_, configured := b.complete[of]
		return configured && !b.w.sourceNamed(of).owns(ip)
	}
	empties := len(had) > 0
	for ip := range had {
		empties = empties && outside(ip)
	}
	if want == nil && !empties ||
		want != nil && have != nil && origin(have.Labels, have.Annotations) != origin(want.Labels, want.Annotations) {
		b.known("set", name, have.Labels[naming.LabelSourceCluster], semaphorev1.Kind_KIND_SET_MEMBER)
	}
	for ip := range has {
		if !belongs[ip] && !had[ip] {
			b.w.fail("I4", "broker %d of %s adds %s to set %s, where no pod has it", b.id, b.d.name, ip, name)
		}
	}
	if have == nil || set != (ref{have.Annotations[naming.AnnotationSourceNamespace],
		have.Annotations[naming.AnnotationSourceName]}) {
		return
	}
	stays := !b.contested(cluster)
	named := false
	base, _ := naming.SplitSetPart(name)
	for other := range sets(b.view()) {
		named = named || other.object == base && other.from == (from{cluster, set}) // else its addresses move with its name
	}
	for ip := range had {
		if stays && named && !has[ip] && belongs[ip] && !elsewhere[ip] && !b.d.inAnother(name, have, ip) {
			b.w.fail("I2", "broker %d of %s takes %s out of set %s, where a pod has it", b.id, b.d.name, ip, name)
		}
		if !has[ip] && !outside(ip) {
			b.known("set", name, cluster, semaphorev1.Kind_KIND_SET_MEMBER)
		}
	}
}

// inAnother reports whether another object of the set to which have belongs has an address: a further part, or the
// object under a name that the set got meanwhile.
func (d *dest) inAnother(name string, have *calicov3.GlobalNetworkSet, ip string) bool {
	for other, o := range d.sets.objects {
		if other != name && ours(o) && origin(o.Labels, o.Annotations) == origin(have.Labels, have.Annotations) &&
			addresses(o)[ip] {
			return true
		}
	}
	return false
}

// contested reports whether two pods of a cluster have one address, as far as was received: then the order of arrival
// decides which counts, and which sets exist, and the model does not follow that.
func (b *broker) contested(cluster string) bool {
	seen := map[string]bool{}
	for _, v := range b.view() {
		if v.source != cluster {
			continue
		}
		for _, m := range v.members {
			for _, ip := range m.ips {
				if seen[ip] {
					return true
				}
				seen[ip] = true
			}
		}
	}
	return false
}

// addresses returns those of a set, as text.
func addresses(o *calicov3.GlobalNetworkSet) map[string]bool {
	out := map[string]bool{}
	if o != nil {
		for _, n := range o.Spec.Nets {
			out[address(n)] = true
		}
	}
	return out
}

func address(net string) string {
	ip, _, _ := strings.Cut(net, "/")
	return ip
}

// foreign checks that no broker changes an object that is not a broker's (I5).
func (d *dest) foreign(kind, name string, before writes.Object, by writer) {
	if by != bySomeone && !ours(before) {
		d.w.fail("I5", "%s %s of %s is not ours, and is written", kind, name, d.name)
	}
}

func (d *dest) writtenService(name string, before, after *corev1.Service, by writer) {
	d.w.active++
	if before != nil {
		d.foreign("service", name, before, by)
	}
	if after == nil || by == bySomeone {
		return
	}
	if len(after.Spec.Selector) > 0 || len(after.Spec.ExternalIPs) > 0 || after.Spec.ExternalName != "" {
		d.w.fail("I4", "service %s of %s reaches further than a mirror may", name, d.name)
	}
}

func (d *dest) writtenSlice(name string, before, after *discoveryv1.EndpointSlice, by writer) {
	d.w.active++
	if before != nil {
		d.foreign("slice", name, before, by)
	}
	if after == nil || by == bySomeone {
		return
	}
	for _, line := range textEndpoints(after) {
		d.stood[line] = true
	}
	for _, e := range after.Endpoints {
		if e.NodeName != nil || e.TargetRef != nil {
			d.w.fail("I4", "slice %s of %s names a node or a pod", name, d.name)
		}
		for _, ip := range e.Addresses {
			d.contains("slice", name, after.Labels[naming.LabelSourceCluster], ip)
		}
	}
}

// contains checks that an address is one that a cluster may have (I4).
func (d *dest) contains(kind, name, cluster, ip string) {
	i := slices.IndexFunc(d.w.sources, func(s *source) bool { return s.name == cluster })
	if i < 0 || !d.w.sources[i].owns(ip) {
		d.w.fail("I4", "%s %s of %s has %s, which is none of the pods of %s", kind, name, d.name, ip, cluster)
	}
}

func (d *dest) writtenSet(name string, before, after *calicov3.GlobalNetworkSet, by writer) {
	d.w.active++
	if before != nil {
		d.foreign("set", name, before, by)
	}
	had, has := addresses(before), addresses(after)
	if by != byBroker {
		// A write of a person, or a late one, keeps no order.
		d.disorder(before)
		d.disorder(after)
		return
	}
	for ip := range had {
		if !has[ip] {
			d.leaves(name, ip)
		}
	}
	if after == nil {
		return
	}
	cluster := after.Labels[naming.LabelSourceCluster]
	for ip := range has {
		d.contains("set", name, cluster, ip)
		if !had[ip] && !d.disordered[ip] {
			d.joins(name, after, cluster, ip)
		}
	}
}

// leaves records that an address has left an object of a set.
func (d *dest) leaves(name, ip string) {
	if d.left[name] == nil {
		d.left[name] = map[string]bool{}
	}
	d.left[name][ip] = true
}

// disorder records that from now on nothing is known about the order in which an object's addresses are added and
// removed.
func (d *dest) disorder(o writes.Object) {
	if set, ok := o.(*calicov3.GlobalNetworkSet); ok {
		for ip := range addresses(set) {
			d.disordered[ip] = true
		}
	}
}

// joins checks design.md §8: an address that passes to another pod is in the new set only after it left the old one.
func (d *dest) joins(name string, after *calicov3.GlobalNetworkSet, cluster, ip string) {
	for other, o := range d.sets.objects {
		if other == name || !ours(o) || !addresses(o)[ip] ||
			origin(o.Labels, o.Annotations) == origin(after.Labels, after.Annotations) {
			continue
		}
		if !slices.ContainsFunc(d.writing.owners[name][ip], func(uid string) bool {
			return d.w.sourceNamed(cluster).wasIn(d, uid, ref{o.Annotations[naming.AnnotationSourceNamespace],
				o.Annotations[naming.AnnotationSourceName]})
		}) {
			d.w.fail("order", "%s joins set %s of %s (for %v) while set %s still has it for another pod", ip, name, d.name,
				d.writing.owners[name][ip], other)
		}
	}
}

// wasIn reports whether a pod ever was in a set.
func (s *source) wasIn(d *dest, uid string, set ref) bool {
	for _, e := range s.log[kindPod] {
		if p, ok := e.object.(*corev1.Pod); ok && string(p.UID) == uid && e.ref.namespace == set.namespace {
			if m, in := s.wantMember(p, d); in && m.set == set.name {
				return true
			}
		}
	}
	return false
}

func (w *world) sourceNamed(name string) *source {
	for _, s := range w.sources {
		if s.name == name {
			return s
		}
	}
	panic(fmt.Sprintf("no source %q", name))
}

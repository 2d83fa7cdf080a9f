package mirror

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file has the rules for Services that ServiceExports export (KEP-1645): a derived Service for each name, with the
// endpoints of all clusters that export it, and a ServiceImport (docs/adr/0029-multi-cluster-services.md). A target of
// imports is like that of a global service, except for which cluster decides and which ports it has.

// clusterSet stands for the cluster of a ref that names the exports of one name. It is no name of a cluster, and sorts
// after global services and before mirrors.
const clusterSet = "*"

// imported reports whether the target is derived from ServiceExports.
func (t *target) imported() bool {
	if t.of.name == "" {
		s := t.existing()
		return s != nil && s.Labels[naming.LabelImported] == "true"
	}
	return t.of.cluster == clusterSet
}

// export returns the source that a cluster exports by a ServiceExport; nil for none, or if a rule excludes the cluster.
func (p *Plan) export(cluster string, r ref) *source {
	s := p.sources[ref{cluster, r.namespace, r.name}]
	if s == nil || s.service.GetMultiCluster() == nil {
		return nil
	}
	if rule := p.rule(r); rule != nil && !rule.Takes(cluster) {
		return nil
	}
	return s
}

// denies reports whether nothing is imported into a namespace.
func (p *Plan) denies(namespace string) bool {
	return slices.Contains(p.deniedNamespaces, namespace) || p.mcs.Denies(namespace)
}

// setImport adds or removes the claim of the exports of one name to its derived Service. It returns that one's name.
func (w *work) setImport(r ref) string {
	name := naming.Import(r.namespace, r.name)
	claimant := ref{clusterSet, r.namespace, r.name}
	exported := slices.ContainsFunc(w.clusters, func(cluster string) bool { return w.export(cluster, r) != nil })
	if w.denies(r.namespace) {
		w.denied[name] = claimant
		if !exported {
			delete(w.denied, name)
		}
		w.problemsDirty[name] = true
		exported = false
	}
	w.setClaim(name, claimant, exported)
	return name
}

// updateOrder keeps the order of clusters that exported the name before, removes those that no longer do, and appends
// new ones: those of mcs.precedence first, in its order, then the others by name. It uses no time from a remote and
// does not prefer the own cluster: every cluster that observes the same order decides the same.
func (t *target) updateOrder(exports map[string]*source) {
	before := t.order
	if before == nil {
		before = t.exportingBefore()
	}
	order := []string{}
	for _, cluster := range before {
		if exports[cluster] != nil || t.exportedBefore(cluster) {
			order = append(order, cluster)
		}
	}
	var joined []string
	for cluster := range exports {
		if !slices.Contains(order, cluster) {
			joined = append(joined, cluster)
		}
	}
	rank := func(cluster string) int {
		if i := slices.Index(t.plan.mcs.Precedence, cluster); i >= 0 {
			return i
		}
		return len(t.plan.mcs.Precedence)
	}
	slices.SortFunc(joined, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	t.order = append(order, joined...)
}

// exportingBefore returns the clusters of the Service as the previous broker wrote it, in its order.
func (t *target) exportingBefore() []string {
	s := t.existing()
	if s == nil || s.Annotations[naming.AnnotationExportingClusters] == "" {
		return nil
	}
	var known []string
	for _, cluster := range strings.Split(s.Annotations[naming.AnnotationExportingClusters], ",") {
		if slices.Contains(t.plan.clusters, cluster) {
			known = append(known, cluster)
		}
	}
	return known
}

// exportedBefore reports whether a cluster that is not complete exported the name before.
func (t *target) exportedBefore(cluster string) bool {
	return !t.plan.complete[cluster] && slices.Contains(t.exportingBefore(), cluster)
}

// updateImport decides the fields of a derived Service: which cluster decides, its ports, and which ports the endpoints
// of each cluster have. The caller attaches the sources afterwards.
func (t *target) updateImport(exports map[string]*source) {
	t.merged, t.filters = nil, map[string]portFilter{}
	if !t.plan.ordered {
		return
	}
	t.updateOrder(exports)
	filter := func(union []*semaphorev1.Port) {
		for cluster, s := range exports {
			if f := filterOf(s.service, union); f != nil {
				t.filters[cluster] = f
			}
		}
	}
	if len(t.order) == 0 || exports[t.order[0]] == nil {
		// While the deciding cluster is not complete, the existing Service does not change.
		filter(withExistingPorts(nil, t.existing()))
		return
	}
	var services []*semaphorev1.Service
	for _, cluster := range t.order {
		if s := exports[cluster]; s != nil {
			services = append(services, s.service)
		}
	}
	merged := proto.CloneOf(services[0])
	merged.Ports = unionOfPorts(services)
	if len(services) < len(t.order) {
		merged.Ports = withExistingPorts(merged.Ports, t.existing())
	}
	merged.IpFamilies = commonFamilies(services)
	t.merged = merged
	filter(merged.GetPorts())
}

// unionOfPorts returns the ports of Services, of which the first decides. It omits a port that has the name, or the
// protocol and the number, of an earlier one, and a port without a name beside others, as in every Service.
func unionOfPorts(services []*semaphorev1.Service) (all []*semaphorev1.Port) {
	for _, s := range services {
		for _, p := range s.GetPorts() {
			if fits(all, p.GetName(), p.GetProtocol(), p.GetPort()) {
				all = append(all, p)
			}
		}
	}
	return all
}

// withExistingPorts adds the ports of the existing Service, which may be those of a cluster that is not complete.
func withExistingPorts(all []*semaphorev1.Port, existing *corev1.Service) []*semaphorev1.Port {
	if existing == nil {
		return all
	}
	for _, p := range existing.Spec.Ports {
		if fits(all, p.Name, string(p.Protocol), p.Port) {
			all = append(all, &semaphorev1.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port,
				AppProtocol: ptr.Deref(p.AppProtocol, "")})
		}
	}
	return all
}

// fits reports whether a port can be added to the ports of a Service.
func fits(all []*semaphorev1.Port, name, protocol string, number int32) bool {
	if len(all) > 0 && (name == "" || all[0].GetName() == "") {
		return false
	}
	return !slices.ContainsFunc(all, func(o *semaphorev1.Port) bool {
		return o.GetName() == name || o.GetProtocol() == protocol && o.GetPort() == number
	})
}

// commonFamilies returns the IP families that all Services have, in the order of the first; those of the first if they
// have none in common, and none if one of them does not report its families.
func commonFamilies(services []*semaphorev1.Service) []string {
	common := slices.Clone(services[0].GetIpFamilies())
	for _, s := range services {
		if len(s.GetIpFamilies()) == 0 {
			return nil
		}
		common = slices.DeleteFunc(common, func(f string) bool { return !slices.Contains(s.GetIpFamilies(), f) })
	}
	if len(common) == 0 {
		return services[0].GetIpFamilies()
	}
	return common
}

// same reports whether two filters omit the same ports.
func (f portFilter) same(o portFilter) bool { return (f == nil) == (o == nil) && maps.Equal(f, o) }

// portFilter are the ports of a cluster's endpoints that a derived Service has; nil for all.
type portFilter map[portName]bool

// filterOf returns the ports of a cluster's Service that the derived Service has with the same number: traffic for a
// port reaches only clusters that expose it.
func filterOf(s *semaphorev1.Service, union []*semaphorev1.Port) portFilter {
	f := portFilter{}
	for _, p := range s.GetPorts() {
		if slices.ContainsFunc(union, func(u *semaphorev1.Port) bool {
			return u.GetName() == p.GetName() && u.GetProtocol() == p.GetProtocol() && u.GetPort() == p.GetPort()
		}) {
			f[portName{p.GetName(), p.GetProtocol()}] = true
		}
	}
	if len(f) == len(s.GetPorts()) {
		return nil
	}
	return f
}

// of returns a group without the ports that the filter omits; ok is false if it had ports, and has none.
func (f portFilter) of(g group) (_ group, ok bool) {
	if f == nil {
		return g, true
	}
	fields := strings.Split(g.text.Value(), separator)
	family, rest := fields[0], fields[1:]
	var kept [][portFields]string
	for ; len(rest) >= portFields; rest = rest[portFields:] {
		if f[portName{rest[0], rest[1]}] {
			kept = append(kept, [portFields]string(rest[:portFields]))
		}
	}
	return groupOf(family, kept), len(kept) > 0
}

// shown returns the key under which a target has an endpoint of its source; ok is false if it has not.
func (h *clusterEndpoints) shown(k key) (_ key, ok bool) {
	g, ok := h.filter.of(k.group)
	return key{g, k.address}, ok
}

// exported returns what the source exports for an endpoint of the target.
func (h *clusterEndpoints) exported(k key) (best exportedEndpoint, ok bool) {
	if h.filter == nil {
		best, ok = h.source.endpoints[k]
		return best, ok
	}
	for g := range h.source.groups { // groups that differ in what is left out are one here
		if is, left := h.filter.of(g); !left || is != k.group {
			continue
		}
		if e, there := h.source.endpoints[key{g, k.address}]; there && (!ok || better(e, best)) {
			best, ok = e, true
		}
	}
	return best, ok
}

// Exports returns how many Services of a cluster ServiceExports export.
func (p *Plan) Exports(cluster string) int { return p.exportCounts[cluster] }

// Conflict lists how the exports of one name differ.
type Conflict struct {
	// Reasons are those of the condition Conflict of KEP-1645, sorted as there.
	Reasons []mcsv1beta1.ServiceExportConditionReason
	// Message is a sentence for a person.
	Message string
}

// conflict compares the exports of a derived Service with the one that decides; zero for no difference.
func (t *target) conflict() (c Conflict) {
	var services []*semaphorev1.Service
	for _, cluster := range t.order {
		if h := t.perCluster[cluster]; h != nil && h.source != nil {
			services = append(services, h.source.service)
		}
	}
	if t.merged == nil || len(services) < 2 {
		return c
	}
	var fields []string
	compare := func(reason mcsv1beta1.ServiceExportConditionReason, field string,
		value func(*semaphorev1.Service) string) {
		n := 0
		for _, s := range services[1:] {
			if value(s) != value(services[0]) {
				n++
			}
		}
		if n > 0 {
			c.Reasons = append(c.Reasons, reason)
			fields = append(fields, fmt.Sprintf("%s (%d of %d)", field, n, len(services)))
		}
	}
	compare(mcsv1beta1.ServiceExportReasonPortConflict, "ports", portsText)
	compare(mcsv1beta1.ServiceExportReasonTypeConflict, "type", func(s *semaphorev1.Service) string {
		return fmt.Sprint(s.GetHeadless())
	})
	compare(mcsv1beta1.ServiceExportReasonSessionAffinityConflict, "sessionAffinity", func(s *semaphorev1.Service) string {
		return fmt.Sprint(s.GetClientIpAffinitySeconds() > 0)
	})
	compare(mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, "sessionAffinityConfig",
		func(s *semaphorev1.Service) string {
			if s.GetClientIpAffinitySeconds() == 0 || services[0].GetClientIpAffinitySeconds() == 0 {
				return ""
			}
			return fmt.Sprint(s.GetClientIpAffinitySeconds())
		})
	compare(mcsv1beta1.ServiceExportReasonLabelsConflict, "exportedLabels", func(s *semaphorev1.Service) string {
		return textOf(labelsOf(s))
	})
	compare(mcsv1beta1.ServiceExportReasonAnnotationsConflict, "exportedAnnotations", func(s *semaphorev1.Service) string {
		return textOf(annotationsOf(s))
	})
	compare(mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy",
		func(s *semaphorev1.Service) string {
			return cmp.Or(s.GetMultiCluster().GetInternalTrafficPolicy(), string(corev1.ServiceInternalTrafficPolicyCluster))
		})
	compare(mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution",
		(*semaphorev1.Service).GetTrafficDistribution)
	if apart := slices.DeleteFunc(slices.Clone(services), func(s *semaphorev1.Service) bool {
		return len(s.GetIpFamilies()) == 0 || slices.ContainsFunc(s.GetIpFamilies(), func(f string) bool {
			return slices.Contains(services[0].GetIpFamilies(), f)
		})
	}); len(apart) > 0 && len(services[0].GetIpFamilies()) > 0 {
		c.Reasons = append(c.Reasons, mcsv1beta1.ServiceExportReasonIPFamilyConflict)
		fields = append(fields, fmt.Sprintf("ipFamilies (%d of %d)", len(apart), len(services)))
	}
	if len(fields) > 0 {
		c.Message = fmt.Sprintf("cluster %s decides, whose export was first observed here; exports that differ from it: %s",
			t.order[0], strings.Join(fields, ", "))
	}
	return c
}

func labelsOf(s *semaphorev1.Service) map[string]string {
	out := map[string]string{}
	for _, l := range s.GetMultiCluster().GetLabels() {
		out[l.GetKey()] = l.GetValue()
	}
	return out
}

func annotationsOf(s *semaphorev1.Service) map[string]string {
	out := map[string]string{}
	for _, a := range s.GetMultiCluster().GetAnnotations() {
		out[a.GetKey()] = a.GetValue()
	}
	return out
}

func textOf(m map[string]string) string {
	var b strings.Builder
	for _, key := range sorted(m) {
		fmt.Fprintf(&b, "%q=%q ", key, m[key])
	}
	return b.String()
}

// SetNamespaces records which namespaces the own cluster has: nothing is imported into others. It returns the names of
// the ServiceImports, and of the EndpointSlices beside them.
func (p *Plan) SetNamespaces(names []string) (imports, slices []string) {
	p.namespaces = map[string]bool{}
	for _, name := range names {
		p.namespaces[name] = true
	}
	return p.Imports(), p.ImportSlices()
}

// SetNamespace records whether a namespace exists. It returns the names of its ServiceImports, and of the
// EndpointSlices beside them.
func (p *Plan) SetNamespace(namespace string, exists bool) (imports, importSlices []string) {
	if p.namespaces == nil {
		return nil, nil // SetNamespaces follows
	}
	if p.namespaces[namespace] == exists {
		return nil, nil // another change of the namespace, or a relist
	}
	if p.namespaces[namespace] = exists; !exists {
		delete(p.namespaces, namespace)
	}
	elsewhere := func(name string) bool { return !strings.HasPrefix(name, namespace+"/") }
	return slices.DeleteFunc(p.Imports(), elsewhere), slices.DeleteFunc(p.ImportSlices(), elsewhere)
}

// Imports returns the names of all desired ServiceImports, NAMESPACE/NAME, sorted.
func (p *Plan) Imports() []string { return slices.Sorted(p.AllImports()) }

// AllImports iterates over the names of all desired ServiceImports, NAMESPACE/NAME.
func (p *Plan) AllImports() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range p.claims.Names {
			if of, ok := p.claims.Winner(name); ok && of.cluster == clusterSet && !yield(of.namespace+"/"+of.name) {
				return
			}
		}
	}
}

// DerivedService returns the name of the Service that a ServiceImport, NAMESPACE/NAME, leads to.
func DerivedService(imported string) string {
	namespace, name, _ := strings.Cut(imported, "/")
	return naming.Import(namespace, name)
}

// noteAddresses notes that a Service was observed with other IPs than before.
func (p *Plan) noteAddresses(name string, o *corev1.Service, now time.Time) {
	delete(p.addressed, name)
	if o != nil && o.Labels[naming.LabelImported] == "true" && o.Spec.ClusterIP != "" &&
		o.Spec.ClusterIP != corev1.ClusterIPNone {
		p.addressed[name] = now
	}
}

// ImportDue returns how long the ServiceImport of a name is not written yet (mcs.settle). A packet to an IP for which
// kube-proxy has no rule yet is lost, and the kernel remembers the connection as one without a rule: its client waits
// for minutes. kube-proxy syncs at most once a second.
func (p *Plan) ImportDue(imported string, now time.Time) time.Duration {
	at, ok := p.addressed[DerivedService(imported)]
	if !ok {
		return 0
	}
	return max(0, p.mcs.Settle.Duration-now.Sub(at))
}

// Import returns the desired ServiceImport of a name, NAMESPACE/NAME. It is nil although wanted is true while its
// Service, whose IPs it has, does not exist, or the cluster that decides is not complete.
func (p *Plan) Import(imported string) (out *mcsv1beta1.ServiceImport, wanted bool) {
	service := DerivedService(imported)
	namespace, name, _ := strings.Cut(imported, "/")
	t := p.targets[service]
	if t == nil || t.of != (ref{clusterSet, namespace, name}) {
		return nil, false
	}
	if p.namespaces == nil {
		return nil, true
	}
	if !p.namespaces[namespace] {
		return nil, false
	}
	existing := p.existing[service]
	if t.merged == nil || existing == nil {
		return nil, true
	}
	out = &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labelsOf(t.merged), Annotations: annotationsOf(t.merged),
		},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type:            mcsv1beta1.ClusterSetIP,
			Ports:           []mcsv1beta1.ServicePort{},
			SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: optionalOf[corev1.ServiceInternalTrafficPolicy](
				t.merged.GetMultiCluster().GetInternalTrafficPolicy()),
			TrafficDistribution: optional(t.merged.GetTrafficDistribution()),
		},
	}
	note := func(key string, keys []string) {
		if len(keys) > 0 {
			out.Annotations[key] = strings.Join(keys, ",")
		}
	}
	labels, annotations := slices.Sorted(maps.Keys(out.Labels)), slices.Sorted(maps.Keys(out.Annotations))
	note(naming.AnnotationCopiedLabels, labels)
	note(naming.AnnotationCopiedAnnotations, annotations)
	out.Labels[naming.LabelManagedBy], out.Labels[naming.LabelSourceCluster] = naming.ManagedByBroker, ""
	for _, port := range t.merged.GetPorts() {
		out.Spec.Ports = append(out.Spec.Ports, mcsv1beta1.ServicePort{Name: port.GetName(),
			Protocol: corev1.Protocol(port.GetProtocol()), Port: port.GetPort(), AppProtocol: optional(port.GetAppProtocol())})
	}
	if seconds := t.merged.GetClientIpAffinitySeconds(); seconds > 0 {
		out.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		out.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(seconds)},
		}
	}
	out.Spec.IPFamilies = append(out.Spec.IPFamilies, existing.Spec.IPFamilies...)
	if t.merged.GetHeadless() {
		out.Spec.Type = mcsv1beta1.Headless
	} else {
		for _, ip := range existing.Spec.ClusterIPs {
			if ip != "" && ip != corev1.ClusterIPNone {
				out.Spec.IPs = append(out.Spec.IPs, ip)
			}
		}
	}
	out.Status.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsAbsent
	if p.hasImportSlices(t.merged.GetHeadless()) {
		out.Status.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsPresent
	}
	for _, cluster := range t.order {
		out.Status.Clusters = append(out.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: naming.ClusterLabel(cluster)})
	}
	out.Status.Conditions = []metav1.Condition{p.ready(service, t.merged.GetIpFamilies(), existing.Spec.IPFamilies)}
	return out, true
}

// ready is the condition of a ServiceImport whose Service exists: the exports need an IP family that this cluster has.
func (p *Plan) ready(service string, exported []string, here []corev1.IPFamily) metav1.Condition {
	ready := metav1.Condition{Type: string(mcsv1beta1.ServiceImportConditionReady), Status: metav1.ConditionTrue,
		Reason: string(mcsv1beta1.ServiceImportReasonReady), Message: "Service " + p.namespace + "/" + service +
			" leads to it"}
	if len(exported) > 0 && !slices.ContainsFunc(here,
		func(f corev1.IPFamily) bool { return slices.Contains(exported, string(f)) }) {
		ready.Status, ready.Reason = metav1.ConditionFalse, string(mcsv1beta1.ServiceImportReasonIPFamilyNotSupported)
		ready.Message = fmt.Sprintf("the exports have %s, and this cluster has %v", strings.Join(exported, ", "), here)
	}
	return ready
}

func optionalOf[T ~string](s string) *T {
	if s == "" {
		return nil
	}
	return ptr.To(T(s))
}

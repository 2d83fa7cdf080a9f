package choice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Rule decides derived Services: which cluster decides on the Service that is derived from the ServiceExports of one
// name, and which ports it has.
type Rule struct {
	*config.BrokerMCS
	// deniedNamespaces are those of the broker itself and of the mirrors.
	deniedNamespaces []string
}

// NewRule returns the rule of a broker; nil without mcs.enabled, as nothing is derived then.
func NewRule(cfg *config.Broker) *Rule {
	if !cfg.MCS.Enabled {
		return nil
	}
	return &Rule{&cfg.MCS, []string{cfg.MirrorNamespace, cfg.Agents.Namespace}}
}

// Denied says why nothing is derived for a namespace, as the rest of a sentence about an exported service; empty if
// something is.
func (r *Rule) Denied(namespace string) string {
	if slices.Contains(r.deniedNamespaces, namespace) || r.Denies(namespace) {
		return "is not imported: mcs.denyNamespaces denies its namespace"
	}
	return ""
}

type Exports struct {
	// Services are those that clusters export now, by cluster.
	Services map[string]*semaphorev1.Service
	// Before are the clusters of the derived Service until now, in its order: those that still export it, and those that
	// did and are not complete.
	Before []string
	// Existing is the derived Service as it exists; nil for none.
	Existing *corev1.Service
}

// Merged is the rule's decision about one derived Service.
type Merged struct {
	// Order are the clusters, the first of which decides, and Exporting those of them that export the name now.
	Order, Exporting []string
	// Service is nil while it is not known; then the existing Service does not change.
	Service *semaphorev1.Service
	// Ports are those that the endpoints of a cluster have in the Service; a cluster without an entry has all.
	Ports map[string]replica.Ports
	// Conflict names the differences of the exports.
	Conflict Conflict
}

// Conflict lists how the exports of one name differ; zero for no difference.
type Conflict struct {
	// Reasons are those of the condition Conflict of KEP-1645, sorted as there.
	Reasons []string
	Message string
}

// Merge decides the fields of one derived Service: the first cluster in the order decides, and the ports are the union.
func (r *Rule) Merge(e Exports) Merged {
	m := Merged{Order: r.order(e), Ports: map[string]replica.Ports{}}
	var services []*semaphorev1.Service
	for _, cluster := range m.Order {
		if s := e.Services[cluster]; s != nil {
			m.Exporting, services = append(m.Exporting, cluster), append(services, s)
		}
	}
	existing := SourceOf(e.Existing).GetPorts()
	union := existing
	// While the deciding cluster is not complete, the existing Service does not change.
	if len(services) > 0 && m.Exporting[0] == m.Order[0] {
		m.Service = proto.CloneOf(services[0])
		m.Service.Ports = unionOfPorts(services)
		var families [][]string
		for _, s := range services {
			families = append(families, s.GetIpFamilies())
		}
		m.Service.IpFamilies = CommonFamilies(families...)
		if len(services) < len(m.Order) && e.Existing != nil {
			m.Service.Ports = inOrderOf(existing, unionOfPorts(append(services, &semaphorev1.Service{Ports: existing})))
			m.Service.IpFamilies = existingFamilies(m.Service.IpFamilies, e.Existing)
		}
		m.Conflict = conflict(m.Order[0], services)
		union = m.Service.GetPorts()
	}
	for cluster, s := range e.Services {
		if f := portsIn(s, union); f != nil {
			m.Ports[cluster] = f
		}
	}
	return m
}

// order keeps the order of clusters that exported the name before, and appends new ones: those of mcs.precedence first,
// in its order, then the others by name. It uses no time from a remote and does not prefer the own cluster: every
// cluster that observes the same order decides the same.
func (r *Rule) order(e Exports) []string {
	var joined []string
	for cluster := range e.Services {
		if !slices.Contains(e.Before, cluster) {
			joined = append(joined, cluster)
		}
	}
	rank := func(cluster string) int {
		if i := slices.Index(r.Precedence, cluster); i >= 0 {
			return i
		}
		return len(r.Precedence)
	}
	slices.SortFunc(joined, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	return append(slices.Clone(e.Before), joined...)
}

// unionOfPorts returns the ports of Services; the first Service decides. It omits a port that has the name, or the
// protocol and the number, of an earlier one, and a port without a name beside others, as in every Service.
func unionOfPorts(services []*semaphorev1.Service) (all []*semaphorev1.Port) {
	for _, s := range services {
		for _, p := range s.GetPorts() {
			if fits(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// inOrderOf sorts ports as the existing ones are, and the others behind these: a cluster that is not complete may have
// one in between.
func inOrderOf(existing, all []*semaphorev1.Port) []*semaphorev1.Port {
	place := func(p *semaphorev1.Port) int {
		if i := slices.IndexFunc(existing, func(o *semaphorev1.Port) bool { return samePort(o, p) }); i >= 0 {
			return i
		}
		return len(existing)
	}
	slices.SortStableFunc(all, func(a, b *semaphorev1.Port) int { return cmp.Compare(place(a), place(b)) })
	return all
}

// samePort reports whether two ports are one, by what a Service of both may have once.
func samePort(a, b *semaphorev1.Port) bool {
	return a.GetName() == b.GetName() && a.GetProtocol() == b.GetProtocol() && a.GetPort() == b.GetPort()
}

func fits(all []*semaphorev1.Port, p *semaphorev1.Port) bool {
	if len(all) > 0 && (p.GetName() == "" || all[0].GetName() == "") {
		return false
	}
	return !slices.ContainsFunc(all, func(o *semaphorev1.Port) bool {
		return o.GetName() == p.GetName() || o.GetProtocol() == p.GetProtocol() && o.GetPort() == p.GetPort()
	})
}

// CommonFamilies returns the IP families that are in all lists, in the order of the first; those of the first if they
// have none in common, and none if one of them is unknown.
func CommonFamilies(lists ...[]string) []string {
	common := slices.Clone(lists[0])
	for _, families := range lists {
		if len(families) == 0 {
			return nil
		}
		common = slices.DeleteFunc(common, func(f string) bool { return !slices.Contains(families, f) })
	}
	if len(common) == 0 {
		return lists[0]
	}
	return common
}

// existingFamilies returns the IP families while a cluster is not complete: its export may be why the existing Service
// has one family, or, as it does not report its families, both.
func existingFamilies(common []string, existing *corev1.Service) []string {
	families := existing.Spec.IPFamilies
	switch {
	case len(families) == 0:
		return common
	case ptr.Deref(existing.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicySingleStack:
		return []string{string(families[0])}
	case len(common) == 1 && slices.Contains(families, corev1.IPFamily(common[0])):
		return nil
	}
	return common
}

// portsIn returns the ports of a cluster's Service that the derived Service has with the same number: traffic for a
// port reaches only clusters that expose it.
func portsIn(s *semaphorev1.Service, union []*semaphorev1.Port) replica.Ports {
	f := replica.Ports{}
	for _, p := range s.GetPorts() {
		if slices.ContainsFunc(union, func(u *semaphorev1.Port) bool { return samePort(u, p) }) {
			f[replica.PortName{Name: p.GetName(), Protocol: p.GetProtocol()}] = true
		}
	}
	if len(f) == len(s.GetPorts()) {
		return nil
	}
	return f
}

// conflict compares Services with the first, which is that of the deciding cluster.
func conflict(decides string, services []*semaphorev1.Service) (c Conflict) {
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
			c.Reasons = append(c.Reasons, string(reason))
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
		return textOf(LabelsOf(s))
	})
	compare(mcsv1beta1.ServiceExportReasonAnnotationsConflict, "exportedAnnotations", func(s *semaphorev1.Service) string {
		return textOf(AnnotationsOf(s))
	})
	compare(mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy",
		func(s *semaphorev1.Service) string {
			return cmp.Or(s.GetMultiCluster().GetInternalTrafficPolicy(), string(corev1.ServiceInternalTrafficPolicyCluster))
		})
	compare(mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution",
		(*semaphorev1.Service).GetTrafficDistribution)
	if other := slices.DeleteFunc(slices.Clone(services), func(s *semaphorev1.Service) bool {
		return !apart(s.GetIpFamilies(), services[0].GetIpFamilies())
	}); len(other) > 0 {
		c.Reasons = append(c.Reasons, string(mcsv1beta1.ServiceExportReasonIPFamilyConflict))
		fields = append(fields, fmt.Sprintf("ipFamilies (%d of %d)", len(other), len(services)))
	}
	if len(fields) > 0 {
		c.Message = fmt.Sprintf("cluster %s decides, whose export was first observed here; exports that differ from it: %s",
			decides, strings.Join(fields, ", "))
	}
	return c
}

// LabelsOf returns the labels that a ServiceImport has of an export.
func LabelsOf(s *semaphorev1.Service) map[string]string {
	return unreserved(s.GetMultiCluster().GetLabels())
}

// AnnotationsOf returns the annotations that a ServiceImport has of an export.
func AnnotationsOf(s *semaphorev1.Service) map[string]string {
	return unreserved(s.GetMultiCluster().GetAnnotations())
}

// unreserved returns labels or annotations without those that no other cluster sets.
func unreserved[E interface {
	GetKey() string
	GetValue() string
}](all []E) map[string]string {
	out := map[string]string{}
	for _, e := range all {
		if !naming.Reserved(e.GetKey()) {
			out[e.GetKey()] = e.GetValue()
		}
	}
	return out
}

func textOf(m map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%q=%q ", key, m[key])
	}
	return b.String()
}

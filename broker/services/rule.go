package services

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

	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// rule decides the derived Services of ServiceExports.
type rule struct {
	*config.BrokerMCS
	// deniedNamespaces are those of the broker itself and of the mirrors.
	deniedNamespaces []string
}

func (r rule) denies(namespace string) bool {
	return slices.Contains(r.deniedNamespaces, namespace) || r.Denies(namespace)
}

// Denied implements mirror.Rule.
func (r rule) Denied(namespace string) string {
	if r.denies(namespace) {
		return "is not imported: mcs.denyNamespaces denies its namespace"
	}
	return ""
}

// Merge implements mirror.Rule: the first cluster in the order decides, and the ports are the union.
func (r rule) Merge(e mirror.Exports) mirror.Merged {
	m := mirror.Merged{Order: r.order(e), Ports: map[string]replica.Ports{}}
	var services []*semaphorev1.Service
	for _, cluster := range m.Order {
		if s := e.Services[cluster]; s != nil {
			m.Exporting, services = append(m.Exporting, cluster), append(services, s)
		}
	}
	union := withExistingPorts(nil, e.Existing)
	// While the deciding cluster is not complete, the existing Service does not change.
	if len(services) > 0 && m.Exporting[0] == m.Order[0] {
		m.Service = proto.CloneOf(services[0])
		m.Service.Ports = unionOfPorts(services)
		m.Service.IpFamilies = commonFamilies(services)
		if len(services) < len(m.Order) && e.Existing != nil {
			m.Service.Ports = inExistingOrder(withExistingPorts(m.Service.Ports, e.Existing), e.Existing)
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
func (r rule) order(e mirror.Exports) []string {
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

// inExistingOrder sorts ports as the existing Service has them, and the others behind these: a cluster that is not
// complete may have one in between.
func inExistingOrder(all []*semaphorev1.Port, existing *corev1.Service) []*semaphorev1.Port {
	place := func(p *semaphorev1.Port) int {
		i := slices.IndexFunc(existing.Spec.Ports, func(o corev1.ServicePort) bool {
			return o.Name == p.GetName() && string(o.Protocol) == p.GetProtocol() && o.Port == p.GetPort()
		})
		if i < 0 {
			return len(existing.Spec.Ports)
		}
		return i
	}
	slices.SortStableFunc(all, func(a, b *semaphorev1.Port) int { return cmp.Compare(place(a), place(b)) })
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
		if slices.ContainsFunc(union, func(u *semaphorev1.Port) bool {
			return u.GetName() == p.GetName() && u.GetProtocol() == p.GetProtocol() && u.GetPort() == p.GetPort()
		}) {
			f[replica.PortName{Name: p.GetName(), Protocol: p.GetProtocol()}] = true
		}
	}
	if len(f) == len(s.GetPorts()) {
		return nil
	}
	return f
}

// conflict compares Services with the first, which is that of the deciding cluster.
func conflict(decides string, services []*semaphorev1.Service) (c mirror.Conflict) {
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
	compare(mcsv1beta1.ServiceExportReasonPortConflict, "ports", mirror.PortsText)
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
		c.Reasons = append(c.Reasons, string(mcsv1beta1.ServiceExportReasonIPFamilyConflict))
		fields = append(fields, fmt.Sprintf("ipFamilies (%d of %d)", len(apart), len(services)))
	}
	if len(fields) > 0 {
		c.Message = fmt.Sprintf("cluster %s decides, whose export was first observed here; exports that differ from it: %s",
			decides, strings.Join(fields, ", "))
	}
	return c
}

func labelsOf(s *semaphorev1.Service) map[string]string {
	return unreserved(s.GetMultiCluster().GetLabels())
}

func annotationsOf(s *semaphorev1.Service) map[string]string {
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

package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ImportPlan has the desired ServiceImports and the EndpointSlices beside them. It is not safe for concurrent use.
type ImportPlan struct {
	*choice.Rule
	namespace string // of the mirrors
	own       string
	// families are those of the own cluster's subnets.
	families []string
	services *mirror.Plan
	// namespaces are those of the own cluster, and namespacesKnown is set once all are.
	namespaces      map[string]bool
	namespacesKnown bool
	// derived are the derived Services that are desired or exist.
	derived map[string]*derived
}

type derived struct {
	// imported is the name of the ServiceImport that leads to it, NAMESPACE/NAME.
	imported string
	existing *corev1.Service
	// addressed is when it was first observed with its present IPs; zero for none.
	addressed time.Time
}

// Touches are the objects whose desired state may have changed, by NAMESPACE/NAME: ServiceImports, and the
// EndpointSlices beside them.
type Touches struct{ Imports, Slices []mirror.Touched }

// Plans makes a plan of Services, and that of ServiceImports, which is nil without mcs.enabled.
func Plans(cfg *config.Broker) (*mirror.Plan, *ImportPlan) {
	services, rule := mirror.New(cfg), choice.NewRule(cfg)
	if rule == nil {
		return services, nil
	}
	return services, &ImportPlan{Rule: rule, namespace: cfg.MirrorNamespace, own: cfg.Cluster,
		families: cfg.LocalFamilies(), services: services, namespaces: map[string]bool{}, derived: map[string]*derived{}}
}

// isDerived reports whether a Service can be a derived one, by its name, which alone is known of one that ends.
func isDerived(service string) bool { return strings.HasPrefix(service, naming.ImportPrefix+"-") }

// Touched returns what is touched with Services and slices.
func (p *ImportPlan) Touched(by mirror.Touches) (out Touches) {
	for _, t := range by.Services {
		if isDerived(t.Name) {
			p.touch(&out, t)
		}
	}
	for _, t := range by.Slices {
		if isDerived(t.Service) {
			t.Name = t.Namespace + "/" + t.Name
			out.Slices = append(out.Slices, t)
		}
	}
	return out
}

// touch touches the ServiceImport that leads to a Service, and the one that did.
func (p *ImportPlan) touch(out *Touches, service mirror.Touched) {
	is := p.derived[service.Name]
	of, _, desired := p.services.Derived(service.Name)
	if is == nil && !desired {
		return
	}
	if is == nil {
		is = &derived{}
		p.derived[service.Name] = is
	}
	names := []string{is.imported}
	if desired {
		is.imported = of.String()
		names = append(names, is.imported)
	} else if is.existing == nil {
		delete(p.derived, service.Name)
	}
	for _, name := range slices.Compact(names) {
		if service.Name = name; name != "" {
			out.Imports = append(out.Imports, service)
		}
	}
}

// ObserveService records an existing Service of semaphore, after the plan of Services did; nil if none of that name
// exists.
func (p *ImportPlan) ObserveService(name string, o *corev1.Service, now time.Time) (out Touches) {
	is := p.derived[name]
	if !isDerived(name) || is == nil && o == nil {
		return out
	}
	if is == nil {
		is = &derived{}
		p.derived[name] = is
	}
	var was, ips []string
	var before, families []corev1.IPFamily
	if is.existing != nil {
		was, before = is.existing.Spec.ClusterIPs, is.existing.Spec.IPFamilies
	}
	if is.existing = o; o != nil {
		ips, families = o.Spec.ClusterIPs, o.Spec.IPFamilies
		if is.imported == "" && o.Labels[naming.LabelImported] == "true" {
			is.imported = o.Annotations[naming.AnnotationSourceNamespace] + "/" + o.Annotations[naming.AnnotationSourceName]
		}
	}
	if !slices.Equal(was, ips) {
		is.addressed = time.Time{}
		if o != nil && o.Labels[naming.LabelImported] == "true" && o.Spec.ClusterIP != "" &&
			o.Spec.ClusterIP != corev1.ClusterIPNone {
			is.addressed = now
		}
	}
	if o == nil || !slices.Equal(was, ips) || !slices.Equal(before, families) {
		p.touch(&out, mirror.Touched{Name: name})
	}
	return out
}

// Outcomes adds conflicts to the outcomes of a cluster's services, which are sorted by name. Only the own cluster
// receives them.
func (p *ImportPlan) Outcomes(cluster string, out []*semaphorev1.Outcome) []*semaphorev1.Outcome {
	if cluster != p.own {
		return out
	}
	known := len(out)
	for service := range p.services.AllDerived {
		of, m, _ := p.services.Derived(service)
		if len(m.Conflict.Reasons) == 0 || !slices.Contains(m.Exporting, p.own) {
			continue
		}
		o := outcome(of.Namespace, of.Name, finding.ExportsConflict, "")
		if i, there := slices.BinarySearchFunc(out[:known], o, byService); there {
			o = out[i]
		} else {
			out = append(out, o)
		}
		o.Conflict, o.Conflicts = m.Conflict.Message, m.Conflict.Reasons
	}
	slices.SortFunc(out, byService)
	return out
}

// KnowNamespaces says that all namespaces of the own cluster have been set: nothing is imported into others. It returns
// the names of the ServiceImports, and of the EndpointSlices beside them.
func (p *ImportPlan) KnowNamespaces() (imports, slices []string) {
	p.namespacesKnown = true
	return p.Imports(), p.ImportSlices()
}

// SetNamespace records whether a namespace exists. It returns the names of its ServiceImports, and of the
// EndpointSlices beside them.
func (p *ImportPlan) SetNamespace(namespace string, exists bool) (imports, importSlices []string) {
	if p.namespaces[namespace] == exists {
		return nil, nil // another change of the namespace, or a relist
	}
	if p.namespaces[namespace] = exists; !exists {
		delete(p.namespaces, namespace)
	}
	if !p.namespacesKnown {
		return nil, nil // KnowNamespaces follows
	}
	elsewhere := func(name string) bool { return !strings.HasPrefix(name, namespace+"/") }
	return slices.DeleteFunc(p.Imports(), elsewhere), slices.DeleteFunc(p.ImportSlices(), elsewhere)
}

// Imports returns the names of all desired ServiceImports, NAMESPACE/NAME, sorted.
func (p *ImportPlan) Imports() (names []string) {
	for service := range p.services.AllDerived {
		of, _, _ := p.services.Derived(service)
		names = append(names, of.String())
	}
	slices.Sort(names)
	return names
}

func (p *ImportPlan) Count() (n int) {
	for range p.services.AllDerived {
		n++
	}
	return n
}

// DerivedService returns the name of the Service that a ServiceImport, NAMESPACE/NAME, leads to.
func DerivedService(imported string) string {
	namespace, name, _ := strings.Cut(imported, "/")
	return naming.Import(namespace, name)
}

// ImportDue returns how long the ServiceImport of a name is not written yet (mcs.settle). A packet to an IP for which
// kube-proxy has no rule yet is lost, and the kernel remembers the connection as one without a rule: its client waits
// for minutes. kube-proxy syncs at most once a second.
func (p *ImportPlan) ImportDue(imported string, now time.Time) time.Duration {
	is := p.derived[DerivedService(imported)]
	if is == nil || is.addressed.IsZero() {
		return 0
	}
	return max(0, p.Settle.Duration-now.Sub(is.addressed))
}

// Import returns the desired ServiceImport of a name, NAMESPACE/NAME. It is nil although wanted is true while its
// Service, whose IPs it has, does not exist, or the cluster that decides is not complete.
func (p *ImportPlan) Import(imported string) (out *mcsv1beta1.ServiceImport, wanted bool) {
	service := DerivedService(imported)
	namespace, name, _ := strings.Cut(imported, "/")
	of, t, desired := p.services.Derived(service)
	if !desired || of.String() != imported {
		return nil, false
	}
	if !p.namespacesKnown {
		return nil, true
	}
	if !p.namespaces[namespace] {
		return nil, false
	}
	is := p.derived[service]
	if t.Service == nil || is == nil || is.existing == nil {
		return nil, true
	}
	existing := is.existing
	out = &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: choice.LabelsOf(t.Service), Annotations: choice.AnnotationsOf(t.Service),
		},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type:  mcsv1beta1.ClusterSetIP,
			Ports: []mcsv1beta1.ServicePort{},
			InternalTrafficPolicy: choice.Optional(corev1.ServiceInternalTrafficPolicy(
				t.Service.GetMultiCluster().GetInternalTrafficPolicy())),
			TrafficDistribution: choice.Optional(t.Service.GetTrafficDistribution()),
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
	for _, port := range t.Service.GetPorts() {
		out.Spec.Ports = append(out.Spec.Ports, mcsv1beta1.ServicePort{Name: port.GetName(),
			Protocol: corev1.Protocol(port.GetProtocol()), Port: port.GetPort(),
			AppProtocol: choice.Optional(port.GetAppProtocol())})
	}
	out.Spec.SessionAffinity, out.Spec.SessionAffinityConfig = choice.Affinity(t.Service)
	out.Spec.IPFamilies = slices.Clone(existing.Spec.IPFamilies)
	if t.Service.GetHeadless() {
		out.Spec.Type = mcsv1beta1.Headless
		// The apiserver gives a headless Service without a selector a family that the cluster lacks, too.
		out.Spec.IPFamilies = slices.DeleteFunc(out.Spec.IPFamilies,
			func(f corev1.IPFamily) bool { return !slices.Contains(p.families, string(f)) })
	} else {
		for _, ip := range existing.Spec.ClusterIPs {
			if ip != "" && ip != corev1.ClusterIPNone {
				out.Spec.IPs = append(out.Spec.IPs, ip)
			}
		}
	}
	out.Status.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsAbsent
	if p.hasImportSlices(t.Service.GetHeadless()) {
		out.Status.EndpointSliceObjects = mcsv1beta1.EndpointSliceObjectsPresent
	}
	for _, cluster := range t.Order {
		out.Status.Clusters = append(out.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: naming.ClusterLabel(cluster)})
	}
	out.Status.Conditions = []metav1.Condition{p.ready(service, t.Service.GetIpFamilies(), out.Spec.IPFamilies)}
	return out, true
}

// ready is the condition of a ServiceImport whose Service exists: the exports need an IP family that this cluster has.
func (p *ImportPlan) ready(service string, exported []string, here []corev1.IPFamily) metav1.Condition {
	ready := metav1.Condition{Type: string(mcsv1beta1.ServiceImportConditionReady), Status: metav1.ConditionTrue,
		Reason: string(mcsv1beta1.ServiceImportReasonReady), Message: "Service " + p.namespace + "/" + service +
			" leads to it"}
	if len(exported) > 0 && !slices.ContainsFunc(here,
		func(f corev1.IPFamily) bool { return slices.Contains(exported, string(f)) }) {
		ready.Status, ready.Reason = metav1.ConditionFalse, string(mcsv1beta1.ServiceImportReasonIPFamilyNotSupported)
		ready.Message = fmt.Sprintf("the exports have %s, and this cluster has %v", strings.Join(exported, ", "), p.families)
	}
	return ready
}

package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// service accepts a Service completely or not at all: a mirror that lacks a port would fail in ways that are harder to
// notice than a missing mirror.
func (t *check) service(o *semaphorev1.Object) *semaphorev1.Object {
	s := o.GetService()
	if len(s.GetPorts()) == 0 && !s.GetHeadless() {
		t.refuse(finding.InvalidPort, "ports: a Service without ports must be headless")
		return nil
	}
	if !t.ports(s.GetPorts()) {
		return nil
	}
	type numbered struct {
		protocol string
		port     int32
	}
	seen := map[numbered]bool{}
	for _, p := range s.GetPorts() {
		if p.GetName() == "" && len(s.GetPorts()) > 1 {
			t.refuse(finding.InvalidPort, "ports: port %d has no name, which is required with several ports", p.GetPort())
			return nil
		}
		n := numbered{p.GetProtocol(), p.GetPort()}
		if seen[n] {
			t.refuse(finding.InvalidPort, "ports: %s %d is a duplicate", n.protocol, n.port)
			return nil
		}
		seen[n] = true
	}
	return t.settings(o)
}

// settings returns a Service without its invalid settings: it is still useful with the others.
func (t *check) settings(o *semaphorev1.Object) *semaphorev1.Object {
	taken := o
	leave := func(out func(s *semaphorev1.Service)) {
		if taken == o {
			taken = clone(o)
		}
		out(taken.GetService())
	}
	s := o.GetService()
	if t.own && s.GetMirror() {
		leave(func(s *semaphorev1.Service) { s.Mirror = false })
	}
	if n := s.GetClientIpAffinitySeconds(); n < 0 || n > maxAffinity {
		t.refuse(finding.InvalidSetting, "client_ip_affinity_seconds: %d: use 0 to %d", n, maxAffinity)
		leave(func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = 0 })
	}
	switch d := s.GetTrafficDistribution(); d {
	case "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode:
	default:
		t.refuse(finding.InvalidSetting, "traffic_distribution: %.100q is not known", d)
		leave(func(s *semaphorev1.Service) { s.TrafficDistribution = "" })
	}
	if f := s.GetIpFamilies(); len(f) > 2 ||
		slices.ContainsFunc(f, func(f string) bool { return f != "IPv4" && f != "IPv6" }) || len(f) == 2 && f[0] == f[1] {
		t.refuse(finding.InvalidSetting, "ip_families: %.100q: use IPv4, IPv6 or both", f)
		leave(func(s *semaphorev1.Service) { s.IpFamilies = nil })
	}
	if reason := labels(s.GetLabels()); reason != "" {
		t.refuse(finding.InvalidSetting, "labels: %s", reason)
		leave(func(s *semaphorev1.Service) { s.Labels = nil })
	}
	if m := s.GetMultiCluster(); m != nil {
		if reason := exported(m); reason != "" {
			t.refuse(finding.InvalidExport, "multi_cluster: %s", reason)
			leave(func(s *semaphorev1.Service) { s.MultiCluster.Labels, s.MultiCluster.Annotations = nil, nil })
		}
		if p := m.GetInternalTrafficPolicy(); p != "" && p != string(corev1.ServiceInternalTrafficPolicyCluster) &&
			p != string(corev1.ServiceInternalTrafficPolicyLocal) {
			t.refuse(finding.InvalidSetting, "multi_cluster.internal_traffic_policy: %.100q: use Cluster or Local", p)
			leave(func(s *semaphorev1.Service) { s.MultiCluster.InternalTrafficPolicy = "" })
		}
	}
	t.globalSettings(s.GetGlobalSettings(), leave)
	if o := s.GetOwnName(); len(o.GetUse()) > maxUID || len(o.GetUid()) > maxUID {
		t.refuse(finding.InvalidSetting, "own_name: a value is longer than %d bytes", maxUID)
		leave(func(s *semaphorev1.Service) { s.OwnName = nil })
	}
	return taken
}

// globalSettings has leave leave out the invalid settings of a global service.
func (t *check) globalSettings(g *semaphorev1.GlobalSettings, leave func(out func(s *semaphorev1.Service))) {
	if reason := preferred(g.GetPrefer()); reason != "" {
		t.refuse(finding.InvalidSetting, "global_settings.prefer: %s", reason)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.Prefer = nil })
	}
	if n := g.GetMinReady(); n < 0 || n > config.MaxMinReady {
		t.refuse(finding.InvalidSetting, "global_settings.min_ready: %d: use 0 to %d", n, config.MaxMinReady)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.MinReady = 0 })
	}
	if n := g.GetMinReadyPercent(); n < 0 || n > 100 {
		t.refuse(finding.InvalidSetting, "global_settings.min_ready_percent: %d: use 0 to 100", n)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.MinReadyPercent = 0 })
	}
	if w := g.GetWhenGone(); w != semaphorev1.WhenGone_WHEN_GONE_UNSPECIFIED && semaphorev1.WhenGoneName(w) == "" {
		t.refuse(finding.InvalidSetting, "global_settings.when_gone: %d: use keep, demote or withdraw", w)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.WhenGone = semaphorev1.WhenGone_WHEN_GONE_UNSPECIFIED })
	}
	if u := g.GetUnreadable(); len(u) > maxUnreadable ||
		slices.ContainsFunc(u, func(name string) bool { return len(name) > maxUID }) {
		t.refuse(finding.InvalidSetting, "global_settings.unreadable: more than %d names, or one longer than %d bytes",
			maxUnreadable, maxUID)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.Unreadable = nil })
	}
}

// labels returns why the labels of a Service are invalid; empty if they are valid. The mirror decides which of them to
// use.
func labels(all []*semaphorev1.Label) string {
	if len(all) > config.MaxServiceLabels {
		return fmt.Sprintf("%d exceed the limit of %d", len(all), config.MaxServiceLabels)
	}
	for i, l := range all {
		for _, wrong := range validation.IsQualifiedName(l.GetKey()) {
			return fmt.Sprintf("key %.100q: %s", l.GetKey(), wrong)
		}
		for _, wrong := range validation.IsValidLabelValue(l.GetValue()) {
			return fmt.Sprintf("%s: value %.100q: %s", l.GetKey(), l.GetValue(), wrong)
		}
		if i > 0 && all[i-1].GetKey() >= l.GetKey() {
			return fmt.Sprintf("%s is not sorted: each key must occur once, in order", l.GetKey())
		}
	}
	return ""
}

// exported returns why the labels and annotations of a ServiceExport are invalid (R30); empty if they are valid. An
// import with a label that a deployment tool acts on would be deleted by it, or delete something else.
func exported(m *semaphorev1.MultiClusterExport) string {
	if reason := exportedPairs("labels", m.GetLabels()); reason != "" {
		return reason
	}
	for _, l := range m.GetLabels() {
		for _, wrong := range validation.IsValidLabelValue(l.GetValue()) {
			return fmt.Sprintf("labels: %s: value %.100q: %s", l.GetKey(), l.GetValue(), wrong)
		}
	}
	return exportedPairs("annotations", m.GetAnnotations())
}

func exportedPairs[P interface {
	GetKey() string
	GetValue() string
}](what string, all []P) string {
	size := 0
	for i, p := range all {
		key := p.GetKey()
		size += len(key) + len(p.GetValue())
		switch {
		case len(all) > naming.MaxExported || size > naming.MaxExportedBytes:
			return fmt.Sprintf("%s exceed the limit of %d with %d bytes", what, naming.MaxExported, naming.MaxExportedBytes)
		case naming.Reserved(key):
			return fmt.Sprintf("%s: key %.100q is reserved", what, key)
		case i > 0 && all[i-1].GetKey() >= key:
			return fmt.Sprintf("%s: %.100q is not sorted: each key must occur once, in order", what, key)
		}
		for _, wrong := range validation.IsQualifiedName(key) {
			return fmt.Sprintf("%s: key %.100q: %s", what, key, wrong)
		}
	}
	return ""
}

// preferred returns why an order of clusters is invalid; empty if it is valid.
func preferred(clusters []string) string {
	if len(clusters) > maxPreferred {
		return fmt.Sprintf("%d clusters exceed the limit of %d", len(clusters), maxPreferred)
	}
	for i, cluster := range clusters {
		if err := config.ClusterName(cluster); err != nil {
			return err.Error()
		}
		if slices.Contains(clusters[:i], cluster) {
			return fmt.Sprintf("%s is a duplicate", cluster)
		}
	}
	return ""
}

func (t *check) ports(all []*semaphorev1.Port) bool {
	if len(all) > maxPorts {
		t.refuse(finding.TooLarge, "ports: %d exceed the limit of %d", len(all), maxPorts)
		return false
	}
	names := map[string]bool{}
	for _, p := range all {
		if p.GetName() != "" && !t.label("ports: name", p.GetName()) {
			return false
		}
		if names[p.GetName()] {
			t.refuse(finding.InvalidPort, "ports: the name %q is a duplicate", p.GetName())
			return false
		}
		names[p.GetName()] = true
		switch p.GetProtocol() {
		case "TCP", "UDP", "SCTP":
		default:
			t.refuse(finding.InvalidPort, "ports: protocol %q: use TCP, UDP or SCTP", p.GetProtocol())
			return false
		}
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			t.refuse(finding.InvalidPort, "ports: %d is not a port number", p.GetPort())
			return false
		}
		if p.GetAppProtocol() != "" && !t.valid("ports: app_protocol", p.GetAppProtocol(), validation.IsQualifiedName) {
			return false
		}
	}
	return true
}

func (t *check) endpointSlice(o *semaphorev1.Object) *semaphorev1.Object {
	s := o.GetEndpointSlice()
	if !t.label("service", s.GetService()) {
		return nil
	}
	family := 0
	switch s.GetAddressType() {
	case "IPv4":
		family = 4
	case "IPv6":
		family = 6
	default:
		t.refuse(finding.InvalidAddressType, "address_type %q: use IPv4 or IPv6; names are not resolved", s.GetAddressType())
		return nil
	}
	if !t.ports(s.GetPorts()) {
		return nil
	}
	if len(s.GetEndpoints()) > maxEndpoints {
		t.refuse(finding.TooLarge, "endpoints: %d exceed the limit of %d", len(s.GetEndpoints()), maxEndpoints)
		return nil
	}
	kept := make([]*semaphorev1.Endpoint, 0, len(s.GetEndpoints()))
	for _, e := range s.GetEndpoints() {
		if t.endpoint(e, family) {
			kept = append(kept, e)
		}
	}
	if len(kept) == len(s.GetEndpoints()) {
		return o
	}
	taken := clone(o)
	taken.GetEndpointSlice().Endpoints = kept
	return taken
}

func (t *check) endpoint(e *semaphorev1.Endpoint, family int) bool {
	if n := len(e.GetAddresses()); n == 0 || n > maxAddresses {
		t.refuse(finding.TooLarge, "endpoints: an endpoint has %d addresses: it must have 1 to %d", n, maxAddresses)
		return false
	}
	for _, a := range e.GetAddresses() {
		if _, ok := t.podIP("endpoints: address", a, family); !ok {
			return false
		}
	}
	if t.tooLong("endpoints: zone", e.GetZone()) {
		return false
	}
	// A zone is the value of a node's label topology.kubernetes.io/zone.
	for _, wrong := range validation.IsValidLabelValue(e.GetZone()) {
		t.refuse(finding.InvalidName, "endpoints: zone %.100q: %s", e.GetZone(), wrong)
		return false
	}
	return e.GetHostname() == "" || t.label("endpoints: hostname", e.GetHostname())
}

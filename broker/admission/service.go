package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// port is what the ports of Services and of EndpointSlices have in common.
type port interface {
	GetName() string
	GetProtocol() string
	GetPort() int32
	GetAppProtocol() string
}

// service takes a Service whole or not at all: a mirror that lacks a port would fail in
// ways that are harder to see than a mirror that is not there.
func (t *trial) service(o *semaphorev1.Object) *semaphorev1.Object {
	s := o.GetService()
	if len(s.GetPorts()) == 0 && !s.GetHeadless() {
		t.refuse(InvalidPort, "ports: none, which only a headless Service may have")
		return nil
	}
	if !ports(t, s.GetPorts()) {
		return nil
	}
	type numbered struct {
		protocol string
		port     int32
	}
	seen := map[numbered]bool{}
	for _, p := range s.GetPorts() {
		if p.GetName() == "" && len(s.GetPorts()) > 1 {
			t.refuse(InvalidPort, "ports: port %d has no name, which it needs beside others", p.GetPort())
			return nil
		}
		n := numbered{p.GetProtocol(), p.GetPort()}
		if seen[n] {
			t.refuse(InvalidPort, "ports: %s %d is there twice", n.protocol, n.port)
			return nil
		}
		seen[n] = true
	}
	return t.settings(o)
}

// settings takes a Service without those of its settings that may not be: with the others it is still of use.
func (t *trial) settings(o *semaphorev1.Object) *semaphorev1.Object {
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
		t.refuse(InvalidSetting, "client_ip_affinity_seconds: %d: use 0 to %d", n, maxAffinity)
		leave(func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = 0 })
	}
	switch d := s.GetTrafficDistribution(); d {
	case "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
	default:
		t.refuse(InvalidSetting, "traffic_distribution: %.100q is not known", d)
		leave(func(s *semaphorev1.Service) { s.TrafficDistribution = "" })
	}
	if f := s.GetIpFamilies(); len(f) > 2 || slices.ContainsFunc(f, func(f string) bool { return f != "IPv4" && f != "IPv6" }) || len(f) == 2 && f[0] == f[1] {
		t.refuse(InvalidSetting, "ip_families: %.100q: use IPv4, IPv6 or both", f)
		leave(func(s *semaphorev1.Service) { s.IpFamilies = nil })
	}
	if reason := labels(s.GetLabels()); reason != "" {
		t.refuse(InvalidSetting, "labels: %s", reason)
		leave(func(s *semaphorev1.Service) { s.Labels = nil })
	}
	g := s.GetGlobalSettings()
	if reason := preferred(g.GetPrefer()); reason != "" {
		t.refuse(InvalidSetting, "global_settings.prefer: %s", reason)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.Prefer = nil })
	}
	if n := g.GetMinReady(); n < 0 || n > maxMinReady {
		t.refuse(InvalidSetting, "global_settings.min_ready: %d: use 0 to %d", n, maxMinReady)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.MinReady = 0 })
	}
	switch w := config.WhenGone(g.GetWhenGone()); w {
	case "", config.Keep, config.Demote, config.Withdraw:
	default:
		t.refuse(InvalidSetting, "global_settings.when_gone: %.100q: use keep, demote or withdraw", w)
		leave(func(s *semaphorev1.Service) { s.GlobalSettings.WhenGone = "" })
	}
	return taken
}

// labels is why the labels of a Service may not be; empty if they may. Which of them are taken is for the mirror's own list to say.
func labels(all []*semaphorev1.Label) string {
	if len(all) > config.MaxServiceLabels {
		return fmt.Sprintf("%d, and %d is the most", len(all), config.MaxServiceLabels)
	}
	for i, l := range all {
		for _, wrong := range validation.IsQualifiedName(l.GetKey()) {
			return fmt.Sprintf("key %.100q: %s", l.GetKey(), wrong)
		}
		for _, wrong := range validation.IsValidLabelValue(l.GetValue()) {
			return fmt.Sprintf("%s: value %.100q: %s", l.GetKey(), l.GetValue(), wrong)
		}
		if i > 0 && all[i-1].GetKey() >= l.GetKey() {
			return fmt.Sprintf("%s is not in its place: each is there once, in the order of the keys", l.GetKey())
		}
	}
	return ""
}

// preferred is why an order of clusters may not be; empty if it may.
func preferred(clusters []string) string {
	if len(clusters) > maxPreferred {
		return fmt.Sprintf("%d clusters, and %d is the most", len(clusters), maxPreferred)
	}
	for i, cluster := range clusters {
		if err := config.ClusterName(cluster); err != nil {
			return err.Error()
		}
		if slices.Contains(clusters[:i], cluster) {
			return fmt.Sprintf("%s is there twice", cluster)
		}
	}
	return ""
}

func ports[P port](t *trial, all []P) bool {
	if len(all) > maxPorts {
		t.refuse(TooLarge, "ports: %d, and %d is the most", len(all), maxPorts)
		return false
	}
	names := map[string]bool{}
	for _, p := range all {
		if p.GetName() != "" && !t.label("ports: name", p.GetName()) {
			return false
		}
		if names[p.GetName()] {
			t.refuse(InvalidPort, "ports: the name %q is there twice", p.GetName())
			return false
		}
		names[p.GetName()] = true
		switch p.GetProtocol() {
		case "TCP", "UDP", "SCTP":
		default:
			t.refuse(InvalidPort, "ports: protocol %q: use TCP, UDP or SCTP", p.GetProtocol())
			return false
		}
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			t.refuse(InvalidPort, "ports: %d is no port", p.GetPort())
			return false
		}
		if p.GetAppProtocol() != "" {
			if t.long("ports: app_protocol", p.GetAppProtocol()) {
				return false
			}
			for _, e := range validation.IsQualifiedName(p.GetAppProtocol()) {
				t.refuse(InvalidName, "ports: app_protocol %q: %s", p.GetAppProtocol(), e)
				return false
			}
		}
	}
	return true
}

// endpointSlice takes a slice without the endpoints that may not be.
func (t *trial) endpointSlice(o *semaphorev1.Object) *semaphorev1.Object {
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
		t.refuse(InvalidAddressType, "address_type %q: use IPv4 or IPv6; names are not resolved", s.GetAddressType())
		return nil
	}
	if !ports(t, s.GetPorts()) {
		return nil
	}
	if len(s.GetEndpoints()) > maxEndpoints {
		t.refuse(TooLarge, "endpoints: %d, and %d is the most", len(s.GetEndpoints()), maxEndpoints)
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

func (t *trial) endpoint(e *semaphorev1.Endpoint, family int) bool {
	if n := len(e.GetAddresses()); n == 0 || n > maxAddresses {
		t.refuse(TooLarge, "endpoints: one has %d addresses: 1 to %d may be", n, maxAddresses)
		return false
	}
	for _, a := range e.GetAddresses() {
		if _, ok := t.podIP("endpoints: address", a, family); !ok {
			return false
		}
	}
	if t.long("endpoints: zone", e.GetZone()) {
		return false
	}
	// The zone is that of a label of a node, topology.kubernetes.io/zone.
	for _, wrong := range validation.IsValidLabelValue(e.GetZone()) {
		t.refuse(InvalidName, "endpoints: zone %.100q: %s", e.GetZone(), wrong)
		return false
	}
	return e.GetHostname() == "" || t.label("endpoints: hostname", e.GetHostname())
}

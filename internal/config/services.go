package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Mirrors configures how mirrors and global services are written, and which Services of another tool are adopted.
type Mirrors struct {
	// Labels are the labels that a mirror copies from its source.
	Labels LabelKeys `json:"labels"`
	// AdoptFrom names the tools whose Services are adopted.
	AdoptFrom []string `json:"adoptFrom"`
}

// ServiceMirror is the tool whose Services can be adopted.
const ServiceMirror = "semaphore-service-mirror"

func (m *Mirrors) complete(p *problems, field string) {
	m.Labels.complete(p, field+".labels")
	for i, name := range m.AdoptFrom {
		if name != ServiceMirror {
			p.add(field+".adoptFrom", "%q is no tool whose Services can be taken over: use %s", name, ServiceMirror)
		} else if i > 0 {
			p.add(field+".adoptFrom", "%q is listed twice", name)
		}
	}
}

// Slices configures how EndpointSlices are written.
type Slices struct {
	// MaxEndpoints is the most endpoints of one EndpointSlice.
	MaxEndpoints int `json:"maxEndpoints"`
}

// defaultSliceEndpoints is the default of Kubernetes' own controller, and maxSliceEndpoints the maximum of the API
// (discovery.k8s.io/v1, EndpointSlice.endpoints).
const (
	defaultSliceEndpoints = 100
	maxSliceEndpoints     = 1_000
)

func (s *Slices) complete(p *problems, field string) {
	if s.MaxEndpoints < 1 || s.MaxEndpoints > maxSliceEndpoints {
		p.add(field+".maxEndpoints", "%d: use 1 to %d endpoints; an apiserver takes no more in one EndpointSlice",
			s.MaxEndpoints, maxSliceEndpoints)
	}
}

// GlobalServices configures how services that several clusters offer under one name are combined.
type GlobalServices struct {
	// PodSubnets contain the IPs of the own cluster's pods. With them, the broker accepts the own exporter's objects,
	// and global services include the own endpoints; without them, neither.
	PodSubnets []string `json:"podSubnets"`
	// Limits on what the own exporter may export.
	Limits OwnLimits `json:"limits"`
	// SilentAfter is the time without a message after which an exporter counts as stale. A stale exporter is one of the
	// two signs that its cluster is gone.
	SilentAfter Duration `json:"silentAfter"`
	// Settle is how long the preferred clusters must have had enough endpoints before the others are masked.
	Settle Duration `json:"settle"`
	// OwnNames has the broker write endpoints of other clusters under the own names of Services that ask for it.
	OwnNames bool `json:"ownNames"`
	// LocalZones are the own cluster's zones, for topology hints. Empty for no hints.
	LocalZones []string `json:"localZones"`
	// Rules for global services. The first one that matches applies; if none matches, the annotations of the service
	// apply.
	Rules []GlobalRule `json:"rules"`

	// PodPrefixes is PodSubnets, parsed.
	PodPrefixes []netip.Prefix `json:"-"`
}

// GlobalRule configures which clusters' endpoints some global services use, and how endpoints of a gone cluster are
// handled.
type GlobalRule struct {
	// Namespaces and Names of the services, as in their own clusters; all if empty.
	Namespaces []string `json:"namespaces"`
	Names      []string `json:"names"`
	// Clusters that take part; all if empty. Services of that name in other clusters are ignored.
	Clusters []string `json:"clusters"`
	// Prefer lists clusters in order of preference. All others come last, with equal preference.
	Prefer []string `json:"prefer"`
	// MinReady is the minimum: a number of ready endpoints, or a share of all of them, such as "50%".
	MinReady *intstr.IntOrString `json:"minReady"`
	// WhenGone selects how endpoints of a gone cluster are handled.
	WhenGone WhenGone `json:"whenGone"`
}

func (r *GlobalRule) Matches(namespace, name string) bool {
	return (len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(len(r.Names) == 0 || slices.Contains(r.Names, name))
}

func (r *GlobalRule) Takes(cluster string) bool {
	return len(r.Clusters) == 0 || slices.Contains(r.Clusters, cluster)
}

// WhenGone selects how a global service handles endpoints of a gone cluster.
type WhenGone string

const (
	// Keep changes nothing.
	Keep WhenGone = "keep"
	// Demote uses them only while no other endpoint is ready.
	Demote WhenGone = "demote"
	// Withdraw does not use them.
	Withdraw WhenGone = "withdraw"
)

// OwnLimits are the limits that apply to the own exporter: numbers of objects and addresses.
type OwnLimits struct {
	Services            int `json:"services"`
	EndpointSlices      int `json:"endpointSlices"`
	Endpoints           int `json:"endpoints"`
	EndpointsPerService int `json:"endpointsPerService"`
}

// Own returns the own cluster in the form of a remote, whose Services and EndpointSlices the broker accepts; nil if it
// accepts none. It has no device, no mirrors and no sets.
func (c *Broker) Own() *Remote {
	g := &c.GlobalServices
	if len(g.PodSubnets) == 0 || !c.Features.Has(Services) {
		return nil
	}
	l := g.Limits
	limits := Limits{Services: l.Services, EndpointSlices: l.EndpointSlices, Endpoints: l.Endpoints,
		EndpointsPerService: l.EndpointsPerService,
		// No other cluster determines the ClusterIPs and ports of the own Services.
		ClusterIPs: 3 * l.Services, Exports: l.Services, PortsPerService: maxPorts}
	limits.complete(&problems{}, "", Medium, 1)
	limits.Size = "" // a RemoteCluster has one
	return &Remote{Name: c.Cluster, PodSubnets: g.PodSubnets, PodPrefixes: g.PodPrefixes, Limits: limits}
}

// maxPorts is the API's maximum for a Service.
const maxPorts = 1000

// Bounds of the times. An exporter sends a message at least every 5 s: below three times that, a hiccup of the network
// would count as a sign that the cluster is gone. More than an hour is useless.
const (
	minSilentAfter = 15 * time.Second
	maxGlobalTime  = time.Hour
)

func (g *GlobalServices) setDefaults() {
	g.SilentAfter.Duration, g.Settle.Duration = 30*time.Second, 30*time.Second
	l, _ := LimitsOf(Medium, 1)
	g.Limits = OwnLimits{l.Services, l.EndpointSlices, l.Endpoints, l.EndpointsPerService}
}

func (g *GlobalServices) complete(p *problems, field string, c *Broker) {
	limits := reflect.ValueOf(g.Limits)
	for i := range limits.NumField() {
		checkLimit(p, field+".limits", limits, i)
	}
	silent, settle := g.SilentAfter.Duration, g.Settle.Duration
	g.SilentAfter.check(p, field+".silentAfter", silent >= minSilentAfter && silent <= maxGlobalTime, "%s to %s",
		minSilentAfter, maxGlobalTime)
	g.Settle.check(p, field+".settle", settle >= 0 && settle <= maxGlobalTime, "0s to %s", maxGlobalTime)
	if g.OwnNames && len(g.PodSubnets) == 0 {
		p.add(field+".ownNames", "needs podSubnets: the broker must know how many endpoints of the own cluster are ready")
	}
	if len(g.LocalZones) > maxZones {
		p.add(field+".localZones", "%d: use %d zones at most; an apiserver takes no more hints of one endpoint",
			len(g.LocalZones), maxZones)
	}
	for i, zone := range g.LocalZones {
		at := fmt.Sprintf("%s.localZones[%d]", field, i)
		// topology.kubernetes.io/zone is a label of nodes.
		p.addEach(at, validation.IsValidLabelValue(zone),
			"%q is no zone, as nodes have in the label topology.kubernetes.io/zone", zone)
		if zone == "" {
			p.add(at, "is empty: name a zone, as nodes have in the label topology.kubernetes.io/zone")
		}
	}
	refuseTwice(p, field+".localZones", g.LocalZones)
	if len(g.PodSubnets) > 0 {
		g.PodPrefixes = parsePrefixes(p, field+".podSubnets", g.PodSubnets)
	}
	for _, prefix := range g.PodPrefixes {
		// Being in a local subnet, they cannot overlap those of a remote.
		if !slices.ContainsFunc(c.LocalPrefixes, func(l netip.Prefix) bool {
			return l.Bits() <= prefix.Bits() &&
				l.Contains(prefix.Addr())
		}) {
			p.add(field+".podSubnets", "%s is not inside of localSubnets: name this cluster's pod subnets in both", prefix)
		}
	}
	for i := range g.Rules {
		g.Rules[i].complete(p, fmt.Sprintf("%s.rules[%d]", field, i))
	}
}

func (r *GlobalRule) complete(p *problems, field string) {
	for i, n := range r.Namespaces {
		p.addEach(fmt.Sprintf("%s.namespaces[%d]", field, i), validation.IsDNS1123Label(n), "%q is no namespace", n)
	}
	for i, n := range r.Names {
		p.addEach(fmt.Sprintf("%s.names[%d]", field, i), validation.IsDNS1123Label(n), "%q is no name of a Service", n)
	}
	refuseTwice(p, field+".clusters", r.Clusters)
	refuseTwice(p, field+".prefer", r.Prefer)
	for i, cluster := range r.Prefer {
		if !r.Takes(cluster) {
			p.add(fmt.Sprintf("%s.prefer[%d]", field, i), "%q takes no part: it is not in clusters", cluster)
		}
	}
	orDefault(&r.MinReady, new(intstr.FromInt32(1)))
	if _, _, err := ParseMinReady(r.MinReady.String()); err != nil {
		p.add(field+".minReady", "%s", err)
	}
	orDefault(&r.WhenGone, Demote)
	if r.WhenGone != Keep && r.WhenGone != Demote && r.WhenGone != Withdraw {
		p.add(field+".whenGone", "%q: use keep, demote or withdraw", r.WhenGone)
	}
}

// refuseTwice refuses an element that is listed twice. Of clusters it is not known which there are: a RemoteCluster may
// be created later.
func refuseTwice[T ~string](p *problems, field string, all []T) {
	for i, one := range all {
		if slices.Contains(all[:i], one) {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%q is listed twice", string(one))
		}
	}
}

// maxZones is the most zones that one endpoint can have hints for (discovery.k8s.io/v1, EndpointHints.forZones).
const maxZones = 8

// MaxMinReady exceeds the number of endpoints of any service.
const MaxMinReady = 1_000_000

// ParseMinReady parses the minimum of a global service: a number of ready endpoints, or their share of all in percent.
// One of the results is 0. It fails for all else; the error names the valid forms.
func ParseMinReady(text string) (count, percent int, err error) {
	text = strings.TrimSpace(text)
	share, isShare := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(share)
	switch {
	case err == nil && isShare && n >= 1 && n <= 100:
		return 0, n, nil
	case err == nil && !isShare && n >= 1 && n <= MaxMinReady:
		return n, 0, nil
	}
	return 0, 0, fmt.Errorf("%.100q: use a number of ready endpoints from 1 to %d, or a share from 1%% to 100%%", text,
		MaxMinReady)
}

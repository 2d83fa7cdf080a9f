// Package apply decides how semaphore is installed in a cluster, builds the objects for that, and writes objects.
//
// Its input are the properties of a cluster and the operator's wishes. Its output are values, the overlay that a person
// would write for them, and the objects that kustomize builds from that overlay and the manifests in deploy/. That
// reads no cluster and no disk. Applier in applier.go writes objects, waits for them, and keeps the record.
package apply

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/deploy"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Repository is the image's repository in the manifests.
const Repository = "ghcr.io/kube-semaphore/semaphore"

// Types of the Service at which other clusters reach the broker.
const (
	ClusterIP    = "ClusterIP"
	NodePort     = "NodePort"
	LoadBalancer = "LoadBalancer"
)

// AllFeatures lists the features in the order in which they are printed.
var AllFeatures = config.Features{config.Encryption, config.Services, config.Policy}

// Wishes are the choices of an operator; empty fields are derived from the cluster. The cluster stores them, so that
// the next installation starts from them.
type Wishes struct {
	Name     string          `json:"name,omitempty"`
	Features config.Features `json:"features,omitempty"`
	// Components of deploy/features, in addition to those that the cluster needs or can have; -NAME leaves one out.
	Components []string `json:"components,omitempty"`
	// Image is REPOSITORY, REPOSITORY:TAG or REPOSITORY@DIGEST; empty for the image of the release.
	Image          string         `json:"image,omitempty"`
	PodSubnets     []netip.Prefix `json:"podSubnets,omitempty"`
	ServiceSubnets []netip.Prefix `json:"serviceSubnets,omitempty"`
	NodeSubnets    []netip.Prefix `json:"nodeSubnets,omitempty"`
	// Expose is the type of the Service at which other clusters reach the broker; the default is NodePort. NodePort is
	// its port on the nodes; 0 lets the cluster choose one.
	Expose   string `json:"expose,omitempty"`
	NodePort int    `json:"nodePort,omitempty"`
}

// Over returns the wishes w, with empty fields taken from before. Components that w does not mention stay, unless its
// list is empty and not nil.
func (w Wishes) Over(before Wishes) Wishes {
	w.Name, w.Image = cmp.Or(w.Name, before.Name), cmp.Or(w.Image, before.Image)
	if w.Expose = cmp.Or(w.Expose, before.Expose); w.Expose != ClusterIP { // which has no port on the nodes
		w.NodePort = cmp.Or(w.NodePort, before.NodePort)
	}
	if w.Features == nil {
		w.Features = before.Features
	}
	if w.Components == nil || len(w.Components) > 0 {
		w.Components = append(slices.DeleteFunc(slices.Clone(before.Components), func(c string) bool {
			name := strings.TrimPrefix(c, "-")
			return slices.Contains(w.Components, name) || slices.Contains(w.Components, "-"+name)
		}), w.Components...)
	}
	for _, s := range []struct{ here, before *[]netip.Prefix }{{&w.PodSubnets, &before.PodSubnets},
		{&w.ServiceSubnets, &before.ServiceSubnets}, {&w.NodeSubnets, &before.NodeSubnets}} {
		if *s.here == nil {
			*s.here = *s.before
		}
	}
	return w
}

// FieldError is the error of one field of Wishes, with the field's key in a file.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

func wrong(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// Check fails with a FieldError for an invalid wish.
func (w Wishes) Check() error {
	if w.Name != "" {
		if err := config.ClusterName(w.Name); err != nil {
			return wrong("name", "%w", err)
		}
	}
	for i, f := range w.Features {
		if !slices.Contains(AllFeatures, f) {
			return wrong("features", "%q: use encryption, services, policy", f)
		}
		if slices.Contains(w.Features[:i], f) {
			return wrong("features", "%q is listed twice", f)
		}
	}
	for _, c := range w.Components {
		if !slices.Contains(Components(), strings.TrimPrefix(c, "-")) {
			return wrong("components", "%q: use %s, or -NAME", c, strings.Join(Components(), ", "))
		}
	}
	for _, c := range []struct{ name, does string }{{MCS, "imports Services"},
		{OwnNames, "has Services lead to other clusters"}, {DNS, "has names of remote Services resolve"}} {
		if w.Features != nil && !w.Features.Has(config.Services) && slices.Contains(w.Components, c.name) {
			return wrong("components", "%q %s: it needs the feature services", c.name, c.does)
		}
	}
	if !slices.Contains([]string{"", ClusterIP, NodePort, LoadBalancer}, w.Expose) {
		return wrong("expose", "%q: use NodePort, LoadBalancer or ClusterIP", w.Expose)
	}
	if w.NodePort != 0 && w.Expose == ClusterIP {
		return wrong("nodePort", "%d, but a Service of type ClusterIP has no port on the nodes", w.NodePort)
	}
	if w.NodePort < 0 || w.NodePort > 65535 {
		return wrong("nodePort", "%d is no port", w.NodePort)
	}
	if w.Image != "" && !imageName.MatchString(w.Image) {
		return wrong("image", "%q: use REPOSITORY:TAG or REPOSITORY@sha256:DIGEST", w.Image)
	}
	for _, s := range []struct {
		key string
		of  []netip.Prefix
	}{{"podSubnets", w.PodSubnets}, {"serviceSubnets", w.ServiceSubnets}, {"nodeSubnets", w.NodeSubnets}} {
		for _, p := range s.of {
			if !p.IsValid() || p.Masked() != p {
				return wrong(s.key, "%q is no network, such as 10.1.0.0/16", p)
			}
		}
	}
	return nil
}

// imageName matches the reference of an image (https://github.com/distribution/reference). It is less strict than a
// registry.
var imageName = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?$`)

// notOffered are the components of deploy/features that Components omits: features are chosen by Wishes.Features, and
// certificates from cert-manager need an authority that an operator creates.
var notOffered = []string{string(config.Encryption), string(config.Services), string(config.Policy), "cert-manager"}

func Components() []string {
	entries, err := fs.ReadDir(deploy.Manifests, "features")
	if err != nil {
		return nil // the directory is embedded in the program
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(notOffered, e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out
}

// Values has everything that an overlay contains.
type Values struct {
	Cluster   string          `json:"cluster"`
	Namespace string          `json:"namespace"`
	Features  config.Features `json:"features"`
	// Components is sorted.
	Components []string `json:"components,omitempty"`
	// Image has the form of Wishes.Image; empty for that of the manifests.
	Image          string         `json:"image,omitempty"`
	PodSubnets     []netip.Prefix `json:"podSubnets"`
	ServiceSubnets []netip.Prefix `json:"serviceSubnets"`
	NodeSubnets    []netip.Prefix `json:"nodeSubnets"`
	Expose         string         `json:"expose"`
	NodePort       int            `json:"nodePort,omitempty"`
}

// WithWishes returns the properties of a cluster, with subnets replaced by those that the operator named.
func WithWishes(found *preflight.Cluster, w Wishes) *preflight.Cluster {
	facts := *found
	for _, s := range []struct {
		wanted []netip.Prefix
		facts  *preflight.Subnets
	}{{w.PodSubnets, &facts.Pods}, {w.ServiceSubnets, &facts.Services}, {w.NodeSubnets, &facts.IPs}} {
		if s.wanted != nil {
			*s.facts = preflight.Subnets{Prefixes: s.wanted, From: "as installed"}
		}
	}
	return &facts
}

// Addresses returns the nodes' InternalIPs as single addresses, in the form of --node-subnets.
func Addresses(nodes []preflight.Node) string {
	var out []string
	for _, n := range nodes {
		for _, ip := range n.InternalIPs {
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()).String())
		}
	}
	return strings.Join(out, ",")
}

// Reason is why an installation has a component, or leaves it out.
type Reason struct {
	Component, Why string
	Without        bool
	// Fact is the one that the cluster lacks; empty for another reason.
	Fact preflight.Fact
}

// Decide derives values from the properties of a cluster and an operator's wishes. version is that of semaphorectl.
// Findings of level Error are reasons not to install.
func Decide(found *preflight.Cluster, w Wishes, namespace, version string) (Values, []Reason, []show.Finding) {
	facts := *WithWishes(found, w)
	if w.Name != "" {
		facts.Names = []string{w.Name}
	}
	v := Values{
		Cluster: facts.Name(), Namespace: namespace, Features: w.Features, Image: cmp.Or(w.Image, imageOf(version)),
		PodSubnets: facts.Pods.Prefixes, ServiceSubnets: facts.Services.Prefixes, NodeSubnets: facts.IPs.Prefixes,
		Expose: cmp.Or(w.Expose, NodePort), NodePort: w.NodePort,
	}
	if v.Features == nil {
		v.Features = config.Features{config.Encryption, config.Services}
		if facts.Calico != nil || !facts.Knows(preflight.FactCalico) { // then nothing is installed
			v.Features = append(v.Features, config.Policy)
		}
	}
	findings := preflight.Judge([]*preflight.Cluster{&facts})
	if !v.Features.Has(config.Encryption) { // which alone needs tunnels
		findings = slices.DeleteFunc(findings, func(f show.Finding) bool { return f.Code == finding.CNIExcluded })
	}
	if err := config.ClusterName(v.Cluster); err != nil {
		findings = append(findings, show.Blocker(facts.Context, finding.ClusterNameMissing, "name",
			"name the cluster by --cluster", "%v", err))
	}
	if facts.Calico == nil && v.Features.Has(config.Policy) && facts.Knows(preflight.FactCalico) {
		findings = append(findings, show.Blocker(facts.Context, finding.PolicyWithoutCalico, "feature policy",
			"--features encryption,services", "the CNI is %s: policies by sets of remote pods need Calico", facts.CNI))
	}
	reasons := append(needed(&facts, v.Features), possible(&facts, v.Features)...)
	for _, c := range w.Components {
		wish := Reason{Component: c, Why: "wanted"}
		if name, without := strings.CutPrefix(c, "-"); without {
			wish = Reason{Component: name, Why: "not wanted", Without: true}
		}
		// An operator's word replaces a detected value.
		reasons = append(slices.DeleteFunc(reasons, func(r Reason) bool { return r.Component == wish.Component }), wish)
	}
	findings = slices.DeleteFunc(findings, func(f show.Finding) bool { return f.Code == finding.NotRead })
	findings = append(findings, notRead(&facts, w, reasons)...)
	for _, r := range reasons {
		if !r.Without {
			v.Components = append(v.Components, r.Component)
		}
	}
	slices.Sort(v.Components)
	// Both components serve the same purpose.
	if slices.Contains(v.Components, "userspace-wireguard-privileged") {
		v.Components = slices.DeleteFunc(v.Components, func(c string) bool { return c == "userspace-wireguard" })
	}
	if slices.Contains(v.Components, "openshift") { // openshift includes selinux
		v.Components = slices.DeleteFunc(v.Components, func(c string) bool { return c == "selinux" })
	}
	return v, reasons, findings
}

// decisive are the facts by which features and components are decided, and whether there is an installation at all. Pod
// subnets that are not known are none, which is an error already.
var decisive = []preflight.Fact{preflight.FactNodes, preflight.FactCNI, preflight.FactCalico, preflight.FactBlocks,
	preflight.FactServices, preflight.FactRights}

// notRead returns the facts that are not known. They are errors where they decide: taken for absent, an upgrade would
// remove components. An operator's word decides in place of a fact.
func notRead(c *preflight.Cluster, w Wishes, reasons []Reason) []show.Finding {
	all := preflight.NotRead(c)
	for i, u := range c.Unread {
		f := &all[i]
		if slices.Contains(decisive, u.Fact) && (u.Fact != preflight.FactServices || w.ServiceSubnets == nil) {
			f.Level = finding.Error
		}
		if r := slices.IndexFunc(reasons, func(r Reason) bool { return r.Fact != "" && r.Fact == u.Fact }); r >= 0 {
			f.Level = finding.Error
			f.Fix += fmt.Sprintf("; or decide yourself: --components=%[1]s, or --components=-%[1]s", reasons[r].Component)
		}
	}
	return all
}

// enforcing are prefixes of the names of OS images that enforce SELinux by default.
var enforcing = []string{"Red Hat", "CentOS", "Rocky", "AlmaLinux", "Fedora", "Oracle Linux", "Bottlerocket"}

// needed returns the components that a cluster needs, as far as its objects show.
func needed(c *preflight.Cluster, features config.Features) (out []Reason) {
	because := func(component, why string) { out = append(out, Reason{Component: component, Why: why}) }
	if c.Calico != nil {
		because("ippools", "Calico must not replace the addresses of pods that call remote pods")
	}
	if strings.Contains(c.Version, "-gke.") {
		because("gke", "Kubernetes "+c.Version)
	}
	agents := features.Has(config.Encryption)
	if old := c.OldKernels(); agents && len(old) > 0 {
		because("userspace-wireguard", "without WireGuard in the kernel: "+strings.Join(old, ", "))
	}
	for _, n := range c.Nodes {
		if strings.Contains(n.OS, "Red Hat Enterprise Linux CoreOS") {
			because("openshift", "node "+n.Name+" runs "+n.OS)
			return out
		}
	}
	for _, n := range c.Nodes {
		if agents && slices.ContainsFunc(enforcing, func(begin string) bool { return strings.HasPrefix(n.OS, begin) }) {
			because("selinux", "node "+n.Name+" runs "+n.OS)
			return out
		}
	}
	return out
}

// possible returns the components that a cluster has by default where it can, and why others are left out.
func possible(c *preflight.Cluster, features config.Features) []Reason {
	mcs := Reason{Component: MCS, Why: "for ServiceExports and ServiceImports"}
	switch {
	case !features.Has(config.Services):
		mcs = Reason{MCS, "it needs the feature services", true, ""}
	case !c.MCS:
		mcs = Reason{MCS, "the cluster does not serve the Multi-Cluster Services API", true, preflight.FactMCS}
	}
	monitors := Reason{Component: "monitors", Why: "for the Prometheus Operator"}
	if !c.PodMonitors {
		monitors = Reason{"monitors", "the cluster does not serve PodMonitors", true, preflight.FactPodMonitors}
	}
	return []Reason{mcs, monitors,
		{Component: "network-policies", Why: "only pods of this cluster reach the metrics of broker and exporter"}}
}

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)[.0-9]*)?$`)

// imageOf returns the image of a release of semaphorectl; empty for that of the manifests.
func imageOf(version string) string {
	if !release.MatchString(version) {
		return ""
	}
	return Repository + ":" + version
}

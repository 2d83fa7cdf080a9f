// Package naming owns every name that users, other clusters or the original tools can see: label and annotation keys,
// names of mirrors, sets and devices. It is a leaf: it knows strings only. It is pure.
//
// Names that come from semaphore-wireguard, semaphore-service-mirror and
// semaphore-policy are kept letter for letter: dashboards, policies and DNS rewrites
// of their users rely on them.
package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MaxClusterName is the length of the longest name of a cluster, which is the value of a label.
const MaxClusterName = 63

var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// IsClusterName reports whether a text can be the name of a cluster: a DNS name (RFC 1123) of at most MaxClusterName
// characters. It becomes a SPIFFE trust domain, the value of a label, the end of DNS names, the domain of annotations
// and the name of a RemoteCluster, each of which takes dots. Where a name has no dots, or less room, ClusterLabel
// stands for it.
func IsClusterName(name string) bool {
	return len(name) <= MaxClusterName && dnsName.MatchString(name)
}

// longestPlain is how long a cluster's name without dots is at most where other names have it in full.
const longestPlain = 32

// ClusterLabel stands for a cluster in names that cannot have a dot or are short of room: of mirrors, sets, slices and
// pools. It is a DNS label of at most 32 characters: the cluster's name itself if it is one, otherwise an x and a hash
// of it. A configuration refuses two clusters with one label.
func ClusterLabel(cluster string) string {
	if len(cluster) <= longestPlain && !strings.Contains(cluster, ".") {
		return cluster
	}
	return "x" + shortHash(cluster)
}

// Every object that semaphore owns in a cluster has all of these labels; semaphore never writes to other objects.
const (
	// ConfigMapDNS is the ConfigMap in the namespace of the mirrors by which semaphorectl says that it put server blocks
	// into CoreDNS's configuration: without it, blocks that are missing never were there.
	ConfigMapDNS = "semaphore-dns"

	LabelManagedBy     = "app.kubernetes.io/managed-by"
	ManagedByBroker    = "semaphore-broker"
	LabelSourceCluster = "semaphore.uw.io/source-cluster"
)

// Annotations on owned objects: their full source, because their names may be shortened.
const (
	AnnotationSourceNamespace = "semaphore.uw.io/source-namespace"
	AnnotationSourceName      = "semaphore.uw.io/source-name"
)

// AnnotationUnusedEndpoints lists, on a slice of the broker, the addresses of the endpoints that are ready at their
// source and not in use: "10.2.0.1,10.2.0.2". Only a later broker reads it.
const AnnotationUnusedEndpoints = "semaphore.uw.io/unused-endpoints"

// AnnotationExportTo names, on a Service or a pod, the only clusters that receive it: "c2,c3", or "none".
const AnnotationExportTo = "semaphore.uw.io/export-to"

// Domain begins the keys of most labels and annotations.
const Domain = "semaphore.uw.io/"

// Annotations by which a Service configures its global service; see config.GlobalRule.
const (
	AnnotationPreferClusters = "semaphore.uw.io/prefer-clusters"
	AnnotationMinReady       = "semaphore.uw.io/min-ready"
	AnnotationWhenGone       = "semaphore.uw.io/when-gone"
)

// AnnotationOwnName on a Service that is part of a global service has its own name lead to other clusters, too: by
// OwnNameFailover while the own cluster has too few ready endpoints, by OwnNameAll always.
const (
	AnnotationOwnName = "semaphore.uw.io/own-name"
	OwnNameFailover   = "failover"
	OwnNameAll        = "all"
	// LabelOwnName has, on a slice that the broker writes under the own name of a Service, the annotation's value.
	LabelOwnName = AnnotationOwnName
)

// IsOwnNameUse reports whether a Service may say so of its own name.
func IsOwnNameUse(value string) bool { return value == OwnNameFailover || value == OwnNameAll }

// TaintAgentNotReady is the key of the taint that keeps pods off a node until its agent guards the pod subnets of all
// remotes. The tool that registers nodes sets it, for example with kubelet's --register-with-taints; the broker removes
// it. An autoscaler without a setting for it ignores keys of some domains: PrefixedAgentNotReady in any domain is the
// same taint.
const (
	TaintAgentNotReady    = "semaphore.uw.io/agent-not-ready"
	PrefixedAgentNotReady = "/semaphore-agent-not-ready"
)

// IsAgentTaint reports whether a taint of that key waits for the agent of its node.
func IsAgentTaint(key string) bool {
	return key == TaintAgentNotReady || strings.HasSuffix(key, PrefixedAgentNotReady)
}

// LabelRouting on a Service, with the value RoutingLocalFirst, makes each cluster prefer its own endpoints.
const (
	LabelRouting      = "mirror.semaphore.uw.io/global-service-routing-strategy"
	RoutingLocalFirst = "local-first"
)

// Label of global services, and the annotation that names their clusters: "c1,c2".
const (
	LabelGlobal              = "global-svc"
	AnnotationGlobalClusters = "global-svc-clusters"
	// AnnotationGoneClusters names, on a global service, those of its clusters that its broker considers gone.
	AnnotationGoneClusters = "semaphore.uw.io/gone-clusters"
)

// Label of Services that are derived from ServiceExports, and the annotation that names the clusters that export, in
// the order in which they were first observed: the first of them decides.
const (
	LabelImported               = "semaphore.uw.io/imported"
	AnnotationExportingClusters = "semaphore.uw.io/exporting-clusters"
)

// ManagedByServiceMirror is the value of the label endpointslice.kubernetes.io/managed-by on the slices that
// semaphore-service-mirror writes for global services.
const ManagedByServiceMirror = "semaphore-service-mirror"

// Labels of mirrors, as semaphore-service-mirror documents them.
const (
	LabelMirrored         = "mirrored-svc"
	LabelMirrorPrefixSync = "mirror-svc-prefix-sync"
	// MirrorSeparator is "ssm" in hex; CoreDNS rewrites split names at it.
	MirrorSeparator = "73736d"
	// GlobalPrefix is the prefix of the names of global services, as each remote has one for its mirrors; GlobalCluster
	// stands for all clusters in DNS names: echo.shop.svc.cluster.global.
	GlobalPrefix  = "gl"
	GlobalCluster = "global"
	// ImportPrefix begins the names of Services that are derived from ServiceExports.
	ImportPrefix = "mcs"
	// DefaultMirrorSelector selects the Services that are mirrored.
	DefaultMirrorSelector = "mirror.semaphore.uw.io/mirror-service=true"
	// DefaultGlobalSelector selects the Services that are part of a global service.
	DefaultGlobalSelector = "mirror.semaphore.uw.io/global-service=true"
)

// AnnotationExportStatus has, on an offered Service if the configuration asks for it, its export status in the form of
// a condition: {"type":"Offered","status":"True","reason":"Offered","message":"…"}.
const AnnotationExportStatus = "semaphore.uw.io/export-status"

// AnnotationCopiedLabels has, on a mirror, the keys of the labels copied from its source: "a,b".
const AnnotationCopiedLabels = "semaphore.uw.io/copied-labels"

// AnnotationCopiedAnnotations has, on a ServiceImport, the keys of the annotations that its exports have.
const AnnotationCopiedAnnotations = "semaphore.uw.io/copied-annotations"

// Domains whose labels and annotations never cross between clusters, subdomains included. ToolDomains are those of
// tools that find by them the objects that they own, and delete those that their sources lack: Argo CD, Flux, Helm,
// kapp, Rancher's Fleet, kpt, Config Sync and Crossplane. kubectl (applyset.kubernetes.io) and kustomize
// (config.kubernetes.io, config.k8s.io) use domains of Kubernetes.
var (
	ownDomains  = []string{"kubernetes.io", "k8s.io", "semaphore.uw.io", DefaultLabelDomain}
	ToolDomains = []string{"argoproj.io", "fluxcd.io", "helm.sh", "k14s.io", "cattle.io", "kpt.dev",
		"configmanagement.gke.io", "configsync.gke.io", "crossplane.io"}
)

// LabelInstance is the label by which Argo CD finds the objects of an application, with its tracking method label.
const LabelInstance = "app.kubernetes.io/instance"

// Reserved reports whether a label or an annotation of that key has a meaning for Kubernetes itself, for semaphore, for
// the earlier tools or for a deployment tool, so that no other cluster sets it here: on no mirror, global Service or
// ServiceImport. A deployment tool would take the object for one of its own, and delete it. Of the domains of
// Kubernetes, only app.kubernetes.io is for general use.
func Reserved(key string) bool {
	switch key {
	case LabelManagedBy, LabelInstance, LabelSetManagedBy, LabelGlobal, LabelMirrored, LabelMirrorPrefixSync:
		return true
	}
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && domain != "app.kubernetes.io" && (within(domain, ownDomains) || within(domain, ToolDomains))
}

// within reports whether a domain is one of several, or a subdomain of one.
func within(domain string, all []string) bool {
	return slices.ContainsFunc(all, func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) })
}

// Limits of the labels, and of the annotations, that a ServiceExport exports: their number, and the bytes of all keys
// and values.
const (
	MaxExported      = 64
	MaxExportedBytes = 16 << 10
)

// Label domains of policy sets: the default, and that of later releases of semaphore-policy.
const (
	DefaultLabelDomain = "semaphore.uw.systems"
	PolicyLabelDomain  = "policy.semaphore.uw.io"
)

// LabelSetManagedBy is the label by which semaphore-policy marks its sets.
const LabelSetManagedBy = "managed-by"

// Suffixes of the node annotations that pair the two ends of a tunnel.
const (
	wireguardDomain = ".wireguard.semaphore.uw.io/"
	pubKeySuffix    = wireguardDomain + "pubKey"
	endpointSuffix  = wireguardDomain + "endpoint"
	// candidatesSuffix is of the annotation with all endpoints of a node in order, or Nowhere.
	candidatesSuffix = wireguardDomain + "candidates"
	// reachableSuffix is of the annotation by which an operator says how the nodes of one remote reach a node.
	reachableSuffix = wireguardDomain + "reachable-at"
)

// ReachableAt is the key of the annotation by which an operator says how the nodes of all remotes reach a node.
const ReachableAt = "wireguard.semaphore.uw.io/reachable-at"

// Nowhere is the value of CandidatesAnnotation and ReachableAt for a node that nothing reaches.
const Nowhere = "none"

// PubKeyAnnotation is the key under which a node publishes the public key of its device
// for cluster, base64.
func PubKeyAnnotation(cluster string) string { return cluster + pubKeySuffix }

// EndpointAnnotation is the key under which a node publishes where its device for
// cluster listens, "IP:port": the first address of its candidates.
func EndpointAnnotation(cluster string) string { return cluster + endpointSuffix }

// CandidatesAnnotation is the key under which a node publishes all its endpoints for cluster in order, "IP:port" or
// "name:port" separated by commas, or Nowhere. A node whose only endpoint is the one in EndpointAnnotation has none.
func CandidatesAnnotation(cluster string) string { return cluster + candidatesSuffix }

// ReachableAtAnnotation is ReachableAt for the nodes of one remote.
func ReachableAtAnnotation(cluster string) string { return cluster + reachableSuffix }

// IsReachableAt reports whether an annotation is ReachableAt, or that for one remote.
func IsReachableAt(key string) bool {
	return key == ReachableAt || strings.HasSuffix(key, reachableSuffix)
}

// WireGuardAnnotationCluster returns the cluster that the key of a node annotation names, and whether the key is one
// that semaphore writes.
func WireGuardAnnotationCluster(key string) (string, bool) {
	for _, suffix := range []string{pubKeySuffix, endpointSuffix, candidatesSuffix} {
		if c, ok := strings.CutSuffix(key, suffix); ok && c != "" {
			return c, true
		}
	}
	return "", false
}

// maxInterfaceName is IFNAMSIZ-1, see netdevice(7).
const maxInterfaceName = 15

const devicePrefix, shortPrefix = "wireguard.", "wg."

// DevicePrefixes begin the names of all devices.
var DevicePrefixes = []string{devicePrefix, shortPrefix}

// Device returns the name of the network interface for cluster: "wireguard.CLUSTER" if the kernel accepts a name of
// that length, otherwise a short one derived from the cluster's name alone (the interface's alias then has the full
// one).
func Device(cluster string) string {
	if full := devicePrefix + cluster; len(full) <= maxInterfaceName {
		return full
	}
	return shortPrefix + shortHash(cluster)
}

func DeviceAlias(cluster string) string { return devicePrefix + cluster }

// IsDevice reports whether an interface with this name and alias can be one of semaphore's.
func IsDevice(name, alias string) bool {
	if cluster, ok := strings.CutPrefix(name, devicePrefix); ok {
		return cluster != ""
	}
	cluster, ok := strings.CutPrefix(alias, devicePrefix)
	return ok && Device(cluster) == name
}

// Mirror returns the name of the mirror of a remote Service. It can be longer than the API allows (63 characters, RFC
// 1035 labels); the caller reports that.
func Mirror(prefix, namespace, name string) string {
	return prefix + "-" + namespace + "-" + MirrorSeparator + "-" + name
}

// Global returns the name of a global service. Like that of a mirror it can be too long.
func Global(namespace, name string) string { return Mirror(GlobalPrefix, namespace, name) }

// Import is the name of the Service that is derived from the ServiceExports of one name. One that would be too long has
// a hash in place of the names: an export may not fail for the length of a name.
func Import(namespace, name string) string {
	const maxService = 63
	if full := Mirror(ImportPrefix, namespace, name); len(full) <= maxService {
		return full
	}
	// 128 bits: remotes choose the names, and must not find another that has the same.
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	return ImportPrefix + "-" + MirrorSeparator + "-" + hex.EncodeToString(sum[:16])
}

// Slice returns the name of one of the slices with the endpoints of a cluster in a Service of ours.
func Slice(service, cluster string, number int) string {
	return service + "-" + ClusterLabel(cluster) + "-" + strconv.Itoa(number)
}

// Set returns the name of the GlobalNetworkSet of a policy set. A set whose own name ends like that of a part gets a
// suffix, so that the two differ.
func Set(cluster, namespace, name string) string {
	joined := joinSet(cluster, namespace, name)
	if _, part := SplitSetPart(joined); part > 1 {
		return SetWithSuffix(cluster, namespace, name)
	}
	return joined
}

// SetWithSuffix is Set, distinct from another set whose parts join to the same name.
func SetWithSuffix(cluster, namespace, name string) string {
	return joinSet(cluster, namespace, name) + "-" + shortHash(cluster+"/"+namespace+"/"+name)
}

// SetApart returns the name of a set whose Set is InSetsOf another cluster. Neither the label of a cluster nor a
// namespace has a dot, so that this name is in the sets of its own cluster alone.
func SetApart(cluster, namespace, name string) string {
	return ClusterLabel(cluster) + "." + namespace + "-" + name + "-" + shortHash(cluster+"/"+namespace+"/"+name)
}

// InSetsOf reports whether the name of a set begins with a cluster's label. If several clusters match, such as c2 and
// c2-eu for c2-eu-pay-web, the set belongs to the one with the longest label.
func InSetsOf(cluster, set string) bool {
	rest, ok := strings.CutPrefix(set, ClusterLabel(cluster))
	return ok && (rest == "" || rest[0] == '-' || rest[0] == '.')
}

func joinSet(cluster, namespace, name string) string {
	return ClusterLabel(cluster) + "-" + namespace + "-" + name
}

// setPart precedes the number of a part. The dot distinguishes it from labels of clusters and namespaces, which have
// none.
const setPart = ".part-"

// SetPart returns the name of one of the objects of a set that needs several. The first part, 1, has the name of the
// set.
func SetPart(set string, part int) string {
	if part == 1 {
		return set
	}
	return set + setPart + strconv.Itoa(part)
}

func SplitSetPart(name string) (set string, part int) {
	if i := strings.LastIndex(name, setPart); i > 0 {
		number := name[i+len(setPart):]
		if n, err := strconv.Atoi(number); err == nil && n > 1 && strconv.Itoa(n) == number {
			return name[:i], n
		}
	}
	return name, 1
}

// Pool returns the name of the disabled Calico IPPool of a remote pod subnet.
func Pool(cluster, subnet string) string {
	return "semaphore-" + ClusterLabel(cluster) + "-" +
		strings.Trim(strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(subnet), "-")
}

// maxLabel is the longest DNS label (RFC 1123), and so the longest name of a namespace or Service.
const maxLabel = 63

// ForeignNamespace is the namespace of the exporter that reads a cluster in which nothing of semaphore runs.
func ForeignNamespace(cluster string) string {
	if full := "semaphore-" + cluster; len(full) <= maxLabel && !strings.Contains(cluster, ".") {
		return full
	}
	return foreignHashed + shortHash(cluster)
}

const foreignHashed = "semaphore-reads-"

var hashOfForeign = regexp.MustCompile("^" + foreignHashed + "[0-9a-f]{10}$")

// ForeignCluster returns the cluster whose ForeignNamespace a namespace is; known is false where that has a hash in
// place of the name.
func ForeignCluster(namespace string) (cluster string, known bool) {
	cluster, ok := strings.CutPrefix(namespace, "semaphore-")
	return cluster, ok && !hashOfForeign.MatchString(namespace) && ForeignNamespace(cluster) == namespace
}

// shortHash has 40 bits: enough against accidental collisions of two names of one cluster, short enough for an
// interface name.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:5])
}

// CalicoTunnelAddresses are the annotations with the addresses of its pod network that a node itself has (libcalico-go,
// lib/backend/k8s/resources/node.go).
var CalicoTunnelAddresses = []string{
	"projectcalico.org/IPv4IPIPTunnelAddr",
	"projectcalico.org/IPv4VXLANTunnelAddr", "projectcalico.org/IPv6VXLANTunnelAddr",
	"projectcalico.org/IPv4WireguardInterfaceAddr", "projectcalico.org/IPv6WireguardInterfaceAddr",
}

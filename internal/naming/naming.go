// Package naming owns every name that users, other clusters or the original tools can
// see: label and annotation keys, names of mirrors, sets and devices. It is a leaf:
// it knows strings only, and imports nothing of ours.
//
// Names that come from semaphore-wireguard, semaphore-service-mirror and
// semaphore-policy are kept letter for letter: dashboards, policies and DNS rewrites
// of their users rely on them.
package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// What we own in a cluster bears all of these labels; what does not is someone else's
// and is never written to.
const (
	LabelManagedBy     = "app.kubernetes.io/managed-by"
	ManagedByBroker    = "semaphore-broker"
	LabelSourceCluster = "semaphore.uw.io/source-cluster"
)

// Annotations on what we own: where it came from, in full, however its name was shortened.
const (
	AnnotationSourceNamespace = "semaphore.uw.io/source-namespace"
	AnnotationSourceName      = "semaphore.uw.io/source-name"
)

// AnnotationExportTo names, on a Service or a pod, the only clusters that may see it: "c2,c3", or "none".
const AnnotationExportTo = "semaphore.uw.io/export-to"

// Annotations by which a Service says how its global service is to be used; see config.GlobalRule.
const (
	AnnotationPreferClusters = "semaphore.uw.io/prefer-clusters"
	AnnotationMinReady       = "semaphore.uw.io/min-ready"
	AnnotationWhenGone       = "semaphore.uw.io/when-gone"
)

// TaintAgentNotReady is the key of the taint that keeps pods off a node until its agent guards the pod subnets of all
// remotes. Whoever registers nodes sets it, as with kubelet's --register-with-taints; the broker removes it.
const TaintAgentNotReady = "semaphore.uw.io/agent-not-ready"

// LabelRouting on a Service, with the value RoutingLocalFirst, has each cluster prefer its own endpoints.
const (
	LabelRouting      = "mirror.semaphore.uw.io/global-service-routing-strategy"
	RoutingLocalFirst = "local-first"
)

// Label of global services, and the annotation that names their clusters: "c1,c2".
const (
	LabelGlobal              = "global-svc"
	AnnotationGlobalClusters = "global-svc-clusters"
	// AnnotationGoneClusters names, on a global service, those of its clusters that its broker takes for gone.
	AnnotationGoneClusters = "semaphore.uw.io/gone-clusters"
)

// ManagedByServiceMirror is the value of the label endpointslice.kubernetes.io/managed-by of the slices that
// semaphore-service-mirror makes for global services.
const ManagedByServiceMirror = "semaphore-service-mirror"

// Labels of mirrors, as semaphore-service-mirror documents them.
const (
	LabelMirrored         = "mirrored-svc"
	LabelMirrorPrefixSync = "mirror-svc-prefix-sync"
	// MirrorSeparator is "ssm" in hex; CoreDNS rewrites split names at it.
	MirrorSeparator = "73736d"
	// GlobalPrefix begins the names of global services, as that of a remote does those of its mirrors; GlobalCluster
	// stands for all clusters in names of the DNS: echo.shop.svc.cluster.global.
	GlobalPrefix  = "gl"
	GlobalCluster = "global"
	// DefaultMirrorSelector selects the Services that are mirrored.
	DefaultMirrorSelector = "mirror.semaphore.uw.io/mirror-service=true"
	// DefaultGlobalSelector selects the Services that are part of a global service.
	DefaultGlobalSelector = "mirror.semaphore.uw.io/global-service=true"
)

// AnnotationExportStatus says, on a Service that is offered and where that is asked for, what became of it, as a condition of
// Kubernetes does: {"type":"Offered","status":"True","reason":"Offered","message":"…"}.
const AnnotationExportStatus = "semaphore.uw.io/export-status"

// AnnotationCopiedLabels has, on a mirror, the keys of the labels that are those of its source: "a,b".
const AnnotationCopiedLabels = "semaphore.uw.io/copied-labels"

// ReservedLabel reports whether a label of that key means something to Kubernetes itself, to semaphore or to the tools before it,
// so that another cluster may never set it here. Of the domains of Kubernetes, app.kubernetes.io alone is for everybody's use.
func ReservedLabel(key string) bool {
	switch key {
	case LabelManagedBy, LabelSetManagedBy, LabelGlobal, LabelMirrored, LabelMirrorPrefixSync:
		return true
	}
	domain, _, prefixed := strings.Cut(key, "/")
	if !prefixed || domain == "app.kubernetes.io" {
		return false
	}
	for _, reserved := range []string{"kubernetes.io", "k8s.io", "semaphore.uw.io", DefaultLabelDomain} {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			return true
		}
	}
	return false
}

// Label domains of policy sets: the default, and that of later releases of semaphore-policy.
const (
	DefaultLabelDomain = "semaphore.uw.systems"
	PolicyLabelDomain  = "policy.semaphore.uw.io"
)

// LabelSetManagedBy is the label by which semaphore-policy marks its sets.
const LabelSetManagedBy = "managed-by"

// Suffixes of the node annotations that pair two ends of a tunnel.
const (
	wireguardDomain = ".wireguard.semaphore.uw.io/"
	pubKeySuffix    = wireguardDomain + "pubKey"
	endpointSuffix  = wireguardDomain + "endpoint"
)

// PubKeyAnnotation is the key under which a node publishes the public key of its device
// for cluster, base64.
func PubKeyAnnotation(cluster string) string { return cluster + pubKeySuffix }

// EndpointAnnotation is the key under which a node publishes where its device for
// cluster listens, "InternalIP:port".
func EndpointAnnotation(cluster string) string { return cluster + endpointSuffix }

// WireGuardAnnotationCluster returns the cluster a node annotation key is about, and
// whether the key is one of ours at all.
func WireGuardAnnotationCluster(key string) (string, bool) {
	for _, suffix := range []string{pubKeySuffix, endpointSuffix} {
		if c, ok := strings.CutSuffix(key, suffix); ok && c != "" {
			return c, true
		}
	}
	return "", false
}

// maxInterfaceName is IFNAMSIZ-1, see netdevice(7).
const maxInterfaceName = 15

const devicePrefix = "wireguard."

// Device is the name of the network interface that leads to cluster: "wireguard.CLUSTER"
// where the kernel takes a name of that length, otherwise a short one that depends on
// the cluster's name alone (the full one is then kept as the interface's alias).
func Device(cluster string) string {
	if full := devicePrefix + cluster; len(full) <= maxInterfaceName {
		return full
	}
	return "wg." + shortHash(cluster)
}

// DeviceAlias is the name in full.
func DeviceAlias(cluster string) string { return devicePrefix + cluster }

// IsDevice reports whether an interface of this name and alias can be one of ours.
func IsDevice(name, alias string) bool {
	if cluster, ok := strings.CutPrefix(name, devicePrefix); ok {
		return cluster != ""
	}
	cluster, ok := strings.CutPrefix(alias, devicePrefix)
	return ok && Device(cluster) == name
}

// Mirror is the name of the mirror of a remote Service. It can be longer than the API
// allows (63 characters, RFC 1035 labels); the caller tells the user.
func Mirror(prefix, namespace, name string) string {
	return prefix + "-" + namespace + "-" + MirrorSeparator + "-" + name
}

// Global is the name of a global service. Like that of a mirror it can be too long.
func Global(namespace, name string) string { return Mirror(GlobalPrefix, namespace, name) }

// Slice is the name of one of the slices that hold what a cluster has in a Service of ours.
func Slice(service, cluster string, number int) string {
	return service + "-" + cluster + "-" + strconv.Itoa(number)
}

// Set is the name of the GlobalNetworkSet of a policy set. A set whose own name ends like that of a part has a
// suffix, so that it cannot be taken for one.
func Set(cluster, namespace, name string) string {
	joined := joinSet(cluster, namespace, name)
	if _, part := SplitSetPart(joined); part > 1 {
		return SetWithSuffix(cluster, namespace, name)
	}
	return joined
}

// SetWithSuffix is Set made distinct from another set whose parts join to the same name.
func SetWithSuffix(cluster, namespace, name string) string {
	return joinSet(cluster, namespace, name) + "-" + shortHash(cluster+"/"+namespace+"/"+name)
}

// SetApart is the name of a set whose Set is InSetsOf another cluster. Neither a cluster nor a namespace has a dot in its
// name, so that this one is in the sets of its own cluster alone.
func SetApart(cluster, namespace, name string) string {
	return cluster + "." + namespace + "-" + name + "-" + shortHash(cluster+"/"+namespace+"/"+name)
}

// InSetsOf reports whether the name of a set begins as those of a cluster do. Of several clusters, such as c2 and c2-eu for
// c2-eu-pay-web, it is that of the one with the longest name.
func InSetsOf(cluster, set string) bool {
	rest, ok := strings.CutPrefix(set, cluster)
	return ok && (rest == "" || rest[0] == '-' || rest[0] == '.')
}

func joinSet(cluster, namespace, name string) string { return cluster + "-" + namespace + "-" + name }

// setPart is what stands before the number of a part. The dot keeps it apart from clusters and namespaces, which have none.
const setPart = ".part-"

// SetPart is the name of one of the objects that a set with too many addresses for one has. The first part, 1, has the
// name of the set.
func SetPart(set string, part int) string {
	if part == 1 {
		return set
	}
	return set + setPart + strconv.Itoa(part)
}

// SplitSetPart takes apart what SetPart joined.
func SplitSetPart(name string) (set string, part int) {
	if i := strings.LastIndex(name, setPart); i > 0 {
		number := name[i+len(setPart):]
		if n, err := strconv.Atoi(number); err == nil && n > 1 && strconv.Itoa(n) == number {
			return name[:i], n
		}
	}
	return name, 1
}

// Pool is the name of the disabled Calico IPPool of a remote pod subnet.
func Pool(cluster, subnet string) string {
	return "semaphore-" + cluster + "-" + strings.Trim(strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(subnet), "-")
}

// shortHash has 40 bits: enough that two names of one cluster do not meet by chance,
// short enough for an interface name.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:5])
}

// CalicoTunnelAddresses are the annotations in which Calico says which addresses of its pod network a node itself has
// (libcalico-go, lib/backend/k8s/resources/node.go).
var CalicoTunnelAddresses = []string{
	"projectcalico.org/IPv4IPIPTunnelAddr",
	"projectcalico.org/IPv4VXLANTunnelAddr", "projectcalico.org/IPv6VXLANTunnelAddr",
	"projectcalico.org/IPv4WireguardInterfaceAddr", "projectcalico.org/IPv6WireguardInterfaceAddr",
}

// Package admission decides what of a remote cluster's exports may be taken: each object
// alone, against the operator's configuration of that remote. A remote is trusted for
// its own pod subnets and for nothing else.
//
// It is pure: an object and a configuration in, the object as it may be taken and the
// refusals out. Rules that concern several objects (two nodes with one key, two sets
// with one name) belong to the plans, which decide them by the state alone.
package admission

import (
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Code is the stable word for why something was refused, for metrics and documents.
type Code string

// The codes.
const (
	// Malformed: the message lacks what its kind needs, or says two things at once.
	Malformed Code = "malformed"
	// UnknownKind: a kind this version does not know.
	UnknownKind Code = "unknown-kind"
	// InvalidName: a name, namespace, UID, hostname or port name that Kubernetes would not take.
	InvalidName Code = "invalid-name"
	// TooLarge: more of something than one object may have.
	TooLarge Code = "too-large"
	// InvalidCIDR: a pod CIDR that is no canonical prefix.
	InvalidCIDR Code = "invalid-cidr"
	// CIDROutsidePodSubnets: a pod CIDR that the operator did not give to this cluster.
	CIDROutsidePodSubnets Code = "cidr-outside-pod-subnets"
	// InvalidPublicKey: no usable Curve25519 public key.
	InvalidPublicKey Code = "invalid-public-key"
	// InvalidEndpoint: a WireGuard endpoint that is no literal IP:port.
	InvalidEndpoint Code = "invalid-endpoint"
	// EndpointNotAllowed: a WireGuard endpoint where no node of this cluster can be.
	EndpointNotAllowed Code = "endpoint-not-allowed"
	// InvalidPort: a port or protocol that does not exist, or one named twice.
	InvalidPort Code = "invalid-port"
	// InvalidSetting: a Service's session affinity, traffic distribution or setting of its global service that is
	// out of bounds or not known.
	InvalidSetting Code = "invalid-setting"
	// InvalidAddressType: an EndpointSlice of neither IPv4 nor IPv6.
	InvalidAddressType Code = "invalid-address-type"
	// InvalidIP: no IP address, or not in its canonical form (IPv4-mapped, with a zone).
	InvalidIP Code = "invalid-ip"
	// IPOutsidePodSubnets: an address that the operator did not give to this cluster.
	IPOutsidePodSubnets Code = "ip-outside-pod-subnets"
	// KindNotTaken: a kind that the own cluster's exporter has nothing to say of to its own broker.
	KindNotTaken Code = "kind-not-taken"
	// OverQuota: an object for which the remote's limits leave no room. It is the replica that says so.
	OverQuota Code = "over-quota"
)

// Refusal tells that an object, or a part of it, was not taken.
type Refusal struct {
	Code Code
	// Reason is one sentence: the field, what is wrong and what would be right.
	Reason string
}

// What one object may hold. The apiserver would refuse more; the names that are not its
// own limits keep one object from costing what thousands should.
const (
	maxPodCIDRs  = 1024 // Calico's IPAM has a block for each 64 pods of a node
	maxPorts     = 1000
	maxEndpoints = 1000 // discovery.k8s.io/v1 EndpointSlice
	maxAddresses = 100  // discovery.k8s.io/v1 Endpoint
	maxPreferred = 64   // clusters that a global service puts in order
	maxMinReady  = 1_000_000
	maxAffinity  = 86400 // seconds, v1 ClientIPConfig
	maxPodIPs    = 16
	maxUID       = 128
	maxReasons   = 8 // refusals told for one object; the rest are counted in the last
	maxReason    = 1 << 10
	maxText      = 317 // bytes of a qualified name, the longest of names
)

// Checker checks the objects of one remote cluster. It holds no state.
type Checker struct {
	remote *config.Remote
	local  []netip.Prefix
	// others are the pod subnets of the other remotes.
	others []netip.Prefix
	// own says that the cluster is the broker's own.
	own bool
}

// New makes the checker of a remote. local are the own cluster's subnets, others the pod subnets of other remotes, if any.
func New(remote *config.Remote, local []netip.Prefix, others ...netip.Prefix) *Checker {
	return &Checker{remote: remote, local: local, others: others}
}

// Own makes the checker of what the own cluster's exporter tells: services, which are never mirrored into the cluster
// they are in, and endpoint slices.
func Own(own *config.Remote) *Checker {
	return &Checker{remote: own, own: true}
}

// Check returns the object as it may be taken: itself, a copy without what was refused or is not known,
// or nil when nothing of it may be. It does not change its argument.
func (c *Checker) Check(o *semaphorev1.Object) (*semaphorev1.Object, []Refusal) {
	t := &trial{Checker: c}
	taken := t.object(known(o))
	if len(t.refusals) > maxReasons {
		more := len(t.refusals) - maxReasons
		t.refusals = t.refusals[:maxReasons]
		last := &t.refusals[maxReasons-1]
		last.Reason = fmt.Sprintf("%s (and %d more such)", last.Reason, more)
	}
	return taken, t.refusals
}

// trial is the check of one object.
type trial struct {
	*Checker
	refusals []Refusal
}

func (t *trial) refuse(code Code, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	if len(reason) > maxReason {
		// It quotes what the remote said, which may be as long as a message, and is remembered.
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	t.refusals = append(t.refusals, Refusal{code, reason})
}

func (t *trial) object(o *semaphorev1.Object) *semaphorev1.Object {
	key := o.GetKey()
	if kind := key.GetKind(); t.own && (kind == semaphorev1.Kind_KIND_NODE || kind == semaphorev1.Kind_KIND_SET_MEMBER) {
		t.refuse(KindNotTaken, "a %s of this cluster itself: its own exporter is taken for global services only", semaphorev1.KindName(kind))
		return nil
	}
	switch key.GetKind() {
	case semaphorev1.Kind_KIND_NODE:
		if o.GetNode() == nil {
			t.refuse(Malformed, "the object's key says node, and it holds none")
			return nil
		}
		if key.GetNamespace() != "" {
			t.refuse(Malformed, "key.namespace: a node has none")
			return nil
		}
		if !t.subdomain("key.name", key.GetName()) {
			return nil
		}
		return t.node(o)
	case semaphorev1.Kind_KIND_SERVICE:
		if o.GetService() == nil {
			t.refuse(Malformed, "the object's key says service, and it holds none")
			return nil
		}
		if !t.namespace(key) || !t.label("key.name", key.GetName()) {
			return nil
		}
		return t.service(o)
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		if o.GetEndpointSlice() == nil {
			t.refuse(Malformed, "the object's key says endpointslice, and it holds none")
			return nil
		}
		if !t.namespace(key) || !t.subdomain("key.name", key.GetName()) {
			return nil
		}
		return t.endpointSlice(o)
	case semaphorev1.Kind_KIND_SET_MEMBER:
		if o.GetSetMember() == nil {
			t.refuse(Malformed, "the object's key says setmember, and it holds none")
			return nil
		}
		if !t.namespace(key) || !t.subdomain("key.name", key.GetName()) {
			return nil
		}
		return t.setMember(o)
	default:
		t.refuse(UnknownKind, "kind %d is none that this broker knows", key.GetKind())
		return nil
	}
}

func (t *trial) namespace(key *semaphorev1.ObjectKey) bool {
	return t.label("key.namespace", key.GetNamespace())
}

// long refuses what is longer than any name, before it is looked at more closely: what the checks of names cost grows
// with their length, and a message of nothing but one name compresses well.
func (t *trial) long(field, text string) bool {
	if len(text) <= maxText {
		return false
	}
	t.refuse(InvalidName, "%s %.100q…: %d bytes, and %d is the most", field, text, len(text), maxText)
	return true
}

func (t *trial) label(field, name string) bool {
	if t.long(field, name) {
		return false
	}
	for _, e := range validation.IsDNS1123Label(name) {
		t.refuse(InvalidName, "%s %q: %s", field, name, e)
		return false
	}
	return true
}

func (t *trial) subdomain(field, name string) bool {
	if t.long(field, name) {
		return false
	}
	for _, e := range validation.IsDNS1123Subdomain(name) {
		t.refuse(InvalidName, "%s %q: %s", field, name, e)
		return false
	}
	return true
}

// podIP parses an address of a pod of the remote. family is 4, 6 or 0 for both.
func (t *trial) podIP(field, text string, family int) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		t.refuse(InvalidIP, "%s %q is no IP address", field, text)
	case ip.Zone() != "" || ip.Is4In6() || ip.String() != text:
		// One address must have one spelling: sets and slices are compared as text later.
		t.refuse(InvalidIP, "%s %q: write it as %s", field, text, ip.Unmap().WithZone(""))
	case family == 4 && !ip.Is4(), family == 6 && !ip.Is6():
		t.refuse(InvalidIP, "%s %s is not IPv%d, as the object says of its addresses", field, ip, family)
	case !containsAddr(t.remote.PodPrefixes, ip):
		t.refuse(IPOutsidePodSubnets, "%s %s is outside the pod subnets %v of %s", field, ip, t.remote.PodPrefixes, t.remote.Name)
	default:
		return ip, true
	}
	return netip.Addr{}, false
}

func containsAddr(prefixes []netip.Prefix, ip netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

func containsPrefix(prefixes []netip.Prefix, q netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Bits() <= q.Bits() && p.Contains(q.Addr()) {
			return true
		}
	}
	return false
}

// known is an object without the fields that this version does not know: they would go wherever the object goes, be
// of any size, and nobody could have checked them.
func known(o *semaphorev1.Object) *semaphorev1.Object {
	if !hasUnknown(o.ProtoReflect()) {
		return o
	}
	out := clone(o)
	discardUnknown(out.ProtoReflect())
	return out
}

func hasUnknown(m protoreflect.Message) (found bool) {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	eachMessage(m, func(of protoreflect.Message) { found = found || hasUnknown(of) })
	return found
}

func discardUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	eachMessage(m, discardUnknown)
}

// eachMessage calls f with the messages in the fields of m. None of an Object's is a map.
func eachMessage(m protoreflect.Message, f func(protoreflect.Message)) {
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case d.Message() == nil:
		case d.IsList():
			for i := range v.List().Len() {
				f(v.List().Get(i).Message())
			}
		default:
			f(v.Message())
		}
		return true
	})
}

func clone[M proto.Message](m M) M { return proto.Clone(m).(M) }

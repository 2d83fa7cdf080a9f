// Package admission decides which objects of a remote cluster are accepted: each object alone, against the operator's
// configuration of that remote. A remote is trusted for its own pod subnets and for nothing else.
//
// It is pure: it takes an object and a configuration, and returns the accepted object and the refusals. Rules that
// concern several objects (two nodes with one key, two sets with one name) belong to the plans, which decide them by
// the state alone.
package admission

import (
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Refusal reports that an object, or a part of it, was refused.
type Refusal struct {
	Code finding.Code
	// Reason is one sentence: the field, its fault and the correction.
	Reason string
}

// Limits of one object. The apiserver would reject more. Those without an API's name bound the cost of one object.
const (
	maxPodCIDRs   = 1024 // Calico's IPAM assigns a node a block for each 64 pods
	maxPorts      = 1000
	maxEndpoints  = 1000  // discovery.k8s.io/v1 EndpointSlice
	maxAddresses  = 100   // discovery.k8s.io/v1 Endpoint
	maxPreferred  = 64    // clusters that a global service prefers
	maxAffinity   = 86400 // seconds, v1 ClientIPConfig
	maxPodIPs     = 16
	maxUID        = 128
	maxReasons    = 8 // refusals of one object; the last one counts the others
	maxReason     = 1 << 10
	maxText       = 317 // bytes of a qualified name, the longest name
	maxUnreadable = 16  // settings of a global service; this version has three
)

// Checker checks the objects of one remote cluster. It has no state.
type Checker struct {
	remote *config.Remote
	local  []netip.Prefix
	others []netip.Prefix
	own    bool
}

// New makes the checker of a remote. local are the own cluster's subnets, others the pod subnets of other remotes.
func New(remote *config.Remote, local []netip.Prefix, others ...netip.Prefix) *Checker {
	return &Checker{remote: remote, local: local, others: others}
}

// Own makes the checker of the own cluster's exporter: it accepts services, which are never mirrored into their own
// cluster, and endpoint slices.
func Own(own *config.Remote) *Checker {
	return &Checker{remote: own, own: true}
}

// Check returns the accepted object: the object itself, a copy without its refused and unknown parts, or nil if nothing
// is accepted. It does not modify its argument.
func (c *Checker) Check(o *semaphorev1.Object) (*semaphorev1.Object, []Refusal) {
	t := &check{Checker: c}
	taken := t.object(withoutUnknown(o))
	if len(t.refusals) > maxReasons {
		more := len(t.refusals) - maxReasons
		t.refusals = t.refusals[:maxReasons]
		last := &t.refusals[maxReasons-1]
		last.Reason = fmt.Sprintf("%s (and %d more)", last.Reason, more)
	}
	return taken, t.refusals
}

type check struct {
	*Checker
	refusals []Refusal
}

func (t *check) refuse(code finding.Code, format string, args ...any) {
	// The reason quotes the remote, whose text may be as long as a message, and is stored.
	t.refusals = append(t.refusals, Refusal{code, finding.CleanTo(fmt.Sprintf(format, args...), maxReason)})
}

func (t *check) object(o *semaphorev1.Object) *semaphorev1.Object {
	key := o.GetKey()
	kind := key.GetKind()
	if t.own && (kind == semaphorev1.Kind_KIND_NODE || kind == semaphorev1.Kind_KIND_SET_MEMBER) {
		t.refuse(finding.KindNotAccepted, "a %s of the own cluster: its exporter is accepted for global services only",
			semaphorev1.KindName(kind))
		return nil
	}
	var (
		fits  bool
		judge func(*semaphorev1.Object) *semaphorev1.Object
		name  = validation.IsDNS1123Subdomain
	)
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		fits, judge = o.GetNode() != nil, t.node
	case semaphorev1.Kind_KIND_SERVICE:
		fits, judge, name = o.GetService() != nil, t.service, validation.IsDNS1123Label
	case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
		fits, judge = o.GetEndpointSlice() != nil, t.endpointSlice
	case semaphorev1.Kind_KIND_SET_MEMBER:
		fits, judge = o.GetSetMember() != nil, t.setMember
	default:
		t.refuse(finding.UnknownKind, "this broker does not know kind %d", kind)
		return nil
	}
	if !fits {
		t.refuse(finding.Malformed, "the key has kind %s, but the object is not one", semaphorev1.KindName(kind))
		return nil
	}
	if kind == semaphorev1.Kind_KIND_NODE {
		if key.GetNamespace() != "" {
			t.refuse(finding.Malformed, "key.namespace: a node has no namespace")
			return nil
		}
	} else if !t.label("key.namespace", key.GetNamespace()) {
		return nil
	}
	if !t.valid("key.name", key.GetName(), name) {
		return nil
	}
	return judge(o)
}

// tooLong refuses a text that is longer than any name before it is validated: the cost of validation grows with the
// length, and a message that contains only one long name compresses well.
func (t *check) tooLong(field, text string) bool {
	if len(text) <= maxText {
		return false
	}
	t.refuse(finding.InvalidName, "%s %.100q…: %d bytes exceed the limit of %d", field, text, len(text), maxText)
	return true
}

func (t *check) label(field, name string) bool {
	return t.valid(field, name, validation.IsDNS1123Label)
}

// valid refuses a name in which errors finds one.
func (t *check) valid(field, name string, errors func(string) []string) bool {
	if t.tooLong(field, name) {
		return false
	}
	for _, e := range errors(name) {
		t.refuse(finding.InvalidName, "%s %q: %s", field, name, e)
		return false
	}
	return true
}

// podIP parses the IP of a pod of the remote. family is 4, 6 or 0 for both.
func (t *check) podIP(field, text string, family int) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		t.refuse(finding.InvalidIP, "%s %q is not an IP address", field, text)
	case ip.Zone() != "" || ip.Is4In6() || ip.String() != text:
		// An address must have one spelling: sets and slices are compared as text later.
		t.refuse(finding.InvalidIP, "%s %q: write it as %s", field, text, ip.Unmap().WithZone(""))
	case family == 4 && !ip.Is4(), family == 6 && !ip.Is6():
		t.refuse(finding.InvalidIP, "%s %s is not IPv%d, which is the object's address type", field, ip, family)
	case !containsAddr(t.remote.PodPrefixes, ip):
		t.refuse(finding.IPOutsidePodSubnets, "%s %s is outside the pod subnets %v of %s", field, ip, t.remote.PodPrefixes,
			t.remote.Name)
	default:
		return ip, true
	}
	return netip.Addr{}, false
}

func containsAddr(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func containsPrefix(prefixes []netip.Prefix, q netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) })
}

// withoutUnknown returns an object without the fields that this version does not know: they would be copied with the
// object, could have any size, and are not validated.
func withoutUnknown(o *semaphorev1.Object) *semaphorev1.Object {
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

// eachMessage calls f with the messages in the fields of m. An Object has no maps.
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

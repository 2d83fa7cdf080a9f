package replica

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// consistent checks that what is kept step by step is what comes out when it is worked out again, and that it is within
// its limits.
func consistent(t *testing.T, r *Replica) {
	t.Helper()
	for of, k := range r.kinds {
		var used admission.Use
		var received streams.Digest
		perGroup := map[admission.Group]int{}
		count, over, hollow := 0, 0, 0
		for key, h := range k.objects {
			n := admission.NeedOf(h.object)
			used.Add(n.Use, 1)
			if n.Group != (admission.Group{}) && n.Use[admission.Addresses] > 0 {
				perGroup[n.Group] += n.Use[admission.Addresses]
			}
			if w, back := k.retained[key]; !back {
				received.Add(h.sentDigest)
				count++
			} else if w.replacement != nil {
				received.Add(w.replacement.sentDigest)
				count++
			}
			if isEmpty(h.object) {
				hollow++
			}
			if key.Kind != of || KeyOf(h.object.GetKey()) != key {
				t.Fatalf("%s is held as %s", KeyOf(h.object.GetKey()), key)
			}
		}
		for key, refused := range k.refused {
			w, back := k.retained[key]
			if _, held := k.objects[key]; !held || back && w.replacement == nil {
				received.Add(refused.sentDigest)
				count++
			}
			if refused.need != nil {
				over++
			}
		}
		for key := range k.retained {
			if h, held := k.objects[key]; !held || isEmpty(h.object) {
				t.Fatalf("%s is retained and not held", key)
			}
		}
		if hollow != k.empty {
			t.Fatalf("%d objects are hollow, kept %d", hollow, k.empty)
		}
		if used != k.used || !reflect.DeepEqual(perGroup, k.perGroup) {
			t.Fatalf("%s: used %v %v, kept %v %v", semaphorev1.KindName(of), used, perGroup, k.used, k.perGroup)
		}
		if received != k.sentDigest || count != k.count || over != k.overLimit {
			t.Fatalf("%s: sent %x of %d, %d over, kept %x of %d, %d over", semaphorev1.KindName(of), received, count, over,
				k.sentDigest, k.count, k.overLimit)
		}
		l := limitOf(of, r.limits)
		for group, n := range k.perGroup {
			if most := l.of[admission.GroupAddresses].most; most > 0 && n > most {
				t.Fatalf("%v has %d addresses", group, n)
			}
		}
		for _, resource := range []admission.Resource{admission.Objects, admission.Addresses, admission.Bytes} {
			if most := l.of[resource].most; most > 0 && used[resource] > most {
				t.Fatalf("%s: used %v, limit %+v", semaphorev1.KindName(of), used, l)
			}
		}
		if len(k.refused) > maxRefused+len(k.objects) {
			t.Fatalf("%d refusals are remembered", len(k.refused))
		}
	}
}

// fuzzed is the remote of FuzzPublish.
var fuzzed = &config.Remote{
	Name:         "c2",
	PodPrefixes:  []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd02::/48")},
	NodePrefixes: []netip.Prefix{netip.MustParsePrefix("172.18.2.0/24")},
	Limits: config.Limits{Nodes: 3, Services: 3, EndpointSlices: 3, Endpoints: 8, EndpointsPerService: 5,
		SetMembers: 3, SetIPs: 8, IPsPerSet: 5, MebibytesPerKind: 1},
}

// FuzzPublish: whatever an exporter sends, in one stream and then in another, nothing panics; what is held is
// within the remote's subnets and limits; and the changes that are reported lead to exactly what is held.
func FuzzPublish(f *testing.F) {
	stream := func(all ...*semaphorev1.PublishRequest) {
		var b bytes.Buffer
		for _, m := range all {
			testkit.Value(protodelim.MarshalTo(&b, m))(f)
		}
		f.Add(b.Bytes())
	}
	slice := func(revision uint64, name, ip string) *semaphorev1.Change {
		return put(revision, &semaphorev1.Object{
			Key: &semaphorev1.ObjectKey{Kind: kSlice, Namespace: "shop", Name: name},
			Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: &semaphorev1.EndpointSlice{Service: "echo",
				AddressType: "IPv4", Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{ip}}}}},
		})
	}
	member := func(revision uint64, name, ip string) *semaphorev1.Change {
		return put(revision, &semaphorev1.Object{
			Key: &semaphorev1.ObjectKey{Kind: kMember, Namespace: "shop", Name: name},
			Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: "u", SetName: "web",
				Ips: []string{ip}}},
		})
	}
	end4 := func(kind semaphorev1.Kind, n uint64) *semaphorev1.PublishRequest { return end(kind, 9, n) }
	whole := []*semaphorev1.PublishRequest{
		hello("e1", 9, 0, kSlice, kMember),
		begin(kSlice, 9), changes(slice(1, "a", "10.2.0.1"), slice(2, "b", "169.254.169.254")), end4(kSlice, 2),
		begin(kMember, 9), changes(member(3, "a", "10.2.0.1"), member(4, "b", "10.2.0.2"), member(5, "c", "10.2.0.3"),
			member(6, "d", "10.2.0.4")), end4(kMember, 4),
		changes(member(10, "a", "10.2.0.9"), put(11, object(kSlice, "x", ""))),
		changes(remove(12, kMember, "b"), remove(13, kMember, "c"), remove(14, kMember, "a")),
		sent(20, 20), heartbeat(21),
	}
	stream(whole...)
	stream(append(append([]*semaphorev1.PublishRequest{}, whole...), hello("e1", 21, 0, kSlice, kMember),
		changes(member(22, "e", "10.2.0.5")), hello("e2", 1, 0, kMember), begin(kMember, 1), end(kMember, 1, 0),
		heartbeat(1))...)
	stream(hello("e1", 0, 0, kMember), begin(kMember, 0), end(kMember, 0, 0), hello("e2", 0, 0, kMember),
		unchanged(kMember, 0, 0, streams.Digest{}), sent(5, 5))
	stream(heartbeat(1))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := New("c2", "c1", "test", admission.New(fuzzed, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}).Check)
		r.SetLimits(fuzzed.Limits, config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: time.Minute}})
		state := map[Key]*semaphorev1.Object{}
		at := now
		s := r.Open()
		in := bytes.NewReader(data)
		for {
			m := &semaphorev1.PublishRequest{}
			if protodelim.UnmarshalFrom(in, m) != nil {
				break
			}
			at = at.Add(20 * time.Second)
			if m.GetHello() != nil && s.Hello() != nil { // as another stream, which the older one may outlive
				s = r.Open()
			}
			result, err := s.Receive(at, m)
			for _, c := range result.Changes {
				if old := state[c.Key]; (old == nil) != (c.Old == nil) || old != nil && !proto.Equal(old, c.Old) {
					t.Fatalf("%s: the change says it was %v, and it was %v", c.Key, c.Old, old)
				}
				if state[c.Key] = c.New; c.New == nil {
					delete(state, c.Key)
				}
			}
			consistent(t, r)
			if err != nil {
				s.Close()
				s = r.Open()
			}
		}
		n := 0
		for _, of := range semaphorev1.Kinds {
			for key, o := range r.All(of) {
				n++
				if !proto.Equal(o, state[key]) {
					t.Fatalf("%s is held as %v, reported as %v", key, o, state[key])
				}
				within(t, o)
			}
		}
		if n != len(state) {
			t.Fatalf("%d objects are held, %d were reported", n, len(state))
		}
	})
}

// within checks that no address in an object is outside of the remote's subnets.
func within(t *testing.T, o *semaphorev1.Object) {
	t.Helper()
	var addresses []string
	for _, e := range o.GetEndpointSlice().GetEndpoints() {
		addresses = append(addresses, e.GetAddresses()...)
	}
	addresses = append(addresses, o.GetSetMember().GetIps()...)
	for _, c := range o.GetNode().GetPodCidrs() {
		addresses = append(addresses, netip.MustParsePrefix(c).Addr().String())
	}
	for _, a := range addresses {
		if ip := netip.MustParseAddr(a); !fuzzed.PodPrefixes[0].Contains(ip) && !fuzzed.PodPrefixes[1].Contains(ip) {
			t.Fatalf("%s is outside of the pod subnets", a)
		}
	}
	if w := o.GetNode().GetWireguard(); w != nil &&
		!fuzzed.NodePrefixes[0].Contains(netip.MustParseAddrPort(w.GetAddress()).Addr()) {
		t.Fatalf("%s is outside of the node subnets", w.GetAddress())
	}
}

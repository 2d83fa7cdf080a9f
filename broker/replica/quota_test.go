package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func limited(t *testing.T, l config.Limits) (*Replica, *Session) {
	t.Helper()
	r := newReplica()
	r.SetLimits(l, config.Brake{Percent: 100})
	s := r.Open()
	must(t, s, hello("e1", 0, 0, kNode, kService, kSlice, kMember))
	for _, of := range semaphorev1.Kinds {
		must(t, s, begin(of, 0), end(of, 0, 0))
	}
	return r, s
}

// put is an upsert of any object.
func put(revision uint64, o *semaphorev1.Object) *semaphorev1.Change {
	return &semaphorev1.Change{Revision: revision, Change: &semaphorev1.Change_Upsert{Upsert: o}}
}

// An object needs more only of what it has more of than before.
func TestGrowth(t *testing.T) {
	stood := sliceOf("s", "echo", 2)
	if more := growth(stood, sliceOf("s", "echo", 2)); len(more) != 0 {
		t.Errorf("the same needs more of %v", more)
	}
	of := func(more []limitedResource, want admission.Resource) bool {
		return slices.ContainsFunc(more, func(r limitedResource) bool { return r.resource == want })
	}
	if more := growth(stood, sliceOf("s", "echo", 3)); !of(more, admission.Addresses) ||
		!of(more, admission.GroupAddresses) || of(more, admission.Objects) {
		t.Errorf("an address more needs %v", more)
	}
	if more := growth(stood, sliceOf("s", "other", 2)); !of(more, admission.GroupAddresses) ||
		of(more, admission.Addresses) {
		t.Errorf("another service needs %v", more)
	}
	if more := growth(nil, stood); !of(more, admission.Objects) || !of(more, admission.GroupAddresses) {
		t.Errorf("a new one needs %v", more)
	}
}

func sliceOf(name, service string, addresses int) *semaphorev1.Object {
	o := object(kSlice, name, service)
	o.GetEndpointSlice().Endpoints = nil
	for i := range addresses {
		o.GetEndpointSlice().Endpoints = append(o.GetEndpointSlice().Endpoints,
			&semaphorev1.Endpoint{Addresses: []string{fmt.Sprint("10.2.0.", i)}})
	}
	return o
}

func memberOf(name string, addresses int) *semaphorev1.Object {
	o := object(kMember, name, "set")
	o.GetSetMember().Ips = nil
	for i := range addresses {
		o.GetSetMember().Ips = append(o.GetSetMember().Ips, fmt.Sprint("10.2.0.", i))
	}
	return o
}

func nodeOf(name string, cidrs int) *semaphorev1.Object {
	o := object(kNode, name, "")
	o.GetNode().PodCidrs = nil
	for i := range cidrs {
		o.GetNode().PodCidrs = append(o.GetNode().PodCidrs, fmt.Sprintf("10.2.%d.0/24", i))
	}
	return o
}

// serviceOf is one that is both a mirror and global, or only that.
func serviceOf(name string, ports int, both bool) *semaphorev1.Object {
	o := object(kService, name, "")
	o.GetService().Mirror, o.GetService().Global = both, true
	o.GetService().Ports = make([]*semaphorev1.Port, ports)
	for i := range ports {
		o.GetService().Ports[i] = &semaphorev1.Port{Port: int32(i)}
	}
	return o
}

func exportOf(name string, ports int) *semaphorev1.Object {
	o := serviceOf(name, ports, false)
	o.GetService().MultiCluster = &semaphorev1.MultiClusterExport{}
	return o
}

func headless(name string) *semaphorev1.Object {
	o := serviceOf(name, 1, true)
	o.GetService().Headless = true
	return o
}

func portsOf(slice string, ports int) *semaphorev1.Object {
	o := sliceOf(slice, "s", 1)
	for i := range ports {
		o.GetEndpointSlice().Ports = append(o.GetEndpointSlice().Ports, &semaphorev1.Port{Port: int32(i)})
	}
	return o
}

// Of an object that grows over a limit what existed stays, alone and in a snapshot in which what is new comes first.
func TestR05ExistingObjectsStay(t *testing.T) {
	for name, c := range map[string]struct {
		limits       config.Limits
		stood, grown *semaphorev1.Object
		newcomers    []*semaphorev1.Object
		// left is how many addresses, or ports, the object has afterwards: alone, and beside the newcomers.
		left int
	}{
		"podCIDRs": {config.Limits{PodCIDRs: 4}, nodeOf("a", 3), nodeOf("a", 6),
			[]*semaphorev1.Object{nodeOf("b", 4)}, 4},
		"podCIDRsPerNode":  {config.Limits{PodCIDRsPerNode: 4}, nodeOf("a", 3), nodeOf("a", 6), nil, 4},
		"portsPerService":  {config.Limits{PortsPerService: 4}, serviceOf("a", 3, true), serviceOf("a", 5, true), nil, 3},
		"ports of a slice": {config.Limits{PortsPerService: 4}, portsOf("a", 3), portsOf("a", 5), nil, 3},
		"clusterIPs": {config.Limits{ClusterIPs: 1}, serviceOf("a", 3, false), serviceOf("a", 5, true),
			[]*semaphorev1.Object{serviceOf("b", 1, false)}, 3},
		"exports": {config.Limits{Exports: 1}, exportOf("a", 3), exportOf("a", 5),
			[]*semaphorev1.Object{exportOf("b", 1)}, 5},
		"endpoints": {config.Limits{Endpoints: 4}, sliceOf("a", "s", 3), sliceOf("a", "s", 6),
			[]*semaphorev1.Object{sliceOf("b", "t", 4)}, 4},
		"endpointsPerService": {config.Limits{EndpointsPerService: 4}, sliceOf("a", "s", 3), sliceOf("a", "s", 6),
			[]*semaphorev1.Object{sliceOf("c", "t", 4), sliceOf("b", "s", 4), sliceOf("d", "t", 4)}, 4},
		"setIPs": {config.Limits{SetIPs: 4}, memberOf("a", 3), memberOf("a", 6),
			[]*semaphorev1.Object{memberOf("b", 4)}, 4},
		"services": {config.Limits{Services: 2}, serviceOf("a", 3, true), serviceOf("a", 4, true),
			[]*semaphorev1.Object{serviceOf("b", 1, true), serviceOf("c", 1, true)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			of := c.stood.Key.Kind
			left := func(r *Replica) {
				t.Helper()
				o, ok := r.Get(KeyOf(c.stood.Key))
				n := admission.NeedOf(o).Use[admission.Addresses]
				if of == kService || n == 1 && len(o.GetEndpointSlice().GetPorts()) > 0 {
					n = admission.NeedOf(o).Use[admission.Ports]
				}
				if !ok || n != c.left {
					t.Errorf("of it %d are left, want %d", n, c.left)
				}
				consistent(t, r)
			}
			r, s := limited(t, c.limits)
			must(t, s, changes(put(1, c.stood)))
			if name != "services" && name != "exports" { // more ports need no more of these
				if res := must(t, s, changes(put(2, c.grown))); len(res.Refused) != 1 || res.Refused[0].Code != finding.OverLimit {
					t.Errorf("refused %v", res.Refused)
				}
				left(r)
			}
			for _, last := range []*semaphorev1.Object{c.grown, c.stood} {
				r, s = limited(t, c.limits)
				must(t, s, changes(put(1, c.stood)))
				s = r.Open()
				must(t, s, hello("e2", 9, 0, of), begin(of, 9))
				for i, o := range append(slices.Clone(c.newcomers), last) {
					must(t, s, changes(put(uint64(i+1), o)))
				}
				must(t, s, end(of, 9, uint64(len(c.newcomers)+1)))
				if last == c.grown {
					left(r)
				} else if o, _ := r.Get(KeyOf(c.stood.Key)); !proto.Equal(o, c.stood) {
					t.Errorf("what existed is %v", o)
				}
			}
		})
	}
}

func TestR05EachLimitIsKept(t *testing.T) {
	many := func(of semaphorev1.Kind) (all []*semaphorev1.Object) {
		for i := range 3 {
			all = append(all, object(of, fmt.Sprint("o", i), "a"))
		}
		return all
	}
	big := object(kNode, "big", strings.Repeat("x", 1<<20))
	for _, c := range []struct {
		key     string
		limits  config.Limits
		objects []*semaphorev1.Object
		refused string
	}{
		{"podCIDRs", config.Limits{PodCIDRs: 5}, []*semaphorev1.Object{nodeOf("a", 3), nodeOf("b", 3), nodeOf("c", 2)}, "b"},
		{"podCIDRsPerNode", config.Limits{PodCIDRsPerNode: 5}, []*semaphorev1.Object{nodeOf("a", 5), nodeOf("b", 6),
			nodeOf("c", 5)}, "b"},
		{"portsPerService", config.Limits{PortsPerService: 5},
			[]*semaphorev1.Object{serviceOf("a", 5, true), serviceOf("b", 6, true), serviceOf("c", 5, true)}, "b"},
		{"portsPerService", config.Limits{PortsPerService: 5}, []*semaphorev1.Object{portsOf("a", 5), portsOf("b", 6),
			portsOf("c", 5)}, "b"},
		// A mirror and a global service are one each; one that is headless has no address.
		{"clusterIPs", config.Limits{ClusterIPs: 3}, []*semaphorev1.Object{serviceOf("a", 1, true), serviceOf("b", 1, false),
			serviceOf("c", 1, true)}, "c"},
		{"clusterIPs", config.Limits{ClusterIPs: 2}, []*semaphorev1.Object{serviceOf("a", 1, true), serviceOf("b", 1, true),
			headless("c")}, "b"},
		{"exports", config.Limits{Exports: 1}, []*semaphorev1.Object{exportOf("a", 1), exportOf("b", 1),
			serviceOf("c", 1, true)}, "b"},
		{"nodes", config.Limits{Nodes: 2}, many(kNode), "o2"},
		{"services", config.Limits{Services: 2}, many(kService), "o2"},
		{"endpointSlices", config.Limits{EndpointSlices: 2}, many(kSlice), "o2"},
		{"setMembers", config.Limits{SetMembers: 2}, many(kMember), "o2"},
		{"endpoints", config.Limits{Endpoints: 5}, []*semaphorev1.Object{sliceOf("a", "s", 3), sliceOf("b", "s", 3),
			sliceOf("c", "s", 2)}, "b"},
		{"endpointsPerService", config.Limits{EndpointsPerService: 5},
			[]*semaphorev1.Object{sliceOf("a", "s", 3), sliceOf("b", "s", 3), sliceOf("c", "t", 5)}, "b"},
		{"setIPs", config.Limits{SetIPs: 5}, []*semaphorev1.Object{memberOf("a", 3), memberOf("b", 3),
			memberOf("c", 2)}, "b"},
		{"ipsPerSet", config.Limits{IPsPerSet: 5}, []*semaphorev1.Object{memberOf("a", 3), memberOf("b", 3),
			memberOf("c", 2)}, "b"},
		{"mebibytesPerKind", config.Limits{MebibytesPerKind: 1}, []*semaphorev1.Object{object(kNode, "n1", "a"), big,
			object(kNode, "n2", "a")}, "big"},
	} {
		t.Run(c.key+" "+semaphorev1.KindName(c.objects[0].Key.Kind), func(t *testing.T) {
			c.limits.Size = config.Small
			check := func(res Result) {
				t.Helper()
				if len(res.Refused) != 1 || res.Refused[0].Key.Name != c.refused ||
					res.Refused[0].Code != finding.OverLimit || !strings.Contains(res.Refused[0].Reason,
					"(limits."+c.key+" of this remote, whose size is small)") {
					t.Errorf("refused %+v, want %s by limits.%s", res.Refused, c.refused, c.key)
				}
				if len(res.Changes) != 2 {
					t.Errorf("the rest is not taken: %s", show(res.Changes))
				}
			}
			of := c.objects[0].Key.Kind
			r, s := limited(t, c.limits)
			var all []*semaphorev1.Change
			for i, o := range c.objects {
				all = append(all, put(uint64(i+1), o))
			}
			res := must(t, s, changes(all...))
			check(res)
			if rev, _ := ackOf(res); rev != 3 {
				t.Errorf("ack %d", rev)
			}
			if held, refused := r.Count(of); held != 2 || refused != 1 {
				t.Errorf("%d held, %d refused", held, refused)
			}

			// The same in a snapshot.
			r, _ = limited(t, c.limits)
			s = r.Open()
			must(t, s, hello("e2", 3, 0, of), begin(of, 3))
			staged := must(t, s, changes(all...))
			res = must(t, s, end(of, 3, 3))
			res.Refused = staged.Refused
			check(res)
		})
	}
}

func TestR05ExistingObjectsMayChangeAndMakeRoom(t *testing.T) {
	r, s := limited(t, config.Limits{SetMembers: 2, SetIPs: 4})
	must(t, s, changes(put(1, memberOf("a", 2)), put(2, memberOf("b", 2))))
	if res := must(t, s, changes(put(3, memberOf("a", 1)), put(4, memberOf("a", 2)))); len(res.Refused) != 0 ||
		len(res.Changes) != 2 {
		t.Errorf("refused %v", res.Refused)
	}
	// Of a state that does not fit the overflow is refused, and what existed stays.
	if res := must(t, s, changes(put(5, memberOf("a", 3)))); len(res.Refused) != 1 || show(res.Changes) != "" ||
		len(r.kinds[kMember].objects) != 2 {
		t.Errorf("refused %v, changes %s", res.Refused, show(res.Changes))
	}
	if res := must(t, s, changes(put(6, memberOf("c", 2)))); len(res.Refused) != 1 {
		t.Errorf("refused %v", res.Refused)
	}
	must(t, s, changes(remove(7, kMember, "b"), remove(8, kMember, "c"), remove(9, kMember, "a")))
	if k := r.kinds[kMember]; k.used != (admission.Use{}) || k.overLimit != 0 || k.count != 0 ||
		k.sentDigest != digestOf(nil) || len(k.perGroup) != 0 {
		t.Errorf("with nothing left: %+v", k.contents)
	}
}

// An object that was refused for want of room does not stay out.
func TestR05FreedRoomIsUsed(t *testing.T) {
	r, s := limited(t, config.Limits{SetMembers: 3})
	beat := func(at time.Duration) error {
		t.Helper()
		_, err := s.Receive(now.Add(at), heartbeat(9))
		return err
	}
	must(t, s, changes(upsert(1, kMember, "a", ""), upsert(2, kMember, "b", ""), upsert(3, kMember, "c", ""),
		upsert(4, kMember, "d", ""), upsert(5, kMember, "e", "")))
	if err := beat(time.Hour); err != nil {
		t.Fatalf("with no room: %v", err)
	}
	// Two are out and one finds room: a third of the limit.
	must(t, s, changes(remove(6, kMember, "a")))
	if err := beat(time.Minute - 1); err != nil {
		t.Fatalf("so soon after a snapshot: %v", err)
	}
	if err := beat(time.Minute); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "room again for setmembers") {
		t.Fatalf("error %v", err)
	}
	s.Close()
	s = r.Open()
	w := welcomeOf(t, must(t, s, hello("e1", 9, 0, kMember)))
	if w.ResumeRevision != 0 || len(w.Held) != 0 {
		t.Errorf("welcome %v: neither a revision nor a digest helps", w)
	}
	must(t, s, begin(kMember, 9), changes(upsert(2, kMember, "b", ""), upsert(3, kMember, "c", ""),
		upsert(4, kMember, "d", ""), upsert(5, kMember, "e", "")), end(kMember, 9, 4))
	if held, refused := r.Count(kMember); held != 3 || refused != 1 {
		t.Errorf("%d held, %d refused", held, refused)
	}
	must(t, s, changes(remove(10, kMember, "e")))
	must(t, s, changes(remove(11, kMember, "b"), remove(12, kMember, "c")))
	if err := beat(time.Hour); err != nil {
		t.Errorf("with nothing out: %v", err)
	}
}

// Objects that can never fit are not asked for, and asking that does not help becomes rare.
func TestR05AskingAgainHasAnEnd(t *testing.T) {
	r, s := limited(t, config.Limits{EndpointsPerService: 5})
	must(t, s, changes(put(1, sliceOf("a", "s", 6)), put(2, sliceOf("b", "s", 5)), put(3, sliceOf("c", "s", 1))))
	if _, refused := r.Count(kSlice); refused != 2 {
		t.Fatalf("%d refused", refused)
	}
	if _, err := s.Receive(now.Add(time.Hour), heartbeat(9)); err != nil {
		t.Errorf("neither fits: %v", err)
	}

	k := r.kind(kMember)
	var waits []time.Duration
	at := now
	for range 8 {
		k.notRemembered.more, k.changed = true, true // as if something were refused each time
		var result Result
		s.completeKind(at, kMember, k, 9, 0, &result)
		s.phase = live
		wait := time.Duration(0)
		for ; wait < 2*maxResyncInterval; wait += time.Minute {
			if _, err := s.Receive(at.Add(wait), heartbeat(9)); err != nil {
				break
			}
		}
		waits = append(waits, wait)
		at = at.Add(wait)
	}
	if got := fmt.Sprint(waits); got != "[1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h0m0s 1h0m0s]" {
		t.Errorf("asked after %s", got)
	}
}

// However much is refused, what is kept of it is bounded.
func TestR05RefusalsTakeLittleRoom(t *testing.T) {
	r, s := limited(t, config.Limits{})
	const remembered, n = 10_000, 10_050
	var all []*semaphorev1.Change
	for i := range n {
		all = append(all, upsert(uint64(i+1), kMember, fmt.Sprint("bad", i), ""))
	}
	res := must(t, s, changes(all...))
	if len(res.Refused) != n || len(res.Responses) != n+1 {
		t.Errorf("%d reported as refused", len(res.Refused))
	}
	if _, refused := r.Count(kMember); refused != n || len(r.Refused()) != remembered {
		t.Errorf("%d refused, %d remembered", refused, len(r.Refused()))
	}
	must(t, s, changes(remove(n+1, kMember, "bad0"), remove(n+2, kMember, fmt.Sprint("bad", n-1))))
	s.Close()
	for _, held := range welcomeOf(t, must(t, r.Open(), hello("e1", n+2, 0, kMember, kNode))).Held {
		if held.Kind == kMember {
			t.Error("a digest that lacks what is not remembered is offered")
		}
	}
}

// The count of refused objects is exact beyond what is remembered: an object that is sent again counts once, and one
// that is deleted does not count.
func TestR05TheCountOfRefusedObjectsHasAnEnd(t *testing.T) {
	r, s := limited(t, config.Limits{})
	const n = 10_010
	revision := uint64(0)
	all := func(change func(revision uint64, name string) *semaphorev1.Change) {
		var out []*semaphorev1.Change
		for i := range n {
			revision++
			out = append(out, change(revision, fmt.Sprint("bad", i)))
		}
		must(t, s, changes(out...))
	}
	for range 3 {
		all(func(revision uint64, name string) *semaphorev1.Change { return upsert(revision, kMember, name, "") })
		if _, refused := r.Count(kMember); refused != n {
			t.Errorf("%d are refused; want %d", refused, n)
		}
	}
	all(func(revision uint64, name string) *semaphorev1.Change { return remove(revision, kMember, name) })
	if _, refused := r.Count(kMember); refused != 0 || r.kind(kMember).notRemembered.count() > 0 {
		t.Errorf("%d are refused after all were deleted", refused)
	}
	// Beyond what is counted it stays known that there are more.
	var u uncounted
	for i := range maxUncounted + 10 {
		u.add(Key{Kind: kMember, Name: fmt.Sprint(i)})
	}
	u.remove(Key{Kind: kMember, Name: "0"})
	if len(u.hashes) != maxUncounted-1 || u.count() != maxUncounted {
		t.Errorf("%d are kept, %d are counted", len(u.hashes), u.count())
	}
}

package stream

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func attached(epoch string, resumed bool) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{Epoch: epoch, Resumed: resumed}},
	}
}

func changes(all ...*semaphorev1.PeeringChange) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{Changes: all}},
	}
}

func synced(revision uint64, clusters ...string) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Synced{Synced: &semaphorev1.Synced{Revision: revision, Clusters: clusters}},
	}
}

func device(revision uint64, cluster string, port uint32) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Revision: revision,
		Change: &semaphorev1.PeeringChange_Device{Device: &semaphorev1.Device{Cluster: cluster, ListenPort: port}}}
}

func noDevice(revision uint64, cluster string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Revision: revision,
		Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: cluster}}
}

func peer(revision uint64, cluster, node, allowed string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Revision: revision, Change: &semaphorev1.PeeringChange_Peer{Peer: &semaphorev1.Peer{
		Key: &semaphorev1.PeerKey{Cluster: cluster, Node: node}, AllowedIps: []string{allowed},
	}}}
}

func noPeer(revision uint64, cluster, node string) *semaphorev1.PeeringChange {
	return &semaphorev1.PeeringChange{Revision: revision,
		Change: &semaphorev1.PeeringChange_DeletePeer{DeletePeer: &semaphorev1.PeerKey{Cluster: cluster, Node: node}}}
}

// begin marks the start of another stream.
var begin *semaphorev1.AttachResponse

// dirty returns Dirty as sorted lines: a cluster, or CLUSTER/NODE.
func dirty(all ...Dirty) []string {
	lines := map[string]bool{}
	for _, d := range all {
		for cluster := range d.Networks {
			lines[cluster] = true
		}
		for cluster, nodes := range d.Peers {
			for node := range nodes {
				lines[cluster+"/"+node] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(lines))
}

// held returns the devices and peers of a state: a cluster, or CLUSTER/NODE ALLOWED.
func held(s *State) []string {
	var lines []string
	for _, cluster := range s.Clusters() {
		lines = append(lines, cluster)
		for node, p := range s.Network(cluster).Peers {
			lines = append(lines, cluster+"/"+node+" "+p.GetAllowedIps()[0])
		}
	}
	slices.Sort(lines)
	return lines
}

func feed(t *testing.T, s *State, all ...*semaphorev1.AttachResponse) []Dirty {
	t.Helper()
	var out []Dirty
	for _, m := range all {
		if m == begin {
			s.Begin()
			continue
		}
		d, err := s.Receive(m)
		if err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		out = append(out, d)
	}
	return out
}

func TestState(t *testing.T) {
	// Each case continues from this state: c2 with peers n1 and n2, revision 3 of epoch A.
	first := []*semaphorev1.AttachResponse{
		begin, attached("A", false),
		changes(device(1, "c2", 51820), peer(2, "c2", "n1", "10.2.1.0/24"), peer(3, "c2", "n2", "10.2.2.0/24")),
		synced(3, "c2"),
	}
	whole := []string{"c2", "c2/n1 10.2.1.0/24", "c2/n2 10.2.2.0/24"}
	for name, c := range map[string]struct {
		messages    []*semaphorev1.AttachResponse
		held, dirty []string
		epoch       string
		revision    uint64
		current     bool
	}{
		"nothing more": {nil, whole, nil, "A", 3, true},
		"a peer changes": {
			[]*semaphorev1.AttachResponse{changes(peer(4, "c2", "n2", "10.2.9.0/24"))},
			[]string{"c2", "c2/n1 10.2.1.0/24", "c2/n2 10.2.9.0/24"}, []string{"c2/n2"}, "A", 4, true,
		},
		"a peer goes": {
			[]*semaphorev1.AttachResponse{changes(noPeer(4, "c2", "n2"))},
			[]string{"c2", "c2/n1 10.2.1.0/24"}, []string{"c2/n2"}, "A", 4, true,
		},
		"a device goes": {
			[]*semaphorev1.AttachResponse{changes(noDevice(4, "c2"))}, nil, []string{"c2"}, "A", 4, true,
		},
		"a device that nothing is known of goes": {
			[]*semaphorev1.AttachResponse{changes(noDevice(3, "c9"))}, whole, []string{"c9"}, "A", 3, true,
		},
		"a new stream has said nothing": {
			[]*semaphorev1.AttachResponse{begin}, whole, nil, "A", 3, false,
		},
		"resumed with nothing new": {
			[]*semaphorev1.AttachResponse{begin, attached("A", true), synced(3, "c2")}, whole, nil, "A", 3, true,
		},
		"resumed, before the mark": {
			[]*semaphorev1.AttachResponse{begin, attached("A", true), changes(noPeer(4, "c2", "n1"))},
			[]string{"c2", "c2/n2 10.2.2.0/24"}, []string{"c2/n1"}, "A", 4, true,
		},
		"said again alike by another broker": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false),
				changes(device(1, "c2", 51820), peer(2, "c2", "n2", "10.2.2.0/24"), peer(3, "c2", "n1", "10.2.1.0/24")),
				synced(9, "c2"),
			}, whole, nil, "B", 9, true,
		},
		"said again otherwise": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false),
				changes(device(1, "c2", 51821), peer(2, "c2", "n2", "10.2.7.0/24"), peer(3, "c2", "n3", "10.2.3.0/24")),
				synced(3, "c2"),
			}, []string{"c2", "c2/n2 10.2.7.0/24", "c2/n3 10.2.3.0/24"}, []string{"c2", "c2/n1", "c2/n2", "c2/n3"}, "B", 3, true,
		},
		"a stream that breaks before its mark leaves all, the epoch too": {
			[]*semaphorev1.AttachResponse{begin, attached("B", false), changes(device(1, "c2", 1)), begin}, whole, nil,
			"A", 3, false,
		},
		"before the mark of another epoch": {
			[]*semaphorev1.AttachResponse{begin, attached("B", false), changes(device(1, "c2", 1))}, whole, nil, "A", 3, false,
		},
		"not spoken of and not complete": {
			[]*semaphorev1.AttachResponse{begin, attached("B", false), synced(1)}, whole, nil, "B", 1, true,
		},
		"not spoken of and complete": {
			[]*semaphorev1.AttachResponse{begin, attached("B", false), synced(1, "c2")}, nil, []string{"c2"}, "B", 1, true,
		},
		"spoken of and not complete: peers stay": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), changes(device(1, "c2", 51820), peer(2, "c2", "n2", "10.2.7.0/24")), synced(2),
			}, []string{"c2", "c2/n1 10.2.1.0/24", "c2/n2 10.2.7.0/24"}, []string{"c2/n2"}, "B", 2, true,
		},
		"deleted in a state whose mark does not name it: what follows waits for a mark that does": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), changes(noDevice(1, "c2")), synced(1),
				changes(device(2, "c2", 51820), peer(3, "c2", "n1", "10.2.1.0/24")),
			}, nil, []string{"c2"}, "B", 3, true,
		},
		"complete by a later mark: what was not said goes then": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), synced(0), changes(device(1, "c2", 51820), peer(2, "c2", "n2", "10.2.2.0/24")),
				synced(2, "c2"),
			}, []string{"c2", "c2/n2 10.2.2.0/24"}, []string{"c2/n1"}, "B", 2, true,
		},
		"complete by a later mark of a stream that continued": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), changes(device(1, "c2", 51820), peer(2, "c2", "n2", "10.2.2.0/24")), synced(2),
				begin, attached("B", true), changes(noPeer(3, "c2", "n2"), peer(4, "c2", "n4", "10.2.4.0/24")), synced(4, "c2"),
			}, []string{"c2", "c2/n4 10.2.4.0/24"}, []string{"c2/n1", "c2/n2", "c2/n4"}, "B", 4, true,
		},
		"explicitly deleted while not complete": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), changes(device(1, "c2", 51820), noPeer(2, "c2", "n1")), synced(2),
			}, []string{"c2", "c2/n2 10.2.2.0/24"}, []string{"c2/n1"}, "B", 2, true,
		},
		"device deleted while staged": {
			[]*semaphorev1.AttachResponse{begin, attached("B", false), changes(noDevice(1, "c2"), noDevice(1, "c9")), synced(1)},
			nil, []string{"c2", "c9"}, "B", 1, true,
		},
		"device deleted and named again while staged": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), changes(noDevice(1, "c2"), device(2, "c2", 51820), peer(3, "c2", "n1", "10.2.1.0/24")),
				synced(3),
			}, []string{"c2", "c2/n1 10.2.1.0/24"}, []string{"c2/n2"}, "B", 3, true,
		},
		"device deleted and named again while not complete": {
			[]*semaphorev1.AttachResponse{
				begin, attached("B", false), synced(0),
				changes(noDevice(1, "c2"), device(2, "c2", 51820), peer(3, "c2", "n1", "10.2.1.0/24")), synced(3, "c2"),
			}, []string{"c2", "c2/n1 10.2.1.0/24"}, []string{"c2", "c2/n1"}, "B", 3, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			feed(t, s, first...)
			d := feed(t, s, c.messages...)
			if diff := cmp.Diff(c.held, held(s)); diff != "" {
				t.Errorf("holds (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.dirty, dirty(d...)); diff != "" {
				t.Errorf("dirty (-want +got):\n%s", diff)
			}
			epoch, revision := s.Resume()
			if epoch != c.epoch || revision != c.revision || s.Current() != c.current {
				t.Errorf("resumes from %q %d, current %v; want %q %d, %v", epoch, revision, s.Current(), c.epoch,
					c.revision, c.current)
			}
		})
	}
}

func TestNothingKnown(t *testing.T) {
	s := NewState()
	feed(t, s, begin, attached("A", false), changes(device(1, "c2", 1)))
	if epoch, revision := s.Resume(); epoch != "" || revision != 0 {
		t.Errorf("resumes from %q %d before the first mark", epoch, revision)
	}
	if got := held(s); got != nil {
		t.Errorf("holds %v before the first mark", got)
	}
}

func TestRefused(t *testing.T) {
	for name, messages := range map[string][]*semaphorev1.AttachResponse{
		"changes before attached":   {changes(device(4, "c3", 1))},
		"mark before attached":      {synced(4)},
		"attached twice":            {attached("A", true), attached("A", true)},
		"resumes in another epoch":  {attached("B", true)},
		"peer before its device":    {attached("A", true), changes(noDevice(4, "c2"), peer(5, "c3", "n1", "10.3.0.0/24"))},
		"peer of a deleted device":  {attached("A", true), changes(noDevice(4, "c2"), peer(5, "c2", "n1", "10.2.0.0/24"))},
		"peer before staged device": {attached("B", false), changes(peer(1, "c2", "n1", "10.2.0.0/24"))},
		"peer without any name": {attached("A", true),
			changes(&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{}})},
		"peer of deleted, in staged": {attached("B", false),
			changes(device(1, "c2", 1), noDevice(2, "c2"), peer(3, "c2", "n1", "10.2.0.0/24"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			feed(t, s, begin, attached("A", false), changes(device(1, "c2", 51820), peer(2, "c2", "n1", "10.2.1.0/24")),
				synced(3, "c2"), begin)
			before := held(s)
			last := len(messages) - 1
			feed(t, s, messages[:last]...)
			if d, err := s.Receive(messages[last]); err == nil || !d.Empty() {
				t.Errorf("taken: %v, dirty %v", err, dirty(d))
			}
			if diff := cmp.Diff(before, held(s)); diff != "" {
				t.Errorf("a refused message changed what is held (-before +after):\n%s", diff)
			}
			if epoch, revision := s.Resume(); epoch != "A" || revision != 3 {
				t.Errorf("resumes from %q %d; want A 3", epoch, revision)
			}
		})
	}
}

func unchanged(cluster string) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Unchanged{Unchanged: &semaphorev1.Unchanged{Cluster: cluster}},
	}
}

// TestUnchanged: a cluster that the broker marks as unchanged is proven, and makes nothing dirty.
func TestUnchanged(t *testing.T) {
	all := []string{"c2", "c2/n1 a", "c2/n2 b", "c3"}
	for _, c := range []struct {
		name     string
		messages []*semaphorev1.AttachResponse
		held     []string
		dirty    []string
		err      bool
	}{
		{"with the whole state", []*semaphorev1.AttachResponse{attached("B", false), unchanged("c2"), unchanged("c3"),
			synced(9, "c2", "c3")}, all, nil, false},
		{"and the others are sent", []*semaphorev1.AttachResponse{attached("B", false), unchanged("c2"),
			synced(9, "c2", "c3")}, all[:3], []string{"c3"}, false},
		{"followed by what changed then", []*semaphorev1.AttachResponse{attached("B", false), unchanged("c2"),
			changes(noPeer(9, "c2", "n1")), synced(9, "c2")},
			[]string{"c2", "c2/n2 b", "c3"}, []string{"c2/n1"}, false},
		{"later", []*semaphorev1.AttachResponse{attached("B", false), synced(0), unchanged("c2"), synced(9, "c2"),
			unchanged("c3"), synced(10, "c2", "c3")}, all, nil, false},
		{"later, followed by changes", []*semaphorev1.AttachResponse{attached("B", false), synced(0), unchanged("c2"),
			changes(peer(7, "c2", "n1", "z")), synced(9, "c2")},
			[]string{"c2", "c2/n1 z", "c2/n2 b", "c3"}, []string{"c2/n1"}, false},
		{"of one that is proven", []*semaphorev1.AttachResponse{attached("A", true), unchanged("c2"), synced(4, "c2", "c3")},
			all, nil, false},
		{"before the stream begins", []*semaphorev1.AttachResponse{unchanged("c2")}, all, nil, true},
		{"of what is not held", []*semaphorev1.AttachResponse{attached("B", false), unchanged("c9")}, all, nil, true},
		{"after it was sent", []*semaphorev1.AttachResponse{attached("B", false), changes(device(1, "c2", 1)),
			unchanged("c2")}, all, nil, true},
		{"later, after it was sent", []*semaphorev1.AttachResponse{attached("B", false), synced(0),
			changes(device(1, "c2", 1)), unchanged("c2")}, all, nil, true},
		{"twice", []*semaphorev1.AttachResponse{attached("B", false), unchanged("c2"), unchanged("c2")}, all, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewState()
			feed(t, s, attached("A", false), changes(device(1, "c2", 1), peer(2, "c2", "n1", "a"), peer(3, "c2", "n2", "b"),
				device(4, "c3", 2)), synced(4, "c2", "c3"), begin)
			last := len(c.messages) - 1
			d := feed(t, s, c.messages[:last]...)
			one, err := s.Receive(c.messages[last])
			d = append(d, one)
			if (err != nil) != c.err {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(c.held, held(s)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.dirty, dirty(d...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHeldHasTheDigestOfEachCluster(t *testing.T) {
	s := NewState()
	feed(t, s, attached("A", false), changes(device(1, "c2", 1), peer(2, "c2", "n1", "a")), synced(2, "c2"))
	want := streams.DigestOf(device(1, "c2", 1).GetDevice())
	want.Add(streams.DigestOf(peer(2, "c2", "n1", "a").GetPeer()))
	h := s.Held()
	if len(h) != 1 || h[0].GetCluster() != "c2" || string(h[0].GetDigest()) != string(want.Bytes()) {
		t.Errorf("%v", h)
	}
	if h := NewState().Held(); h != nil {
		t.Errorf("nothing is held as %v", h)
	}
}

// TestAClusterSentInPartsIsCompleteAtTheEndMark: a cluster that becomes complete at the broker during the stream may be
// sent in several messages. Until the end mark names it, the node's device is not touched: it may exist from before
// this process, with peers of the next message. So what the broker hears as applied does not have it either.
func TestAClusterSentInPartsIsCompleteAtTheEndMark(t *testing.T) {
	s := NewState()
	for _, m := range []*semaphorev1.AttachResponse{
		attached("e", false), synced(0),
		changes(device(1, "c2", 51820), peer(2, "c2", "n1", "10.2.1.0/24")),
		changes(peer(3, "c2", "n2", "10.2.2.0/24"), noPeer(4, "c2", "n1")),
	} {
		d, err := s.Receive(m)
		testkit.Must(t, err)
		if !d.Empty() || s.Network("c2") != nil || s.Revision() != 0 {
			t.Fatalf("%v makes dirty: %v; applied %d", m, dirty(d), s.Revision())
		}
	}
	// A stream that breaks here resumes from its revision.
	s.Begin()
	if epoch, revision := s.Resume(); epoch != "e" || revision != 4 {
		t.Errorf("resumes from %d of %q", revision, epoch)
	}
	feed(t, s, attached("e", true))
	d, err := s.Receive(synced(4, "c2"))
	testkit.Must(t, err)
	if diff := cmp.Diff([]string{"c2", "c2/n2 10.2.2.0/24"}, held(s)); diff != "" || !d.Networks["c2"] ||
		s.Revision() != 4 {
		t.Errorf("at the end mark, with %v, applied %d: %s", dirty(d), s.Revision(), diff)
	}
	// From now on, single changes apply immediately.
	if d, err := s.Receive(changes(peer(5, "c2", "n3", "10.2.3.0/24"))); err != nil || !d.Peers["c2"]["n3"] {
		t.Errorf("%v, %v", dirty(d), err)
	}
	// One that is deleted before an end mark names it waits no more.
	feed(t, s, changes(device(6, "c3", 51820)), changes(peer(7, "c2", "n3", "10.2.4.0/24")))
	before := s.Revision()
	feed(t, s, changes(noDevice(8, "c3")))
	if before != 5 || s.Revision() != 8 {
		t.Errorf("applied %d while c3 waits, %d after it was deleted", before, s.Revision())
	}
}

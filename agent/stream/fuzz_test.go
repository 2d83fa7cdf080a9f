package stream

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// delimited encodes messages in the form in which a fuzz target reads them.
func delimited(messages ...*semaphorev1.AttachResponse) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		if m == nil { // another stream begins
			b.WriteByte(0)
			continue
		}
		if _, err := protodelim.MarshalTo(&b, m); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// picture returns the whole content of a state as text.
func picture(s *State) string {
	var b bytes.Buffer
	epoch, revision := s.Resume()
	fmt.Fprintln(&b, epoch, revision, s.Revision(), s.Current(), s.attached, s.synced, s.stagingEpoch, s.staging == nil)
	for _, cluster := range s.Clusters() {
		n := s.networks[cluster]
		fmt.Fprintln(&b, cluster, n.Device)
		for _, node := range slices.Sorted(maps.Keys(n.Peers)) {
			fmt.Fprintln(&b, node, n.Peers[node])
		}
	}
	for _, in := range []map[string]*staged{s.awaitingSync, s.staging} {
		for _, cluster := range slices.Sorted(maps.Keys(in)) {
			fmt.Fprintln(&b, cluster, in[cluster].device, in[cluster].removed)
			for _, node := range slices.Sorted(maps.Keys(in[cluster].peers)) {
				fmt.Fprintln(&b, node, in[cluster].peers[node])
			}
		}
	}
	fmt.Fprintln(&b, slices.Sorted(maps.Keys(s.received)))
	return b.String()
}

// FuzzReceive: whatever a broker sends, nothing panics, a refused message changes nothing, and the desired state is
// well-formed: peers exist only beside a device, and everything that differs is dirty.
func FuzzReceive(f *testing.F) {
	f.Add(delimited(attached("A", false), changes(device(1, "c2", 1), peer(2, "c2", "n1", "a")), synced(2, "c2"),
		changes(noPeer(3, "c2", "n1"))))
	f.Add(delimited(attached("A", false), changes(device(1, "c2", 1), peer(2, "c2", "n1", "a")), synced(2, "c2"), nil,
		attached("B", false), unchanged("c2"), synced(1, "c2"), nil, attached("B", true), changes(noDevice(2, "c2"))))
	f.Add(delimited(attached("A", false), synced(0), changes(device(1, "c2", 1), peer(2, "c2", "n1", "a")),
		synced(2, "c2"), nil,
		attached("B", false), synced(0), unchanged("c2"), changes(peer(7, "c2", "n1", "b")), synced(7, "c2")))
	f.Add(delimited(attached("A", false), changes(noDevice(1, "c2"), device(2, "c2", 1), noDevice(3, "c2")),
		attached("A", true)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, n := NewState(), node{}
		for r := bytes.NewReader(data); r.Len() > 0; {
			m := &semaphorev1.AttachResponse{}
			if err := protodelim.UnmarshalFrom(r, m); err != nil {
				return
			}
			if proto.Size(m) == 0 {
				s.Begin()
				continue
			}
			before := picture(s)
			d, err := s.Receive(m)
			if err != nil {
				if after := picture(s); after != before || !d.Empty() {
					t.Fatalf("%v is refused (%v), dirty %v, and has changed\n%s\nto\n%s", m, err, d, before, after)
				}
				continue
			}
			for _, cluster := range s.Clusters() {
				for name, p := range s.Network(cluster).Peers {
					if p == nil || p.GetKey().GetCluster() != cluster || p.GetKey().GetNode() != name {
						t.Fatalf("after %v %s/%s is %v", m, cluster, name, p)
					}
				}
			}
			n.followText(s, d)
			if got, want := n.lines(), texts(s); !slices.Equal(got, want) {
				t.Fatalf("after %v a node that follows what is dirty has %q, and wanted is %q", m, got, want)
			}
			s.Held()
		}
	})
}

// followText is follow with all fields of a peer, and with the device as a peer without a name.
func (n node) followText(s *State, d Dirty) {
	for cluster := range d.Networks {
		delete(n, cluster)
		if want := s.Network(cluster); want != nil {
			n[cluster] = map[string]string{}
			for name, p := range want.Peers {
				n[cluster][name] = text(p)
			}
		}
	}
	for cluster, names := range d.Peers {
		want := s.Network(cluster)
		for name := range names {
			if want == nil || want.Peers[name] == nil {
				delete(n[cluster], name)
			} else {
				n[cluster][name] = text(want.Peers[name])
			}
		}
	}
}

func text(m proto.Message) string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// texts returns the lines of a node that has the whole desired state.
func texts(s *State) []string {
	n := node{}
	for _, cluster := range s.Clusters() {
		n[cluster] = map[string]string{}
		for name, p := range s.Network(cluster).Peers {
			n[cluster][name] = text(p)
		}
	}
	return n.lines()
}

package peering

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

var remotes = map[string]bool{"c2": true, "c3": true}

// words is a message as a line of a test.
func words(m *semaphorev1.AttachResponse) string {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		return fmt.Sprintf("attached %s resumed=%v", m.Attached.Node, m.Attached.Resumed)
	case *semaphorev1.AttachResponse_Synced:
		return fmt.Sprintf("synced %d %v", m.Synced.Revision, m.Synced.Clusters)
	case *semaphorev1.AttachResponse_Unchanged:
		return fmt.Sprintf("unchanged %s %d", m.Unchanged.Cluster, m.Unchanged.Revision)
	case *semaphorev1.AttachResponse_RotateKey:
		return "rotate " + m.RotateKey.Cluster
	}
	var out []string
	for _, c := range m.GetChanges().GetChanges() {
		switch change := c.GetChange().(type) {
		case *semaphorev1.PeeringChange_Device:
			out = append(out, fmt.Sprintf("%d:%s", c.Revision, change.Device.Cluster))
		case *semaphorev1.PeeringChange_DeleteDevice:
			out = append(out, fmt.Sprintf("%d:-%s", c.Revision, change.DeleteDevice))
		case *semaphorev1.PeeringChange_Peer:
			out = append(out, fmt.Sprintf("%d:%s/%s=%s", c.Revision, change.Peer.Key.Cluster, change.Peer.Key.Node,
				change.Peer.AllowedIps[0]))
		case *semaphorev1.PeeringChange_DeletePeer:
			out = append(out, fmt.Sprintf("%d:-%s/%s", c.Revision, change.DeletePeer.Cluster, change.DeletePeer.Node))
		}
	}
	return strings.Join(out, " ")
}

// said is all that a session has to say now.
func said(t *testing.T, s *Session) string {
	t.Helper()
	var out []string
	for {
		f, err := s.Next()
		if err != nil {
			return strings.Join(append(out, status.Code(err).String()), "; ")
		}
		if f == nil {
			return strings.Join(out, "; ")
		}
		m := testkit.Value(f.Message())(t)
		out = append(out, words(m))
	}
}

var hello = players.AgentHello

// open is a session whose agent has said hello.
func open(t *testing.T, s *State, h *semaphorev1.AgentHello) *Session {
	t.Helper()
	session := s.Open("c1", "n1", remotes)
	if r, err := session.Receive(hello(h)); err != nil || !r.Hello {
		t.Fatal(r, err)
	}
	return session
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestSession(t *testing.T) {
	s := NewState()
	session := s.Open("c1", "n1", remotes)
	equal(t, "before hello", said(t, session), "")
	testkit.Value(session.Receive(hello(&semaphorev1.AgentHello{})))(t)
	equal(t, "nothing known", said(t, session), "attached n1 resumed=false; synced 0 []")
	become(s, "c2", meshOf("c2", "a 1", "b 2"), nil)
	select {
	case <-session.changed:
	default:
		t.Error("the wait for c2 was not ended")
	}
	equal(t, "c2", said(t, session), "1:c2 2:c2/a=1 3:c2/b=2; synced 3 [c2]")
	become(s, "c2", meshOf("c2", "a 1", "b 3"), nil)
	equal(t, "one change", said(t, session), "4:c2/b=3")
	become(s, "c2", meshOf("c2", "a 4"), nil)
	become(s, "c2", meshOf("c2", "a 5"), nil)
	equal(t, "what was superseded", said(t, session), "5:-c2/b 7:c2/a=5")
	become(s, "c2", meshOf("c2", "a 5"), nil)
	select {
	case <-session.changed:
		t.Error("woken for nothing")
	default:
	}
	equal(t, "a newcomer", said(t, open(t, s, nil)), "attached n1 resumed=false; 1:c2 7:c2/a=5; synced 7 [c2]")
	equal(t, "one that resumes",
		said(t, open(t, s, &semaphorev1.AgentHello{ResumeEpoch: s.journal.Epoch(), ResumeRevision: 4})),
		"attached n1 resumed=true; 5:-c2/b 7:c2/a=5; synced 7 [c2]")
	equal(t, "one of another life", said(t, open(t, s, &semaphorev1.AgentHello{ResumeEpoch: "other", ResumeRevision: 4})),
		"attached n1 resumed=false; 1:c2 7:c2/a=5; synced 7 [c2]")
	equal(t, "one of the future",
		said(t, open(t, s, &semaphorev1.AgentHello{ResumeEpoch: s.journal.Epoch(), ResumeRevision: 8})),
		"attached n1 resumed=false; 1:c2 7:c2/a=5; synced 7 [c2]")

	t.Run("reports", func(t *testing.T) {
		r, err := session.Receive(
			players.Report(&semaphorev1.DeviceReport{Cluster: "c9"}, &semaphorev1.DeviceReport{Cluster: "c2",
				PublicKey: make([]byte, 32), ListenPort: 1}, &semaphorev1.DeviceReport{Cluster: "c9"}),
		)
		if err != nil || len(r.Report.Tunnels) != 1 || r.Report.Devices != 3 {
			t.Error(r, err)
		}
		equal(t, "a device of no remote", said(t, session), "7:-c9")
	})
	t.Run("applied", func(t *testing.T) {
		for _, c := range []struct{ says, want uint64 }{{5, 5}, {99, 7}} {
			_, err := session.Receive(players.Applied(c.says))
			if err != nil || session.Applied() != c.want {
				t.Errorf("says %d: %v, %d", c.says, err, session.Applied())
			}
		}
	})
	t.Run("a message of no known kind", func(t *testing.T) {
		if _, err := session.Receive(&semaphorev1.AttachRequest{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("hello twice", func(t *testing.T) {
		if _, err := session.Receive(hello(nil)); status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
	})
}

func TestManyForeignDevicesAreBounded(t *testing.T) {
	session := open(t, NewState(), nil)
	for i := range 10 * maxDevices {
		testkit.Value(session.Receive(players.Report(&semaphorev1.DeviceReport{Cluster: fmt.Sprint("x", i)})))(t)
	}
	if len(session.deleted) != maxDevices || len(session.foreign) != maxDevices {
		t.Errorf("%d remembered, %d to send", len(session.deleted), len(session.foreign))
	}
}

// digestOf is what an agent that holds a mesh says.
func digestOf(cluster string, m mesh.Changes) *semaphorev1.HeldCluster {
	d := streams.DigestOf(m.Device)
	for _, p := range m.Peers {
		d.Add(streams.DigestOf(p))
	}
	return &semaphorev1.HeldCluster{Cluster: cluster, Digest: d.Bytes()}
}

// An agent that holds what the broker would send is not sent it.
func TestUnchanged(t *testing.T) {
	had := meshOf("c2", "a 1", "b 2")
	t.Run("known when the agent attaches", func(t *testing.T) {
		s := NewState()
		become(s, "c2", meshOf("c2", "a 1", "b 9", "c 3"), nil)
		become(s, "c2", had, nil) // by another way
		become(s, "c3", meshOf("c3", "z 1"), nil)
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had),
			digestOf("c3", meshOf("c3"))}})
		equal(t, "said", said(t, session), "attached n1 resumed=false; unchanged c2 8; 7:c3 8:c3/z=1; synced 8 [c2 c3]")
		become(s, "c2", meshOf("c2", "a 1", "b 3"), nil)
		equal(t, "then", said(t, session), "9:c2/b=3")
	})
	t.Run("known later", func(t *testing.T) {
		s := NewState()
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}})
		equal(t, "said", said(t, session), "attached n1 resumed=false; synced 0 []")
		become(s, "c3", meshOf("c3", "z 1"), nil)
		become(s, "c2", had, nil)
		equal(t, "then", said(t, session), "unchanged c2 5; 1:c3 2:c3/z=1; synced 5 [c2 c3]")
		become(s, "c2", meshOf("c2", "a 1"), nil)
		equal(t, "and on", said(t, session), "6:-c2/b")
	})
	t.Run("known later, and changed by the time it is sent to the agent", func(t *testing.T) {
		s := NewState()
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}})
		said(t, session)
		become(s, "c2", had, nil)
		become(s, "c2", meshOf("c2", "a 7", "d 8"), nil)
		equal(t, "said", said(t, session), "unchanged c2 3; 4:-c2/b 5:c2/a=7 6:c2/d=8; synced 6 [c2]")
	})
	t.Run("known later, as another", func(t *testing.T) {
		s := NewState()
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}})
		said(t, session)
		become(s, "c2", meshOf("c2", "a 1"), nil)
		become(s, "c2", had, nil) // too late: a change is a change
		equal(t, "said", said(t, session), "1:c2 2:c2/a=1 3:c2/b=2; synced 3 [c2]")
	})
	t.Run("an agent that resumes in the middle of it is sent it", func(t *testing.T) {
		s := NewState()
		become(s, "c2", had, nil)
		session := open(t, s, &semaphorev1.AgentHello{ResumeEpoch: s.journal.Epoch(), ResumeRevision: 2,
			Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}})
		equal(t, "said", said(t, session), "attached n1 resumed=true; 3:c2/b=2; synced 3 [c2]")
	})
	t.Run("an agent that resumes from before it is not", func(t *testing.T) {
		s := NewState()
		become(s, "c3", meshOf("c3"), nil)
		become(s, "c2", had, nil)
		session := open(t, s, &semaphorev1.AgentHello{ResumeEpoch: s.journal.Epoch(), ResumeRevision: 1,
			Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}})
		equal(t, "said", said(t, session), "attached n1 resumed=true; unchanged c2 4; synced 4 [c2 c3]")
	})
	t.Run("an agent that deleted it since is sent it", func(t *testing.T) {
		s := NewState()
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had),
			digestOf("c3", meshOf("c3", "z 1"))}})
		testkit.Value(session.Receive(players.Report(&semaphorev1.DeviceReport{Cluster: "c2"})))(t)
		equal(t, "said", said(t, session), "attached n1 resumed=false; synced 0 []")
		session.Configure(map[string]bool{"c3": true}, nil)
		equal(t, "its remote is removed", said(t, session), "0:-c2")
		session.Configure(remotes, nil)
		become(s, "c2", had, nil)
		become(s, "c3", meshOf("c3", "z 1"), nil)
		equal(t, "and added again", said(t, session), "unchanged c3 5; 1:c2 2:c2/a=1 3:c2/b=2; synced 5 [c2 c3]")
	})
	t.Run("digests that make no sense", func(t *testing.T) {
		s := NewState()
		become(s, "c2", had, nil)
		session := open(t, s, &semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{{Cluster: "c2",
			Digest: []byte("short")}, {}, {Cluster: "c9", Digest: make([]byte, 32)}}})
		equal(t, "said", said(t, session), "attached n1 resumed=false; 1:c2 2:c2/a=1 3:c2/b=2; synced 3 [c2]")
	})
}

// Whole states and long delays go out in messages of a bounded size, each change encoded once for all.
func TestBatchesAreBoundedAndShared(t *testing.T) {
	s := NewState()
	var nodes []string
	for i := range 2500 {
		nodes = append(nodes, fmt.Sprintf("n%04d %s", i, strings.Repeat("x", 1000)))
	}
	early := open(t, s, nil)
	said(t, early)
	become(s, "c2", meshOf("c2", nodes...), nil)
	for _, session := range []*Session{early, open(t, s, nil), open(t, s, nil)} {
		var sizes []int
		changes := 0
		for {
			f := testkit.Value(session.Next())(t)
			if f == nil {
				break
			}
			m := testkit.Value(f.Message())(t)
			if n := len(m.GetChanges().GetChanges()); n > 0 {
				if n != f.changes || f.buffers.Len() > maxBatchBytes+16 || n > maxBatch {
					t.Errorf("a message of %d changes that says %d, %d bytes", n, f.changes, f.buffers.Len())
				}
				sizes = append(sizes, n)
				changes += n
			}
		}
		if changes != 2501 || len(sizes) < 3 {
			t.Errorf("%d changes in messages of %v", changes, sizes)
		}
	}
	if n := s.encodings.Load(); n != 2501 {
		t.Errorf("%d changes were encoded %d times", 2501, n)
	}
	become(s, "c2", meshOf("c2", nodes[1:]...), nil)
	equal(t, "a deletion has bytes of its own", said(t, early), "2502:-c2/n0000")
}

// TestDevicesThatNoAgentReports: a device that is not up has no tunnel. One whose name has more than 64 bytes, or whose
// key or port cannot be, is a problem. Neither costs the report's other devices anything. A message that no agent sends
// ends the stream.
func TestDevicesThatNoAgentReports(t *testing.T) {
	long, longer, key := strings.Repeat("c", 64), strings.Repeat("c", 65), make([]byte, 32)
	for what, c := range map[string]struct {
		device   *semaphorev1.DeviceReport
		problems int
	}{
		"a long cluster":    {&semaphorev1.DeviceReport{Cluster: longer, Interface: "wireguard.c2"}, 1},
		"a long interface":  {&semaphorev1.DeviceReport{Cluster: "c3", Interface: longer}, 1},
		"a short key":       {&semaphorev1.DeviceReport{Cluster: "c3", PublicKey: key[:31], ListenPort: 1}, 1},
		"no such port":      {&semaphorev1.DeviceReport{Cluster: "c3", PublicKey: key, ListenPort: 70000}, 1},
		"it is not up":      {&semaphorev1.DeviceReport{Cluster: "c3", PublicKey: key, Problem: "listen port"}, 1},
		"names of 64 bytes": {&semaphorev1.DeviceReport{Cluster: long, Interface: long}, 0},
	} {
		session := NewState().Open("c1", "n1", map[string]bool{"c2": true, "c3": true})
		testkit.Value(session.Receive(hello(nil)))(t)
		got, err := session.Receive(players.Report(c.device,
			&semaphorev1.DeviceReport{Cluster: "c2", PublicKey: key, ListenPort: 65535}))
		if err != nil || len(got.Report.Tunnels) != 1 || got.Report.Tunnels["c2"].ListenPort != 65535 ||
			len(got.Report.Problems) != c.problems {
			t.Errorf("%s: %+v, %v", what, got.Report, err)
		}
	}
	for what, m := range map[string]*semaphorev1.AttachRequest{
		"too many devices": players.Report(slices.Repeat([]*semaphorev1.DeviceReport{{}}, maxDevices+1)...),
		"hello twice":      hello(nil),
	} {
		if _, err := open(t, NewState(), nil).Receive(m); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

package redteam

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// agent attaches as a node's agent and returns what it received until the end mark: the size of all messages, the
// largest one, and the peers.
func (v *victim) agent(token string, clusters int) (total int, largest int, peers map[string]*semaphorev1.Peer) {
	v.t.Helper()
	v.eventually("an agent is admitted", func() (err error) {
		// If the apiserver does not review the token in time, because it gets no CPU time, the agent tries again.
		if total, largest, peers, err = v.attach(token, clusters); err != nil && status.Code(err) != codes.Unavailable {
			v.t.Fatalf("the agent's stream: %v", err)
		}
		return err
	})
	return total, largest, peers
}

func (v *victim) attach(token string, clusters int) (total int, largest int, peers map[string]*semaphorev1.Peer,
	err error) {
	v.t.Helper()
	s := testkit.Value(open(v.t, v.dialPeering(), attachMethod, token))(v.t)
	defer s.cancel()
	for _, m := range []*semaphorev1.AttachRequest{
		players.AgentHello(&semaphorev1.AgentHello{}), players.Report()} {
		if s.call.SendMsg(encode(v.t, m)) != nil {
			break // the next read gives the reason
		}
	}
	peers = map[string]*semaphorev1.Peer{}
	for {
		data, err := s.nextBytes(patience)
		if err != nil {
			return total, largest, peers, err
		}
		total, largest = total+len(data), max(largest, len(data))
		var m semaphorev1.AttachResponse
		testkit.Must(v.t, proto.Unmarshal(data, &m))
		for _, c := range m.GetChanges().GetChanges() {
			if p := c.GetPeer(); p != nil {
				peers[p.GetKey().GetCluster()+"/"+p.GetKey().GetNode()] = p
			}
			if k := c.GetDeletePeer(); k != nil {
				delete(peers, k.GetCluster()+"/"+k.GetNode())
			}
		}
		if m.GetSynced() != nil && len(m.GetSynced().GetClusters()) >= clusters {
			return total, largest, peers, nil
		}
	}
}

// TestUnknownFieldsReachNoAgent checks that unknown fields, of any size and at any depth of a node, reach no agent. The
// largest accepted nodes do not keep an agent from receiving what follows them.
func TestUnknownFieldsReachNoAgent(t *testing.T) {
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	kind := semaphorev1.Kind_KIND_NODE
	var nodes []*semaphorev1.Object
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType),
		bytes.Repeat([]byte{'x'}, 200<<10))
	for i := range 8 {
		o := node("c2", fmt.Sprintf("poison-%d", i), byte(i+1), fmt.Sprintf("10.2.%d.0/24", i))
		o.ProtoReflect().SetUnknown(unknown)
		o.GetNode().ProtoReflect().SetUnknown(unknown)
		o.GetNode().GetWireguard().ProtoReflect().SetUnknown(unknown)
		nodes = append(nodes, o)
	}
	// Also send a node with the maximum of known data.
	widest := node("c2", "widest", 10)
	for i := range 1024 {
		widest.GetNode().PodCidrs = append(widest.GetNode().PodCidrs, fmt.Sprintf("10.2.%d.%d/30", 128+i/64, i%64*4))
	}
	nodes = append(nodes, widest)
	s := v.publish("c2")
	s.tell(hello("c2", "e1", 100, kind))
	for i, o := range nodes {
		if i == 0 {
			s.tell(snapshot(kind, 100)[0])
		}
		s.tell(changesOf(upsert(uint64(i+1), o)))
	}
	s.tell(players.End(kind, 100, uint64(len(nodes))))
	s.acked(100)
	v.sends("c3", "e1", 1, ofNodes, node("c3", "good", 1, "10.3.1.0/24"))
	total, largest, peers := v.agent(token, 2)
	t.Logf("an agent received %d bytes, the largest message has %d", total, largest)
	if peers["c3/good"] == nil || peers["c2/poison-7"] == nil {
		t.Errorf("an agent received %d peers, and not another remote's", len(peers))
	}
	if total > 128<<10 {
		t.Errorf("an agent received %d bytes of 10 nodes", total)
	}
}

package peering

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The word comes once all else has been said, and each once.
func TestSessionSendsARotationOnce(t *testing.T) {
	s := NewState()
	early := s.Open("c1", "n1", remotes)
	if why := early.rotate(&semaphorev1.RotateKey{}); why == "" {
		t.Error("an agent that has not said hello is sent it")
	}
	session := open(t, s, &semaphorev1.AgentHello{})
	for _, cluster := range []string{"c2", "c3"} {
		if why := session.rotate(&semaphorev1.RotateKey{Cluster: cluster}); why != "" {
			t.Error(why)
		}
	}
	become(s, "c2", meshOf("c2", "a 1"), nil)
	equal(t, "all that is said", said(t, session),
		"attached n1 resumed=false; 1:c2 2:c2/a=1; synced 2 [c2]; rotate c2; rotate c3")
	for range maxRotations {
		session.rotate(&semaphorev1.RotateKey{})
	}
	if why := session.rotate(&semaphorev1.RotateKey{}); why == "" {
		t.Error("more and more is kept for an agent that reads nothing")
	}
}

func TestRotateKeys(t *testing.T) {
	live := &knownNodes{uids: map[string]types.UID{"n1": "u1", "n2": "u2", "n3": "u3"}, synced: true}
	s, _ := newReviewed()
	s.options.Nodes = live
	for _, node := range []string{"n1", "n2"} {
		a := &attachment{agent: Agent{Node: node, NodeUID: live.uids[node]}, received: make(chan struct{}, 1),
			session: open(t, s.options.State, &semaphorev1.AgentHello{})}
		a.ctx, a.stop = context.WithCancelCause(t.Context())
		defer a.stop(nil)
		s.attach(a)
	}
	for _, c := range []struct {
		nodes  []string
		within *durationpb.Duration
		want   string
		over   time.Duration
	}{
		{[]string{"n1"}, nil, "n1 sent", 0},
		{[]string{"n3", "n1", "n9", "n2", "n1"}, nil,
			"n1 sent; n2 sent; n3 no agent is attached; n9 the node does not exist",
			4 * rotateInterval},
		{[]string{"n1"}, durationpb.New(time.Hour), "n1 sent", time.Hour},
	} {
		var got []string
		for _, n := range s.RotateKeys("c2", c.nodes, c.within, false) {
			if n.Accepted != (n.Problem == "") {
				t.Errorf("%v", n)
			}
			got = append(got, strings.TrimSpace(fmt.Sprint(n.Node, " ", map[bool]string{true: "sent"}[n.Accepted], n.Problem)))
		}
		equal(t, fmt.Sprint(c.nodes), strings.Join(got, "; "), c.want)
		a := s.attached["u1"]
		m := a.session.rotations[len(a.session.rotations)-1]
		if m.GetCluster() != "c2" || m.GetWithin().AsDuration() != c.over {
			t.Errorf("%v: sent %v; want within %s", c.nodes, m, c.over)
		}
		select {
		case <-a.received:
		default:
			t.Errorf("%v: the stream is not woken", c.nodes)
		}
	}
}

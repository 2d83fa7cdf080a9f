package peering

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// A node that is deleted after its agent was admitted and before it said hello gets no other notice.
func TestANodeThatGoesBeforeHelloEndsTheStream(t *testing.T) {
	live := &knownNodes{uids: map[string]types.UID{"n1": "u1", "n2": "u2-again"}, synced: true}
	s, _ := newReviewed()
	s.options.Nodes = live
	for _, c := range []struct {
		node string
		uid  types.UID
		want codes.Code
	}{{"n1", "u1", codes.OK}, {"n2", "u2", codes.PermissionDenied}, {"n3", "u3", codes.PermissionDenied}} {
		a := &attachment{agent: Agent{Node: c.node, NodeUID: c.uid}, session: s.options.State.Open("c1", c.node, nil)}
		a.ctx, a.stop = context.WithCancelCause(t.Context())
		defer a.stop(nil)
		s.attach(a)
		if got := status.Code(context.Cause(a.ctx)); got != c.want || (a.ctx.Err() != nil) != (c.want != codes.OK) {
			t.Errorf("node %s with UID %s: %v, %v", c.node, c.uid, got, a.ctx.Err())
		}
	}
}

package federation

import (
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestEnginesAreAskedAtHeartbeats: each heartbeat asks once whether a snapshot is due and for the results of services,
// and no other message does. The objects that the brake retains are named: three objects, and how many more.
func TestEnginesAreAskedAtHeartbeats(t *testing.T) {
	resync, outcomes := 0, 0
	s := begun(Options{Brake: config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: time.Minute}}},
		[]config.Remote{{Name: "c2", PodPrefixes: testkit.Prefixes("10.2.0.0/16")}}, nil, Engines{
			ResyncDue: func(string) bool { resync++; return false },
			Outcomes:  func(string) []*semaphorev1.Outcome { outcomes++; return nil },
		})
	l := s.all()["c2"]
	st := newStream(t.Context())
	st.session = l.replica.Open()
	receive := func(m *semaphorev1.PublishRequest) {
		t.Helper()
		testkit.Value(s.receive(l, st, message{data: testkit.Value(proto.Marshal(m))(t)}))(t)
	}
	const member = semaphorev1.Kind_KIND_SET_MEMBER
	objects := players.Members("10.2", 8)
	receive(players.Hello("c2", "e", 8, member))
	for _, m := range players.Snapshot(member, 8, objects...) {
		receive(m)
	}
	const three = "withdrawn setmember shop/m4, setmember shop/m5, setmember shop/m6"
	for i, retained := range []string{"", "", "", "", "withdrawn setmember shop/m4",
		"withdrawn setmember shop/m4, setmember shop/m5", three, three + ", 1 more"} {
		receive(players.Deletion(uint64(9+i), objects[i]))
		l.mu.Lock()
		got := s.retainedProblem(l, member)
		l.mu.Unlock()
		if retained == "" && got != "" || !strings.HasSuffix(got, retained) {
			t.Errorf("%d of 8 are withdrawn: %q, want %q", i+1, got, retained)
		}
	}
	if resync+outcomes != 0 {
		t.Errorf("asked %d and %d times before a heartbeat", resync, outcomes)
	}
	for range 2 {
		receive(players.Beat(0, 0))
	}
	if resync != 2 || outcomes != 2 {
		t.Errorf("asked %d and %d times at two heartbeats", resync, outcomes)
	}
}

// TestWhoCallsIsProven: a call without a certificate of an exporter ends before anything is read of it.
func TestWhoCallsIsProven(t *testing.T) {
	s := begun(Options{}, onlyC2, nil, Engines{})
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{}})
	if err := s.Publish(&call{ctx: ctx}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v, want %s", err, codes.Unauthenticated)
	}
}

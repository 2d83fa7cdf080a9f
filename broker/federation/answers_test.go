package federation

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestEnginesAreAskedAtHeartbeats: each heartbeat asks once whether a snapshot is due and what became of services, and
// no other message does. What the brake retains is named: three objects, and how many more.
func TestEnginesAreAskedAtHeartbeats(t *testing.T) {
	resync, outcomes := 0, 0
	s := New(Options{
		Cluster: "c1", Sink: taker{},
		Remotes:   []config.Remote{{Name: "c2", PodPrefixes: testkit.Prefixes("10.2.0.0/16")}},
		Brake:     config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: time.Minute}},
		ResyncDue: func(string) bool { resync++; return false },
		Outcomes:  func(string) []*semaphorev1.Outcome { outcomes++; return nil },
		Recorder:  debug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.DiscardHandler),
	})
	l := s.all()["c2"]
	st := &stream{session: l.replica.Open(), ended: make(chan struct{})}
	receive := func(m *semaphorev1.PublishRequest) {
		t.Helper()
		data, err := proto.Marshal(m)
		testkit.Must(t, err)
		_, err = s.receive(l, st, message{data: data})
		testkit.Must(t, err)
	}
	const member = semaphorev1.Kind_KIND_SET_MEMBER
	receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
		Cluster: "c2", ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: "e", HeadRevision: 8,
		Kinds: []semaphorev1.Kind{member},
	}}})
	receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
		SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: member, Revision: 8}}})
	var changes []*semaphorev1.Change
	for i := range uint64(8) {
		changes = append(changes, &semaphorev1.Change{Revision: i + 1, Change: &semaphorev1.Change_Upsert{
			Upsert: &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: member, Namespace: "shop", Name: fmt.Sprint("n", i+1)},
				Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: "u", SetName: "web",
					Ips: []string{fmt.Sprintf("10.2.0.%d", i+1)}}}}}})
	}
	receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{
		Changes: &semaphorev1.Changes{Changes: changes}}})
	receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: member, Revision: 8, Objects: 8}}})
	const three = "withdrawn setmember shop/n5, setmember shop/n6, setmember shop/n7"
	for i, retained := range []string{"", "", "", "", "withdrawn setmember shop/n5",
		"withdrawn setmember shop/n5, setmember shop/n6", three, three + ", 1 more"} {
		receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{
			Changes: []*semaphorev1.Change{{Revision: uint64(9 + i), Change: &semaphorev1.Change_Delete{
				Delete: &semaphorev1.ObjectKey{Kind: member, Namespace: "shop", Name: fmt.Sprint("n", i+1)}}}}}}})
		l.mu.Lock()
		got := l.retainedProblem(member)
		l.mu.Unlock()
		if retained == "" && got != "" || !strings.HasSuffix(got, retained) {
			t.Errorf("%d of 8 are withdrawn: %q, want %q", i+1, got, retained)
		}
	}
	if resync+outcomes != 0 {
		t.Errorf("asked %d and %d times before a heartbeat", resync, outcomes)
	}
	for range 2 {
		receive(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Heartbeat{
			Heartbeat: &semaphorev1.Heartbeat{}}})
	}
	if resync != 2 || outcomes != 2 {
		t.Errorf("asked %d and %d times at two heartbeats", resync, outcomes)
	}
}

// TestWhoCallsIsProven: a call without a certificate of an exporter ends before anything is read of it.
func TestWhoCallsIsProven(t *testing.T) {
	s := New(Options{Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}}, Sink: taker{},
		Recorder: debug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.DiscardHandler)})
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{}})
	if err := s.Publish(&call{ctx: ctx}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("%v, want %s", err, codes.Unauthenticated)
	}
}

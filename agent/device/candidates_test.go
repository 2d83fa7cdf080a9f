package device

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestCandidatesAreForgotten: what an agent remembers of a remote's candidates is bounded by those that its nodes have,
// and not by those that they had: a remote may give a node another key and other names with each change.
func TestCandidatesAreForgotten(t *testing.T) {
	cfg := &config.Agent{Cluster: "c1"}
	n, sink, board := &kerneltest.Node{}, events.New("c1"), &status.Board{}
	session := stream.NewSession("c1", "broker", sink, func(*semaphorev1.AttachRequest) {})
	r := New(cfg, n, Parts{Session: session, Keys: NewRotator("c1", t.TempDir(), sink), Schedule: plan.NewScheduler(),
		Node:  guard.NewMonitor(cfg, n, n.Guard(), session, board, sink, func() {}),
		Peers: paths.New(n, session, sink, func(string) {}, func() {}, func() string { return "" }),
		Board: board, Events: sink})
	session.Begin(nil)
	revision := uint64(0)
	receive := func(changes ...*semaphorev1.PeeringChange) {
		t.Helper()
		for _, c := range changes {
			revision++
			c.Revision = revision
		}
		_, err := session.Receive(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{
			Changes: &semaphorev1.PeeringChanges{Changes: changes}}})
		testkit.Must(t, err)
	}
	_, err := session.Receive(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{
		Attached: &semaphorev1.Attached{Epoch: "A"}}})
	testkit.Must(t, err)
	receive(&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: &semaphorev1.Device{Cluster: "c2",
		ListenPort: 51820, Mtu: 1420, PodSubnets: []string{"10.2.0.0/16"},
		PersistentKeepalive: durationpb.New(25 * time.Second)}}})
	_, err = session.Receive(&semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{
		Synced: &semaphorev1.Synced{Revision: revision, Clusters: []string{"c2"}}}})
	testkit.Must(t, err)
	for range maxAsking { // look-ups of names are under way: none begins
		r.device("c2").asking.slots <- struct{}{}
	}
	r.Set(t.Context(), "c2")
	if r.device("c2").peers == nil {
		t.Fatal("the device is not set: ", r.device("c2").Problem)
	}
	most := 0
	for i := range 4 * spare {
		key, err := wgtypes.GenerateKey()
		testkit.Must(t, err)
		public := key.PublicKey()
		receive(&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: &semaphorev1.Peer{
			Key: &semaphorev1.PeerKey{Cluster: "c2", Node: "n1"}, AllowedIps: []string{"10.2.1.0/24"},
			Wireguard: &semaphorev1.WireGuardEndpoint{
				PublicKey: public[:], Address: "192.0.2.77:51820",
				Candidates: []string{"192.0.2.77:51820", fmt.Sprintf("a%d.example:51820", i)}}}}})
		r.SetPeers(t.Context(), "c2", map[string]bool{"n1": true})
		most = max(most, r.device("c2").remembers())
	}
	if most > 2*spare {
		t.Errorf("one node has a name, and the agent remembers %d names and peers", most)
	}
}

// TestNamesOfOneRemoteDelayNoOther: names of one remote that its DNS does not answer do not keep those of another
// remote from being looked up.
func TestNamesOfOneRemoteDelayNoOther(t *testing.T) {
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	synctest.Test(t, func(t *testing.T) {
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done() // the DNS of the zone does not answer
			return nil, ctx.Err()
		}}
		r := &Reconciler{devices: map[string]*device{}}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		for range 120 { // an hour of full checks: devices are set in the order of their names
			for i := range 20 {
				r.device("c2").asking.addresses(ctx, fmt.Sprintf("n%d.c2.example.", i), false)
			}
			r.device("c3").asking.addresses(ctx, "n1.c3.example.", false)
			time.Sleep(plan.FullCheck)
		}
		a := r.device("c3").asking
		a.mu.Lock()
		at := a.names["n1.c3.example."].at
		a.mu.Unlock()
		if at.IsZero() {
			t.Errorf("after %s the name of c3 was never looked up", time.Since(start))
		}
		cancel()
		synctest.Wait()
	})
}

package broker

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestANodeThatNothingReaches: a broker that begins does not use the endpoints on a node that calls, if all nodes here
// call, too. It needs no change of a node for that.
func TestANodeThatNothingReaches(t *testing.T) {
	w := newWorld(t)
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q, %q: %q}}}`,
		naming.PubKeyAnnotation("c2"), base64.StdEncoding.EncodeToString(make([]byte, 32)),
		naming.CandidatesAnnotation("c2"), naming.Nowhere)
	testkit.Value(w.admin.CoreV1().Nodes().Patch(t.Context(), w.node.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}))(t)
	w.start(w.cfg)
	calls := players.Node("n2", 22, "10.2.2.0/24")
	calls.GetNode().Wireguard.Address, calls.GetNode().Wireguard.Calls = "", true
	w.exporter("c2").SendAll("c2", "e1", players.Node("n1", 21, "10.2.1.0/24"), calls, players.Service("shop", "web", 80),
		players.Slice("shop", "web-1", "web", "10.2.1.5", "10.2.2.5"))
	eventually(t, "only the other node is used", func() (bool, string) {
		used := w.used(t)
		return used == "c2 10.2.1.5", used
	})
}

// TestTheMTUIsReadRarely: the status of the RemoteClusters, which is computed each second, has all reports of agents
// summed every ten seconds.
func TestTheMTUIsReadRarely(t *testing.T) {
	f, read, now := &following{}, 0, time.Now()
	for second := range 30 {
		all := f.tunnelsNow(now.Add(time.Duration(second)*time.Second), func() map[string]peering.Tunnels {
			read++
			return map[string]peering.Tunnels{"c2": {MTU: 1000 + read}}
		})
		if got, want := all["c2"].MTU, 1001+second/10; got != want {
			t.Errorf("the MTU after %d s is %d, want %d", second, got, want)
		}
	}
	if read != 3 {
		t.Errorf("read %d times in 30 s", read)
	}
}

package redteam

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestAKeyStaysWithItsPeer checks that nobody takes a peer from the agents: neither another remote, in any order of the
// configuration, nor a kubelet that annotates its Node with every existing key and reports every address.
func TestAKeyStaysWithItsPeer(t *testing.T) {
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	var nodes []*semaphorev1.Object
	for i := range byte(10) {
		nodes = append(nodes, node("c3", fmt.Sprintf("n%d", i), i+1, fmt.Sprintf("10.3.%d.0/24", i)))
	}
	v.sends("c3", "e1", 20, ofNodes, nodes...)
	// c2, which is listed before c3, sends nodes with the same keys.
	var stolen []*semaphorev1.Object
	for i, n := range nodes {
		s := node("c2", fmt.Sprintf("a%d", i), byte(i+1), fmt.Sprintf("10.2.%d.0/24", i))
		s.GetNode().GetWireguard().PublicKey = n.GetNode().GetWireguard().GetPublicKey()
		stolen = append(stolen, s)
	}
	v.sends("c2", "e1", 20, ofNodes, stolen...)
	_, _, peers := v.agent(token, 2)
	of := func(cluster string) (n int) {
		for name := range peers {
			if name[:3] == cluster+"/" {
				n++
			}
		}
		return n
	}
	if of("c3") != 10 || of("c2") != 0 {
		t.Errorf("after a remote has claimed the keys of another: %d peers of c3 of 10, %d of c2", of("c3"), of("c2"))
	}
	v.counts(10, "semaphore_broker_peer_problems", `cluster="c2"`) // the thief
	// A kubelet can change annotations and addresses of its own Node.
	annotations := map[string]string{}
	for i, n := range nodes {
		annotations[fmt.Sprintf("x%d.wireguard.semaphore.uw.io/pubKey",
			i)] = base64.StdEncoding.EncodeToString(n.GetNode().GetWireguard().GetPublicKey())
	}
	patch := testkit.Value(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}}))(t)
	testkit.Value(v.kube.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, patch,
		metav1.PatchOptions{}))(t)
	var addresses []map[string]string
	for i := range 10 {
		addresses = append(addresses, map[string]string{"type": "InternalIP", "address": fmt.Sprintf("192.0.2.%d", 33+i)})
	}
	status := testkit.Value(json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses}}))(t)
	testkit.Value(v.kube.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, status, metav1.PatchOptions{},
		"status"))(t)
	v.counts(20, "semaphore_broker_node_claims", `node="n1"`)
	if _, _, peers = v.agent(token, 2); of("c3") != 10 {
		t.Errorf("after a kubelet has claimed all keys and addresses: %d peers of c3 of 10", of("c3"))
	}
}

package redteam

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestPeersKeepKeysAcrossBrokers checks a new broker, which has no memory of the remotes. A remote that it receives
// first, with the same keys or with a node that claims the pod CIDRs of others, takes nothing from the earlier owner. A
// first snapshot without the peers removes none of them.
func TestPeersKeepKeysAcrossBrokers(t *testing.T) {
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	const n = 30
	peer := func(cluster string, i int, name string, cidrs ...string) *semaphorev1.Object {
		o := node(cluster, name, byte(1+i%14), cidrs...)
		o.GetNode().GetWireguard().PublicKey = append([]byte{byte(i), 7}, make([]byte, 30)...)
		o.GetNode().GetWireguard().Address = fmt.Sprintf("%s%d",
			o.GetNode().GetWireguard().GetAddress()[:len("192.0.2.17:51")], 100+i)
		return o
	}
	var honest []*semaphorev1.Object
	for i := range n {
		honest = append(honest, peer("c3", i, fmt.Sprintf("n%02d", i), fmt.Sprintf("10.3.%d.0/24", i)))
	}
	tell := func(cluster string, objects ...*semaphorev1.Object) {
		t.Helper()
		v.sends(cluster, "e1", 100, ofNodes, objects...)
	}
	has := func(what string) {
		t.Helper()
		_, _, peers := v.agent(token, 2)
		left := 0
		for i := range n {
			p := peers[fmt.Sprintf("c3/n%02d", i)]
			if len(p.GetAllowedIps()) == 1 && p.GetAllowedIps()[0] == fmt.Sprintf("10.3.%d.0/24", i) &&
				p.GetWireguard().GetPublicKey()[0] == byte(i) {
				left++
			}
		}
		t.Logf("%s: %d of %d peers are as they were, of %d", what, left, n, len(peers))
		if left != n {
			t.Errorf("%s: %d of %d peers are as they were", what, left, n)
		}
	}
	tell("c3", honest...)
	tell("c2")
	has("at first")
	v.eventually("the peers are kept", func() error {
		all, err := v.kube.CoreV1().ConfigMaps("semaphore").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range all.Items {
			if len(o.BinaryData["c3"]) > 0 {
				return nil
			}
		}
		return fmt.Errorf("%d ConfigMaps, none with c3", len(all.Items))
	})

	// The new broker receives the thief first, whose RemoteCluster is also the older one. A node of c3 that precedes the
	// others by name and in the snapshot claims the pod CIDRs of all of them.
	v.kill()
	v.run()
	var stolen []*semaphorev1.Object
	for i := range n {
		stolen = append(stolen, peer("c2", i, fmt.Sprintf("a%02d", i), fmt.Sprintf("10.2.%d.0/24", i)))
	}
	tell("c2", stolen...)
	greedy := peer("c3", 200, "a", "10.3.0.0/16")
	tell("c3", append([]*semaphorev1.Object{greedy}, honest...)...)
	has("after a thief was heard first")
	v.counts(n, "semaphore_broker_peer_problems", `cluster="c2"`) // the thief

	// The next broker receives no node of c3, so most peers would be removed.
	beside := kubetest.WriteBeside(t, v.kube)
	time.Sleep(2 * time.Second) // received state is saved within a second
	time.Sleep(beside.Late())
	beside.Stop()
	v.kill()
	v.run()
	tell("c2")
	tell("c3")
	has("after a first snapshot without nodes")
	v.counts(n, "semaphore_broker_retained", `cluster="c3"`, `kind="node"`)
}

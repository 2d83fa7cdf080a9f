package redteam

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestAKeyStaysWithItsPeer: neither another remote, whichever the configuration lists first, nor a kubelet that
// annotates its Node with every key there is and reports every address, takes a peer from the agents.
func TestAKeyStaysWithItsPeer(t *testing.T) {
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	kind := semaphorev1.Kind_KIND_NODE
	honest := v.publish("c3")
	honest.tell(hello("c3", "e1", 20, kind))
	var nodes []*semaphorev1.Object
	for i := range byte(10) {
		nodes = append(nodes, node("c3", fmt.Sprintf("n%d", i), i+1, fmt.Sprintf("10.3.%d.0/24", i)))
	}
	honest.tell(snapshot(kind, 20, nodes...)...)
	honest.acked(20)
	// c2, which is listed before c3, sends nodes with the same keys.
	thief := v.publish("c2")
	thief.tell(hello("c2", "e1", 20, kind))
	var stolen []*semaphorev1.Object
	for i, n := range nodes {
		s := node("c2", fmt.Sprintf("a%d", i), byte(i+1), fmt.Sprintf("10.2.%d.0/24", i))
		s.GetNode().GetWireguard().PublicKey = n.GetNode().GetWireguard().GetPublicKey()
		stolen = append(stolen, s)
	}
	thief.tell(snapshot(kind, 20, stolen...)...)
	thief.acked(20)
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
	if n := v.metric("semaphore_broker_peer_problems", `cluster="c2"`); n != 10 {
		t.Errorf("semaphore_broker_peer_problems of the thief is %v", n)
	}
	// What a kubelet can do: annotations and addresses of its own Node.
	annotations := map[string]string{}
	for i, n := range nodes {
		annotations[fmt.Sprintf("x%d.wireguard.semaphore.uw.io/pubKey",
			i)] = base64.StdEncoding.EncodeToString(n.GetNode().GetWireguard().GetPublicKey())
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.kube.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var addresses []map[string]string
	for i := range 10 {
		addresses = append(addresses, map[string]string{"type": "InternalIP", "address": fmt.Sprintf("192.0.2.%d", 33+i)})
	}
	status, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.kube.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, status, metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
	v.eventually("the broker has followed the node", func() error {
		if n := v.metric("semaphore_broker_node_claims", `node="n1"`); n != 20 {
			return fmt.Errorf("semaphore_broker_node_claims of the kubelet's node is %v", n)
		}
		return nil
	})
	if _, _, peers = v.agent(token, 2); of("c3") != 10 {
		t.Errorf("after a kubelet has claimed all keys and addresses: %d peers of c3 of 10", of("c3"))
	}
}

// TestGrowingOverALimitTakesNothing: one endpoint more than a limit allows withdraws none of those that are there.
func TestGrowingOverALimitTakesNothing(t *testing.T) {
	v := start(t, func(cfg map[string]any) {
		cfg["remotes"].([]any)[0].(map[string]any)["limits"] = map[string]any{"endpoints": 200}
	})
	kinds := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
	slice := func(service string, third, n int) *semaphorev1.Object {
		es := &semaphorev1.EndpointSlice{Service: service, AddressType: "IPv4",
			Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}}}
		for i := range n {
			es.Endpoints = append(es.Endpoints,
				&semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", third, i+1)}})
		}
		return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: "shop",
			Name: service + "-1"},
			Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: es}}
	}
	service := func(name string) *semaphorev1.Object {
		return &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop",
			Name: name},
			Spec: &semaphorev1.Object_Service{Service: &semaphorev1.Service{Mirror: true,
				Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 80}}}}}
	}
	s := v.publish("c2")
	s.tell(hello("c2", "e1", 10, kinds...))
	s.tell(snapshot(kinds[0], 10, service("web"), service("api"))...)
	s.tell(snapshot(kinds[1], 10, slice("web", 1, 100), slice("api", 2, 100))...)
	s.acked(10)
	endpoints := func(want int) {
		t.Helper()
		v.eventually(fmt.Sprintf("web has %d endpoints", want), func() error {
			all, err := v.kube.DiscoveryV1().EndpointSlices("semaphore").List(t.Context(),
				metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=c2-shop-73736d-web"})
			n := 0
			if err == nil {
				for _, o := range all.Items {
					n += len(o.Endpoints)
				}
				if n != want {
					err = fmt.Errorf("they are %d", n)
				}
			}
			return err
		})
	}
	endpoints(100)
	s.tell(changesOf(upsert(11, slice("web", 1, 101))))
	if r := s.acked(11); len(r) != 1 || r[0].GetCode() != "over-quota" {
		t.Errorf("refused: %v", r)
	}
	time.Sleep(time.Second)
	endpoints(100)
	if v.metric("semaphore_broker_refused_total", `cluster="c2"`, `code="over-quota"`) != 1 {
		t.Error("semaphore_broker_refused_total does not tell")
	}
}

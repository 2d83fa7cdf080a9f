package nodes

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEndsOfANode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
		"c2.wireguard.semaphore.uw.io/pubKey":   "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=",
		"c2.wireguard.semaphore.uw.io/endpoint": "172.18.1.11:51820",
		"c3.wireguard.semaphore.uw.io/pubKey":   "c2hvcnQ=",
		"c4.wireguard.semaphore.uw.io/pubKey":   "no base64",
		"example.org/pubKey":                    "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=",
	}}}
	for _, a := range []string{"172.18.1.11", "fd18:1::11", "n1.example.org"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	name, keys, addresses := Ends(node, false)
	if name != "n1" || len(keys) != 1 || string(keys[0]) != strings.Repeat("\t", 32) ||
		fmt.Sprint(addresses) != "[172.18.1.11 fd18:1::11]" {
		t.Errorf("%s: keys %v, addresses %v", name, keys, addresses)
	}
	if name, keys, addresses := Ends(node, true); name != "n1" || keys != nil || addresses != nil {
		t.Errorf("one that has gone: keys %v, addresses %v", keys, addresses)
	}
}

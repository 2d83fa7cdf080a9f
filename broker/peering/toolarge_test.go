package peering

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// A peer that is larger than an agent can be sent beside others is not sent, and shown; the rest is. One that was sent
// before is removed, and one that becomes small again is sent.
func TestAPeerThatIsTooLargeIsShown(t *testing.T) {
	s := NewState()
	peer := func(name string, cidrs int) *semaphorev1.Peer {
		p := &semaphorev1.Peer{Key: &semaphorev1.PeerKey{Cluster: "c2", Node: name},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: make([]byte, 32), Address: "192.0.2.1:1"}}
		for i := range cidrs {
			p.AllowedIps = append(p.AllowedIps, fmt.Sprintf("fd02:0:0:%x::%x/128", i>>16, i&0xffff))
		}
		return p
	}
	update := func(peers ...*semaphorev1.Peer) {
		c := mesh.Changes{Device: &semaphorev1.Device{Cluster: "c2"}, Peers: map[string]*semaphorev1.Peer{}}
		for _, p := range peers {
			c.Peers[p.Key.Node] = p
		}
		s.Update("c2", c, nil)
	}
	names := func() (out string) {
		for _, p := range s.PeersOf("c2") {
			out += p.GetKey().GetNode() + " "
		}
		return out
	}
	large := peer("b", 4000)
	if n := proto.Size(large); n <= maxEntry {
		t.Fatalf("it has %d bytes", n)
	}
	update(peer("a", 1), large, peer("c", 1000))
	if got := names(); got != "a c " {
		t.Errorf("agents receive %s", got)
	}
	if got := finding.Texts(s.Findings()); len(got) != 1 ||
		!strings.HasPrefix(got[0], fmt.Sprintf("peer c2/b has %d bytes, more than the limit of %d", proto.Size(large),
			maxEntry)) {
		t.Errorf("problems %q", got)
	}
	update(peer("b", 1))
	if got := names(); got != "a b c " || len(finding.Texts(s.Findings())) != 0 {
		t.Errorf("agents receive %s, problems %q", got, finding.Texts(s.Findings()))
	}
	update(large)
	if got := names(); got != "a c " || len(finding.Texts(s.Findings())) != 1 {
		t.Errorf("agents receive %s, problems %q", got, finding.Texts(s.Findings()))
	}
}

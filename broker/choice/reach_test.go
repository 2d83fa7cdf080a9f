package choice

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var reachNoon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// TestGate follows the peers of a remote: nodes begin with their pod CIDR, such as n1=1@5 for 10.2.1.0/24 and ::1 as of
// revision 5.
func TestGate(t *testing.T) {
	type step struct {
		after   time.Duration
		peers   string
		applied []uint64
		// reached are third bytes of addresses, and waiting are nodes.
		reached, waiting string
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"what is published at the beginning stands", []step{{0, "n1=1@5 n2=2@6", []uint64{0, 0}, "1 2", ""}}},
		{"a node without a peer", []step{{0, "n1=1@5", []uint64{9}, "1", ""}}},
		{"a new node waits for the last agent", []step{
			{0, "n1=1@5", []uint64{5, 5}, "1", ""},
			{0, "n1=1@5 n2=2@6", []uint64{6, 5}, "1", "n2"},
			{time.Second, "n1=1@5 n2=2@6", []uint64{6, 6}, "1 2", ""},
		}},
		{"an agent that applies nothing delays it for a time only", []step{
			{0, "n1=1@5", []uint64{5, 5}, "1", ""},
			{0, "n1=1@5 n2=2@6", []uint64{6, 5}, "1", "n2"},
			{Patience - 1, "n1=1@5 n2=2@7", []uint64{7, 5}, "1", "n2"},
			{1, "n1=1@5 n2=2@8", []uint64{8, 5}, "1 2", ""},
		}},
		{"no agent is attached", []step{
			{0, "n1=1@5", nil, "1", ""},
			{0, "n1=1@5 n2=2@6", nil, "1 2", ""},
		}},
		{"a new key does not end what stands", []step{
			{0, "n1=1@5", []uint64{5}, "1", ""},
			{0, "n1=1@9", []uint64{5}, "1", ""},
		}},
		{"another prefix waits, the earlier one does not", []step{
			{0, "n1=1@5", []uint64{5}, "1", ""},
			{0, "n1=1,3@6", []uint64{5}, "1", "n1"},
			{time.Second, "n1=1,3@6", []uint64{6}, "1 3", ""},
			{time.Second, "n1=3@7", []uint64{6}, "3", ""},
		}},
		{"a node loses its peer", []step{
			{0, "n1=1@5 n2=2@6", []uint64{6}, "1 2", ""},
			{0, "n2=2@6", []uint64{6}, "2", ""},
			{0, "n1=1@8 n2=2@6", []uint64{6}, "2", "n1"},
		}},
		{"none is left", []step{
			{0, "n1=1@5", []uint64{5}, "1", ""},
			{0, "", []uint64{5}, "", ""},
		}},
	} {
		var g Gate
		now := reachNoon
		for i, s := range c.steps {
			now = now.Add(s.after)
			var peers []Peer
			for _, text := range strings.Fields(s.peers) {
				var p Peer
				var cidrs string
				at := strings.IndexByte(text, '=')
				p.Node = text[:at]
				fmt.Sscanf(strings.Replace(text[at+1:], "@", " ", 1), "%s %d", &cidrs, &p.Revision)
				for _, n := range strings.Split(cidrs, ",") {
					p.AllowedIPs = append(p.AllowedIPs, "10.2."+n+".0/24", "fd02:"+n+"::/64")
				}
				peers = append(peers, p)
			}
			set, _, waiting := g.Update(peers, s.applied, now)
			var reached []string
			for n := range 5 {
				four := set.Has(netip.MustParseAddr(fmt.Sprintf("10.2.%d.7", n)))
				if four != set.Has(netip.MustParseAddr(fmt.Sprintf("fd02:%d::7", n))) ||
					four != set.Has(netip.MustParseAddr(fmt.Sprintf("::ffff:10.2.%d.7", n))) {
					t.Errorf("%s, step %d: the families of %d differ", c.name, i, n)
				}
				if four {
					reached = append(reached, fmt.Sprint(n))
				}
			}
			if got := strings.Join(reached, " "); got != s.reached || strings.Join(waiting, " ") != s.waiting {
				t.Errorf("%s, step %d: reaches %q, waits for %q; want %q and %q", c.name, i, got, waiting, s.reached, s.waiting)
			}
		}
	}
	if all := (*Reachable)(nil); !all.Has(netip.MustParseAddr("192.0.2.1")) {
		t.Error("without knowledge, nothing is left out")
	}
}

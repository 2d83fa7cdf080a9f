package conns

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

type fake struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (f *fake) RemoteAddr() net.Addr { return f.from }
func (f *fake) Close() error         { f.closed = true; return nil }

func from(host string, port int) *fake {
	return &fake{from: &net.TCPAddr{IP: net.ParseIP(host), Port: port}}
}

func TestANewConnectionFindsRoom(t *testing.T) {
	var why []string
	table := New(Limits{All: 10, Unproven: 8, Each: 2}, func(w string) { why = append(why, w) })
	var stranger []*fake
	for i := range 20 {
		f := from("198.51.100.1", 1000+i)
		stranger = append(stranger, f)
		table.add(f)
	}
	if all, unproven := table.Open(); all != 8 || unproven != 8 || len(why) != 12 {
		t.Fatalf("%d open, %d unproven, closed %v", all, unproven, why)
	}
	honest := from("192.0.2.1", 1)
	if table.add(honest) == nil || honest.closed || !stranger[12].closed || stranger[13].closed {
		t.Error("an honest caller has no room, or somebody else's connection is closed for it than the stranger's oldest")
	}
	for i := range 20 {
		table.add(from("198.51.100.1", 2000+i))
	}
	if honest.closed {
		t.Error("an honest caller's connection is closed for a stranger's")
	}
	// An authenticated client no longer loses connections to unauthenticated ones, and has a share of its own.
	table.Prove(honest.from, "n1")
	for i := range 3 {
		f := from("192.0.2.1", 10+i)
		table.add(f)
		table.Prove(f.from, "n1")
	}
	if !honest.closed || why[len(why)-1] != "share" {
		t.Errorf("the fourth of n1: the first is closed %v, for %v", honest.closed, why[len(why)-1])
	}
	for i := range 8 {
		f := from("192.0.2.2", i+1)
		table.add(f)
		table.Prove(f.from, fmt.Sprint("n", i+2))
	}
	if table.add(from("192.0.2.3", 1)) != nil || why[len(why)-1] != "full" {
		t.Error("there is room beyond all")
	}
}

// TestTableCounts: the numbers are always those of the open connections.
func TestTableCounts(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		table := New(Limits{All: 20, Unproven: 10, Each: 3}, func(string) {})
		var open []net.Conn
		fakes := map[net.Conn]*fake{}
		for i := range 500 {
			switch r.IntN(4) {
			case 0:
				if len(open) > 0 {
					open[r.IntN(len(open))].Close()
				}
			case 1:
				if len(open) > 0 {
					table.Prove(open[r.IntN(len(open))].RemoteAddr(), fmt.Sprint(r.IntN(5)))
				}
			default:
				f := from(fmt.Sprintf("192.0.2.%d", r.IntN(4)), i+1)
				if c := table.add(f); c != nil {
					open, fakes[c] = append(open, c), f
				}
			}
			open = slices.DeleteFunc(open, func(c net.Conn) bool { return fakes[c].closed })
			if all, unproven := table.Open(); all != len(open) || unproven > 10 || all > 20 || len(table.byAddr) != all {
				t.Fatalf("seed %d: %d open, %d counted, %d unproven, %d by address", seed, len(open), all, unproven,
					len(table.byAddr))
			}
		}
		for _, c := range open {
			c.Close()
		}
		if all, unproven := table.Open(); all+unproven+len(
			table.sources,
		)+len(
			table.crowds,
		)+len(
			table.owners,
		)+len(
			table.byAddr,
		) != 0 {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}

func TestSource(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8::1]:5": "2001:db8::/64",
		"[fe80::1%eth0]:5": "fe80::/64",
	} {
		if got := Source(testkit.Value(net.ResolveTCPAddr("tcp", address))(t)); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

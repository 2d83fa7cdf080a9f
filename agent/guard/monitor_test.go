package guard_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
)

// node has a route of another program past the device, and a guard that counted packets, as long as they can be read.
type node struct {
	*kerneltest.Node
	routes error
	listed error // of lists of addresses
	lists  int
}

func (n *node) Addresses() ([]kernel.Address, error) {
	n.lists++
	all, _ := n.Node.Addresses()
	return all, n.listed
}

func (n *node) Foreign(wanted func(netip.Prefix) bool) ([]kernel.Foreign, error) {
	if n.routes != nil {
		return nil, n.routes
	}
	return []kernel.Foreign{{Prefix: netip.MustParsePrefix("10.2.3.0/24"), Text: "dev eth0"}}, nil
}

type rules struct {
	*kerneltest.Guard
	unread error
}

func (r *rules) Counts() (map[string]status.GuardCount, error) {
	if r.unread != nil {
		return nil, r.unread
	}
	return map[string]status.GuardCount{"c2": {Out: 7}}, nil
}

func monitor(t *testing.T) (*guard.Monitor, *node, *rules, *status.Board) {
	n := &node{Node: &kerneltest.Node{}}
	g := &rules{Guard: n.Guard()}
	sink, board := events.New("c1"), &status.Board{}
	session := stream.NewSession("c1", "broker", sink, func(*semaphorev1.AttachRequest) {})
	m := guard.NewMonitor(&config.Agent{Cluster: "c1"}, n, g, session, board, sink, func() {})
	m.SetRemotes(&semaphorev1.Guard{Remotes: []*semaphorev1.GuardedRemote{
		{Cluster: "c2", PodSubnets: []string{"10.2.0.0/16"}}}})
	m.GuardRemotes()
	m.Check(guard.Work{Routes: true, Settings: true, Guard: true})
	return m, n, g, board
}

func has(board *status.Board, code finding.Code) bool {
	for _, f := range board.Get().Node.Findings {
		if f.Code == code {
			return true
		}
	}
	return false
}

// TestUnreadRoutesAreNotGone: routes that could not be listed once are not taken for gone, nor is the failure forgotten
// before they were listed again.
func TestUnreadRoutesAreNotGone(t *testing.T) {
	m, n, _, board := monitor(t)
	if !has(board, finding.ShadowRoute) {
		t.Fatalf("before: %v", board.Get().Node.Findings)
	}
	n.routes = errors.New("netlink: no buffer space available")
	m.Check(guard.Work{Routes: true})
	if !has(board, finding.ShadowRoute) {
		t.Errorf("while routes cannot be listed: %+v", board.Get().Node.Findings)
	}
	m.Check(guard.Work{Settings: true}) // an event of a setting, or of the guard, before routes are due again
	if !has(board, finding.ShadowRoute) || !has(board, finding.NodeUnread) {
		t.Errorf("before routes are listed again: %+v", board.Get().Node.Findings)
	}
	n.routes = nil
	m.Check(guard.Work{Routes: true})
	if !has(board, finding.ShadowRoute) || has(board, finding.NodeUnread) {
		t.Errorf("once routes are listed again: %+v", board.Get().Node.Findings)
	}
}

// TestUnreadCountersAreNotZero: counters that cannot be read are not zero.
func TestUnreadCountersAreNotZero(t *testing.T) {
	m, _, g, board := monitor(t)
	g.unread = errors.New("netlink: interrupted")
	m.Check(guard.Work{Guard: true})
	if got := board.Get().Node; got.ClearPackets() != 7 {
		t.Errorf("%d packets were dropped, counts %v", got.ClearPackets(), got.Counts)
	}
}

// TestInterruptedAddressesAreListedAgain: an interrupted list of addresses is used until the next one, and only until
// then; a whole one for longer.
func TestInterruptedAddressesAreListedAgain(t *testing.T) {
	m, n, _, _ := monitor(t)
	n.listed = netlink.ErrDumpInterrupted
	m.Want(guard.Work{}, true)
	for i := range 3 {
		before := n.lists
		if i == 2 {
			n.listed = nil
		}
		if b, _, err := m.Bounds(); err != nil || len(b.Own) != 1 || n.lists != before+1 {
			t.Errorf("%d: addresses %v, %v, %d lists", i, b.Own, err, n.lists-before)
		}
	}
	before := n.lists
	if b, _, err := m.Bounds(); err != nil || len(b.Own) != 1 || n.lists != before {
		t.Errorf("after a whole list: addresses %v, %v, %d lists", b.Own, err, n.lists-before)
	}
}

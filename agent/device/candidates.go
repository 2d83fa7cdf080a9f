package device

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// namesAgain is how old the addresses of a name must be before it is looked up again, and lookupTimeout how long
	// that may take.
	namesAgain, lookupTimeout = 30 * time.Second, 5 * time.Second
	// maxAsking is how many look-ups and questions to nodes of a remote run at a time. Others wait for the next occasion.
	maxAsking = 8
	// spare is how much an agent may remember of the candidates of a remote beside twice what its nodes had at the last
	// whole set of the device, which forgets the rest. A remote may change names and keys as often as its limits allow.
	spare = 1024
)

// asking runs look-ups of names and questions to nodes of a remote, which wait for the network, outside of the loop. A
// remote whose names or nodes do not answer delays no other one. It is safe for concurrent use.
type asking struct {
	slots chan struct{}

	mu       sync.Mutex
	names    map[string]*name
	version  int // grows when a name has other addresses
	answered []plan.Question
}

type name struct {
	at        time.Time
	addresses []netip.Addr
}

func newAsking() *asking {
	return &asking{slots: make(chan struct{}, maxAsking), names: map[string]*name{}}
}

// do runs f in a goroutine if there is room.
func (a *asking) do(f func()) bool {
	select {
	case a.slots <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-a.slots }()
		f()
	}()
	return true
}

// addresses returns the known addresses of a name, and has it looked up if it never was, or again is set and it was a
// while ago.
func (a *asking) addresses(ctx context.Context, host string, again bool) []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.names[host]
	if n == nil {
		n = &name{}
		a.names[host] = n
	}
	now := time.Now()
	if n.at.IsZero() || (again || len(n.addresses) == 0) && now.Sub(n.at) >= namesAgain {
		if a.do(func() { a.lookUp(ctx, host, n) }) {
			n.at = now
		}
	}
	return n.addresses
}

func (a *asking) keep(hosts map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.names, func(host string, _ *name) bool { return !hosts[host] })
}

func (a *asking) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.names)
}

func (a *asking) lookUp(ctx context.Context, host string, n *name) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(found) == 0 { // the addresses before may still be right
		slog.Warn("cannot look up a node's name; the agent retries", "name", host, "error", err)
		return
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(n.addresses, found) {
		n.addresses = found
		a.version++
	}
}

func (a *asking) ask(ctx context.Context, q plan.Question, port uint16) {
	a.do(func() {
		to := netip.AddrPortFrom(q.At.Addr(), port)
		if m, err := paths.MeasurePath(ctx, to, plan.LeastMTU, plan.LeastMTU); err == nil && m.Answered {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.answered = append(a.answered, q)
		}
	})
}

// take returns the questions that were answered, and the version of the names.
func (a *asking) take() ([]plan.Question, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answered := a.answered
	a.answered = nil
	return answered, a.version
}

// choose replaces the peers with candidates by peers with the endpoint in use, or without one while no name has an
// address. has returns the endpoint that the device has for a peer. It returns the names among the candidates.
func (r *Reconciler) choose(ctx context.Context, d *device, peers map[string]*semaphorev1.Peer, bounds plan.Bounds,
	has plan.Wanted) map[string]bool {
	names, candidates := map[string]bool{}, map[string][]netip.AddrPort{}
	for node, p := range peers {
		if texts := p.GetWireguard().GetCandidates(); len(texts) > 0 {
			candidates[node] = bounds.Candidates(texts, func(host string) []netip.Addr {
				names[host] = true
				return d.asking.addresses(ctx, host, false)
			})
		}
	}
	r.dropUnrouted(candidates)
	for node, all := range candidates {
		p := peers[node]
		w := p.GetWireguard()
		key, err := wgtypes.NewKey(w.GetPublicKey())
		if err != nil || len(all) == 0 && w.GetAddress() != "" {
			continue // it is refused, with the reason
		}
		chosen := &semaphorev1.WireGuardEndpoint{PublicKey: w.GetPublicKey(), Calls: len(all) == 0}
		if len(all) > 0 {
			_, at, _ := has(key)
			chosen.Address = d.candidates.Choose(key, all, at).String()
		}
		p = proto.CloneOf(p)
		p.Wireguard = chosen
		peers[node] = p
	}
	return names
}

// dropUnrouted drops candidates to which this node has no route, unless it has none to any of that node's: WireGuard
// does not count what it could not send, so that nothing would show that such a candidate does not answer.
func (r *Reconciler) dropUnrouted(candidates map[string][]netip.AddrPort) {
	var to []netip.Addr
	for _, all := range candidates {
		for _, at := range all {
			if len(all) > 1 {
				to = append(to, at.Addr())
			}
		}
	}
	if len(to) == 0 {
		return
	}
	links, _ := r.kernel.EgressLinks(to) // without an answer all remain
	routed := map[netip.Addr]bool{}
	for _, link := range links {
		routed[link.To] = true
	}
	for node, all := range candidates {
		left := slices.DeleteFunc(slices.Clone(all), func(at netip.AddrPort) bool { return !routed[at.Addr()] })
		if len(left) > 0 {
			candidates[node] = left
		}
	}
}

// chooseAll is choose for all peers of a device, which it returns. It forgets the candidates that no peer has any more.
func (r *Reconciler) chooseAll(ctx context.Context, d *device, want *plan.Desired, bounds plan.Bounds,
	existing *kernel.Device) plan.Wanted {
	d.asking.keep(r.choose(ctx, d, want.Peers, bounds, livePeers(existing)))
	wanted := plan.Endpoints(want)
	d.candidates.Keep(func(key wgtypes.Key) bool {
		_, _, there := wanted(key)
		return there
	})
	d.remembered = d.remembers()
	return wanted
}

func (d *device) remembers() int { return d.asking.count() + d.candidates.Len() }

// livePeers returns the endpoints of the peers of a device, nil for none, that have a live session.
func livePeers(existing *kernel.Device) plan.Wanted {
	at, now := map[wgtypes.Key]netip.AddrPort{}, time.Now()
	if existing != nil {
		for i := range existing.Peers {
			if p := &existing.Peers[i]; plan.Live(*p, now) {
				at[p.PublicKey] = kernel.EndpointOf(p)
			}
		}
	}
	return func(key wgtypes.Key) (string, netip.AddrPort, bool) { return "", at[key], at[key].IsValid() }
}

// lookAtCandidates evaluates which candidates answer, and records in d.moved the nodes whose endpoint is another now.
func (r *Reconciler) lookAtCandidates(ctx context.Context, d *device, peers []wgtypes.Peer) {
	now := time.Now()
	looked := d.candidates.Look(now, peers)
	for node, p := range r.Session.Peers(d.cluster, r.nodesOf(d, looked.Lost)) {
		for _, host := range plan.NamesOf(p.GetWireguard().GetCandidates()) {
			_ = d.asking.addresses(ctx, host, true)
		}
		slog.Debug("no candidate of a node answers; the agent tries them again", "node", node, "device", d.name)
	}
	if len(looked.Again) > 0 {
		if err := r.kernel.Configure(d.name, wgtypes.Config{Peers: looked.Again}); err != nil {
			slog.Debug("cannot set endpoints on trial; the next check sees it", "device", d.name, "error", err)
		}
	}
	answered, version := d.asking.take()
	moved := looked.Moved
	for _, q := range answered {
		if d.candidates.Answered(now, q) {
			moved = append(moved, q.Key)
		}
	}
	d.moved = r.nodesOf(d, moved)
	if d.namesVersion != version && d.asking.count() > 0 {
		d.namesVersion, d.peers = version, nil // set all again: which nodes have the name is not known
	}
	for node := range r.nodesOf(d, looked.Found) {
		r.Events.Emit(events.Peer(d.cluster, node, "candidate", "it answers at another of its endpoints").
			Info("a node answers at another of its endpoints", "node", node, "device", d.name))
	}
	if d.applied == nil {
		return
	}
	for _, q := range d.candidates.Ask() {
		if port := d.applied.Device.GetProbePort(); port != 0 {
			d.asking.ask(ctx, q, uint16(port))
		}
	}
}

func (r *Reconciler) nodesOf(d *device, keys []wgtypes.Key) map[string]bool {
	if len(keys) == 0 {
		return nil
	}
	nodes := map[string]bool{}
	for _, node := range r.Session.Nodes(d.cluster, keys) {
		if node != "" {
			nodes[node] = true
		}
	}
	return nodes
}

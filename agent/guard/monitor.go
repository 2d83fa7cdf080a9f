package guard

// The Monitor monitors the node around its WireGuard devices: its addresses, the guard of remote pod subnets,
// routes of other programs that bypass a device, and settings of the kernel.
//
// The Monitor owns that state under one lock, and never holds it while it calls the kernel. In: events of the kernel,
// the broker's messages about the node, the subnets file. Out: bounds and sources for the devices' routes, and the
// node's problems on the status.Board. It sets the guard, and nothing of a device.

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxAddressAge is how long listed addresses are used while the kernel reports no change. Where kube-proxy runs in mode
// ipvs the list has those of every Service, and its cost grows with them.
const maxAddressAge = 10 * time.Minute

type Kernel interface {
	Addresses() ([]kernel.Address, error)
	Device(name string) (*kernel.Device, error)
	Elsewhere(name string, subnets []netip.Prefix) (bool, error)
	Foreign(wanted func(netip.Prefix) bool) ([]kernel.Foreign, error)
	LacksWireGuard() string
	Links() ([]kernel.Link, error)
	Settings(networks []kernel.RoutedDevice) (kernel.Settings, error)
}

// Rules is the guard of the node. Clusters and Counts are safe for concurrent use; one goroutine calls the rest.
type Rules interface {
	Clusters() []string
	Counts() (map[string]status.GuardCount, error)
	Restore(whole bool) (changed bool, err error)
	Remove(cluster string) (changed bool, err error)
	Set(cluster string, r Remote) (changed bool, err error)
	Subnets(cluster string) []netip.Prefix
}

// Work are the checks to make on the node: the guard of all remotes, routes, settings, and whether another program
// changed the guard.
type Work struct{ Remotes, Routes, Settings, Guard bool }

func (w Work) checks() bool { return w.Routes || w.Settings || w.Guard }

// Monitor monitors the node. One goroutine calls the methods that call the kernel; the rest is safe for concurrent use.
type Monitor struct {
	cfg     *config.Agent
	kernel  Kernel
	guard   Rules
	session *stream.Session
	board   *status.Board
	events  *events.Sink
	// changed requests a write of the state file.
	changed func()

	// earlier are the subnets that an earlier agent guarded, by cluster, until this one guards them.
	earlier map[string][]netip.Prefix

	mu   sync.Mutex
	work Work
	// checkedAt is when the node was last checked, and guardedAt when GuardRemotes last ran.
	checkedAt, guardedAt time.Time
	// addresses are the node's, as listed at addressesAt; stale means that they changed since.
	addresses   []kernel.Address
	addressesAt time.Time
	stale       bool
	// podCIDRs are the node's own, as the broker last sent them; nil for unknown, as a broker that does not know them
	// sends nothing. reserved are addresses in them that no pod gets.
	podCIDRs []netip.Prefix
	reserved []netip.Addr
	// calls are the remotes whose nodes have no address of this node.
	calls []string
	// subnets are the guarded subnets of each remote, and permissive whether their packets may leave in the clear.
	subnets    map[string][]netip.Prefix
	permissive map[string]bool
	// declared are the subnets file's statements about the own cluster and the remotes, nil without one: the bounds of the
	// broker do not come from the broker. remotes are its remotes to guard.
	declared *bounds.Subnets
	remotes  map[string]*semaphorev1.GuardedRemote
	// listed are the remotes that the broker named last, or those of the state file before that; spoken means that the
	// broker of this stream has sent its complete state.
	listed map[string]*semaphorev1.GuardedRemote
	spoken bool
	// ended are remotes without a device that the broker's list still names, of a node without a subnets file.
	ended map[string]bool
	// unsound means that the last change of the guard failed, for another reason than a kernel without nftables: the node
	// may lack the guard of any remote.
	unsound  bool
	problems problems
	node     status.Node
}

// problems are sentences about each part of the node. shadows are the routes that bypass the device of each remote, as
// last listed, unlisted why there is no newer list, and retained the guarded subnets of each remote that are not in the
// subnets file.
type problems struct {
	guard, source, check, wireguard string
	settings                        []string
	shadows                         map[string][]string
	unlisted                        error
	retained                        map[string]string
}

// NewMonitor returns the Monitor of a node. changed must not block.
func NewMonitor(
	cfg *config.Agent, k Kernel, g Rules, s *stream.Session, board *status.Board, sink *events.Sink, changed func(),
) *Monitor {
	return &Monitor{
		cfg: cfg, kernel: k, guard: g, session: s, board: board, events: sink, changed: changed,
		earlier: map[string][]netip.Prefix{}, subnets: map[string][]netip.Prefix{}, permissive: map[string]bool{},
		listed: map[string]*semaphorev1.GuardedRemote{}, ended: map[string]bool{},
		problems: problems{retained: map[string]string{}}, node: status.Node{LastClear: map[string]time.Time{}},
	}
}

// Want makes the next Take return more. stale means that the node's addresses may have changed, too.
func (m *Monitor) Want(w Work, stale bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.want(w)
	m.stale = m.stale || stale
}

// want is Want with mu held.
func (m *Monitor) want(w Work) {
	m.work = Work{m.work.Remotes || w.Remotes, m.work.Routes || w.Routes, m.work.Settings || w.Settings,
		m.work.Guard || w.Guard}
}

// Changed handles an event of the kernel, which the agent itself may have caused. It returns the clusters whose device
// must be checked, and whether there is anything to check.
func (m *Monitor) Changed(e kernel.Event) (heal []string, any bool) {
	clusters := m.session.Clusters()
	m.mu.Lock()
	defer m.mu.Unlock()
	ours := slices.ContainsFunc(clusters, func(cluster string) bool { return naming.Device(cluster) == e.Interface })
	addresses := e.Addresses && !ours // those of the agent's devices are not the node's
	m.stale = m.stale || addresses
	for _, cluster := range clusters {
		route := e.Route.IsValid() && plan.Inside(e.Route, m.subnets[cluster])
		if addresses || route || e.Rules || naming.Device(cluster) == e.Interface {
			heal = append(heal, cluster)
		}
		m.work.Routes = m.work.Routes || route
	}
	guard := e.Rules || e.Route.IsValid() && e.Interface == "" // an unreachable route has no interface
	m.want(Work{Guard: guard, Settings: e.Settings})
	return heal, len(heal) > 0 || guard || e.Settings
}

// Take returns the due checks, and keeps the rest. In a full check everything is due.
func (m *Monitor) Take(now time.Time, full bool) Work {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := Work{Remotes: m.work.Remotes || full && m.node.Heard && !m.node.Guarded}
	m.work.Remotes = false
	switch {
	case full:
		m.stale = m.stale || now.Sub(m.addressesAt) >= maxAddressAge
		due.Routes, due.Settings, due.Guard = true, true, true
	case now.Sub(m.checkedAt) < plan.HealGap:
		return due
	default:
		due.Routes, due.Settings, due.Guard = m.work.Routes, m.work.Settings, m.work.Guard
	}
	m.work = Work{}
	return due
}

func (m *Monitor) Next() (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.work.Remotes {
		next = m.guardedAt.Add(plan.MinRetry)
	}
	if m.work.checks() {
		next = plan.Earlier(next, m.checkedAt.Add(plan.HealGap))
	}
	return next
}

// nodeAddresses returns the node's addresses, without those of Services.
func (m *Monitor) nodeAddresses() ([]kernel.Address, error) {
	m.mu.Lock()
	have, listed := m.addresses, !m.stale && !m.addressesAt.IsZero()
	m.stale = false
	m.mu.Unlock()
	if listed {
		return have, nil
	}
	now, err := m.kernel.Addresses()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stale = m.stale || err != nil
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
		return nil, err
	}
	m.addresses, m.addressesAt = now, time.Now()
	return now, nil
}

// SetNetwork sets the pod network of this node and the remotes that it calls, as the broker sent them. It reports
// whether the sources of routes, or keepalives, may change.
func (m *Monitor) SetNetwork(podCIDRs, reserved, calls []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	differs := !slices.Equal(m.calls, calls)
	if m.calls = calls; differs {
		m.changed()
	}
	own := append([]netip.Prefix{}, parsed(podCIDRs)...)
	var free []netip.Addr
	for _, text := range reserved {
		if addr, err := netip.ParseAddr(text); err == nil {
			free = append(free, addr)
		}
	}
	if m.podCIDRs != nil && slices.Equal(own, m.podCIDRs) && slices.Equal(free, m.reserved) {
		return differs
	}
	m.podCIDRs, m.reserved = own, free
	return true
}

// Calls reports whether this node calls the nodes of a remote, because they have no address of it.
func (m *Monitor) Calls(cluster string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.calls, cluster)
}

func (m *Monitor) Called() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// Bounds returns the bounds of routes to remotes, and the sources of routes, as of now: the node's addresses can
// change. It fails if these cannot be listed, and then returns the bounds without them.
func (m *Monitor) Bounds() (plan.Bounds, plan.Sources, error) {
	addresses, err := m.nodeAddresses()
	m.mu.Lock()
	local := slices.Clip(m.cfg.LocalPrefixes)
	if s := m.declared; s != nil {
		local = append(local, s.Local...)
	}
	m.mu.Unlock()
	return plan.Bounds{Allowed: m.cfg.AllowedPrefixes, Local: local, Own: addresses}, m.sources(addresses), err
}

func (m *Monitor) sources(addresses []kernel.Address) plan.Sources {
	clusters := slices.AppendSeq(m.session.Clusters(), maps.Keys(m.board.Get().Orphans))
	m.mu.Lock()
	defer m.mu.Unlock()
	from := plan.Source{Setting: m.cfg.RouteSource, PodPrefixes: m.podCIDRs, Reserved: m.reserved}
	for _, cluster := range clusters {
		from.Devices = append(from.Devices, naming.Device(cluster))
	}
	sources, problem := plan.ChooseSources(from, addresses)
	if problem != m.problems.source {
		m.problems.source = problem
		m.publish()
	}
	return sources
}

// Check checks the node around the devices: it heals what it can, and reports the rest.
func (m *Monitor) Check(work Work) {
	if !work.checks() {
		return
	}
	m.mu.Lock()
	subnets, shadows := maps.Clone(m.subnets), m.problems.shadows
	m.mu.Unlock()
	var guarded, unlisted error
	if work.Guard {
		guarded = m.checkGuard()
	}
	var failed []error
	counts, err := m.guard.Counts()
	if !errors.Is(err, kernel.ErrNoNFTables) { // which a check of the guard reports
		failed = append(failed, err)
	}
	if work.Routes {
		var found map[string][]string
		if found, unlisted = m.shadows(subnets); unlisted == nil {
			shadows = found
		}
	}
	var networks []kernel.RoutedDevice
	for _, cluster := range slices.Sorted(maps.Keys(subnets)) {
		networks = append(networks, kernel.RoutedDevice{
			Device: naming.Device(cluster), Subnets: subnets[cluster], Shadowed: len(shadows[cluster]) > 0,
		})
	}
	values, err := m.kernel.Settings(networks)
	failed = append(failed, err)
	wireguard := ""
	if work.Settings {
		wireguard = m.kernel.LacksWireGuard()
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if work.Routes {
		m.problems.unlisted = unlisted
	}
	check := ""
	if err := errors.Join(append(failed, m.problems.unlisted)...); err != nil {
		check = err.Error()
	}
	m.checkedAt = time.Now()
	m.node.LastClear = maps.Clone(m.node.LastClear)
	for cluster, c := range counts {
		if was := m.node.Counts[cluster]; c.PassedOut > was.PassedOut || c.PassedIn > was.PassedIn {
			m.node.LastClear[cluster] = m.checkedAt
		}
	}
	if counts != nil {
		m.node.Counts = counts
	}
	m.problems.shadows, m.problems.settings, m.problems.check = shadows, kernel.SettingProblems(values, networks), check
	if work.Guard {
		m.guarded(guarded)
	}
	if work.Settings {
		m.problems.wireguard = wireguard
	}
	m.publish()
}

// shadows returns the routes of other programs that bypass devices, by cluster.
func (m *Monitor) shadows(subnets map[string][]netip.Prefix) (map[string][]string, error) {
	all := slices.Concat(slices.Collect(maps.Values(subnets))...)
	others, err := m.kernel.Foreign(func(p netip.Prefix) bool { return plan.Inside(p, all) })
	lines := map[string][]string{}
	for cluster := range subnets {
		lines[cluster] = plan.Shadows(naming.Device(cluster), subnets[cluster], others)
	}
	return lines, err
}

// publish puts the state of the node on the board, and logs which problems begin and end. It must be called with mu
// held.
func (m *Monitor) publish() {
	before := m.node.Problems()
	m.node.Findings = m.findings()
	now := m.node.Problems()
	for _, p := range plan.Missing(now, before) {
		slog.Warn("the node has a problem", "problem", p)
	}
	for _, p := range plan.Missing(before, now) {
		slog.Info("a problem of the node ended", "problem", p)
	}
	m.board.PutNode(m.node)
}

// findings returns the problems of the node as findings. It must be called with mu held.
func (m *Monitor) findings() []finding.Finding {
	p := &m.problems
	var found []finding.Finding
	if m.declared != nil {
		found = finding.Lines(finding.SubnetsFileProblem, "", m.declared.Problems)
	}
	found = slices.Concat(found, finding.Line(finding.Unguarded, "", p.guard),
		finding.Line(finding.RouteSourceMissing, "", p.source), finding.Lines(finding.NodeDropsPackets, "", p.settings),
		finding.Line(finding.NodeUnread, "", p.check), finding.Line(finding.NoWireGuard, "", p.wireguard))
	for _, cluster := range slices.Sorted(maps.Keys(p.retained)) {
		found = append(found, finding.Line(finding.SubnetsFileProblem, cluster, p.retained[cluster])...)
	}
	for _, cluster := range slices.Sorted(maps.Keys(p.shadows)) {
		found = append(found, finding.Lines(finding.ShadowRoute, cluster, p.shadows[cluster])...)
	}
	return found
}

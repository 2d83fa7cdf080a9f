// Package hostnet monitors the node around its WireGuard devices: its addresses, the guard of remote pod subnets,
// routes of others that lead past a device, and settings of the kernel.
//
// The Monitor owns that state under one lock that it never holds while it asks the kernel. Events of the kernel, the
// broker's words about the node and the subnets file go in; bounds and sources for the devices' routes come out, and
// what is wrong with the node goes to the status.Board. It sets the guard, and nothing of a device. It must not import
// device, keys or peers.
//
// Of the agent's packages it may import cache, desired, events, guard, plan, problem, schedule, session, status, sysctl
// and wireguard.
package hostnet

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/schedule"
	"github.com/kube-semaphore/semaphore/agent/session"
	"github.com/kube-semaphore/semaphore/agent/status"
	"github.com/kube-semaphore/semaphore/agent/sysctl"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxAddressAge is how long listed addresses are used while the kernel reports no change. The list holds those of
	// every Service where kube-proxy runs in its mode ipvs, and costs as much.
	maxAddressAge = 10 * time.Minute
)

// Kernel is what the Monitor reads of the node.
type Kernel interface {
	Addresses() ([]wireguard.Address, error)
	Device(name string) (*wireguard.Device, error)
	Elsewhere(name string, subnets []netip.Prefix) (bool, error)
	Foreign(wanted func(netip.Prefix) bool) ([]wireguard.Foreign, error)
	Links() ([]wireguard.Link, error)
	Settings(networks []sysctl.Network) (sysctl.Values, error)
}

// Guard is the guard of the node. Clusters and Counts may be called at any time, the rest by one goroutine.
type Guard interface {
	Clusters() []string
	Counts() (map[string]guard.Count, error)
	Restore() (changed bool, err error)
	Remove(cluster string) (changed bool, err error)
	Set(cluster string, r guard.Remote) (changed bool, err error)
	Subnets(cluster string) []netip.Prefix
	Sweep() error
}

// Work is what of the node is to be checked: the guard of all remotes, routes, settings, and whether somebody has
// changed the guard.
type Work struct{ Remotes, Routes, Settings, Guard bool }

// checks reports whether there is anything for Check.
func (w Work) checks() bool { return w.Routes || w.Settings || w.Guard }

// Monitor monitors the node. Its methods that ask the kernel are for one goroutine; the rest is safe for concurrent
// use.
type Monitor struct {
	cfg     *config.Agent
	kernel  Kernel
	guard   Guard
	session *session.Session
	board   *status.Board
	events  *events.Sink
	// changed asks for the state file to be written.
	changed func()

	// kept are the subnets that an earlier agent guarded, by cluster, until they are guarded again.
	kept map[string][]netip.Prefix

	mu   sync.Mutex
	work Work
	// checkedAt is when the node was last checked, and guardedAt when all remotes were last guarded, or could not be.
	checkedAt, guardedAt time.Time
	// addresses are the node's, as listed at addressesAt; stale says that they have changed.
	addresses   []wireguard.Address
	addressesAt time.Time
	stale       bool
	// podCIDRs are the node's own, as the broker last said; none for unknown. reserved are addresses among them that
	// are kept free for the node.
	podCIDRs []netip.Prefix
	reserved []netip.Addr
	// subnets are those that are guarded for each remote, permissive whether their packets pass.
	subnets    map[string][]netip.Prefix
	permissive map[string]bool
	// remotes are those to guard whether their nodes are known or not, by cluster: those of the subnets file; without
	// it those of the last broker that named them, or of the state file.
	remotes  map[string]*semaphorev1.GuardedRemote
	declared declared
	// listed are the remotes that the broker has named last, or those of the state file before it has; spoken says that
	// the broker of this stream has sent all that it wants.
	listed   map[string]*semaphorev1.GuardedRemote
	spoken   bool
	problems problems
	node     status.Node
}

// problems are what is wrong with each, in sentences. shadows are the routes that lead past the device of each remote,
// held what is guarded of each remote and not in the subnets file.
type problems struct {
	guard, source, settings, check []string
	shadows                        map[string][]string
	held                           map[string]string
}

// New makes the Monitor of a node. changed must not wait.
func New(
	cfg *config.Agent, kernel Kernel, g Guard, s *session.Session, board *status.Board, sink *events.Sink, changed func(),
) *Monitor {
	return &Monitor{
		cfg: cfg, kernel: kernel, guard: g, session: s, board: board, events: sink, changed: changed,
		kept: map[string][]netip.Prefix{}, subnets: map[string][]netip.Prefix{}, permissive: map[string]bool{},
		node: status.Node{LastClear: map[string]time.Time{}},
	}
}

// CheckAll has everything checked at the next Take.
func (m *Monitor) CheckAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.work.Routes, m.work.Settings, m.work.Guard = true, true, true
}

// CheckAtStart has the guard and the settings checked at the next Take.
func (m *Monitor) CheckAtStart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.work.Settings, m.work.Guard = true, true
}

// Missed has everything checked, as events of the kernel were lost.
func (m *Monitor) Missed() {
	m.mu.Lock()
	m.stale = true
	m.mu.Unlock()
	m.CheckAll()
}

// GuardChanged has the guard checked, as somebody may have changed it.
func (m *Monitor) GuardChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.work.Guard = true
}

// Changed takes an event of the kernel, which can be our own doing. It returns the clusters whose device is to be
// checked, and whether anything is.
func (m *Monitor) Changed(e wireguard.Event) (heal []string, any bool) {
	clusters := m.session.Clusters()
	m.mu.Lock()
	defer m.mu.Unlock()
	ours := slices.ContainsFunc(clusters, func(cluster string) bool { return naming.Device(cluster) == e.Interface })
	addresses := e.Addresses && !ours // those of our own devices say nothing of the node
	m.stale = m.stale || addresses
	for _, cluster := range clusters {
		route := e.Route.IsValid() && plan.Inside(e.Route, m.subnets[cluster])
		if addresses || route || e.Rules || naming.Device(cluster) == e.Interface {
			heal = append(heal, cluster)
		}
		m.work.Routes = m.work.Routes || route
	}
	guard := e.Rules || e.Route.IsValid() && e.Interface == "" // an unreachable route has no interface
	m.work.Guard = m.work.Guard || guard
	m.work.Settings = m.work.Settings || e.Settings
	return heal, len(heal) > 0 || guard || e.Settings
}

// Take returns what is due, and keeps the rest. In a full check everything is.
func (m *Monitor) Take(now time.Time, full bool) Work {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := Work{Remotes: m.work.Remotes || full && m.node.Heard && !m.node.Guarded}
	m.work.Remotes = false
	switch {
	case full:
		m.stale = m.stale || now.Sub(m.addressesAt) >= maxAddressAge
		due.Routes, due.Settings, due.Guard = true, true, true
	case now.Sub(m.checkedAt) < schedule.HealGap:
		return due
	default:
		due.Routes, due.Settings, due.Guard = m.work.Routes, m.work.Settings, m.work.Guard
	}
	m.work = Work{}
	return due
}

// Next is when something is due by itself; zero for never.
func (m *Monitor) Next() (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.work.Remotes {
		next = m.guardedAt.Add(schedule.MinRetry)
	}
	if m.work.checks() {
		next = schedule.Earlier(next, m.checkedAt.Add(schedule.HealGap))
	}
	return next
}

// nodeAddresses are the node's, without those of Services.
func (m *Monitor) nodeAddresses() ([]wireguard.Address, error) {
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
	if err != nil {
		m.stale = true
		return nil, err
	}
	m.addresses, m.addressesAt = now, time.Now()
	return now, nil
}

// SetNetwork takes the pod network of this node, as the broker sends it. It returns whether routes may get another
// source.
func (m *Monitor) SetNetwork(podCIDRs, reserved []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := prefixes(podCIDRs)
	var free []netip.Addr
	for _, text := range reserved {
		if addr, err := netip.ParseAddr(text); err == nil {
			free = append(free, addr)
		}
	}
	// A broker that does not know them is no reason to change what is set.
	if len(own) == 0 || slices.Equal(own, m.podCIDRs) && slices.Equal(free, m.reserved) {
		return false
	}
	m.podCIDRs, m.reserved = own, free
	return true
}

// Bounds returns what may be routed to remotes, and the sources of routes, as of now: the node's addresses can change.
func (m *Monitor) Bounds() (plan.Bounds, plan.Sources, error) {
	addresses, err := m.nodeAddresses()
	m.mu.Lock()
	local := slices.Clip(m.cfg.LocalPrefixes)
	if s := m.declared.subnets; s != nil {
		local = append(local, s.Local...)
	}
	m.mu.Unlock()
	return plan.Bounds{Allowed: m.cfg.AllowedPrefixes, Local: local, Own: addresses}, m.sources(addresses), err
}

// sources chooses the sources of routes among the node's addresses.
func (m *Monitor) sources(addresses []wireguard.Address) plan.Sources {
	clusters := slices.AppendSeq(m.session.Clusters(), maps.Keys(m.board.Get().Orphans))
	m.mu.Lock()
	defer m.mu.Unlock()
	from := plan.Source{Setting: m.cfg.RouteSource, PodPrefixes: m.podCIDRs, Reserved: m.reserved}
	for _, cluster := range clusters {
		from.Devices = append(from.Devices, naming.Device(cluster))
	}
	sources, problem := plan.ChooseSources(from, addresses)
	var now []string
	if problem != "" {
		now = []string{problem}
	}
	if !slices.Equal(now, m.problems.source) {
		m.problems.source = now
		m.publish()
	}
	return sources
}

// Check checks what is around the devices: it heals what it can, and reports the rest.
func (m *Monitor) Check(work Work) {
	if !work.checks() {
		return
	}
	m.mu.Lock()
	subnets, shadows := maps.Clone(m.subnets), m.problems.shadows
	m.mu.Unlock()
	var guarded error
	if work.Guard {
		guarded = m.checkGuard()
	}
	var failed []error
	var clear uint64
	counts, err := m.guard.Counts()
	if !errors.Is(err, guard.ErrNoNFTables) { // which a check of the guard reports
		failed = append(failed, err)
	}
	for _, c := range counts {
		clear += c.Out + c.In
	}
	if work.Routes {
		shadows, err = m.shadows(subnets)
		failed = append(failed, err)
	}
	var networks []sysctl.Network
	for _, cluster := range slices.Sorted(maps.Keys(subnets)) {
		networks = append(networks, sysctl.Network{
			Device: naming.Device(cluster), Subnets: subnets[cluster], Shadowed: len(shadows[cluster]) > 0,
		})
	}
	values, err := m.kernel.Settings(networks)
	failed = append(failed, err)
	var check []string
	if err := errors.Join(failed...); err != nil {
		check = []string{err.Error()}
	}

	m.mu.Lock()
	defer m.mu.Unlock()
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
	m.node.ClearPackets = clear
	m.problems.shadows, m.problems.settings, m.problems.check = shadows, sysctl.Problems(values, networks), check
	if work.Guard {
		m.guarded(guarded)
	}
	m.publish()
}

// shadows are the routes of others that lead past devices, by cluster.
func (m *Monitor) shadows(subnets map[string][]netip.Prefix) (map[string][]string, error) {
	all := slices.Concat(slices.Collect(maps.Values(subnets))...)
	others, err := m.kernel.Foreign(func(p netip.Prefix) bool { return plan.Inside(p, all) })
	lines := map[string][]string{}
	for cluster := range subnets {
		lines[cluster] = plan.Shadows(naming.Device(cluster), subnets[cluster], others)
	}
	return lines, err
}

// publish puts what is known of the node on the board, and logs which problems are new and which have ended. It is
// called with mu held.
func (m *Monitor) publish() {
	before := m.node.Problems()
	m.node.Findings = m.findings()
	now := m.node.Problems()
	for _, p := range now {
		if !slices.Contains(before, p) {
			slog.Warn("the node is not as it should be", "problem", p)
		}
	}
	for _, p := range before {
		if !slices.Contains(now, p) {
			slog.Info("the node is as it should be again", "problem", p)
		}
	}
	m.board.PutNode(m.node)
}

// findings are what is wrong with the node. It is called with mu held.
func (m *Monitor) findings() []finding.Finding {
	p := &m.problems
	found := slices.Concat(finding.Lines(finding.SubnetsFile, "", m.declared.problems()),
		finding.Lines(finding.Unguarded, "", p.guard), finding.Lines(finding.RouteSource, "", p.source),
		finding.Lines(finding.NodeSettings, "", p.settings), finding.Lines(finding.NodeUnread, "", p.check))
	for _, cluster := range slices.Sorted(maps.Keys(p.held)) {
		found = append(found, finding.Lines(finding.SubnetsFile, cluster, []string{p.held[cluster]})...)
	}
	for _, cluster := range slices.Sorted(maps.Keys(p.shadows)) {
		found = append(found, finding.Lines(finding.ShadowRoute, cluster, p.shadows[cluster])...)
	}
	return found
}

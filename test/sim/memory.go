package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/replica"
	mirroring "github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// This file is a simulation of its own: a leader follows another one, and nothing has changed. Then it writes nothing,
// and no peer changes: plan(restore(write(plan(r)))) = plan(r) for any replicas r (docs/adr/0051-one-memory.md). Lists
// of what exists and snapshots of the remotes come in any order, and remotes that are away do not come at all. Real:
// the engines of Services with ServiceImports, of sets and of tunnels, with their plans and retentions. Simulated:
// loops that write at once (immediate.go), and what exports are (exports.go).

// memory is one run of it.
type memory struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Time
	step    int
	failure *Failure
	// configured is the configuration with all remotes, config that of the leader, and inEffect the RemoteClusters that
	// the leader stored.
	configured, config *config.Broker
	inEffect           remotes.Objects
	ids                int
	// alike means that all ports have one name; leaving remotes are for such runs. overlapping means that nodes have
	// CIDRs of others, and otherwise keys of others.
	alike, overlapping bool
	// said is what each cluster exports, and heard what the leader knows of it.
	said, heard map[string]map[replica.Key]*semaphorev1.Object
	// gone are the remotes that are away, and known to be.
	gone   map[string]bool
	drains choice.Drains

	// The state in the cluster that outlives a leader: objects, the peers of agents, and the stored peers.
	services                   map[string]*corev1.Service
	slices, besideImports, own map[string]*discoveryv1.EndpointSlice
	imports                    map[string]*mcsv1beta1.ServiceImport
	globalSets                 map[string]*calicov3.GlobalNetworkSet
	networkSets                map[string]*calicov3.NetworkSet
	peers                      map[string]map[string]string
	stored                     map[string]map[string]*semaphorev1.Node

	// The present leader. While succeeding it must write nothing; events are what has happened to it, and earlier to the
	// one before.
	succeeding      bool
	events, earlier []string
	state           *peering.State
	gates           map[string]*choice.Gate
	tunnels         *mesh.Engine
	mirrors         *mirroring.Engine
	policy          *policy.Engine
	// replicas have the nodes of remotes: those that are stored, and then their first snapshot.
	replicas map[string]*replica.Replica
	loops    []leading
}

// Memory runs one seed of it.
func Memory(seed uint64) *Failure {
	m := &memory{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		said: map[string]map[replica.Key]*semaphorev1.Object{}, gone: map[string]bool{},
		services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{},
		besideImports: map[string]*discoveryv1.EndpointSlice{}, own: map[string]*discoveryv1.EndpointSlice{},
		imports:    map[string]*mcsv1beta1.ServiceImport{},
		globalSets: map[string]*calicov3.GlobalNetworkSet{}, networkSets: map[string]*calicov3.NetworkSet{},
		peers: map[string]map[string]string{}, stored: map[string]map[string]*semaphorev1.Node{},
	}
	m.configured = m.configuration()
	m.config, m.alike, m.overlapping = m.configured, m.rng.IntN(2) == 0, m.rng.IntN(2) == 0
	for _, cluster := range m.clusters() {
		m.said[cluster] = map[replica.Key]*semaphorev1.Object{}
	}
	for _, cluster := range m.remotes() {
		m.said[cluster][firstNode] = &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: m.exportedFirst(cluster)}}
	}
	m.lead()
	m.come(m.clusters()...)
	for m.step = range 5 {
		for range 1 + m.rng.IntN(40) {
			m.change()
			if m.rng.IntN(4) == 0 {
				m.pass(time.Second)
			}
		}
		m.rest()
		m.succeed()
		if m.failure != nil {
			return m.failure
		}
	}
	return nil
}

// configuration is that of the cluster's brokers.
func (m *memory) configuration() *config.Broker {
	global := pickOf(m, ", ownNames: true", "",
		", localZones: [z]", ", rules: [{names: [web], prefer: [c3, c1], minReady: 2}]")
	text := fmt.Sprintf(`
cluster: c1
features: [encryption, services, policy]
localSubnets: [10.1.0.0/16, "fd00:1::/64"]
remotes:
- {name: c2, podSubnets: [10.2.0.0/16, "fd00:2::/64"], nodeSubnets: [172.18.2.0/24], wireguard: {listenPort: 51822}}
- {name: c2-a, podSubnets: [10.3.0.0/16, "fd00:3::/64"], nodeSubnets: [172.18.3.0/24], wireguard: {listenPort: 51823},
   servicePrefix: other}
- {name: c3, podSubnets: [10.4.0.0/16, "fd00:4::/64"], nodeSubnets: [172.18.4.0/24], wireguard: {listenPort: 51824},
   servicePrefix: three}
globalServices: {podSubnets: [10.1.0.0/16, "fd00:1::/64"], settle: %s%s}
slices: {maxEndpoints: %d}
sets: {namespaced: %t, maxSize: %d}
mcs: {enabled: %t, endpointSlices: %s}
`, pickOf(m, "0s", "10s"), global, 1+m.rng.IntN(4), m.rng.IntN(2) == 0, 1+m.rng.IntN(3), m.rng.IntN(3) > 0,
		pickOf(m, "all", "headless"))
	c, err := described.Broker([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("the broker's configuration: %v", err))
	}
	c.Remotes[1].ServicePrefix = "c2-a" // refused beside c2: names of mirrors may meet, and then one of them wins
	return c
}

func pickOf[T any](m *memory, all ...T) T { return all[m.rng.IntN(len(all))] }

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

// clusters are those that export: the own one, too.
func (m *memory) clusters() []string { return append([]string{m.config.Cluster}, m.remotes()...) }

func (m *memory) remotes() (names []string) {
	for _, r := range m.config.Remotes {
		names = append(names, r.Name)
	}
	return names
}

func (m *memory) fail(invariant, format string, args ...any) {
	if m.failure == nil {
		m.failure = &Failure{Seed: m.seed, Step: m.step, Invariant: invariant, Problem: fmt.Sprintf(format, args...)}
	}
}

func (m *memory) clock() time.Time { return m.now }

// configure gives a new leader the remotes that are in effect: those that exist, or were stored if their definition is
// gone.
func (m *memory) configure() {
	tracker := remotes.NewTracker(m.inEffect)
	if len(m.inEffect) > 0 && m.rng.IntN(4) == 0 {
		tracker.Listed(remotes.Definition{}, nil)
	} else {
		var all []remotes.Object
		for _, r := range m.configured.Remotes {
			all = append(all, remotes.Object{Name: r.Name, Definition: "d"})
		}
		tracker.Listed(remotes.Definition{UID: "d"}, all)
	}
	m.inEffect = tracker.Objects()
	c := *m.configured
	c.Remotes = slices.DeleteFunc(slices.Clone(c.Remotes), func(r config.Remote) bool {
		_, is := m.inEffect[r.Name]
		return !is
	})
	m.config = &c
}

// lead makes a new broker lead. As in the product, it knows the stored peers and the drains from the beginning, and not
// yet which remotes are there.
func (m *memory) lead() {
	quiet := func(_, _ string, _ finding.Code, _ string) bool { return true }
	m.configure()
	m.earlier, m.events = m.events, nil
	m.loops, m.heard = nil, map[string]map[replica.Key]*semaphorev1.Object{}
	m.state, m.gates = peering.NewState(), map[string]*choice.Gate{}
	m.tunnels = mesh.NewEngine(m.config, m.state, quiet)
	m.mirrors, m.policy = mirroring.New(m.config, quiet, m.clock), policy.NewEngine(m.config, quiet, m.clock)
	loops := mirroring.Loops{
		Services: newImmediate(m, writes.Service, m.services, m.mirrors.DesiredServices(), withAddresses),
		Slices:   newImmediate(m, writes.EndpointSlice, m.slices, m.mirrors.DesiredSlices(), asWritten),
		Lent:     func(choice.Lent) {},
	}
	if m.config.GlobalServices.OwnNames {
		loops.OwnSlices = newImmediate(m, writes.OwnSlice, m.own, m.mirrors.DesiredOwnSlices(), owned)
	}
	if m.config.MCS.Enabled {
		loops.Imports = newImmediate(m, writes.ServiceImport, m.imports, m.mirrors.DesiredImports(), asWritten)
		loops.ImportSlices = newImmediate(m, writes.ImportSlice, m.besideImports, m.mirrors.DesiredImportSlices(),
			asWritten)
	}
	m.mirrors.Bind(loops)
	sets := []writes.Loop{newImmediate(m, writes.GlobalNetworkSet, m.globalSets, m.policy.DesiredGlobal(), asWritten)}
	if m.config.Sets.Namespaced {
		sets = append(sets, newImmediate(m, writes.NetworkSet, m.networkSets, m.policy.DesiredNamespaced(), asWritten))
	}
	m.policy.Bind(sets...)
	m.mirrors.MarkLivenessUnknown(m.remotes()...)
	m.mirrors.SetDrains(m.drains)
	m.restore()
}

// restore makes replicas and engines begin with what is stored, as broker.restore does.
func (m *memory) restore() {
	m.replicas = map[string]*replica.Replica{}
	for i := range m.config.Remotes {
		cluster := m.config.Remotes[i].Name
		m.replicas[cluster] = replica.New(cluster, m.config.Cluster, "sim",
			admission.New(&m.config.Remotes[i], m.config.LocalPrefixes).Check)
		nodes := m.replicas[cluster].Restore(semaphorev1.Kind_KIND_NODE, objectsOf(m.stored[cluster]))
		m.tunnels.Take(replica.Part{Cluster: cluster, Changes: nodes})
		m.mirrors.Restore(cluster, nodes)
		if len(nodes) > 0 {
			var all []choice.Peer
			for _, n := range nodes {
				all = append(all, choice.Peer{Node: n.Key.Name, AllowedIPs: n.New.GetNode().GetPodCidrs()})
			}
			set, _, _ := (&choice.Gate{}).Update(all, nil, m.now)
			m.mirrors.SetReach(cluster, set)
		}
	}
}

// event returns what has happened to the leader after do.
func (m *memory) event(what string, do func()) func() {
	return func() {
		m.events = append(m.events, what)
		do()
	}
}

// come has everything happen by which a leader comes to know its cluster and clusters: each list, the namespaces, and
// each kind of each cluster, in any order but that of the kinds; and who of the others is gone.
func (m *memory) come(clusters ...string) {
	type line []func()
	var lines []line
	for i, l := range m.loops {
		lines = append(lines, line{m.event(fmt.Sprint("list ", i), l.list)})
	}
	lines = append(lines, line{m.event("namespaces", func() {
		if m.config.MCS.Enabled {
			m.mirrors.SetNamespace("shop", true)
			m.mirrors.KnowNamespaces()
		}
		m.policy.LocalNamespace("shop", true)
		m.policy.KnowLocalNamespaces()
	})})
	for _, cluster := range clusters {
		lines = append(lines, m.snapshots(cluster))
	}
	for _, cluster := range sortedKeys(m.gone) {
		lines = append(lines, line{m.event(cluster+" is gone", func() { m.mirrors.SetGone(cluster, true) })})
	}
	for len(lines) > 0 && m.failure == nil {
		i := m.rng.IntN(len(lines))
		lines[i][0]()
		if lines[i] = lines[i][1:]; len(lines[i]) == 0 {
			lines = slices.Delete(lines, i, i+1)
		}
		if m.rng.IntN(3) > 0 {
			m.run()
		}
		if m.rng.IntN(8) == 0 {
			m.pass(time.Second)
		}
	}
}

// snapshots are what the replica of a cluster passes on that connects: each kind once it is whole.
func (m *memory) snapshots(cluster string) (messages []func()) {
	m.heard[cluster] = maps.Clone(m.said[cluster])
	messages = append(messages, m.event(cluster+" is here", func() { m.mirrors.SetGone(cluster, false) }))
	for _, kind := range semaphorev1.Kinds {
		var changes []replica.Change
		for key, o := range m.said[cluster] {
			if key.Kind == kind {
				changes = append(changes, replica.Change{Key: key, New: o})
			}
		}
		slices.SortFunc(changes, func(a, b replica.Change) int { return a.Key.Compare(b.Key) })
		m.rng.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		messages = append(messages, m.event(fmt.Sprint(cluster, " ", keysOf(changes), ", whole"), func() {
			m.take(cluster, m.first(cluster, kind, changes))
		}))
	}
	return messages
}

// first is what the replica of a cluster passes on of its first snapshot of a kind. The stored objects are nodes.
func (m *memory) first(cluster string, kind semaphorev1.Kind, all []replica.Change) replica.Result {
	if kind != semaphorev1.Kind_KIND_NODE || cluster == m.config.Cluster {
		return replica.Result{Changes: all, Completed: kind}
	}
	var nodes []*semaphorev1.Object
	for _, c := range all {
		nodes = append(nodes, objectsOf(map[string]*semaphorev1.Node{c.Key.Name: c.New.GetNode()})...)
	}
	to := m.replicas[cluster]
	if to == nil {
		m.fail("memory", "%s is connected, and has no replica", cluster)
		return replica.Result{}
	}
	result, err := tellNodes(to, cluster, uint64(len(nodes)+1), m.now, nodes)
	if err != nil || len(result.Retained) > 0 {
		m.fail("memory", "the first snapshot of %s: %v, retained %v", cluster, err, result.Retained)
	}
	return result
}

func keysOf(changes []replica.Change) (keys []string) {
	for _, c := range changes {
		keys = append(keys, c.Key.String())
	}
	return keys
}

// take passes a message to the engines, and what follows for peers to agents and to the reach of endpoints.
func (m *memory) take(cluster string, r replica.Result) {
	for _, e := range []struct {
		queue *replica.Queue
		take  func(replica.Part)
	}{{m.tunnels.Queue(), m.tunnels.Take}, {m.mirrors.Queue(), m.mirrors.Take}, {m.policy.Queue(), m.policy.Take}} {
		e.queue.Push(cluster, r)
		for e.queue.Turn(e.take) {
		}
	}
	for _, remote := range m.remotes() {
		m.follow(remote)
	}
}

// follow gives agents what the leader has of a complete remote, and its Services what is reached then.
func (m *memory) follow(remote string) {
	peers, complete := m.state.Published(remote)
	if !complete {
		return
	}
	now := map[string]string{}
	for _, p := range m.state.PeersOf(remote) {
		now[p.GetKey().GetNode()] = fmt.Sprintf("%x at %s: %s", p.GetWireguard().GetPublicKey()[:1],
			p.GetWireguard().GetAddress(), strings.Join(p.GetAllowedIps(), " "))
	}
	if m.succeeding && !maps.Equal(now, m.peers[remote]) {
		m.fail("memory", "a leader that finds everything as it was changes the peers of %s to %v; they were %v%s", remote,
			now, m.peers[remote], m.history())
	}
	m.peers[remote] = now
	if m.gates[remote] == nil {
		m.gates[remote] = &choice.Gate{}
	}
	set, _, _ := m.gates[remote].Update(peers, nil, m.now)
	if len(peers) == 0 && m.tunnels.Nodes(remote) == 0 {
		set = nil
	}
	m.mirrors.SetReach(remote, set)
}

// history is what has happened to the leader, and to the one before.
func (m *memory) history() string {
	return "\nit has: " + strings.Join(m.events, "; ") + "\nthe leader before had: " +
		strings.Join(m.earlier[max(0, len(m.earlier)-60):], "; ")
}

// run writes until nothing is left to do.
func (m *memory) run() {
	for n := 0; m.failure == nil; n++ {
		busy := false
		for _, l := range m.loops {
			busy = l.reconcile() || busy
		}
		if !busy {
			return
		}
		if n > maxSteps {
			m.fail("I6", "no rest after %d rounds without a change", n)
		}
	}
}

// pass lets time pass.
func (m *memory) pass(d time.Duration) {
	m.now = m.now.Add(d)
	if at := m.mirrors.Next(); !at.IsZero() && !m.now.Before(at) {
		m.mirrors.Due()
	}
	for _, l := range m.loops {
		l.due(m.now)
	}
	m.run()
}

// rest lets time pass until nothing changes by it.
func (m *memory) rest() {
	for range 12 {
		m.pass(3 * time.Second)
	}
}

// succeed has another broker lead. The agents' peers are stored. Some remotes come late, after a time without a change.
func (m *memory) succeed() {
	for _, remote := range m.remotes() {
		if _, complete := m.state.Published(remote); complete {
			m.stored[remote] = map[string]*semaphorev1.Node{}
			for _, p := range m.state.PeersOf(remote) {
				m.stored[remote][p.GetKey().GetNode()] = &semaphorev1.Node{PodCidrs: p.GetAllowedIps(), Wireguard: p.GetWireguard()}
			}
		}
	}
	var first, late []string
	for _, cluster := range m.clusters() {
		switch {
		case m.gone[cluster]:
		case m.rng.IntN(3) == 0:
			late = append(late, cluster)
		default:
			first = append(first, cluster)
		}
	}
	m.succeeding = true
	m.lead()
	m.come(first...)
	m.rest()
	for _, cluster := range late {
		for _, do := range m.snapshots(cluster) {
			do()
			m.run()
		}
		m.rest()
	}
	m.succeeding = false
}

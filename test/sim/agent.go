package sim

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/broker/peering"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// agent is a node of a destination: its kernel, and the process of semaphore-agent on it, with the real desired.State.
type agent struct {
	w    *world
	d    *dest
	name string
	// state is that of the current process; a new process begins with an empty one.
	state *stream.State
	conn  *agentConn
	// redial is when the agent dials again.
	redial time.Time
	wait   time.Duration

	// kernel has the node's devices with their peers, by remote. It outlives the process.
	kernel map[string]map[string]string
	// at is how far the agent has processed what each broker sent of each peer.
	at map[int]map[string]int
	// fresh are remotes that this process has not read yet: the first time it reads the complete device.
	fresh map[string]bool
}

// agentConn is a stream between an agent and a broker.
type agentConn struct {
	wire
	client  *agent
	server  *broker
	session *peering.Session
	// old means that the broker must end the stream because of its age.
	old bool
}

func newAgent(d *dest, name string) *agent {
	a := &agent{w: d.w, d: d, name: name, kernel: map[string]map[string]string{}}
	a.start()
	return a
}

func (a *agent) tracef(format string, args ...any) {
	a.w.tracef("agent %s of %s: "+format, append([]any{a.name, a.d.name}, args...)...)
}

// start starts a process on the node.
func (a *agent) start() {
	a.state, a.at, a.fresh = stream.NewState(), map[int]map[string]int{}, map[string]bool{}
	for _, s := range a.w.sources {
		a.fresh[s.name] = true
	}
	a.tracef("starts")
}

func (a *agent) crash() bool {
	if a.conn != nil {
		a.conn.broken, a.conn.stalled, a.conn.clientGone = true, false, true
		a.conn = nil
	}
	a.tracef("is gone")
	a.start()
	return true
}

func (a *agent) dial() bool {
	if a.conn != nil || a.w.now.Before(a.redial) {
		return false
	}
	if a.d.leader == nil || a.d.unreachable {
		a.fail("nobody answers")
		return true
	}
	b := a.d.leader
	a.w.ids++
	configured := map[string]bool{}
	for _, r := range a.d.config.Remotes {
		configured[r.Name] = true
	}
	a.conn = &agentConn{wire: wire{w: a.w, id: a.w.ids}, client: a, server: b,
		session: b.state.Open(a.d.name, a.name, configured)}
	a.w.agentConns = append(a.w.agentConns, a.conn)
	a.state.Begin()
	epoch, revision := a.state.Resume()
	a.tracef("attaches: stream %d, from %d", a.conn.id, revision)
	a.conn.send(&a.conn.up, stream.Hello(epoch, revision, a.state.Held()))
	return true
}

func (a *agent) fail(why string) {
	if a.conn != nil {
		a.conn.clientGone = true
		a.conn = nil
	}
	a.wait = min(max(2*a.wait, 500*time.Millisecond), maxRedial)
	a.redial = a.w.now.Add(a.wait)
	a.tracef("stream has ended: %s", why)
}

// pump makes the broker send one more message.
func (c *agentConn) pump() bool {
	if c.serverGone || c.server.paused || len(c.down) >= c.w.window {
		return false
	}
	f, err := c.session.Next()
	if err != nil {
		c.server.tracef("stream %d has ended: %v", c.id, err)
		c.serverGone = true
		return true
	}
	if f == nil {
		return false
	}
	m, err := f.Message()
	if err != nil {
		c.w.fail("protocol", "a frame that cannot be decoded: %v", err)
		return true
	}
	c.server.tracef("stream %d: sends %s", c.id, briefPeering{m})
	c.send(&c.down, m)
	return true
}

func (c *agentConn) deliverUp() bool {
	if len(c.up) == 0 || c.stalled || c.serverGone || c.server.paused {
		return false
	}
	m := &semaphorev1.AttachRequest{}
	decode(c.take(&c.up), m)
	if _, err := c.session.Receive(m); err != nil {
		c.w.fail("protocol", "broker %d of %s refuses what an agent says: %v", c.server.id, c.server.d.name, err)
	}
	return true
}

func (c *agentConn) deliverDown() bool {
	if len(c.down) == 0 || c.stalled || c.clientGone {
		return false
	}
	m := &semaphorev1.AttachResponse{}
	decode(c.take(&c.down), m)
	c.client.receive(c, m)
	return true
}

func (c *agentConn) notice() bool {
	dead := c.dead()
	if !c.clientGone && (dead || c.serverGone && !c.stalled && len(c.down) == 0) {
		c.client.fail("cut")
		return true
	}
	if !c.serverGone && !c.server.paused && (dead || c.old || c.clientGone && !c.stalled) {
		c.serverGone = true
		return true
	}
	if c.clientGone && c.serverGone {
		c.w.agentConns = slices.DeleteFunc(c.w.agentConns, func(o *agentConn) bool { return o == c })
		return true
	}
	return false
}

// receive handles one message of the broker, and applies what it makes dirty to the node.
func (a *agent) receive(c *agentConn, m *semaphorev1.AttachResponse) {
	a.tracef("stream %d: hears %s", c.id, briefPeering{m})
	was := a.state.Revision()
	dirty, err := a.state.Receive(m)
	if err != nil {
		a.w.fail("protocol", "agent %s of %s refuses what a broker says: %v", a.name, a.d.name, err)
		return
	}
	if m.GetAttached().GetResumed() {
		a.wait = 0
	}
	if a.state.Current() && m.GetAttached() == nil && a.state.Revision() < was && m.GetSynced() == nil {
		a.w.fail("I3", "agent %s of %s goes back to revision %d from %d", a.name, a.d.name, a.state.Revision(), was)
	}
	for _, cluster := range slices.Sorted(maps.Keys(dirty.Networks)) {
		a.network(c, cluster)
	}
	for _, cluster := range slices.Sorted(maps.Keys(dirty.Peers)) {
		for _, name := range slices.Sorted(maps.Keys(dirty.Peers[cluster])) {
			a.peer(c, cluster, name)
		}
	}
	if a.state.Current() {
		a.conn.send(
			&a.conn.up,
			&semaphorev1.AttachRequest{
				Message: &semaphorev1.AttachRequest_Applied{Applied: &semaphorev1.Applied{Revision: a.state.Revision()}},
			},
		)
	}
}

// network sets a device and all its peers as desired.
func (a *agent) network(c *agentConn, cluster string) {
	n := a.state.Network(cluster)
	if n == nil {
		a.w.fail("I2", "the device to %s goes from agent %s of %s", cluster, a.name, a.d.name)
		return
	}
	if !a.fresh[cluster] && a.kernel[cluster] != nil {
		a.w.fail("I7", "agent %s of %s looks at all of the device to %s, of which nothing has changed", a.name,
			a.d.name, cluster)
	}
	a.fresh[cluster] = false
	if a.kernel[cluster] == nil {
		a.kernel[cluster] = map[string]string{}
		a.w.active++
	}
	names := map[string]bool{}
	for name := range a.kernel[cluster] {
		names[name] = true
	}
	for name := range n.Peers {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a.peer(c, cluster, name)
	}
}

// peer sets one peer as desired.
func (a *agent) peer(c *agentConn, cluster, name string) {
	text := ""
	if n := a.state.Network(cluster); n != nil && n.Peers[name] != nil {
		p := n.Peers[name]
		text = fmt.Sprintf("%s at %s %v", hex.EncodeToString(p.GetWireguard().GetPublicKey()), p.GetWireguard().GetAddress(),
			p.GetAllowedIps())
		for _, cidr := range p.GetAllowedIps() {
			if ip, _, _ := strings.Cut(cidr, "/"); !a.w.sourceNamed(cluster).owns(ip) {
				a.w.fail("I4", "agent %s of %s routes %s to %s of %s", a.name, a.d.name, cidr, name, cluster)
			}
		}
	}
	was := a.kernel[cluster][name]
	if was == text {
		// A process that has just started compares; a running one gets only changes.
		return
	}
	a.w.active++
	a.tracef("peer %s/%s is now %q", cluster, name, text)
	if text == "" {
		delete(a.kernel[cluster], name)
	} else {
		a.kernel[cluster][name] = text
	}
	a.follow(c.server, cluster+"/"+name, text, was)
}

// follow checks that a peer takes only states that the broker desired since it last sent one.
func (a *agent) follow(b *broker, peer, text, was string) {
	if a.at[b.id] == nil {
		a.at[b.id] = map[string]int{}
	}
	past, ok := b.peers[peer]
	if source, _, _ := strings.Cut(peer, "/"); !ok && b.complete[source][semaphorev1.Kind_KIND_NODE] {
		past = []string{""}
	}
	for i := a.at[b.id][peer]; i < len(past); i++ {
		if past[i] == text {
			a.at[b.id][peer] = i
			return
		}
	}
	invariant := "I3"
	if text == "" {
		invariant = "I2"
	}
	a.w.fail(invariant, "agent %s of %s makes peer %s %q, which was %q; broker %d has wanted %q", a.name, a.d.name, peer,
		text, was, b.id, past)
}

// wantPeers records what the broker desires of its agents now, by the model.
func (b *broker) wantPeers() {
	now := peers(b.view(), b.holds)
	for _, r := range b.d.config.Remotes {
		if !b.complete[r.Name][semaphorev1.Kind_KIND_NODE] {
			continue
		}
		first := !b.toldPeers[r.Name]
		b.toldPeers[r.Name] = true
		names := map[string]bool{}
		for peer := range now {
			names[peer] = true
		}
		for peer := range b.peers {
			names[peer] = true
		}
		for peer := range names {
			if source, _, _ := strings.Cut(peer, "/"); source != r.Name {
				continue
			}
			past, ok := b.peers[peer]
			if !ok && !first {
				past = []string{""}
			}
			if len(past) == 0 || past[len(past)-1] != now[peer] {
				past = append(past, now[peer])
			}
			b.peers[peer] = past
		}
	}
}

type briefPeering struct{ *semaphorev1.AttachResponse }

func (b briefPeering) String() string {
	switch m := b.GetMessage().(type) {
	case *semaphorev1.AttachResponse_Attached:
		return fmt.Sprintf("attached, resumed=%t", m.Attached.GetResumed())
	case *semaphorev1.AttachResponse_Synced:
		return fmt.Sprintf("synced at %d with %v", m.Synced.GetRevision(), m.Synced.GetClusters())
	case *semaphorev1.AttachResponse_Unchanged:
		return fmt.Sprintf("%s unchanged at %d", m.Unchanged.GetCluster(), m.Unchanged.GetRevision())
	case *semaphorev1.AttachResponse_Changes:
		var text strings.Builder
		for _, c := range m.Changes.GetChanges() {
			fmt.Fprintf(&text, " %d:", c.GetRevision())
			switch c := c.GetChange().(type) {
			case *semaphorev1.PeeringChange_Device:
				fmt.Fprintf(&text, "device to %s", c.Device.GetCluster())
			case *semaphorev1.PeeringChange_DeleteDevice:
				fmt.Fprintf(&text, "no device to %s", c.DeleteDevice)
			case *semaphorev1.PeeringChange_Peer:
				fmt.Fprintf(&text, "peer %s/%s %v", c.Peer.GetKey().GetCluster(), c.Peer.GetKey().GetNode(), c.Peer.GetAllowedIps())
			case *semaphorev1.PeeringChange_DeletePeer:
				fmt.Fprintf(&text, "no peer %s/%s", c.DeletePeer.GetCluster(), c.DeletePeer.GetNode())
			}
		}
		return "changes" + text.String()
	}
	return fmt.Sprintf("%T", b.GetMessage())
}

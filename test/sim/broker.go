package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/replica"
	mirroring "github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// broker is a process of semaphore-broker: the real replicas and plans, with simulated streams and loops.
type broker struct {
	w        *world
	d        *dest
	id       int
	replicas map[string]*replica.Replica
	current  map[string]*conn
	// tunnels, mirrors and policy are the engines. Each takes the result of a message immediately, in turns as in the
	// product.
	tunnels  *mesh.Engine
	mirrors  *mirroring.Engine
	policy   *policy.Engine
	state    *peering.State
	loops    []runner
	services *driver[*corev1.Service]
	sets     *driver[*calicov3.GlobalNetworkSet]
	paused   bool

	// State that only the checks use.
	reached  map[string]*reached
	complete map[string]map[semaphorev1.Kind]bool
	views    []*view // of the replicas, nil when they have changed since
	// acked is the newest acknowledged revision, by source, and epoch with kinds.
	acked map[[2]string]uint64
	// peers are the states of each peer that it desired, in order; toldPeers are the remotes of which it desires any.
	peers     map[string][]string
	toldPeers map[string]bool
	// holds maps a key to the peer that has it.
	holds map[string]string
	// ledgers are what the senders withdrew, by source, and doubts which objects of an earlier broker must remain: for
	// the checks of the brake.
	ledgers map[string]*ledger
	doubts  map[doubted]*doubt
	// owners are the pods because of which an address is in the object of a name.
	owners map[string]map[string][]string
}

func (d *dest) newBroker() *broker {
	d.w.ids++
	b := &broker{
		w: d.w, d: d, id: d.w.ids,
		replicas: map[string]*replica.Replica{}, current: map[string]*conn{},
		state:   peering.NewStateOf(peering.Sizes{Tombstones: d.w.tombstones, Batch: d.w.chunk}),
		reached: map[string]*reached{}, complete: map[string]map[semaphorev1.Kind]bool{},
		acked: map[[2]string]uint64{}, owners: map[string]map[string][]string{},
		peers: map[string][]string{}, toldPeers: map[string]bool{}, holds: map[string]string{},
		ledgers: map[string]*ledger{}, doubts: map[doubted]*doubt{},
	}
	for i := range d.config.Remotes {
		r := &d.config.Remotes[i]
		b.replicas[r.Name] = replica.New(r.Name, d.name, "sim", admission.New(r, d.config.LocalPrefixes).Check)
		b.replicas[r.Name].SetLimits(r.Limits, d.config.Brake)
		b.complete[r.Name] = map[semaphorev1.Kind]bool{}
	}
	for _, s := range d.w.sources {
		b.reached[s.name] = newReached(s, d)
		b.ledgers[s.name] = newLedger()
	}
	cfg := *d.config
	cfg.Sets.MaxSize = pick(d.w, d.w.setSizes)
	quiet := func(_, _ string, _ finding.Code, _ string) bool { return true }
	b.tunnels = mesh.NewEngine(&cfg, b.state, quiet)
	b.mirrors, b.policy = mirroring.New(&cfg, quiet, d.w.clock), policy.NewEngine(&cfg, quiet, d.w.clock)
	slices := newDriver(b, d.slices, b.mirrors.DesiredSlices(), sliceKind, (*broker).preparedSlice)
	b.services = newDriver(b, d.services, b.mirrors.DesiredServices(), serviceKind, (*broker).preparedService)
	b.sets = newDriver(b, d.sets, b.policy.DesiredGlobal(), setKind, (*broker).preparedSet)
	b.mirrors.Bind(mirroring.Loops{Services: b.services, Slices: slices})
	b.policy.Bind(b.sets)
	b.loops = []runner{b.services, slices, b.sets}
	d.brokers = append(d.brokers, b)
	d.leader = b
	b.tracef("starts")
	return b
}

func (b *broker) tracef(format string, args ...any) {
	b.w.tracef("broker %d of %s: "+format, append([]any{b.id, b.d.name}, args...)...)
}

// receive handles one message of an exporter, as federation.Server does.
func (b *broker) receive(c *conn, m *semaphorev1.PublishRequest) {
	source := c.client.x.source.name
	b.tracef("stream %d: hears %s", c.id, brief{m})
	was, greeted := b.current[source], c.session.Hello() != nil
	result, err := c.session.Receive(b.w.now, m)
	b.leads(c, was, greeted, err)
	if errors.Is(err, replica.ErrSuperseded) {
		b.ended(c, err.Error())
		return
	}
	if c.session.Current() && b.current[source] != c {
		if old := b.current[source]; old != nil {
			old.superseded = true
		}
		b.current[source] = c
	}
	b.follow(c, source, m, result, err)
	if b.w.failure != nil {
		return
	}
	b.take(source, result)
	b.doubt()
	if err == nil && m.GetHeartbeat() != nil && c.session.Live() &&
		(b.mirrors.ResyncDue(source) || b.policy.ResyncDue(source)) {
		err = b.replicas[source].Resync(b.w.now, "what an earlier broker wrote is retained")
	}
	for _, r := range b.acknowledge(c, result.Responses) {
		if r.GetAck() == nil && r.GetWelcome() == nil {
			b.w.active++
		}
		c.send(&c.down, r)
	}
	if err != nil {
		b.ended(c, err.Error())
	}
}

// acknowledge returns the responses that the product sends now.
func (b *broker) acknowledge(c *conn, responses []*semaphorev1.PublishResponse) []*semaphorev1.PublishResponse {
	for _, r := range responses {
		if r.GetAck() != nil && c.owed.IsZero() {
			c.owed = b.w.now
		}
	}
	send := c.acks.Send(b.w.now, responses, len(c.up) > 0)
	for _, r := range send {
		if r.GetAck() != nil {
			c.owed = time.Time{}
		}
	}
	if !c.owed.IsZero() && b.w.now.Sub(c.owed) > ackWithin {
		b.w.fail("acks", "broker %d of %s owes stream %d an acknowledgement since %s, and sends none", b.id, b.d.name, c.id,
			b.w.now.Sub(c.owed))
	}
	return send
}

// ackWithin bounds the delay of an acknowledgement while messages are received.
const ackWithin = time.Second

// release releases what the brakes retain of a source.
func (b *broker) release(s *source) {
	b.tracef("the operator releases the brakes of %s", s.name)
	for _, of := range semaphorev1.Kinds {
		result := b.replicas[s.name].Release(b.w.now, of)
		b.changed(s, result.Changes)
		b.take(s.name, result)
	}
	b.mirrors.Release(s.name)
	b.policy.Release(s.name)
	for at, d := range b.doubts {
		if at.cluster == s.name {
			d.settled = true
		}
	}
}

// take passes on the result of a message.
func (b *broker) take(source string, r replica.Result) {
	if len(r.Changes) > 0 || r.Completed != semaphorev1.Kind_KIND_UNSPECIFIED {
		b.wantPeers()
	}
	b.tunnels.Queue().Push(source, r)
	b.mirrors.Queue().Push(source, r)
	b.policy.Queue().Push(source, r)
	for b.tunnels.Queue().Turn(b.tunnels.Take) || b.mirrors.Queue().Turn(b.mirrors.Take) ||
		b.policy.Queue().Turn(b.policy.Take) {
	}
}

// due handles what changes by time alone.
func (b *broker) due(now time.Time) {
	if at := b.mirrors.Next(); !at.IsZero() && !now.Before(at) {
		b.mirrors.Due()
	}
	for _, l := range b.loops {
		l.due(now)
	}
}

// ended ends a stream at this end.
func (b *broker) ended(c *conn, why string) {
	c.session.Close()
	c.serverGone = true
	if source := c.client.x.source.name; b.current[source] == c {
		delete(b.current, source)
	}
	b.tracef("stream %d has ended: %s", c.id, why)
}

// crash ends the process. A write in flight may still be executed.
func (b *broker) crash() {
	b.tracef("is gone")
	for _, l := range b.loops {
		b.d.late = append(b.d.late, l.abandon()...)
	}
	for _, c := range b.w.conns {
		if c.server == b {
			c.broken, c.stalled, c.serverGone = true, false, true
		}
	}
	for _, c := range b.w.agentConns {
		if c.server == b {
			c.broken, c.stalled, c.serverGone = true, false, true
		}
	}
	b.d.brokers = slices.DeleteFunc(b.d.brokers, func(o *broker) bool { return o == b })
	if b.d.leader == b {
		b.d.leader = nil
	}
}

// view returns what the replicas hold.
func (b *broker) view() []*view {
	if b.views == nil {
		for _, r := range b.d.config.Remotes {
			b.views = append(b.views, viewOf(r.Name, b.replicas[r.Name]))
		}
	}
	return b.views
}

// How the types are compared and written, as in broker/apply, as far as the checks need it.

var serviceKind = writes.Kind[*corev1.Service]{
	Name: "service", Paced: true,
	Merge: func(have, want *corev1.Service) *corev1.Service {
		out := have.DeepCopy()
		out.Labels = want.Labels
		out.Annotations = want.Annotations
		out.Spec.Ports, out.Spec.PublishNotReadyAddresses = want.Spec.Ports, want.Spec.PublishNotReadyAddresses
		return out
	},
	Equal:   func(a, b *corev1.Service) bool { return fullService(a) == fullService(b) },
	Replace: func(have, want *corev1.Service) bool { return have.Spec.ClusterIP != want.Spec.ClusterIP },
}

var sliceKind = writes.Kind[*discoveryv1.EndpointSlice]{
	Name: "slice", Paced: true,
	Merge: func(have, want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		out := have.DeepCopy()
		out.Labels = want.Labels
		out.Annotations = want.Annotations
		out.Endpoints, out.Ports = want.Endpoints, want.Ports
		return out
	},
	Equal:   func(a, b *discoveryv1.EndpointSlice) bool { return fullSlice(a) == fullSlice(b) },
	Replace: func(have, want *discoveryv1.EndpointSlice) bool { return have.AddressType != want.AddressType },
}

var setKind = writes.Kind[*calicov3.GlobalNetworkSet]{
	Name: "set", Paced: true,
	Merge: func(have, want *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet {
		out := have.DeepCopy()
		out.Labels = want.Labels
		out.Annotations = want.Annotations
		out.Spec.Nets = want.Spec.Nets
		return out
	},
	Equal: func(a, b *calicov3.GlobalNetworkSet) bool { return fullSet(a) == fullSet(b) },
}

// The texts of what is written, as want has them; full ones include all labels.

func origin(labels, annotations map[string]string) string {
	return labels[naming.LabelSourceCluster] + "/" + ref{annotations[naming.AnnotationSourceNamespace],
		annotations[naming.AnnotationSourceName]}.String()
}

func textService(o *corev1.Service) string {
	ports := ""
	for _, p := range o.Spec.Ports {
		ports += fmt.Sprintf("%s/%s/%d", p.Name, p.Protocol, p.Port)
	}
	return fmt.Sprintf("%s headless=%t notReady=%t %s", origin(o.Labels, o.Annotations), o.Spec.ClusterIP == "None",
		o.Spec.PublishNotReadyAddresses, ports)
}

// textEndpoints returns the endpoints of a slice, each with the fields that the slice has for all of them.
func textEndpoints(o *discoveryv1.EndpointSlice) []string {
	ports := ""
	for _, p := range o.Ports {
		ports += fmt.Sprintf("%s/%s/%d", *p.Name, *p.Protocol, *p.Port)
	}
	var endpoints []string
	for _, e := range o.Endpoints {
		hostname := ""
		if e.Hostname != nil {
			hostname = *e.Hostname
		}
		endpoints = append(endpoints, fmt.Sprintf("%s %s %s ready=%t %s", o.AddressType, ports, e.Addresses[0],
			e.Conditions.Ready != nil && *e.Conditions.Ready, hostname))
	}
	return endpoints
}

func textSlice(o *discoveryv1.EndpointSlice) string {
	_, headless := o.Labels[corev1.IsHeadlessService]
	return fmt.Sprintf("%s of %s headless=%t %v", origin(o.Labels, o.Annotations), o.Labels[discoveryv1.LabelServiceName],
		headless, textEndpoints(o))
}

// part returns the Service and the source of a slice's endpoints.
func part(o *discoveryv1.EndpointSlice) string {
	return within(o.Labels[discoveryv1.LabelServiceName], o.Labels[naming.LabelSourceCluster])
}

func textSet(o *calicov3.GlobalNetworkSet) string {
	var ips []string
	for _, n := range o.Spec.Nets {
		ips = append(ips, address(n))
	}
	slices.Sort(ips)
	return fmt.Sprintf("%s %v", origin(o.Labels, o.Annotations), ips)
}

func fullService(o *corev1.Service) string {
	return fmt.Sprint(textService(o), o.Labels, o.Annotations)
}

func fullSlice(o *discoveryv1.EndpointSlice) string { return fmt.Sprint(textSlice(o), o.Labels) }

func fullSet(o *calicov3.GlobalNetworkSet) string { return fmt.Sprint(textSet(o), o.Labels) }

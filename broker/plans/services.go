package plans

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/drain"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// afterService is when a slice is asked for again whose Service does not stand; it is asked for as soon as that does.
const afterService = time.Minute

func (p *Plans) takeServices(cluster string, r replica.Result) {
	touches := p.mirror.Apply(cluster, r.Changes, p.now())
	p.mark(touches)
	if r.Completed == semaphorev1.Kind_KIND_SERVICE || r.Completed == semaphorev1.Kind_KIND_ENDPOINT_SLICE {
		p.loops.Services.WakeOwned(cluster)
		p.loops.Services.WakeOwned("") // global ones, which wait for every cluster
		p.loops.Slices.WakeOwned(cluster)
	}
}

// SetGone takes whether a cluster is gone, by whatever signs. Global services that have other endpoints do without its
// own, as their settings say.
func (p *Plans) SetGone(cluster string, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark(p.mirror.SetGone(cluster, gone, p.now()))
}

// SetDrains takes what operators want out of use.
func (p *Plans) SetDrains(all drain.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drains = all
	p.drain()
}

// drain takes the drains to the services, those of nodes with all that is known of the nodes.
func (p *Plans) drain() {
	p.mark(p.mirror.SetDrains(p.drains.With(p.podPrefixes), p.now()))
}

func (p *Plans) podPrefixes(cluster, node string) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range p.mesh.PodCIDRs(cluster, node) {
		if prefix, err := netip.ParsePrefix(cidr); err == nil { // admission lets no other in
			out = append(out, prefix.Masked())
		}
	}
	return out
}

// Await says that it is being found out whether clusters are there: SetGone tells it of each. Until then global services keep to
// what the broker before found.
func (p *Plans) Await(clusters ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mirror.Await(clusters...)
}

// Affected tells what a drain covers, or would.
func (p *Plans) Affected(d drain.Drain) []mirror.Affected {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mirror.Affected(d)
}

// Drained tells what the drains that hold keep out of use.
func (p *Plans) Drained() map[drain.Target]mirror.Drained {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mirror.Drained()
}

// Services tells of the Services of ours that hold endpoints, and of which clusters they use them.
func (p *Plans) Services() []mirror.Described {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mirror.Describe()
}

// Heard says whether a cluster has told all its services and endpoints, and nothing that it withdraws by that is held
// back; all clusters, for an empty name.
func (p *Plans) Heard(cluster string) bool {
	p.mu.RLock()
	heard := p.gone(cluster, semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE)
	p.mu.RUnlock()
	return heard && !p.heldServices(cluster) && !p.heldSlices(cluster)
}

// mark has the loops look at what was touched.
func (p *Plans) mark(touches mirror.Touches) {
	p.publish(p.mirror.Problems(), &p.serviceProblems)
	for _, t := range touches.Services {
		p.loops.Services.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
	for _, t := range touches.Slices {
		p.loops.Slices.Mark(t.Name, t.Cluster, t.ObservedAt)
	}
}

// ready says whether services can be decided on: it is known what stands in the cluster. What time has decided is then
// taken into account, and what is gone of clusters that have been heard whole.
func (p *Plans) ready() bool {
	if !p.begin() {
		return false
	}
	p.mu.RLock()
	due := p.mirror.IsDue(p.now())
	var heard []string
	for cluster := range p.configured {
		if !p.mirror.Whole(cluster) && p.gone(cluster, semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE) {
			heard = append(heard, cluster)
		}
	}
	p.mu.RUnlock()
	if due {
		p.mu.Lock()
		p.mark(p.mirror.Due(p.now()))
		p.mu.Unlock()
	}
	slices.Sort(heard)
	for _, cluster := range heard {
		if !p.heldSlices(cluster) {
			p.mu.Lock()
			p.mark(p.mirror.Complete(cluster, p.now()))
			p.mu.Unlock()
		}
	}
	return true
}

func (p *Plans) begun() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.mirror.Begun()
}

// begin has decisions made once it is known what stands in the cluster. All names are asked for again then, and none before.
func (p *Plans) begin() bool {
	if p.begun() {
		return true
	}
	if !p.loops.Services.Synced() || !p.loops.Slices.Synced() {
		return false
	}
	p.mu.Lock()
	begins := !p.mirror.Begun()
	if begins {
		p.mark(p.mirror.Begin(p.now()))
	}
	p.mu.Unlock()
	if begins {
		p.loops.Services.WakeAll()
		p.loops.Slices.WakeAll()
	}
	return true
}

func (p *Plans) heldServices(cluster string) bool {
	if cluster == "" { // a global Service is of all clusters
		for remote := range p.configured {
			if p.heldServices(remote) {
				return true
			}
		}
		return false
	}
	return p.held(cluster, "services", p.loops.Services, func() []string {
		services, _ := p.mirror.Names()
		return services
	}, semaphorev1.Kind_KIND_SERVICE)
}

// heldSlices asks for those that hold something of which the cluster has told: endpoints that are only remembered are what it
// seems to withdraw. A slice is wanted for its Service's sake, so both must be known.
func (p *Plans) heldSlices(cluster string) bool {
	if !p.begun() {
		return true // no endpoint has a place yet
	}
	return p.held(cluster, "endpointslices", p.loops.Slices, func() []string { return p.mirror.Told(cluster) },
		semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE)
}

// DesiredServices is what the loop of Services asks.
func (p *Plans) DesiredServices() apply.Desired[*corev1.Service] {
	return apply.Desired[*corev1.Service]{
		Names: func() []string {
			p.mu.RLock()
			defer p.mu.RUnlock()
			services, _ := p.mirror.Names()
			return services
		},
		Synced: func() { p.begin() },
		Want: func(name, owner string) apply.Answer[*corev1.Service] {
			if !p.ready() {
				return apply.Answer[*corev1.Service]{Verdict: apply.Unknown}
			}
			held := p.heldServices(owner)
			p.mu.RLock()
			defer p.mu.RUnlock()
			s, wanted := p.mirror.Service(name)
			if wanted && s == nil || !wanted && p.mirror.Remembers(name) {
				return apply.Answer[*corev1.Service]{Verdict: apply.Unknown}
			}
			return answer(p, s, wanted, owner, held, semaphorev1.Kind_KIND_SERVICE)
		},
		Observed: func(name string, service *corev1.Service, there bool) {
			if !there {
				service = nil
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.mark(p.mirror.ObservedService(name, service, p.now()))
		},
	}
}

// DesiredSlices is what the loop of EndpointSlices asks.
func (p *Plans) DesiredSlices() apply.Desired[*discoveryv1.EndpointSlice] {
	return apply.Desired[*discoveryv1.EndpointSlice]{
		Names: func() []string {
			p.mu.RLock()
			defer p.mu.RUnlock()
			_, names := p.mirror.Names()
			return names
		},
		Synced: func() { p.begin() },
		Want: func(name, owner string) apply.Answer[*discoveryv1.EndpointSlice] {
			if !p.ready() {
				return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Unknown}
			}
			held := p.heldSlices(owner)
			if owner == "" {
				p.mu.Lock()
				p.mirror.Absent(name)
				p.mu.Unlock()
			}
			p.mu.RLock()
			defer p.mu.RUnlock()
			if p.mirror.Ended(name, owner) {
				return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Absent}
			}
			s, due, wanted := p.mirror.Slice(name)
			a := answer(p, s, wanted, owner, held, semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE)
			if a.Verdict == apply.Present && owner == "" && !p.mirror.Stands(s.Labels[discoveryv1.LabelServiceName]) {
				return apply.Answer[*discoveryv1.EndpointSlice]{Verdict: apply.Unknown, Again: afterService}
			}
			if !due.IsZero() {
				a.Again = max(due.Sub(p.now()), time.Millisecond)
			}
			return a
		},
		Observed: func(name string, slice *discoveryv1.EndpointSlice, there bool) {
			if !there {
				slice = nil
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.mark(p.mirror.Observed(name, slice, p.now()))
		},
	}
}

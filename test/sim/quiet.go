package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// maxSteps bounds the steps until nothing happens any more. Runs that converge need a few hundred.
const maxSteps = 20_000

// settled is for how long nothing must have happened: longer than every backoff and hold. An object that the brake
// retains is removed with a snapshot that is requested some time later.
const (
	settled       = 35 * time.Second
	settledBraked = 3 * time.Minute
)

// quiet ends all faults and changes, lets everything come to rest, and checks the result.
func (w *world) quiet() {
	w.heal()
	last, since := w.active, w.now
	for n := 0; w.now.Sub(since) < w.settled; n++ {
		did := false
		// Everything that can happen now does, each part in its turn, before time passes.
		for _, a := range work {
			for a.do(w) {
				did = true
				w.step++
				if w.failure != nil {
					return
				}
				if w.chance(0.3) {
					break
				}
			}
		}
		if w.active != last {
			last, since = w.active, w.now
		}
		if n > maxSteps {
			w.fail("I6", "no rest after %d rounds without a fault or a change", n)
			return
		}
		if !did {
			w.pass(5 * time.Second)
		}
	}
	w.converged()
}

// heal ends all faults.
func (w *world) heal() {
	w.writesFail, w.lossy = 0, 0
	for _, c := range w.wires() {
		if c.stalled && !c.clientGone && !c.serverGone {
			c.stalled = false
		}
	}
	for _, d := range w.dests {
		d.unreachable = false
		for _, s := range w.sources {
			d.trusts[s.name][s.key] = true
		}
		for len(d.late) > 0 {
			w.lateWrite()
		}
		for _, b := range slices.Clone(d.brokers) {
			if b != d.leader {
				b.crash()
			} else {
				b.paused = false
			}
		}
		for len(d.late) > 0 {
			w.lateWrite()
		}
		if d.leader == nil {
			d.newBroker()
		}
	}
	for _, s := range w.sources {
		var newest *exporter
		for _, x := range slices.Clone(w.exporters) {
			if x.source != s {
				continue
			}
			if newest != nil {
				newest.crash(false)
			}
			newest = x
		}
		if newest == nil {
			w.newExporter(s)
		} else {
			newest.paused = false
		}
	}
	w.tracef("all faults and changes end")
}

// converged checks that everything is as in the model (I1).
func (w *world) converged() {
	for _, d := range w.dests {
		var truth []*view
		for _, s := range w.sources {
			truth = append(truth, s.truth(d))
			w.same(fmt.Sprintf("what broker of %s holds of %s", d.name, s.name), s.truth(d).lines(),
				viewOf(s.name, d.leader.replicas[s.name]).lines())
			for _, refused := range d.leader.replicas[s.name].Refused() {
				if !s.exports(d, kindOf[refused.Key.Kind], ref{refused.Key.Namespace, refused.Key.Name}) {
					w.fail("I1", "broker of %s remembers that it refused %s of %s, which is not exported", d.name, refused.Key, s.name)
				}
			}
		}
		for _, a := range d.agents {
			a.converged(truth)
		}
		wanted := want(truth)
		sameTable(w, d.services, d.others, wanted.services, textService)
		d.sameEndpoints(wanted)
		d.sameSets(wanted.sets)
	}
	for _, x := range w.exporters {
		if n, most := x.catalog.Journal().Len(), x.source.most(); n > most {
			w.fail("I8", "the catalog of %s has %d entries for %d objects", x.source.name, n, most)
		}
	}
}

// sameEndpoints checks that every endpoint is in one slice, and no other in any. None are created for another owner's
// Service; those that existed when it got another owner may remain.
func (d *dest) sameEndpoints(wanted wanted) {
	var want, got []string
	foreign := func(service string) bool {
		o := d.services.objects[service]
		return o != nil && !ours(o)
	}
	for of, all := range wanted.endpoints {
		if name, _, _ := strings.Cut(of, " of "); foreign(name) {
			continue
		}
		for line := range all {
			want = append(want, of+": "+line)
		}
	}
	for name, o := range d.slices.objects {
		service := d.services.objects[o.Labels[discoveryv1.LabelServiceName]]
		_, headless := o.Labels[corev1.IsHeadlessService]
		if service != nil && ours(service) && headless != (service.Spec.ClusterIP == "None") {
			d.w.fail("I1", "slice %s of %s says headless=%t, and its Service does not", name, d.name, headless)
		}
		if len(o.Endpoints) == 0 || len(o.Endpoints) > d.config.Slices.MaxEndpoints {
			d.w.fail("I1", "slice %s of %s has %d endpoints", name, d.name, len(o.Endpoints))
		}
		if foreign(o.Labels[discoveryv1.LabelServiceName]) {
			continue
		}
		for _, line := range textEndpoints(o) {
			got = append(got, part(o)+": "+line)
		}
	}
	d.w.same("endpoints of "+d.name, want, got)
}

// converged checks that the node has what it should.
func (a *agent) converged(truth []*view) {
	var want, got []string
	for peer, text := range peers(truth, maps.Clone(a.d.leader.holds)) {
		want = append(want, peer+" "+text)
	}
	for cluster, all := range a.kernel {
		for name, text := range all {
			got = append(got, cluster+"/"+name+" "+text)
		}
	}
	a.w.same(fmt.Sprintf("agent %s of %s", a.name, a.d.name), want, got)
	for _, s := range a.w.sources {
		if a.kernel[s.name] == nil {
			a.w.fail("I1", "agent %s of %s has no device to %s", a.name, a.d.name, s.name)
		}
	}
}

// most returns how many exports there can be.
func (s *source) most() int {
	n := len(s.objects[kindNode]) * len(s.w.dests)
	for kind := kindService; kind < kinds; kind++ {
		n += len(s.objects[kind])
	}
	return n
}

func (w *world) same(what string, want, got []string) {
	slices.Sort(want)
	slices.Sort(got)
	for _, line := range want {
		if !slices.Contains(got, line) {
			w.fail("I1", "%s lacks %q", what, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			w.fail("I1", "%s has %q, which is not so", what, line)
		}
	}
}

// sameSets compares the policy sets, whose addresses may be in several objects: each in one of them, none of which is
// empty.
func (d *dest) sameSets(wanted map[string]string) {
	most := slices.Max(d.w.setSizes)
	whole := map[string]*calicov3.GlobalNetworkSet{}
	occupied := map[string]bool{}
	for name, o := range d.sets.objects {
		set, _ := naming.SplitSetPart(name)
		if v := d.others["set "+name]; v != "" {
			occupied[set] = true
			if o.ResourceVersion != v {
				d.w.fail("I5", "set %s of %s is not ours, and has changed", name, d.name)
			}
			continue
		}
		// An address that returns while the write that removes it is in flight goes into the same object, although
		// another may have its place.
		newcomers := 0
		for ip := range addresses(o) {
			if !d.left[name][ip] {
				newcomers++
			}
		}
		if n := len(o.Spec.Nets); n == 0 || newcomers > most {
			d.w.fail("I1", "set %s of %s is an object of %d addresses, and %d are the most", name, d.name, n, most)
		}
		if whole[set] == nil {
			whole[set] = o.DeepCopy()
			continue
		}
		if origin(o.Labels, o.Annotations) != origin(whole[set].Labels, whole[set].Annotations) {
			d.w.fail("I1", "the objects of set %s of %s are of different sets", set, d.name)
		}
		whole[set].Spec.Nets = append(whole[set].Spec.Nets, o.Spec.Nets...)
	}
	var want, got []string
	for name, line := range wanted {
		if !occupied[name] {
			want = append(want, name+": "+line)
		}
	}
	for name, o := range whole {
		if !occupied[name] { // else one part of it has no place
			got = append(got, name+": "+textSet(o))
		}
	}
	d.w.same("sets of "+d.name, want, got)
}

// sameTable compares what is in the cluster with what should be; objects of other owners must be unchanged.
func sameTable[T writes.Object](w *world, t *table[T], others, wanted map[string]string, text func(T) string) {
	var want, got []string
	for name, line := range wanted {
		if others[t.name+" "+name] == "" {
			want = append(want, name+": "+line)
		}
	}
	for name, o := range t.objects {
		if v := others[t.name+" "+name]; v != "" {
			if o.GetResourceVersion() != v {
				w.fail("I5", "%s %s of %s is not ours, and has changed", t.name, name, t.d.name)
			}
			continue
		}
		got = append(got, name+": "+text(o))
	}
	w.same(fmt.Sprintf("%ss of %s", t.name, t.d.name), want, got)
}

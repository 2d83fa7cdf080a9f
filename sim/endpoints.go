package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/endpoints"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var endpointsKind = writes.Kind[*endpoints.Endpoints]{
	Name: "endpoints", Paced: true, Urgent: endpoints.RemovesReadyAddress,
	Merge: func(have, want *endpoints.Endpoints) *endpoints.Endpoints {
		out := have.DeepCopy()
		out.Labels = want.Labels
		out.Annotations = want.Annotations
		out.Subsets = want.Subsets
		return out
	},
	Equal: func(a, b *endpoints.Endpoints) bool { return fullEndpoints(a) == fullEndpoints(b) },
}

func fullEndpoints(o *endpoints.Endpoints) string {
	return fmt.Sprint(linesOf(o), o.Labels, o.Annotations)
}

// linesOf returns the addresses of Endpoints, each with its ports, as textEndpoints has them without hostnames.
func linesOf(o *endpoints.Endpoints) []string {
	var lines []string
	for _, s := range o.Subsets {
		ports := ""
		for _, p := range s.Ports {
			ports += fmt.Sprintf("%s/%s/%d", p.Name, p.Protocol, p.Port)
		}
		for _, all := range []struct {
			addresses []endpoints.Address
			ready     bool
		}{{s.Addresses, true}, {s.NotReadyAddresses, false}} {
			for _, a := range all.addresses {
				lines = append(lines, fmt.Sprintf("%s %s %s ready=%t ", discoveryv1.AddressTypeIPv4, ports, a.IP, all.ready))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// linesOfSlices returns the IPv4 endpoints in the slices of a Service, each once: one that is ready in any slice is
// ready.
func (d *dest) linesOfSlices(service string) []string {
	ready := map[string]bool{}
	for _, o := range d.slices.objects {
		if o.Labels[discoveryv1.LabelServiceName] != service || o.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, line := range textEndpoints(o) {
			line, is, _ := strings.Cut(nameless(line), "ready=")
			ready[line] = ready[line] || is == "true "
		}
	}
	var lines []string
	for line, is := range ready {
		lines = append(lines, fmt.Sprintf("%sready=%t ", line, is))
	}
	slices.Sort(lines)
	return lines
}

// preparedEndpoints checks that no address is written that no replica has, that none is removed that a replica has as
// ready, and that the object is removed only when its cluster is complete.
func (b *broker) preparedEndpoints(name string, have, want_ *endpoints.Endpoints) {
	told := map[string]bool{}
	for of, lines := range want(b.view()).endpoints {
		if service, _, _ := strings.Cut(of, " of "); service == name {
			for line := range lines {
				told[nameless(line)] = true
			}
		}
	}
	if want_ == nil {
		cluster := have.Labels[naming.LabelSourceCluster]
		b.mayDelete("service", name, cluster) // they go with their Service
		b.known("endpoints", name, cluster, semaphorev1.Kind_KIND_SERVICE)
		return
	}
	stays := map[string]bool{}
	for _, line := range linesOf(want_) {
		stays[addressOf(line)] = true
		if !told[line] && !b.d.stoodNameless(line) {
			b.w.fail("I2", "broker %d of %s writes %q into the Endpoints %s, of which nobody tells", b.id, b.d.name, line, name)
		}
	}
	if have == nil {
		return
	}
	for _, line := range linesOf(have) {
		if told[line] && strings.HasSuffix(line, "ready=true ") && !stays[addressOf(line)] {
			b.w.fail("I2", "broker %d of %s removes %q from the Endpoints %s, which is offered", b.id, b.d.name, line, name)
		}
	}
}

// stoodNameless reports whether a broker ever wrote an endpoint into a slice, under whatever hostname.
func (d *dest) stoodNameless(line string) bool {
	for stood := range d.stood {
		if nameless(stood) == line {
			return true
		}
	}
	return false
}

func (d *dest) writtenEndpoints(name string, before, after *endpoints.Endpoints, by writer) {
	d.w.active++
	if before != nil {
		d.foreign("endpoints", name, before, by)
	}
	if after == nil || by == bySomeone {
		return
	}
	for _, line := range linesOf(after) {
		ip := addressOf(line)
		if !slices.ContainsFunc(d.w.sources, func(s *source) bool { return s.owns(ip) }) {
			d.w.fail("I4", "Endpoints %s of %s have %s, which is none of any cluster's pods", name, d.name, ip)
		}
	}
}

// sameLegacy checks that each Service of the broker has Endpoints that equal its slices, and that no others exist.
// Those of another owner's Service may remain.
func (d *dest) sameLegacy() {
	var want, got []string
	for _, name := range slices.Sorted(maps.Keys(d.services.objects)) {
		if ours(d.services.objects[name]) {
			want = append(want, name+": "+strings.Join(d.linesOfSlices(name), ", "))
		}
	}
	for name, o := range d.endpoints.objects {
		if s := d.services.objects[name]; s == nil || ours(s) {
			got = append(got, name+": "+strings.Join(linesOf(o), ", "))
		}
	}
	d.w.same("Endpoints of "+d.name, want, got)
}

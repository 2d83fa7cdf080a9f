package mirror

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/choice"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// reaches is a Set with these prefixes.
func reaches(prefixes ...string) *choice.Reachable {
	set, _, _ := (&choice.Gate{}).Update([]choice.Peer{{Node: "n", AllowedIPs: prefixes}}, nil, began)
	return set
}

// mirroredToo is a Service that is offered as a mirror and as global.
func mirroredToo() *semaphorev1.Service {
	s := global()
	s.Mirror = true
	return s
}

// TestOnlyWhatTunnelsLeadTo: an endpoint without a tunnel is in its slice and not in use, in a mirror and in a global
// service, whose choice does not count it. Nothing else of the cluster, and nothing of others, is affected.
func TestOnlyWhatTunnelsLeadTo(t *testing.T) {
	p := known(t, taken)
	p.apply("c1", offering(global(), "10.1.0.1")...)
	p.apply("c2", offering(mirroredToo(), "10.2.0.1 10.2.0.2")...)
	p.Is("nothing is known of tunnels", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1 10.2.0.2")
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32"), p.Now))
	p.Is("a node without a tunnel", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1 10.2.0.2-")
	p.Is("a node without a tunnel, in the mirror", echo, "c2-1: 10.2.0.1 10.2.0.2-")
	for _, v := range p.Views(p.Targets()) {
		for e := range v.Clusters[len(v.Clusters)-1].Endpoints {
			if e.Unreached != (e.Address == netip.MustParseAddr("10.2.0.2")) {
				t.Errorf("%s: %+v", v.Service, e)
			}
		}
	}
	p.apply("c2", slc("shop", "a", endpoints("echo", "10.2.0.1 10.2.0.2 10.2.0.3")))
	p.Is("a new pod on a node that waits", echo, "c2-1: 10.2.0.1 10.2.0.2- 10.2.0.3-")
	p.Wrote()
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32", "10.2.0.2/31"), p.Now))
	p.Is("the peers are there", echo, "c2-1: 10.2.0.1 10.2.0.2 10.2.0.3")
	if got := p.Wrote(); len(got) != 2 {
		t.Errorf("wrote %v: one slice of each service", got)
	}
	p.follow(p.SetReach("c3", reaches(), p.Now))
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32", "10.2.0.2/31", "10.2.9.0/24"), p.Now))
	p.writes("what changes nothing")
	p.follow(p.SetReach("c2", reaches(), p.Now))
	p.Is("no tunnel is left", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1- 10.2.0.2- 10.2.0.3-")
	p.follow(p.SetReach("c2", nil, p.Now))
	p.Is("no tunnel is needed", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1 10.2.0.2 10.2.0.3")
}

// TestReachCostsOwnSlices: a change of what is reached in one cluster takes no memory for the slices of others.
func TestReachCostsOwnSlices(t *testing.T) {
	p := known(t, taken)
	p.apply("c2", offering(mirroredToo(), "10.2.0.1")...)
	set := reaches("10.2.0.1/32")
	cost := func() float64 { return testing.AllocsPerRun(100, func() { p.SetReach("c2", set, p.Now) }) }
	alone := cost()
	for i := range 100 {
		name := fmt.Sprint("s", i)
		p.apply("c3", svc("shop", name, mirroredToo()), slc("shop", name, endpoints(name, "10.3.0.1")))
	}
	if among := cost(); len(p.slices) < 100 || among != alone {
		t.Errorf("%g allocations among %d slices, alone %g", among, len(p.slices), alone)
	}
}

// TestPreferenceCountsReachedEndpoints: endpoints without a tunnel do not suffice, so the next cluster is used.
func TestPreferenceCountsReachedEndpoints(t *testing.T) {
	p := known(t, taken)
	prefers := settled(&semaphorev1.GlobalSettings{Prefer: []string{"c2", "c1"}, MinReady: 1})
	p.apply("c2", offering(prefers, "10.2.0.1 10.2.0.2")...)
	p.apply("c1", offering(prefers, "10.1.0.1")...)
	p.Is("c2 first", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1 10.2.0.2")
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32"), p.Now))
	p.Is("one of c2 suffices", glEcho, "c1-1: 10.1.0.1-; c2-1: 10.2.0.1 10.2.0.2-")
	p.follow(p.SetReach("c2", reaches(), p.Now))
	p.Is("none of c2 is reached", glEcho, "c1-1: 10.1.0.1; c2-1: 10.2.0.1- 10.2.0.2-")
}

// TestReachAfterARestart: a new broker that knows the same tunnels writes nothing.
func TestReachAfterARestart(t *testing.T) {
	p := known(t, taken)
	p.apply("c2", offering(mirroredToo(), "10.2.0.1 10.2.0.2")...)
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32"), p.Now))
	p.Is("before", echo, "c2-1: 10.2.0.1 10.2.0.2-")
	was := p
	p = before(t, taken)
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32"), p.Now)) // from the peers that the previous broker stored
	p.Take(was.Cluster)
	p.follow(p.Begin(p.Now))
	p.apply("c2", offering(mirroredToo(), "10.2.0.1 10.2.0.2")...)
	p.heard("c1", "c2", "c2-a", "c3")
	p.writes("a restart")
	p.follow(p.SetReach("c2", reaches("10.2.0.1/32"), p.Now))
	p.writes("the same tunnels")
	p.follow(p.SetReach("c2", reaches("10.2.0.0/24"), p.Now))
	p.Is("after", echo, "c2-1: 10.2.0.1 10.2.0.2")
}

package mirror

import (
	"slices"
	"testing"
)

// TestNarrowerSubnetsOfASilentRemote: what an earlier broker wrote of a remote that has not been heard stays, but for
// what is outside of its subnets now.
func TestNarrowerSubnetsOfASilentRemote(t *testing.T) {
	c := blank(t)
	c.apply("c2", svc("shop", "echo", mirrored()), slc("shop", "s1", endpoints("echo", "10.2.0.1 10.2.1.1")))
	c.apply("c3", svc("shop", "echo", mirrored()), slc("shop", "s1", endpoints("echo", "10.4.0.1")))
	c = c.restarted()
	c.Is("before", "c2-shop-73736d-echo", "c2-1: 10.2.0.1 10.2.1.1")
	c.Wrote()
	remotes := configured(t).Remotes
	remotes[0].PodPrefixes = prefixes("10.2.0.0/24")
	c.follow(c.Follow(remotes, c.Now))
	c.Is("after", "c2-shop-73736d-echo", "c2-1: 10.2.0.1")
	if got := c.Wrote(); len(got) != 1 {
		t.Errorf("%v were written", got)
	}
}

// TestASliceOutsideOfTheSubnets: a slice of a silent remote of which nothing is inside of its subnets when the broker
// begins has ended; none of a remote without bounds.
func TestASliceOutsideOfTheSubnets(t *testing.T) {
	c := blank(t)
	c.apply("c2", svc("shop", "echo", mirrored()), slc("shop", "s1", endpoints("echo", "10.2.1.1")))
	for subnet, want := range map[string]bool{"10.2.0.0/24": true, "10.2.0.0/16": false, "": false} {
		n := before(t)
		remotes := configured(t).Remotes
		if remotes[0].PodPrefixes = nil; subnet != "" {
			remotes[0].PodPrefixes = prefixes(subnet)
		}
		n.Follow(remotes, n.Now)
		n.Take(c.Cluster)
		touches := n.Begin(n.Now)
		of, ended := n.Ended("c2-shop-73736d-echo-c2-1")
		touched := slices.ContainsFunc(touches.Slices, func(t Touched) bool { return t.Name == "c2-shop-73736d-echo-c2-1" })
		if ended != want || want && (of != "c2" || !touched) {
			t.Errorf("within %q it has ended: %v, of %q, queued %v", subnet, ended, of, touched)
		}
	}
}

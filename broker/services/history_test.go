package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestImportHistories: whatever clusters export and withdraw, in which order they are heard after a restart of the
// broker, and which of them is silent then: who exported first decides, the ports are the union in that order, each
// cluster's endpoints have only its own ports, the slices beside the ServiceImport are those of the derived one.
// Two brokers that observed the same, of which one is called c1 and the other c9, have the same import.
func TestImportHistories(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 17))
		c := &importHistory{t: t, seed: seed, rng: rng, exports: map[string][]exportedPort{}, silent: map[string]bool{}}
		for _, own := range []string{"c1", "c9"} {
			c.brokers = append(c.brokers, before(t, own, enabled))
		}
		for _, p := range c.brokers {
			p.follow(p.Begin(p.Now))
			p.SetNamespaces([]string{"shop"})
			p.heardAll()
		}
		for range 40 {
			c.step()
			if c.check(); t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(c.log, "\n"))
			}
		}
	}
}

type exportedPort struct {
	name   string
	number int32
}

// importHistory is what clusters export of one name, and the model: who exported first.
type importHistory struct {
	t       *testing.T
	seed    int
	rng     *rand.Rand
	brokers []*cluster
	exports map[string][]exportedPort
	order   []string
	// silent are clusters that were not heard since the last restart. Their earlier exports are known by their endpoints
	// and the order alone.
	silent map[string]bool
	log    []string
}

var exporting = []string{"c1", "c2", "c2-a", "c3"}

func (c *importHistory) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

// tell sends what a cluster exports now.
func (c *importHistory) tell(p *cluster, name string) {
	ports, ok := c.exports[name]
	if !ok {
		p.apply(name, svc("shop", "echo", nil), slc("shop", "echo-1", nil))
		return
	}
	s := &semaphorev1.Service{MultiCluster: &semaphorev1.MultiClusterExport{}}
	var served []string
	for _, port := range ports {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: port.name, Protocol: "TCP", Port: port.number})
		served = append(served, fmt.Sprintf("%s %d", port.name, port.number))
	}
	p.apply(name, export(s, ported(strings.TrimSuffix(subnets[name], "0/16")+"1", served...))...)
}

func (c *importHistory) step() {
	name := exporting[c.rng.IntN(len(exporting))]
	switch n := c.rng.IntN(10); {
	case n < 6 && !c.silent[name]: // it exports something else, or nothing
		if _, is := c.exports[name]; is && c.rng.IntN(2) == 0 {
			delete(c.exports, name)
			c.order = slices.DeleteFunc(c.order, func(o string) bool { return o == name })
		} else {
			c.exports[name] = []exportedPort{{"a", 80 + c.rng.Int32N(2)}}
			if c.rng.IntN(2) == 0 {
				c.exports[name] = append(c.exports[name], exportedPort{string(rune('b' + c.rng.IntN(2))), 82 + c.rng.Int32N(2)})
			}
			if !slices.Contains(c.order, name) {
				c.order = append(c.order, name)
			}
		}
		c.note("%s exports %v", name, c.exports[name])
		for _, p := range c.brokers {
			c.tell(p, name)
		}
	case n < 8 && len(c.silent) > 0: // one that was silent is heard
		name = slices.Sorted(maps.Keys(c.silent))[0]
		delete(c.silent, name)
		if _, was := c.exports[name]; was && c.rng.IntN(3) == 0 { // it withdrew in the meantime
			delete(c.exports, name)
			c.order = slices.DeleteFunc(c.order, func(o string) bool { return o == name })
		}
		c.note("%s is heard, exports %v", name, c.exports[name])
		for _, p := range c.brokers {
			c.tell(p, name)
			p.heard(name)
		}
	case n == 8 && len(c.silent) == 0: // the brokers restart; at times somebody stays silent, who may decide
		all := slices.Clone(exporting)
		c.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if c.rng.IntN(2) == 0 {
			c.silent[all[3]] = true
		}
		c.note("restart, heard as %v without %v", all, c.silent)
		for i := range c.brokers {
			c.brokers[i] = c.brokers[i].restarted(enabled)
			c.brokers[i].SetNamespaces([]string{"shop"})
			c.brokers[i].heard("c9")
			for _, name := range all {
				if !c.silent[name] {
					c.tell(c.brokers[i], name)
					c.brokers[i].heard(name)
				}
			}
		}
	}
}

// check compares each broker with the model.
func (c *importHistory) check() {
	// Who was first and is silent keeps its place; what it exports is not known, and its ports stay.
	var union []exportedPort
	for _, name := range c.order {
		for _, p := range c.exports[name] {
			if !slices.ContainsFunc(union, func(o exportedPort) bool { return o.name == p.name || o.number == p.number }) {
				union = append(union, p)
			}
		}
	}
	var first string
	for _, p := range c.brokers {
		want := strings.Join(c.order, ",")
		if len(c.order) == 0 {
			want = "no Service"
		}
		if len(c.silent) > 0 && len(c.order) == 0 {
			continue // it may still export: the Service stays
		}
		decides := len(c.order) > 0 && !c.silent[c.order[0]]
		if got := p.order(); got != want && decides {
			c.t.Errorf("the order is %s, not %s", got, want)
		}
		i, _ := p.Import("shop/echo")
		var ports []string
		if i != nil {
			for _, p := range i.Spec.Ports {
				ports = append(ports, fmt.Sprintf("%s %d", p.Name, p.Port))
			}
		}
		if text := strings.Join(ports, ","); first == "" {
			first = text
		} else if text != first {
			c.t.Errorf("two brokers that observed the same have %s and %s", first, text)
		}
		if len(c.silent) == 0 && decides {
			if got := textOfPorts(union); got != strings.Join(ports, ",") {
				c.t.Errorf("the ports are %v, not %s", ports, got)
			}
			for _, name := range c.order {
				c.checkEndpoints(p, name, union)
			}
		}
		c.checkSlices(p)
	}
}

func textOfPorts(all []exportedPort) string {
	var out []string
	for _, p := range all {
		out = append(out, fmt.Sprintf("%s %d", p.name, p.number))
	}
	return strings.Join(out, ",")
}

// checkEndpoints: the endpoints of a cluster have the ports that it exposes with the numbers of the import.
func (c *importHistory) checkEndpoints(p *cluster, name string, union []exportedPort) {
	want := slices.DeleteFunc(slices.Clone(c.exports[name]),
		func(p exportedPort) bool { return !slices.Contains(union, p) })
	var got []exportedPort
	for _, s := range p.Slices {
		if s.Labels[mcsv1beta1.LabelSourceCluster] == "" && s.Labels["semaphore.uw.io/source-cluster"] == name {
			for _, p := range s.Ports {
				got = append(got, exportedPort{*p.Name, *p.Port})
			}
		}
	}
	byName := func(a, b exportedPort) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(got, byName)
	slices.SortFunc(want, byName)
	if !slices.Equal(got, want) {
		c.t.Errorf("the endpoints of %s have the ports %v, not %v", name, got, want)
	}
}

// checkSlices: beside the import is each slice of the derived Service, and no other.
func (c *importHistory) checkSlices(p *cluster) {
	var want []string
	for name, s := range p.Slices {
		if s.Labels[discoveryv1.LabelServiceName] == derivedEcho {
			want = append(want, "shop/"+name)
		}
	}
	got := p.ImportSlices()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.t.Errorf("the slices beside the import are %q, not %q", got, want)
	}
}

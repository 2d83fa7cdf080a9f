package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// whereabouts are the IPs of exported endpoints and pods by the node that they are on. Remote nodes accept from a node,
// and send to it, what lies in the prefixes that are published of it, and nothing else: an IP outside them (a borrowed
// one of Calico's IPAM, or all of them where the prefixes come from the wrong place) is reached by no remote cluster.
type whereabouts struct {
	of map[string]map[Key]place // by node
	on map[Key][]string         // the nodes of an object
	// outside is how many of a node's IPs lie outside its prefixes; none of a node that has no such.
	outside map[string]int
}

// place is what one object has on one node.
type place struct {
	ips     []netip.Addr
	outside int
}

func newWhereabouts() whereabouts {
	return whereabouts{of: map[string]map[Key]place{}, on: map[Key][]string{}, outside: map[string]int{}}
}

func (w *whereabouts) count(node string, by int) {
	if w.outside[node] += by; w.outside[node] == 0 {
		delete(w.outside, node)
	}
}

// locate takes the IPs of an object by node; none of one that is gone.
func (c *Catalog) locate(key Key, at map[string][]netip.Addr) {
	if !c.rules.Features.Has(config.Encryption) || len(c.remotes) == 0 {
		return
	}
	w := &c.whereabouts
	for _, node := range w.on[key] {
		w.count(node, -w.of[node][key].outside)
		delete(w.of[node], key)
		if len(w.of[node]) == 0 {
			delete(w.of, node)
		}
	}
	delete(w.on, key)
	for node, ips := range at {
		w.on[key] = append(w.on[key], node)
		if w.of[node] == nil {
			w.of[node] = map[Key]place{}
		}
		outside := c.outsidePrefixes(node, ips)
		w.of[node][key] = place{ips, outside}
		w.count(node, outside)
	}
}

// locateOn looks again at what is on a node, whose prefixes may have changed.
func (c *Catalog) locateOn(node string) {
	w := &c.whereabouts
	for key, is := range w.of[node] {
		w.count(node, -is.outside)
		is.outside = c.outsidePrefixes(node, is.ips)
		w.of[node][key] = is
		w.count(node, is.outside)
	}
}

// outsidePrefixes is how many of the IPs on a node lie outside what is published of it. Nothing is known of a node that
// is not there.
func (c *Catalog) outsidePrefixes(node string, ips []netip.Addr) (n int) {
	if c.nodes[node] == nil {
		return 0
	}
	for _, ip := range ips {
		if !c.prefixes.Contains(node, ip) {
			n++
		}
	}
	return n
}

// outsideProblem is, in words, what of a node lies outside its prefixes.
func (c *Catalog) outsideProblem(node string) string {
	var first string
	for key, is := range c.whereabouts.of[node] {
		if is.outside == 0 || first != "" && first < key.String() {
			continue
		}
		first = key.String()
	}
	for key, is := range c.whereabouts.of[node] {
		for _, ip := range is.ips {
			if key.String() == first && !c.prefixes.Contains(node, ip) {
				published := strings.Join(c.prefixes.Prefixes(node), ", ")
				if published == "" {
					published = "nothing"
				}
				return fmt.Sprintf("%s: %d IPs of endpoints and pods lie outside what is published of the node (%s), so no remote cluster reaches them; the first is %s of %s",
					Key{Kind: semaphorev1.Kind_KIND_NODE, Name: node}, c.whereabouts.outside[node], published, ip, first)
			}
		}
	}
	return ""
}

// OutsidePrefixes is how many IPs of exported endpoints and pods lie outside what is published of their nodes.
func (c *Catalog) OutsidePrefixes() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.whereabouts.outside {
		n += of
	}
	return n
}

// mostOutside is how many nodes are named that have such IPs.
const mostOutside = 20

// outsideProblems is a line for each node that has IPs outside its prefixes, the first by name, and how many more there are.
func (c *Catalog) outsideProblems() []string {
	var names, lines []string
	for node := range c.whereabouts.outside {
		names = append(names, node)
	}
	slices.Sort(names)
	for _, node := range names[:min(len(names), mostOutside)] {
		lines = append(lines, c.outsideProblem(node))
	}
	if more := len(names) - mostOutside; more > 0 {
		lines = append(lines, fmt.Sprintf("nodes: %d more have IPs of endpoints and pods outside what is published of them", more))
	}
	return lines
}

// addresses are those of texts that are ones.
func addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// locations are the IPs of exported endpoints and pods by node. WireGuard on remote nodes accepts from a node, and
// routes to it, only the prefixes that the node exports. An IP outside them (one that Calico's IPAM borrowed, or every
// IP if allowedIPs names the wrong source) is unreachable from every remote.
type locations struct {
	byNode  map[string]map[Key]location // by node
	nodesOf map[Key][]string            // the nodes of an object
	// outside is the number of a node's IPs outside its prefixes; nodes without any have no entry.
	outside map[string]int
}

// location is what one object has on one node.
type location struct {
	ips     []netip.Addr
	outside int
}

func newLocations() locations {
	return locations{byNode: map[string]map[Key]location{}, nodesOf: map[Key][]string{}, outside: map[string]int{}}
}

func (w *locations) count(node string, by int) {
	if w.outside[node] += by; w.outside[node] == 0 {
		delete(w.outside, node)
	}
}

// setLocation records the IPs of an object by node; none for a deleted object.
func (c *Catalog) setLocation(key Key, at map[string][]netip.Addr) {
	if !c.rules.Features.Has(config.Encryption) {
		return
	}
	w := &c.locations
	for _, node := range w.nodesOf[key] {
		w.count(node, -w.byNode[node][key].outside)
		delete(w.byNode[node], key)
		if len(w.byNode[node]) == 0 {
			delete(w.byNode, node)
		}
	}
	delete(w.nodesOf, key)
	if len(c.remotes) == 0 {
		return
	}
	for node, ips := range at {
		w.nodesOf[key] = append(w.nodesOf[key], node)
		if w.byNode[node] == nil {
			w.byNode[node] = map[Key]location{}
		}
		outside := c.outsidePrefixes(node, ips)
		w.byNode[node][key] = location{ips, outside}
		w.count(node, outside)
	}
}

// recountNode counts again after a node's prefixes may have changed.
func (c *Catalog) recountNode(node string) {
	w := &c.locations
	for key, is := range w.byNode[node] {
		w.count(node, -is.outside)
		is.outside = c.outsidePrefixes(node, is.ips)
		w.byNode[node][key] = is
		w.count(node, is.outside)
	}
}

// outsidePrefixes returns how many of the IPs lie outside the exported prefixes of the node; 0 for an unknown node.
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

// outsideProblem describes the IPs of a node outside its prefixes.
func (c *Catalog) outsideProblem(node string) string {
	of := c.locations.byNode[node]
	for _, key := range slices.SortedFunc(maps.Keys(of), byText) {
		for _, ip := range of[key].ips {
			if !c.prefixes.Contains(node, ip) {
				return fmt.Sprintf("%s: %d IPs of endpoints and pods lie outside the node's exported prefixes (%s), so no remote "+
					"cluster reaches them; the first is %s of %s", Key{Kind: semaphorev1.Kind_KIND_NODE, Name: node},
					c.locations.outside[node], cmp.Or(strings.Join(c.prefixes.Prefixes(node), ", "), "none"), ip, key)
			}
		}
	}
	return ""
}

// OutsidePrefixes returns how many IPs of exported endpoints and pods lie outside the exported prefixes of their
// nodes.
func (c *Catalog) OutsidePrefixes() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.locations.outside {
		n += of
	}
	return n
}

// maxOutsideNodes bounds how many nodes a status names.
const maxOutsideNodes = 20

// outsideProblems returns a line for each node with IPs outside its prefixes, the first nodes by name, and the number
// of the others.
func (c *Catalog) outsideProblems() []string {
	var lines []string
	names := slices.Sorted(maps.Keys(c.locations.outside))
	for _, node := range names[:min(len(names), maxOutsideNodes)] {
		lines = append(lines, c.outsideProblem(node))
	}
	if more := len(names) - maxOutsideNodes; more > 0 {
		lines = append(lines, fmt.Sprintf("nodes: %d more have IPs of endpoints and pods outside their exported prefixes",
			more))
	}
	return lines
}

// addresses parses IPs, and skips texts that are none.
func addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

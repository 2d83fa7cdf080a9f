package catalog

import (
	"fmt"
	"slices"
)

// Reason says, for metrics, what is wrong with an object.
type Reason string

// What can be wrong with an object.
const (
	// BadAnnotation: a node's end of a tunnel makes no sense.
	BadAnnotation Reason = "bad-annotation"
	// BadPodCIDR: a node's pod CIDR or block is none, is outside the pod subnets or overlaps another node's.
	BadPodCIDR Reason = "bad-pod-cidr"
	// ExportTo: the annotation names clusters that there are not, or cannot be understood.
	ExportTo Reason = "export-to"
	// NotOffered: a Service of a type that has no endpoints.
	NotOffered Reason = "service-type"
	// OutsidePodSubnets: an IP of a pod or an endpoint.
	OutsidePodSubnets Reason = "outside-pod-subnets"
	// OutsideNode: IPs of endpoints and pods outside what is published of their node.
	OutsideNode Reason = "outside-node"
	// ServiceSettings: a Service says something of itself, by a field, an annotation or a label, that means nothing here.
	ServiceSettings Reason = "service-settings"
	// SetLabels: a pod has labels of several domains that put it into different sets.
	SetLabels Reason = "set-labels"
	// StrayBlocks: Calico gave blocks to a node that there is not.
	StrayBlocks Reason = "stray-blocks"
	// Unsendable: it is too large, or has text that is none.
	Unsendable Reason = "unsendable"
)

// Reasons are all that there are.
var Reasons = []Reason{BadAnnotation, BadPodCIDR, ExportTo, NotOffered, OutsidePodSubnets, OutsideNode, ServiceSettings, SetLabels, StrayBlocks, Unsendable}

// problem is one of an object.
type problem struct {
	key    Key
	reason Reason
}

// problem notes what is wrong with an object; nothing, when text is empty.
func (c *Catalog) problem(key Key, reason Reason, text string) {
	if text == "" {
		delete(c.problems, problem{key, reason})
		return
	}
	c.problems[problem{key, reason}] = text
}

// forgetProblems of an object that is gone.
func (c *Catalog) forgetProblems(key Key) {
	for _, reason := range Reasons {
		delete(c.problems, problem{key, reason})
	}
}

// Problems are the objects that are not exported, or not whole, and why; a line each, sorted.
func (c *Catalog) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.problems))
	for p, text := range c.problems {
		out = append(out, fmt.Sprintf("%s: %s", p.key, text))
	}
	out = append(out, c.outsideProblems()...)
	slices.Sort(out)
	return out
}

// CountProblems is how many there are, by reason.
func (c *Catalog) CountProblems() map[Reason]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[Reason]int{}
	if n := len(c.whereabouts.outside); n > 0 {
		out[OutsideNode] = n
	}
	for p := range c.problems {
		out[p.reason]++
	}
	return out
}

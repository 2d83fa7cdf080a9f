package choice

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// This file defines drains: an operator's order to use no endpoints of a cluster, a service, or a node of a cluster,
// although they are ready.
//
// Drains as text and as values, which endpoints they cover, and until when. Its callers store them and apply them.

// Target selects endpoints: those of a cluster, of a service, or of a node.
type Target struct {
	// Cluster of the endpoints; empty for a service in every cluster.
	Cluster string
	// Namespace and Service as in the service's own cluster; empty for all.
	Namespace, Service string
	// Node of the cluster; empty for all.
	Node string
}

// String returns text such as "cluster c2", "service shop/echo", "service c2:shop/echo" or "node c2/n1", as operators
// write it.
func (t Target) String() string {
	switch {
	case t.Node != "":
		return "node " + t.Cluster + "/" + t.Node
	case t.Service == "":
		return "cluster " + t.Cluster
	case t.Cluster == "":
		return "service " + t.Namespace + "/" + t.Service
	}
	return "service " + t.Cluster + ":" + t.Namespace + "/" + t.Service
}

// Validate returns an error if a field of the target is wrong. It does not check that the target exists. Each wrong
// field has an error that begins with its name.
func (t Target) Validate() error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if t.Cluster != "" {
		if err := config.ClusterName(t.Cluster); err != nil {
			wrong("cluster", "%v", err)
		}
	}
	switch {
	case t.Node != "" && t.Namespace+t.Service != "":
		wrong("node", "a service is set, too: drain one of them")
	case t.Node != "" && t.Cluster == "":
		wrong("cluster", "is empty: name the node's cluster")
	case t.Node == "" && t.Namespace+t.Service == "" && t.Cluster == "":
		wrong("cluster", "is empty, and so are service and node: name what to drain")
	case (t.Namespace == "") != (t.Service == ""):
		wrong("namespace, service", "%q and %q: a service needs both", t.Namespace, t.Service)
	}
	for _, label := range []struct{ field, value string }{{"namespace", t.Namespace}, {"service", t.Service}} {
		if label.value != "" {
			for _, e := range validation.IsDNS1123Label(label.value) {
				wrong(label.field, "%q: %s", label.value, e)
			}
		}
	}
	if t.Node != "" {
		for _, e := range validation.IsDNS1123Subdomain(t.Node) {
			wrong("node", "%q: %s", t.Node, e)
		}
	}
	return errors.Join(errs...)
}

type Drain struct {
	Target
	// Prefixes of the node's pods; for a node only. Endpoints are compared with them, not with the node's name.
	Prefixes []netip.Prefix
	// Since is when it was ordered; zero for unknown.
	Since time.Time
	// Until is when it ends; zero for an end by the operator.
	Until time.Time
	// By is the operator who ordered it, if known.
	By string
}

func (d Drain) Ended(now time.Time) bool { return !d.Until.IsZero() && !now.Before(d.Until) }

// Validate returns an error that names each wrong field of the drain, also of its target.
func (d Drain) Validate() error {
	err := d.Target.Validate()
	switch {
	case d.Node == "" && len(d.Prefixes) > 0:
		err = errors.Join(err, errors.New("prefixes: only a node has them"))
	case d.Node != "" && len(d.Prefixes) == 0:
		err = errors.Join(err, fmt.Errorf("prefixes: none: name the subnets that the pods of node %s have", d.Node))
	case !d.Since.IsZero() && !d.Until.IsZero() && !d.Since.Before(d.Until):
		err = errors.Join(err, fmt.Errorf("until: %s is not after since, %s", d.Until.Format(time.RFC3339),
			d.Since.Format(time.RFC3339)))
	}
	return err
}

func (d Drain) Same(o Drain) bool {
	return d.Target == o.Target && slices.Equal(d.Prefixes, o.Prefixes) && d.Since.Equal(o.Since) &&
		d.Until.Equal(o.Until) && d.By == o.By
}

func (d Drain) compare(o Drain) int {
	return cmp.Or(cmp.Compare(d.Cluster, o.Cluster), cmp.Compare(d.Namespace, o.Namespace),
		cmp.Compare(d.Service, o.Service), cmp.Compare(d.Node, o.Node),
		d.Since.Compare(o.Since), d.Until.Compare(o.Until), strings.Compare(d.By, o.By))
}

// Drains is an immutable set of drains. The zero value covers nothing.
type Drains struct {
	all []Drain
	// whole are those of clusters and services, and nodes those of nodes, by cluster.
	whole map[Target]Drain
	nodes map[string]*bart.Table[Drain]
}

func NewDrains(all ...Drain) Drains {
	s := Drains{all: slices.Clone(all), whole: map[Target]Drain{}, nodes: map[string]*bart.Table[Drain]{}}
	slices.SortFunc(s.all, Drain.compare)
	// Of several drains of the same target, the one that lasts longest is reported.
	for _, d := range s.all {
		if d.Node == "" {
			if was, ok := s.whole[d.Target]; !ok || lastsLonger(d, was) {
				s.whole[d.Target] = d
			}
			continue
		}
		table := s.nodes[d.Cluster]
		if table == nil {
			table = &bart.Table[Drain]{}
			s.nodes[d.Cluster] = table
		}
		for _, prefix := range d.Prefixes {
			if was, ok := table.Get(prefix.Masked()); !ok || lastsLonger(d, was) {
				table.Insert(prefix.Masked(), d)
			}
		}
	}
	return s
}

func lastsLonger(a, b Drain) bool {
	return !b.Until.IsZero() && (a.Until.IsZero() || a.Until.After(b.Until))
}

// All returns the drains, sorted by target.
func (s Drains) All() []Drain { return slices.Clone(s.all) }

// Active returns the set without drains that have ended, and when the next one ends; zero for never.
func (s Drains) Active(now time.Time) (left Drains, next time.Time) {
	var all []Drain
	for _, d := range s.all {
		if d.Ended(now) {
			continue
		}
		all = append(all, d)
		if !d.Until.IsZero() && (next.IsZero() || d.Until.Before(next)) {
			next = d.Until
		}
	}
	return NewDrains(all...), next
}

func (s Drains) Node(cluster, node string) bool {
	return slices.ContainsFunc(s.all, func(d Drain) bool { return d.Node != "" && d.Cluster == cluster && d.Node == node })
}

// With returns the set in which drains of nodes also cover the currently known prefixes: a node may have got more
// since it was drained.
func (s Drains) With(known func(cluster, node string) []netip.Prefix) Drains {
	all := s.All()
	for i := range all {
		d := &all[i]
		if d.Node == "" {
			continue
		}
		for _, prefix := range known(d.Cluster, d.Node) {
			if !slices.Contains(d.Prefixes, prefix) {
				d.Prefixes = append(slices.Clone(d.Prefixes), prefix)
			}
		}
	}
	return NewDrains(all...)
}

func (s Drains) Same(o Drains) bool { return slices.EqualFunc(s.all, o.all, Drain.Same) }

// Covers returns the drain that covers an endpoint, if there is one. A drain of the cluster precedes one of the
// service, and that precedes one of a node. namespace and service are those of the source.
func (s Drains) Covers(cluster, namespace, service string, address netip.Addr) (Drain, bool) {
	if len(s.whole) > 0 {
		for _, t := range [...]Target{{Cluster: cluster}, {Cluster: cluster, Namespace: namespace, Service: service},
			{Namespace: namespace, Service: service}} {
			if d, ok := s.whole[t]; ok {
				return d, true
			}
		}
	}
	if table := s.nodes[cluster]; table != nil {
		return table.Lookup(address.Unmap())
	}
	return Drain{}, false
}

package policy

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file judges a Service of the source's own cluster whose own name leads to other clusters, too.

// Own is a Service's statement about its own name, and where that leads.
type Own struct {
	// Use is the value of its annotation; empty for none.
	Use string
	// Says is its broker's word about it; empty if the name leads to no other cluster, or if the broker was not asked.
	Says string
	// Total and Ready count the endpoints of its own cluster, and Others those of other clusters, such as "2 of c2".
	Total, Ready int
	Others       []string
}

func (j *judge) ownName(l Link) Link {
	n := j.Name
	l.Where = j.Source.Cluster
	switch {
	case n.Own.Use == "":
		return l.add("Service %s/%s of %s: it no longer has the annotation %s, and other clusters are in its slices still",
			n.Namespace, n.Service, j.Source.Cluster, naming.AnnotationOwnName)
	case !naming.IsOwnNameUse(n.Own.Use):
		return l.add("Service %s/%s of %s: its annotation %s is %q, which changes nothing: use %s or %s", n.Namespace,
			n.Service, j.Source.Cluster, naming.AnnotationOwnName, n.Own.Use, naming.OwnNameFailover, naming.OwnNameAll)
	}
	return l.add("Service %s/%s of %s, with own name %s", n.Namespace, n.Service, j.Source.Cluster, n.Own.Use)
}

func (j *judge) ownSlices(l Link) Link {
	o, s := j.Name.Own, j.Slices
	if s == nil {
		return l.unknown(notExamined)
	}
	others := "it leads to no other cluster"
	if len(o.Others) > 0 {
		others = strings.Join(o.Others, ", ") + " are in use"
	}
	state := fmt.Sprintf("%d of %d endpoints of %s are ready; %s", o.Ready, o.Total, j.Source.Cluster, others)
	if s.Ready == 0 {
		l = l.broken("make a pod behind it ready, here or in another cluster; semaphorectl trace service/"+
			j.Name.Namespace+"/"+j.Name.Service+" shows which clusters could serve it", "%s", state)
		for _, line := range s.NoTunnel {
			l = l.add("%s", line)
		}
	} else {
		l = l.add("%s; the chain below is that of %s", state, s.Chosen)
	}
	for _, d := range s.Drains {
		l = l.add("%s is drained", d)
	}
	if o.Says != "" {
		l = l.add("the broker says: %s", o.Says)
	}
	return l
}

package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// The relevant states of a block affinity (libcalico-go/lib/backend/model). A node assigns IPs of a confirmed block to
// its pods. A pending block belongs to no node yet. A block in pendingDeletion may still have pods, if the node noticed
// too late that it is not empty; Calico's own routes follow the same rule.
const (
	pending   = "pending"
	confirmed = "confirmed"
)

// blocks are the affinities of Calico's IPAM, by their names and by the names of their nodes, which may not exist.
type blocks struct {
	all map[string]block
	of  map[string]map[string]bool
}

// block is the contribution of one affinity: a cidr, nothing, or nothing because of a problem.
type block struct {
	node    string
	cidr    cidr
	ok      bool
	problem string
}

func (b blocks) put(name string, its block) {
	b.drop(name)
	b.all[name] = its
	if b.of[its.node] == nil {
		b.of[its.node] = map[string]bool{}
	}
	b.of[its.node][name] = true
}

func (b blocks) drop(name string) {
	node := b.all[name].node
	delete(b.all, name)
	delete(b.of[node], name)
	if len(b.of[node]) == 0 {
		delete(b.of, node)
	}
}

// cidrs returns the blocks of a node, sorted, each once; unread are the problems of its invalid affinities.
func (b blocks) cidrs(node string) (cidrs []cidr, unread string) {
	var wrong []string
	for name := range b.of[node] {
		switch its := b.all[name]; {
		case its.problem != "":
			wrong = append(wrong, fmt.Sprintf("block affinity %s: %s", name, its.problem))
		case its.ok:
			cidrs = append(cidrs, its.cidr)
		}
	}
	slices.Sort(wrong)
	slices.SortFunc(cidrs, func(x, y cidr) int {
		return cmp.Or(x.Prefix.Compare(y.Prefix), x.rank.compare(y.rank.since))
	})
	return slices.Compact(cidrs), strings.Join(wrong, "; ")
}

// ofNodes reports whether an affinity belongs to a node: blocks of load balancers have a virtual one.
func ofNodes(a *kube.BlockAffinity) bool {
	return (a.Spec.Type == "" || a.Spec.Type == "host") && !strings.HasPrefix(a.Spec.Node, "virtual:")
}

func projectBlock(a *kube.BlockAffinity) block {
	out := block{node: a.Spec.Node}
	deleted := false
	if a.Spec.Deleted != "" {
		var err error
		if deleted, err = strconv.ParseBool(string(a.Spec.Deleted)); err != nil {
			out.problem = fmt.Sprintf("spec.deleted: %.64q is neither true nor false", a.Spec.Deleted)
			return out
		}
	}
	if deleted || a.Spec.State == pending || !ofNodes(a) {
		return out
	}
	prefix, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil {
		out.problem = fmt.Sprintf("spec.cidr: %v", err)
		return out
	}
	out.cidr = cidr{prefix.Masked(), rank{leaving: a.Spec.State != confirmed && a.Spec.State != "", since: sinceOf(a)}}
	out.ok = true
	return out
}

package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Remote is a cluster's share of another one: its name there, and the bounds of accepted addresses.
type Remote struct {
	Name        string
	Pods, Nodes []netip.Prefix
}

// Introduction is a cluster's word about itself, before it is written in another cluster. No cluster names itself: the
// objects that are there already, and the operator's word, count more than the cluster's.
type Introduction struct {
	// Here and There are contexts: the cluster that is written to, and the one that says who it is.
	Here, There string
	// Says is the name that the other cluster gives itself, with the subnets that were read from it.
	Says Remote
	// RootsOnly is set if only roots are written: bounds are not judged.
	RootsOnly bool
	// Pods and Nodes are the operator's word; they replace the cluster's.
	Pods, Nodes []netip.Prefix
	// Before is the remote that has the name here already; nil for none.
	Before *Remote
	// Doubt is why the cluster is not shown to be Before; nil if it proved that.
	Doubt error
	// Replace is the operator's word that the name stands for this cluster from now on.
	Replace bool
	Others  []Remote
}

// private are the networks that are not announced to the internet: RFC 1918, RFC 6598 and RFC 4193.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// The widest subnets, in bits, that a cluster may claim without the operator's word: a wider one takes more of a
// private network than clusters use.
const (
	widestPods4, widestNodes4 = 12, 16
	widestPods6, widestNodes6 = 48, 48
)

// Within reports whether one of the networks contains all of another one.
func Within(p netip.Prefix, of []netip.Prefix) bool {
	return slices.ContainsFunc(of, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// Unusual returns why bounds need the operator's word by themselves; empty for those that do not.
func Unusual(pods, nodes []netip.Prefix) (reasons []string) {
	for _, one := range []struct {
		what         string
		of           []netip.Prefix
		most4, most6 int
	}{{"pods", pods, widestPods4, widestPods6}, {"nodes", nodes, widestNodes4, widestNodes6}} {
		for _, p := range one.of {
			most := one.most4
			if p.Addr().Is6() {
				most = one.most6
			}
			switch {
			case !Within(p, private):
				reasons = append(reasons, fmt.Sprintf("%s of the %s is outside of the private networks", p, one.what))
			case p.Bits() < most:
				reasons = append(reasons, fmt.Sprintf("%s of the %s is wider than a /%d", p, one.what, most))
			}
		}
	}
	return reasons
}

// bounds are the pods or the nodes of an introduction.
type bounds struct {
	what, flag       string
	given, says, had []netip.Prefix
	// unusual is why the cluster's word needs the operator's.
	unusual []string
	// anothers are subnets of other remotes that these may never overlap, and shared those that they may by the
	// operator's word; both by remote.
	anothers, shared func(Remote) []netip.Prefix
}

type pinning struct {
	Introduction
	found []show.Finding
}

func (in *pinning) add(code finding.Code, subject, fix, evidence string, args ...any) {
	in.found = append(in.found, show.Blocker(in.Here, code, subject, fix, evidence, args...))
}

// confirm asks for the operator's word about subnets.
func (in *pinning) confirm(b *bounds, subnets []netip.Prefix, evidence string, args ...any) {
	in.add(finding.BoundsUnconfirmed, b.what+" of "+in.Says.Name, fmt.Sprintf("name those that are right: --%s %s=%s",
		b.flag, in.There, strings.Join(show.Texts(subnets), "+")), evidence, args...)
}

// Pin returns the bounds to write, and the obstacles without the operator's word.
func Pin(of Introduction) (pods, nodes []netip.Prefix, found []show.Finding) {
	in := &pinning{Introduction: of}
	before := in.Before
	if in.Replace {
		before = nil
	}
	if before != nil && in.Doubt != nil {
		in.add(finding.NotTheSameCluster, "remote "+in.Says.Name, fmt.Sprintf("if %s is to be %s in %s from now on: "+
			"--replace %s; otherwise find out why it says so", in.There, in.Says.Name, in.Here, in.Says.Name),
			"%s says that it is %s, and %s has another cluster by that name: %v", in.There, in.Says.Name, in.Here, in.Doubt)
	}
	if in.RootsOnly {
		return nil, nil, in.found
	}
	if before == nil {
		before = &Remote{}
	}
	pods = in.pin(&bounds{"pods", "pod-subnets", in.Pods, in.Says.Pods, before.Pods, Unusual(in.Says.Pods, nil),
		func(r Remote) []netip.Prefix { return slices.Concat(r.Pods, r.Nodes) },
		func(Remote) []netip.Prefix { return nil }})
	nodes = in.pin(&bounds{"nodes", "node-subnets", in.Nodes, in.Says.Nodes, before.Nodes, Unusual(nil, in.Says.Nodes),
		func(r Remote) []netip.Prefix { return r.Pods },
		func(r Remote) []netip.Prefix { return r.Nodes }})
	return pods, nodes, in.found
}

func (in *pinning) pin(b *bounds) []netip.Prefix {
	out := b.given
	switch {
	case len(b.given) > 0:
	case len(b.had) > 0: // the written bounds stay
		for _, p := range b.says {
			if !Within(p, b.had) {
				in.confirm(b, append(slices.Clone(b.had), p), "%s says that it has %s too, outside of its bounds: %s",
					in.There, p, strings.Join(show.Texts(b.had), "+"))
			}
		}
		return b.had
	default:
		out = b.says
		for _, why := range b.unusual {
			in.confirm(b, b.says, "%s says so of itself: %s", in.There, why)
		}
	}
	for _, other := range in.Others {
		for _, p := range out {
			if q, ok := overlapping(p, b.anothers(other)); ok {
				in.add(finding.SubnetsOverlap, b.what+" of "+in.Says.Name,
					fmt.Sprintf("name others by --%s %s=CIDR, or unlink %s --force first",
						b.flag, in.There, other.Name), "%s overlaps %s, a subnet of %s", p, q, other.Name)
			}
			if q, ok := overlapping(p, b.shared(other)); ok && len(b.given) == 0 {
				in.confirm(b, b.says, "%s overlaps %s, a subnet of %s", p, q, other.Name)
			}
		}
	}
	return out
}

func overlapping(p netip.Prefix, of []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(of, p.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return of[i], true
}

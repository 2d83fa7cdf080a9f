package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// DNS describes how a cluster's CoreDNS is configured.
type DNS struct {
	// Where it was searched: a ConfigMap.
	Where string
	// Corefile is its content, unless Err says why it is unknown.
	Corefile string
	Err      error
	// Wired is set if semaphorectl put the blocks there: without them, they are lost. MarkErr is why that is not known.
	Wired   bool
	MarkErr error
	// Unreachable is why no cluster could be asked; empty if one could.
	Unreachable string
	// Want are the blocks that a Corefile needs for the names of all mirrors and global services, and Print the command
	// that prints them.
	Want  []coredns.Block
	Print string
}

// judgeDNS judges whether names of remote services resolve to mirrors. Clients can use the names of the mirrors
// themselves, so that no finding here prevents the connection of clusters.
func judgeDNS(d DNS) []show.Finding {
	if d.Unreachable != "" {
		return []show.Finding{{Code: finding.CoreDNSNotRead, Subject: d.Where,
			Evidence: "no cluster is reachable from here: " + d.Unreachable}}
	}
	if d.Err != nil {
		return []show.Finding{{Code: finding.CoreDNSUnreadable, Subject: d.Where, Side: "here", Evidence: d.Err.Error(),
			Fix: "name the ConfigMap with --coredns NAMESPACE/NAME, or give --coredns none where another DNS " +
				"serves the cluster"}}
	}
	var all []show.Finding
	want, left := coredns.Served(d.Want)
	for _, text := range left {
		why, fix, _ := strings.Cut(text, "; ")
		all = append(all, show.Finding{Code: finding.CoreDNSBlockMissing, Subject: d.Where, Side: "here",
			Evidence: "there can be " + why, Fix: fix})
	}
	faults := map[string]coredns.Fault{}
	for _, f := range coredns.Compare(d.Corefile, want) {
		faults[f.Block.Cluster] = f
	}
	var right []string
	for _, b := range want {
		f, wrong := faults[b.Cluster]
		switch {
		case !wrong:
			right = append(right, b.Zone())
		case f.Missing:
			all = append(all, show.Finding{Code: finding.CoreDNSBlockMissing, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("it has no server block %s, so names such as NAME.NAMESPACE.svc.%s are not found",
					b.Zone(), b.Zone()),
				Fix: d.Print + ", and add what it prints"})
		default:
			all = append(all, show.Finding{Code: finding.CoreDNSBlockDiffers, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("its server block %s lacks the line %q, by which names become those of mirrors in %s",
					b.Zone(), f.Line, b.MirrorNamespace),
				Fix: d.Print + ", and put what it prints in its place"})
		}
	}
	if d.Wired && len(want) > 0 && len(right) == 0 && !slices.ContainsFunc(want, func(b coredns.Block) bool {
		return !faults[b.Cluster].Missing
	}) {
		return []show.Finding{{Code: finding.CoreDNSLost, Subject: d.Where, Side: "here",
			Evidence: "semaphorectl put server blocks there, and somebody removed all of them: no name of a remote Service " +
				"resolves", Fix: "semaphorectl install --dns, which has the broker restore them, too; or link --dns"}}
	}
	if d.MarkErr != nil && !errors.Is(d.MarkErr, d.Err) {
		all = append(all, show.Finding{Code: finding.CoreDNSNotRead, Subject: d.Where,
			Evidence: "whether semaphorectl put blocks there: " + d.MarkErr.Error()})
	}
	if len(right) > 0 {
		all = append(all, show.Finding{Code: finding.CoreDNSComplete, Subject: d.Where,
			Evidence: "it has the server blocks of " + strings.Join(right, ", ")})
	}
	return all
}

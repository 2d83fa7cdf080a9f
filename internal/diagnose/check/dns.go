package check

import (
	"fmt"
	"strings"

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
	// Unreachable is why no cluster could be asked; empty if one could.
	Unreachable string
	// Want are the blocks that a Corefile needs for the names of all mirrors and global services, and Print the command
	// that prints them.
	Want  []coredns.Block
	Print string
}

// judgeDNS judges whether names of remote services resolve to mirrors. Clients can use the names of the mirrors
// themselves, so that no finding here prevents the connection of clusters.
func judgeDNS(d DNS) []Finding {
	if d.Unreachable != "" {
		return []Finding{{Code: finding.CoreDNSNotRead, Subject: d.Where,
			Evidence: "not checked, because no cluster is reachable from here: " + d.Unreachable}}
	}
	if d.Err != nil {
		return []Finding{{Code: finding.CoreDNSUnreadable, Subject: d.Where, Side: "here", Evidence: d.Err.Error(),
			Fix: "name the ConfigMap with --coredns NAMESPACE/NAME, or give --coredns none where another DNS " +
				"serves the cluster"}}
	}
	var all []Finding
	want, left := coredns.Served(d.Want)
	for _, text := range left {
		why, fix, _ := strings.Cut(text, "; ")
		all = append(all, Finding{Code: finding.CoreDNSMissing, Subject: d.Where, Side: "here",
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
			all = append(all, Finding{Code: finding.CoreDNSMissing, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("it has no server block %s, so names such as NAME.NAMESPACE.svc.%s are not found",
					b.Zone(), b.Zone()),
				Fix: d.Print + ", and add what it prints"})
		default:
			all = append(all, Finding{Code: finding.CoreDNSDiffers, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("its server block %s lacks the line %q, by which names become those of mirrors in %s",
					b.Zone(), f.Line, b.MirrorNamespace),
				Fix: d.Print + ", and put what it prints in its place"})
		}
	}
	if len(right) > 0 {
		all = append(all, Finding{Code: finding.CoreDNS, Subject: d.Where, Evidence: "it has the server blocks of " +
			strings.Join(right, ", ")})
	}
	return all
}

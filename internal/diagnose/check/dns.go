package check

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/coredns"
)

// DNS is how a cluster's CoreDNS is configured, as it was found.
type DNS struct {
	// Where it was looked for: a ConfigMap.
	Where string
	// Corefile is what is there, unless Err says why it is not known.
	Corefile string
	Err      error
	// Unreachable says that there was no cluster to ask, and why.
	Unreachable string
	// Want are the blocks that a Corefile has for the names of all mirrors and global services, and Print the command
	// that prints them.
	Want  []coredns.Block
	Print string
}

// JudgeDNS judges whether names of remote services are those of mirrors. Services can be had by the names of mirrors
// too, so that nothing here keeps clusters from being linked.
func JudgeDNS(d DNS) []Finding {
	if d.Unreachable != "" {
		return []Finding{{Code: "coredns-not-read", Level: OK, Subject: d.Where,
			Evidence: "not looked at, as no cluster is reached from here: " + d.Unreachable}}
	}
	if d.Err != nil {
		return []Finding{{Code: "coredns-unreadable", Level: Warning, Subject: d.Where, Side: "here", Evidence: d.Err.Error(),
			Fix: "name the ConfigMap with --coredns NAMESPACE/NAME, or give --coredns none where another DNS serves the cluster"}}
	}
	var all []Finding
	faults := map[string]coredns.Fault{}
	for _, f := range coredns.Compare(d.Corefile, d.Want) {
		faults[f.Block.Cluster] = f
	}
	var right []string
	for _, b := range d.Want {
		f, wrong := faults[b.Cluster]
		switch {
		case !wrong:
			right = append(right, b.Zone())
		case f.Missing:
			all = append(all, Finding{Code: "coredns-missing", Level: Warning, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("it has no server block %s, so names such as NAME.NAMESPACE.svc.%s are not found", b.Zone(), b.Zone()),
				Fix:      d.Print + ", and add what it prints"})
		default:
			all = append(all, Finding{Code: "coredns-differs", Level: Warning, Subject: d.Where, Side: "here",
				Evidence: fmt.Sprintf("its server block %s lacks the line %q, by which names become those of mirrors in %s", b.Zone(), f.Line, b.MirrorNamespace),
				Fix:      d.Print + ", and put what it prints in its place"})
		}
	}
	if len(right) > 0 {
		all = append(all, Finding{Code: "coredns", Level: OK, Subject: d.Where, Evidence: "it has the server blocks of " + strings.Join(right, ", ")})
	}
	return all
}

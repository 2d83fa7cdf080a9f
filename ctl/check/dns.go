package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
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
	// Cache is the configuration of NodeLocal DNSCache, which answers pods in the place of CoreDNS; empty without it.
	// CacheErr is why that is not known.
	Cache    string
	CacheErr error
	// Want are the blocks that a Corefile needs for the names of all mirrors and global services, and Print the command
	// that prints them.
	Want  []coredns.Block
	Print string
}

// judgeDNS judges whether names of remote services resolve to mirrors. Clients can use the names of the mirrors
// themselves, so that no finding here prevents the connection of clusters.
func judgeDNS(d DNS) []show.Finding {
	if errors.Is(d.Err, rest.ErrNotInCluster) {
		return []show.Finding{show.Found(finding.CoreDNSNotRead, "", d.Where, "", "no cluster is reachable from here: "+
			"semaphorectl does not run in a pod, and neither --context nor --kubeconfig is given")}
	}
	if d.Err != nil {
		return []show.Finding{show.Found(finding.CoreDNSUnreadable, "here", d.Where, "name the ConfigMap with --coredns "+
			"NAMESPACE/NAME, or give --coredns none where another DNS serves the cluster", "%v", d.Err)}
	}
	var all []show.Finding
	want, left := coredns.Served(d.Want)
	for _, text := range left {
		why, fix, _ := strings.Cut(text, "; ")
		all = append(all, show.Found(finding.CoreDNSBlockMissing, "here", d.Where, fix, "there can be %s", why))
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
			all = append(all, show.Found(finding.CoreDNSBlockMissing, "here", d.Where, d.Print+", and add what it prints",
				"%s", missing(d.Corefile, b)))
		default:
			all = append(all, show.Found(finding.CoreDNSBlockDiffers, "here", d.Where,
				d.Print+", and put what it prints in its place",
				"its server block %s lacks the line %q, by which names become those of mirrors in %s", b.Zone(), f.Line,
				b.MirrorNamespace))
		}
	}
	if d.Wired && len(want) > 0 && len(right) == 0 && !slices.ContainsFunc(want, func(b coredns.Block) bool {
		return !faults[b.Cluster].Missing
	}) {
		return []show.Finding{show.Found(finding.CoreDNSLost, "here", d.Where,
			"semaphorectl install --dns, which has the broker restore them, too; or link --dns", "semaphorectl put server "+
				"blocks there, and all of them are gone: no name of a remote Service resolves")}
	}
	if d.MarkErr != nil {
		all = append(all, show.Found(finding.CoreDNSNotRead, "", d.Where, "", "whether semaphorectl put blocks there: %v",
			d.MarkErr))
	}
	if len(right) > 0 {
		all = append(all, show.Found(finding.CoreDNSComplete, "", d.Where, "", "it has the server blocks of %s",
			strings.Join(right, ", ")))
	}
	return append(all, judgeCache(d, want)...)
}

// judgeCache judges whether NodeLocal DNSCache asks CoreDNS for the names that only CoreDNS knows.
func judgeCache(d DNS, want []coredns.Block) []show.Finding {
	const where = "ConfigMap " + fleet.System + "/" + fleet.NodeLocal
	if d.CacheErr != nil {
		return []show.Finding{show.Found(finding.CoreDNSNotRead, "", where, "",
			"whether NodeLocal DNSCache asks CoreDNS for names of remotes: %v", d.CacheErr)}
	}
	if d.Cache == "" {
		return nil
	}
	var all []show.Finding
	for _, f := range coredns.Compare(d.Cache, want) {
		if f.Missing {
			all = append(all, show.Found(finding.CoreDNSBlockMissing, "here", where,
				"add a server block that forwards it to CoreDNS: docs/services.md, names in the DNS", "%s",
				missing(d.Cache, f.Block)))
		}
	}
	return all
}

// missing returns the consequence of a block that a configuration lacks: a query that it forwards leaves the cluster,
// where the owner of a public domain could answer it.
func missing(corefile string, b coredns.Block) string {
	zone := b.Zone()
	text := fmt.Sprintf("it has no server block %s, so names such as NAME.NAMESPACE.svc.%s are not found", zone, zone)
	if !coredns.Forwards(corefile) {
		return text
	}
	text += "; queries for them leave for the servers that it forwards to"
	if suffix, public := publicsuffix.PublicSuffix(zone); public {
		text += fmt.Sprintf(", and as .%s is a public domain, the owner of %s there could answer", suffix, zone)
	}
	return text
}

// Package coredns owns the CoreDNS configuration by which names such as echo.shop.svc.cluster.c2 resolve to mirrors: it
// generates server blocks, and checks whether a Corefile has them.
//
// It maps text to text: it asks neither a cluster nor a DNS server.
package coredns

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Block has the values in which the server blocks of two clusters differ.
type Block struct {
	// Cluster is the last part of the block's domain, cluster.CLUSTER; if empty, the domain is clusterset.local. Prefix
	// begins the names of the cluster's mirrors.
	Cluster, Prefix string
	// MirrorNamespace is the namespace of the mirrors, and ClusterDomain the domain of the own cluster's services.
	MirrorNamespace, ClusterDomain string
}

// Blocks returns the blocks for a broker: one for each remote, one for global services, and one for imported Services
// if the broker imports any.
func Blocks(c *config.Broker, clusterDomain string) []Block {
	var remotes []Remote
	for _, r := range c.Remotes {
		remotes = append(remotes, Remote{r.Name, r.ServicePrefix})
	}
	return Of(remotes, c.MirrorNamespace, clusterDomain, c.MCS.Enabled)
}

// Remote is a cluster whose Services have mirrors. Prefix begins their names; empty for the default.
type Remote struct{ Cluster, Prefix string }

// Of returns a block for each remote, one for global services, and with imports one for imported Services.
func Of(remotes []Remote, mirrorNamespace, clusterDomain string, imports bool) []Block {
	var all []Block
	for _, r := range remotes {
		prefix := cmp.Or(r.Prefix, naming.ClusterLabel(r.Cluster))
		all = append(all, Block{r.Cluster, prefix, mirrorNamespace, clusterDomain})
	}
	all = append(all, Global(mirrorNamespace, clusterDomain))
	if imports {
		all = append(all, ClusterSet(mirrorNamespace, clusterDomain))
	}
	return all
}

func Global(mirrorNamespace, clusterDomain string) Block {
	return Block{naming.GlobalCluster, naming.GlobalPrefix, mirrorNamespace, clusterDomain}
}

// ClusterSetDomain is the domain of imported Services (KEP-1645, KEP-2577).
const ClusterSetDomain = "clusterset.local"

// ClusterSet returns the block of imported Services for a CoreDNS that does not support ServiceImports. It resolves
// names of Services, not of pods.
func ClusterSet(mirrorNamespace, clusterDomain string) Block {
	return Block{"", naming.ImportPrefix, mirrorNamespace, clusterDomain}
}

func (b Block) Zone() string {
	if b.ofImports() {
		return ClusterSetDomain
	}
	return "cluster." + b.Cluster
}

// The block rewrites a name to that of the mirror, and back in the answer, so that the client finds the name that it
// asked for. There are three rules, because a name has one more label for an endpoint, and two more for a port (SRV;
// the target of such a record has the name in the own cluster). The template answers NXDOMAIN for a name that no rule
// matches; without the template, the answer would be SERVFAIL.
const block = `<zone> {
    errors
    rewrite stop {
        name regex ^(_[^.]+)\.(_[^.]+)\.([^.]+)\.([^.]+)\.svc\.<zone-re>\.?$ ` +
	`{1}.{2}.<prefix>-{4}-<separator>-{3}.<namespace>.svc.<domain>
        answer name ^(_[^.]+)\.(_[^.]+)\.<mirror-re>\.?$ {1}.{2}.{4}.{3}.svc.<zone>
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.([^.]+)\.svc\.<zone-re>\.?$ ` +
	`{1}.<prefix>-{3}-<separator>-{2}.<namespace>.svc.<domain>
        answer name ^([^.]+)\.<mirror-re>\.?$ {1}.{3}.{2}.svc.<zone>
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.svc\.<zone-re>\.?$ <prefix>-{2}-<separator>-{1}.<namespace>.svc.<domain>
        answer name ^<mirror-re>\.?$ {2}.{1}.svc.<zone>
    }
    template ANY ANY <zone> {
        rcode NXDOMAIN
    }
    kubernetes <domain> {
        pods insecure
        endpoint_pod_names
    }
    cache 5
    reload 10s
}
`

func (b Block) text() string {
	mirror := regexp.QuoteMeta(b.Prefix) + `-([^.]+)-` + naming.MirrorSeparator + `-([^.]+)\.` +
		regexp.QuoteMeta(b.MirrorNamespace) + `\.svc\.` + regexp.QuoteMeta(b.ClusterDomain)
	return strings.NewReplacer(
		"<zone>", b.Zone(), "<zone-re>", regexp.QuoteMeta(b.Zone()), "<mirror-re>", mirror, "<prefix>", b.Prefix,
		"<separator>", naming.MirrorSeparator, "<namespace>", b.MirrorNamespace, "<domain>", b.ClusterDomain,
	).Replace(block)
}

// Multicluster is the block of imported Services for a CoreDNS that answers from ServiceImports and their
// EndpointSlices: with the option multicluster of the plugin kubernetes, since release 1.12.2. It is a separate block,
// so that other domains still resolve if the API, or the right to read it, is missing.
const Multicluster = ClusterSetDomain + ` {
    errors
    kubernetes ` + ClusterSetDomain + ` {
        multicluster ` + ClusterSetDomain + `
        ttl 5
    }
    cache 5
    reload 10s
}
`

// KnowsImports reports whether the CoreDNS in an image, such as registry.k8s.io/coredns/coredns:v1.12.2, supports the
// option multicluster. known is false if the tag is not a release.
func KnowsImports(image string) (does, known bool) {
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	tag, _, _ = strings.Cut(tag, "@")
	v, err := version.ParseGeneric(strings.TrimPrefix(tag, "v"))
	if !ok || err != nil {
		return false, false
	}
	return v.AtLeast(version.MustParseGeneric("1.12.2")), true
}

// shadows returns a domain of which the block would answer names that belong to another block: that of the own cluster,
// or of one of others. CoreDNS uses the block with the longest domain that a name ends in. The result is empty if there
// is none.
func (b Block) shadows(others []Block) string {
	zone, own := b.Zone(), b.ClusterDomain
	// The own cluster is not in others: CoreDNS answers its names from a block for all names.
	if own == zone || strings.HasSuffix(own, "."+zone) || strings.HasSuffix(zone, ".svc."+own) ||
		strings.HasSuffix(zone, ".pod."+own) {
		return own
	}
	for _, o := range others {
		if strings.HasSuffix(zone, ".svc."+o.Zone()) {
			return o.Zone()
		}
	}
	return ""
}

// Served returns the blocks that shadow nothing. left has a sentence about each of the other blocks.
func Served(blocks []Block) (served []Block, left []string) {
	for _, b := range blocks {
		of := b.shadows(blocks)
		if of == "" {
			served = append(served, b)
			continue
		}
		left = append(left, fmt.Sprintf("no block for %s: it would answer names of %s, too; name the cluster otherwise, in "+
			"all clusters, or use the names of its mirrors", b.Zone(), of))
	}
	return served, left
}

// Print writes blocks in the format of a Corefile, with a comment about each omitted block. knowsImports is true for a
// CoreDNS that resolves imported Services from ServiceImports. It fails if w does.
func Print(w io.Writer, blocks []Block, knowsImports bool) error {
	served, left := Served(blocks)
	for _, b := range served {
		if knowsImports && b.ofImports() {
			continue
		}
		if _, err := io.WriteString(w, b.text()); err != nil {
			return err
		}
	}
	var end strings.Builder
	if knowsImports && slices.ContainsFunc(served, Block.ofImports) {
		end.WriteString(Multicluster)
	}
	for _, text := range left {
		fmt.Fprintf(&end, "# %s\n", text)
	}
	_, err := io.WriteString(w, end.String())
	return err
}

func (b Block) ofImports() bool { return b.Cluster == "" }

// Fault is a difference between a block and a Corefile.
type Fault struct {
	Block Block
	// Missing is true if the Corefile has no block for the domain. Otherwise Line is a line of the block that the
	// Corefile lacks or has in another form.
	Missing bool
	Line    string
}

// Compare returns the faults of a Corefile. In an existing block it compares only the lines that rewrite names to those
// of mirrors: operators may add plugins, and change the cache and the order.
func Compare(corefile string, want []Block) []Fault {
	served := servers(corefile)
	var faults []Fault
	for _, b := range want {
		lines, ok := served[b.Zone()]
		if b.ofImports() && KnowsImportsBy(corefile) {
			continue
		}
		if !ok {
			faults = append(faults, Fault{Block: b, Missing: true})
			continue
		}
		for _, line := range b.essential() {
			if !lines[line] {
				faults = append(faults, Fault{Block: b, Line: line})
				break
			}
		}
	}
	return faults
}

// Forwards reports whether a Corefile forwards queries for names that no block of it answers.
func Forwards(corefile string) bool {
	for line := range strings.Lines(corefile) {
		if fields := tokens(line); len(fields) > 0 && fields[0] == "forward" {
			return true
		}
	}
	return false
}

// KnowsImportsBy reports whether the plugin kubernetes, in any block, resolves clusterset.local from ServiceImports.
func KnowsImportsBy(corefile string) bool {
	serves := false
	for line := range strings.Lines(corefile) {
		switch fields := tokens(line); {
		case len(fields) == 0:
		case fields[0] == "kubernetes":
			serves = slices.Contains(fields, ClusterSetDomain) || slices.Contains(fields, ClusterSetDomain+".")
		case serves && fields[0] == "multicluster" && len(fields) > 1 &&
			strings.TrimSuffix(fields[1], ".") == ClusterSetDomain:
			return true
		}
	}
	return false
}

// essential returns the lines of a block that rewrite names to those of mirrors, and back.
func (b Block) essential() []string {
	var out []string
	for line := range strings.Lines(b.text()) {
		fields := tokens(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "name", "answer":
			out = append(out, strings.Join(fields, " "))
		case "kubernetes":
			out = append(out, strings.Join(fields[:2], " "))
		}
	}
	return out
}

// servers returns the lines of the server blocks in a Corefile by the domain of the block, with single blanks and
// without comments. A line of the plugin kubernetes appears once for each of its domains.
func servers(corefile string) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	depth := 0
	var keys []string // lines before a block, then those of the block
	for line := range strings.Lines(corefile) {
		fields := tokens(line)
		if len(fields) == 0 {
			continue
		}
		opens := fields[len(fields)-1] == "{"
		if depth == 0 {
			for _, key := range fields {
				if key != "{" {
					keys = append(keys, zones(key)...)
				}
			}
		} else {
			for _, key := range keys {
				note(out, key, fields)
			}
		}
		if opens {
			if depth++; depth == 1 {
				for _, key := range keys {
					if out[key] == nil {
						out[key] = map[string]bool{}
					}
				}
			}
		}
		if fields[0] == "}" && depth > 0 {
			if depth--; depth == 0 {
				keys = nil
			}
		}
	}
	return out
}

func note(out map[string]map[string]bool, key string, fields []string) {
	if fields[0] != "kubernetes" {
		out[key][strings.Join(fields, " ")] = true
		return
	}
	for _, domain := range fields[1:] {
		out[key]["kubernetes "+strings.TrimSuffix(domain, ".")] = true
	}
}

// tokens returns the words of a line, without its comment.
func tokens(line string) []string {
	fields := strings.Fields(line)
	for i, f := range fields {
		if strings.HasPrefix(f, "#") {
			return fields[:i]
		}
	}
	return fields
}

// zones returns the domains in the key of a server block, such as "dns://cluster.c2.:53,".
func zones(key string) []string {
	var out []string
	for part := range strings.SplitSeq(key, ",") {
		if _, rest, ok := strings.Cut(part, "://"); ok {
			part = rest
		}
		part, _, _ = strings.Cut(part, ":")
		if part = strings.ToLower(strings.TrimSuffix(part, ".")); part != "" {
			out = append(out, part)
		}
	}
	return out
}

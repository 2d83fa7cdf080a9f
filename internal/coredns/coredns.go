// Package coredns owns the CoreDNS configuration by which names such as echo.shop.svc.cluster.c2 resolve to mirrors: it
// generates server blocks, and checks whether a Corefile has them.
//
// It maps text to text: it asks neither a cluster nor a DNS server.
//
// It imports the configuration of a broker, from which the blocks follow, and naming.
package coredns

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Block has what differs between the server blocks of two clusters.
type Block struct {
	// Cluster is the end of the domain that it serves, cluster.CLUSTER, and Prefix the prefix of the names of
	// its mirrors. Without Cluster the domain is clusterset.local.
	Cluster, Prefix string
	// MirrorNamespace is the namespace of the mirrors, and ClusterDomain the domain of the own cluster's services.
	MirrorNamespace, ClusterDomain string
}

// Blocks returns the blocks of a broker: one for each remote, that of global services, and that of imported Services if
// the broker imports any.
func Blocks(c *config.Broker, clusterDomain string) []Block {
	var remotes []Remote
	for _, r := range c.Remotes {
		remotes = append(remotes, Remote{r.Name, r.ServicePrefix})
	}
	return Of(remotes, c.MirrorNamespace, clusterDomain, c.MCS.Enabled)
}

// Remote is a cluster whose Services have mirrors, and the prefix of their names; empty for the usual one.
type Remote struct{ Cluster, Prefix string }

// Of returns a block for each remote, that of global services, and with imports that of imported Services.
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

// Global returns the block of global services.
func Global(mirrorNamespace, clusterDomain string) Block {
	return Block{naming.GlobalCluster, naming.GlobalPrefix, mirrorNamespace, clusterDomain}
}

// ClusterSetDomain is the domain of imported Services (KEP-1645, KEP-2577).
const ClusterSetDomain = "clusterset.local"

// ClusterSet returns the block of imported Services, for a CoreDNS that does not know ServiceImports: it has the names
// of Services alone, and no pod's.
func ClusterSet(mirrorNamespace, clusterDomain string) Block {
	return Block{"", naming.ImportPrefix, mirrorNamespace, clusterDomain}
}

// Zone returns the domain that the block serves.
func (b Block) Zone() string {
	if b.ofImports() {
		return ClusterSetDomain
	}
	return "cluster." + b.Cluster
}

// Separator returns the one in the names of mirrors.
func (b Block) Separator() string { return naming.MirrorSeparator }

// ZoneRE returns the domain for use within a regular expression.
func (b Block) ZoneRE() string { return regexp.QuoteMeta(b.Zone()) }

// MirrorRE returns a regular expression for the names of mirrors.
func (b Block) MirrorRE() string {
	return regexp.QuoteMeta(b.Prefix) + `-([^.]+)-` + b.Separator() + `-([^.]+)\.` + regexp.QuoteMeta(b.MirrorNamespace) +
		`\.svc\.` + regexp.QuoteMeta(b.ClusterDomain)
}

// A name is rewritten to that of the mirror, and back in the answer, so that the client finds the name that it asked
// for. There are three rules, because names have one label more for an endpoint, and two for a port (SRV; the target of
// such a record has the name that the own cluster uses). For a name that no rule matches the template answers NXDOMAIN;
// without it the answer would be SERVFAIL.
var blockTemplate = template.Must(template.New("block").Parse(`{{.Zone}} {
    errors
    rewrite stop {
        name regex ^(_[^.]+)\.(_[^.]+)\.([^.]+)\.([^.]+)\.svc\.{{.ZoneRE}}\.?$ {1}.{2}.{{.Prefix}}-{4}-{{.Separator}}-{3}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^(_[^.]+)\.(_[^.]+)\.{{.MirrorRE}}\.?$ {1}.{2}.{4}.{3}.svc.{{.Zone}}
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.([^.]+)\.svc\.{{.ZoneRE}}\.?$ {1}.{{.Prefix}}-{3}-{{.Separator}}-{2}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^([^.]+)\.{{.MirrorRE}}\.?$ {1}.{3}.{2}.svc.{{.Zone}}
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.svc\.{{.ZoneRE}}\.?$ {{.Prefix}}-{2}-{{.Separator}}-{1}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^{{.MirrorRE}}\.?$ {2}.{1}.svc.{{.Zone}}
    }
    template ANY ANY {{.Zone}} {
        rcode NXDOMAIN
    }
    kubernetes {{.ClusterDomain}} {
        pods insecure
        endpoint_pod_names
    }
    cache 5
    reload 10s
}
`))

// Multicluster is the block of imported Services for a CoreDNS that answers from ServiceImports, and from the
// EndpointSlices beside them: the option multicluster of its plugin kubernetes, since release 1.12.2. It is a block of
// its own, so that other domains are answered where the API or the right to read it is missing.
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

// KnowsImports reports whether the CoreDNS of an image, such as registry.k8s.io/coredns/coredns:v1.12.2, has the option
// multicluster; known is false if its tag is no release.
func KnowsImports(image string) (does, known bool) {
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	tag, _, _ = strings.Cut(tag, "@")
	v, err := version.ParseGeneric(strings.TrimPrefix(tag, "v"))
	if !ok || err != nil {
		return false, false
	}
	return v.AtLeast(version.MustParseGeneric("1.12.2")), true
}

// Shadows returns the domain of which a block would answer names that are not its own: CoreDNS asks the block with the
// longest domain that a name ends in. That domain is the own cluster's, or of another of the blocks; empty for none.
func (b Block) Shadows(others []Block) string {
	zone, own := b.Zone(), b.ClusterDomain
	// The own cluster's names are answered by a block for all names.
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

// Served returns the blocks that shadow nothing, and a sentence on each of the others, which is left out.
func Served(blocks []Block) (served []Block, left []string) {
	for _, b := range blocks {
		of := b.Shadows(blocks)
		if of == "" {
			served = append(served, b)
			continue
		}
		left = append(left, fmt.Sprintf("no block for %s: it would answer names of %s, too; name the cluster otherwise, in "+
			"all clusters, or use the names of its mirrors", b.Zone(), of))
	}
	return served, left
}

// Print writes blocks in the format of a Corefile, and a comment on each that is left out.
func Print(w io.Writer, blocks []Block) error { return write(w, blocks, false) }

// PrintImports is Print for a CoreDNS that answers for imported Services from ServiceImports.
func PrintImports(w io.Writer, blocks []Block) error { return write(w, blocks, true) }

func write(w io.Writer, blocks []Block, knowsImports bool) error {
	served, left := Served(blocks)
	for _, b := range served {
		if knowsImports && b.ofImports() {
			continue
		}
		if err := blockTemplate.Execute(w, b); err != nil {
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

// Fault is what a Corefile lacks of a block.
type Fault struct {
	Block Block
	// Missing is set if it does not serve the domain at all; else Line is a line of the block that it lacks or has in
	// another form.
	Missing bool
	Line    string
}

// Compare returns which blocks a Corefile lacks, or has in another form. Of an existing block only the lines count that
// rewrite names to those of mirrors: operators may add plugins, change the cache and the order.
func Compare(corefile string, want []Block) []Fault {
	served := servers(corefile)
	var faults []Fault
	for _, b := range want {
		lines, ok := served[b.Zone()]
		if b.ofImports() && answersImports(corefile) {
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

// answersImports reports whether the plugin kubernetes answers for clusterset.local from ServiceImports, in whatever
// block.
func answersImports(corefile string) bool {
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

// essential returns the lines of a block that rewrite a name to that of a mirror, and back.
func (b Block) essential() []string {
	var text strings.Builder
	if err := blockTemplate.Execute(&text, b); err != nil {
		return nil // the template is constant, and the buffer in memory
	}
	var out []string
	for line := range strings.Lines(text.String()) {
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

// servers returns the lines of the server blocks of a Corefile, by the domain that they serve, with single blanks and
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

// tokens returns the words of a line, without a comment.
func tokens(line string) []string {
	fields := strings.Fields(line)
	for i, f := range fields {
		if strings.HasPrefix(f, "#") {
			return fields[:i]
		}
	}
	return fields
}

// zones returns the domains of a key of a server block, such as "dns://cluster.c2.:53,".
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

// Package coredns owns what CoreDNS is told so that names such as echo.shop.svc.cluster.c2 are those of mirrors: the
// server blocks, and whether a Corefile has them.
//
// It is text in, text out: it asks neither a cluster nor a DNS server.
//
// It imports the configuration of a broker, from which the blocks follow, and naming.
package coredns

import (
	"io"
	"regexp"
	"strings"
	"text/template"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Block is a server block: what differs between those of two clusters.
type Block struct {
	// Cluster is the last label of the domain that it serves, cluster.CLUSTER, and Prefix what the names of its mirrors
	// begin with.
	Cluster, Prefix string
	// MirrorNamespace is where mirrors are, and ClusterDomain the domain of the own cluster's services.
	MirrorNamespace, ClusterDomain string
}

// Blocks are those of a broker: one for each remote, and that of global services.
func Blocks(c *config.Broker, clusterDomain string) []Block {
	var all []Block
	for _, r := range c.Remotes {
		all = append(all, Block{r.Name, r.ServicePrefix, c.MirrorNamespace, clusterDomain})
	}
	return append(all, Global(c.MirrorNamespace, clusterDomain))
}

// Global is the block of global services.
func Global(mirrorNamespace, clusterDomain string) Block {
	return Block{naming.GlobalCluster, naming.GlobalPrefix, mirrorNamespace, clusterDomain}
}

// Zone is the domain that the block serves.
func (b Block) Zone() string { return "cluster." + b.Cluster }

// Separator is that in the names of mirrors.
func (b Block) Separator() string { return naming.MirrorSeparator }

// ClusterRE is for use within a regular expression.
func (b Block) ClusterRE() string { return regexp.QuoteMeta(b.Cluster) }

// MirrorRE is the name of a mirror as a regular expression.
func (b Block) MirrorRE() string {
	return regexp.QuoteMeta(b.Prefix) + `-([^.]+)-` + b.Separator() + `-([^.]+)\.` + regexp.QuoteMeta(b.MirrorNamespace) +
		`\.svc\.` + regexp.QuoteMeta(b.ClusterDomain)
}

// A name is rewritten to that of the mirror, and back in the answer, so that the client finds the
// name that it asked for. Three rules, as an answer's names have one label more for an endpoint, and two for a port
// (SRV; what such a record leads to is called as the own cluster calls it). What no rule knows is no name; without the template it would
// be a server's failure.
var blockTemplate = template.Must(template.New("block").Parse(`{{.Zone}} {
    errors
    rewrite stop {
        name regex ^(_[^.]+)\.(_[^.]+)\.([^.]+)\.([^.]+)\.svc\.cluster\.{{.ClusterRE}}\.?$ {1}.{2}.{{.Prefix}}-{4}-{{.Separator}}-{3}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^(_[^.]+)\.(_[^.]+)\.{{.MirrorRE}}\.?$ {1}.{2}.{4}.{3}.svc.cluster.{{.Cluster}}
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.([^.]+)\.svc\.cluster\.{{.ClusterRE}}\.?$ {1}.{{.Prefix}}-{3}-{{.Separator}}-{2}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^([^.]+)\.{{.MirrorRE}}\.?$ {1}.{3}.{2}.svc.cluster.{{.Cluster}}
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.svc\.cluster\.{{.ClusterRE}}\.?$ {{.Prefix}}-{2}-{{.Separator}}-{1}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^{{.MirrorRE}}\.?$ {2}.{1}.svc.cluster.{{.Cluster}}
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

// Print writes blocks as a Corefile has them.
func Print(w io.Writer, blocks []Block) error {
	for _, b := range blocks {
		if err := blockTemplate.Execute(w, b); err != nil {
			return err
		}
	}
	return nil
}

// Fault is what a Corefile lacks of a block.
type Fault struct {
	Block Block
	// Missing says that it does not serve the domain at all; else Line is one of the block's that it does not have, or
	// has otherwise.
	Missing bool
	Line    string
}

// Compare says which blocks a Corefile lacks, or has otherwise. Of a block that is there, the lines count by which names
// become those of mirrors: further plugins, another cache and another order are the operator's own.
func Compare(corefile string, want []Block) []Fault {
	served := servers(corefile)
	var faults []Fault
	for _, b := range want {
		lines, ok := served[b.Zone()]
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

// essential are the lines of a block by which a name becomes that of a mirror, and back.
func (b Block) essential() []string {
	var text strings.Builder
	if err := blockTemplate.Execute(&text, b); err != nil {
		return nil // a template of text alone, into memory
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

// servers are the lines of the server blocks of a Corefile, by the domain that they serve. Blanks are one each, comments
// are left out; of a line of the plugin kubernetes there is each of its domains.
func servers(corefile string) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	depth := 0
	var keys []string // those before a block, then those of the block
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

// tokens are the words of a line, without what follows a #.
func tokens(line string) []string {
	fields := strings.Fields(line)
	for i, f := range fields {
		if strings.HasPrefix(f, "#") {
			return fields[:i]
		}
	}
	return fields
}

// zones are the domains of a key of a server block, such as "dns://cluster.c2.:53,".
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

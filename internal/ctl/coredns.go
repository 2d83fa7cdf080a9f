package ctl

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

func corednsCommand() *cobra.Command {
	var remotes []string
	var namespace, clusterDomain string
	cmd := &cobra.Command{
		Use:   "coredns --remote CLUSTER[=PREFIX]…",
		Short: "print the CoreDNS server blocks for names like echo.shop.svc.cluster.c2",
		Long: `Prints a CoreDNS server block for each remote cluster, to be added to the Corefile. It answers
NAME.NAMESPACE.svc.cluster.REMOTE, and ENDPOINT.NAME.NAMESPACE.svc.cluster.REMOTE for the pods of a headless
service, from the mirrors in this cluster. For the services of all clusters: --remote global=gl.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e := validation.IsDNS1123Label(namespace); len(e) > 0 {
				return fmt.Errorf("--mirror-namespace %q: %s", namespace, e[0])
			}
			if e := validation.IsDNS1123Subdomain(clusterDomain); len(e) > 0 {
				return fmt.Errorf("--cluster-domain %q: %s", clusterDomain, e[0])
			}
			var blocks []dnsBlock
			seen := map[string]bool{}
			for _, r := range remotes {
				cluster, prefix, ok := strings.Cut(r, "=")
				if !ok {
					prefix = cluster
				}
				if err := config.ClusterName(cluster); err != nil {
					return fmt.Errorf("--remote: %w", err)
				}
				if e := validation.IsDNS1035Label(prefix); len(e) > 0 {
					return fmt.Errorf("--remote %q: the prefix of its mirrors: %s", r, e[0])
				}
				if seen[cluster] {
					return fmt.Errorf("--remote %q: the cluster is given twice", r)
				}
				seen[cluster] = true
				blocks = append(blocks, dnsBlock{cluster, prefix, namespace, clusterDomain})
			}
			return printBlocks(cmd.OutOrStdout(), blocks)
		},
	}
	cmd.Flags().StringArrayVar(&remotes, "remote", nil, "remote cluster, with =PREFIX where its servicePrefix is not its name; may be repeated")
	cmd.Flags().StringVar(&namespace, "mirror-namespace", "semaphore", "mirrorNamespace of the broker's configuration")
	cmd.Flags().StringVar(&clusterDomain, "cluster-domain", "cluster.local", "the domain of this cluster's own services")
	required(cmd, "remote")
	return cmd
}

// dnsBlock is what differs between the blocks of two remotes.
type dnsBlock struct {
	Cluster, Prefix, MirrorNamespace, ClusterDomain string
}

func (d dnsBlock) Separator() string { return naming.MirrorSeparator }

// ClusterRE and the like are for use within a regular expression.
func (d dnsBlock) ClusterRE() string { return regexp.QuoteMeta(d.Cluster) }

func (d dnsBlock) MirrorRE() string {
	return regexp.QuoteMeta(d.Prefix) + `-([^.]+)-` + d.Separator() + `-([^.]+)\.` + regexp.QuoteMeta(d.MirrorNamespace) +
		`\.svc\.` + regexp.QuoteMeta(d.ClusterDomain)
}

// A name is rewritten to that of the mirror, and back in the answer, so that the client finds the
// name that it asked for. Two rules, as an answer's names have one label more for an endpoint. What
// neither rule knows is no name; without the template it would be a server's failure.
var blockTemplate = template.Must(template.New("block").Parse(`cluster.{{.Cluster}} {
    errors
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.([^.]+)\.svc\.cluster\.{{.ClusterRE}}\.?$ {1}.{{.Prefix}}-{3}-{{.Separator}}-{2}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^([^.]+)\.{{.MirrorRE}}\.?$ {1}.{3}.{2}.svc.cluster.{{.Cluster}}
    }
    rewrite stop {
        name regex ^([^.]+)\.([^.]+)\.svc\.cluster\.{{.ClusterRE}}\.?$ {{.Prefix}}-{2}-{{.Separator}}-{1}.{{.MirrorNamespace}}.svc.{{.ClusterDomain}}
        answer name ^{{.MirrorRE}}\.?$ {2}.{1}.svc.cluster.{{.Cluster}}
    }
    template ANY ANY cluster.{{.Cluster}} {
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

func printBlocks(w io.Writer, blocks []dnsBlock) error {
	for _, b := range blocks {
		if err := blockTemplate.Execute(w, b); err != nil {
			return err
		}
	}
	return nil
}

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
)

// Run surveys the clusters of the flags, prints facts about them and the obstacles to connecting them, and returns the
// error of show.Report. It fails if a cluster cannot be surveyed, after it printed the others.
func Run(ctx context.Context, w io.Writer, access *fleet.Access, output string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	clusters, notAsked := SurveyAll(ctx, access)
	clusters = slices.DeleteFunc(clusters, func(c *Cluster) bool { return c == nil })
	if len(clusters) == 0 {
		return notAsked
	}
	if err := printPreflight(w, clusters, output); notAsked == nil {
		return err
	}
	return notAsked
}

// SurveyAll surveys the clusters of the flags concurrently. It fails as Survey does; clusters that were not surveyed
// are nil.
func SurveyAll(ctx context.Context, access *fleet.Access) ([]*Cluster, error) {
	clusters, err := access.Clusters()
	if err != nil {
		return nil, err
	}
	return fleet.AllOf(clusters, func(c *fleet.Cluster) (*Cluster, error) { return Survey(ctx, c) })
}

func printPreflight(w io.Writer, clusters []*Cluster, output string) error {
	all := []any{}
	for _, c := range clusters {
		if output == "table" {
			Describe(w, c)
		}
		all = append(all, struct {
			*Cluster
			Subnets    map[string]Subnets `json:"subnets"`
			AllowedIPs string             `json:"allowedIPs"`
		}{c, map[string]Subnets{"pods": c.Pods, "services": c.Services, "nodes": c.IPs}, c.AllowedIPs()})
	}
	return show.Report(w, Judge(clusters), output, map[string]any{"clusters": all})
}

func Describe(w io.Writer, c *Cluster) { _ = show.PrintLines(w, show.Tabbed(c.describe)) }

func (c *Cluster) describe(t io.Writer) {
	line := func(what, value, from string, of ...Fact) {
		if value == "" && !c.Knows(of...) {
			value = notKnown
		}
		value = cmp.Or(value, "not found")
		if from != "" {
			value += " (" + from + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\n", what, value)
	}
	fmt.Fprintf(t, "%s\n", c.Context)
	line("name", strings.Join(c.Names, ", or "), "")
	kubernetes := c.Version
	if c.Provider != "" {
		kubernetes += " on " + c.Provider
	}
	line("Kubernetes", kubernetes, "")
	line("nodes", nodesOf(c), "", FactNodes)
	line("pods", c.Pods.String(), c.Pods.From, FactCalico, FactPods)
	line("Services", c.Services.String(), c.Services.From, FactServices)
	line("nodes' addresses", c.IPs.String(), c.IPs.From, FactNodes)
	cni := c.CNI
	if c.Calico != nil {
		cni += ", encapsulation " + c.Calico.Encapsulation
		if c.Calico.NATOutgoing {
			cni += ", natOutgoing"
		}
	}
	line("CNI", cni, "")
	line("allowedIPs", c.AllowedIPs(), "")
	line("kube-proxy", c.KubeProxy, "")
	dns := c.DNS.ConfigMap
	if dns != "" {
		dns = "CoreDNS by ConfigMap " + dns
	}
	if c.DNS.Import != "" {
		dns += ", imports " + c.DNS.Import
	}
	if c.DNS.NodeLocal {
		dns += ", NodeLocal DNSCache"
	}
	line("DNS", dns, "", FactCoreDNS)
	fmt.Fprintln(t)
}

// nodesOf returns a text such as "3, Linux 6.8.0 to 6.12.1"; empty for none.
func nodesOf(c *Cluster) string {
	if len(c.Nodes) == 0 {
		return ""
	}
	var kernels []string
	for _, n := range c.Nodes {
		kernels = append(kernels, n.Kernel)
	}
	slices.Sort(kernels)
	kernels = slices.Compact(kernels)
	return fmt.Sprintf("%d, Linux %s", len(c.Nodes), strings.Join(kernels, ", "))
}

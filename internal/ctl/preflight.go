package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/diagnose/preflight"
)

func preflightCommand(access *fleet.Access) *cobra.Command {
	var output *outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "preflight",
		Short: "examine clusters before anything is installed: their properties, and what prevents " +
			"connecting them",
		Long: `Examines clusters before anything is installed in them, and writes nothing: Kubernetes, nodes and their
kernels, the CNI, Calico's IPPools and IPAM, subnets of pods, Services and nodes, kube-proxy, CoreDNS, clocks
and your rights. Then it prints what prevents the installation in each, and the connection of each two.

  semaphorectl preflight --context c1 --context c2

Whether packets of one cluster's nodes reach those of another, only packets can say: docs/install.md lists the ports,
and status and verify say it after link (docs/adr/0041-preflight.md).

Exit code 0 when nothing prevents it, 1 when a cluster cannot be asked, 2 when something does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			clusters, notAsked := surveyAll(ctx, access)
			clusters = slices.DeleteFunc(clusters, func(c *preflight.Cluster) bool { return c == nil })
			if len(clusters) == 0 {
				return notAsked
			}
			if err := printPreflight(cmd.OutOrStdout(), clusters, output.chosen); notAsked == nil {
				return err
			}
			return notAsked
		},
	}
	output = outputFlag(cmd, "table", "json", "yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the answers")
	return cmd
}

// surveyAll surveys the clusters of the flags concurrently. Beside an error, those that were not surveyed are nil.
func surveyAll(ctx context.Context, access *fleet.Access) ([]*preflight.Cluster, error) {
	clusters, err := access.Clusters()
	if err != nil {
		return nil, err
	}
	found, failed := make([]*preflight.Cluster, len(clusters)), make([]error, len(clusters))
	var g errgroup.Group
	for i, c := range clusters {
		g.Go(func() error {
			found[i], failed[i] = survey(ctx, c)
			return nil
		})
	}
	_ = g.Wait() // none returns an error
	return found, errors.Join(failed...)
}

func printPreflight(w io.Writer, clusters []*preflight.Cluster, output string) error {
	findings := preflight.Judge(clusters)
	if output != "table" {
		all := []any{}
		for _, c := range clusters {
			text, err := json.Marshal(c)
			if err != nil {
				return err
			}
			object := map[string]any{}
			if err := json.Unmarshal(text, &object); err != nil {
				return err
			}
			object["subnets"] = map[string]any{"pods": c.Pods, "services": c.Services, "nodes": c.IPs}
			object["allowedIPs"] = c.AllowedIPs()
			all = append(all, object)
		}
		data, err := json.MarshalIndent(map[string]any{"clusters": all, "findings": findings}, "", "  ")
		if err != nil {
			return err
		}
		if err := cli.PrintDocument(w, data, output); err != nil {
			return err
		}
		return verdictOf(findings)
	}
	for _, c := range clusters {
		if err := describe(w, c); err != nil {
			return err
		}
	}
	return report(w, findings, "table")
}

// describe prints the properties of a cluster.
func describe(w io.Writer, c *preflight.Cluster) error {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	line := func(what, value, from string) {
		if value == "" {
			value = "not found"
		}
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
	line("nodes", nodesOf(c), "")
	line("pods", c.Pods.String(), c.Pods.From)
	line("Services", c.Services.String(), c.Services.From)
	line("nodes' addresses", c.IPs.String(), c.IPs.From)
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
	line("DNS", dns, "")
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return cli.PrintLines(w, text.String())
}

// nodesOf returns a text such as "3, Linux 6.8.0 to 6.12.1".
func nodesOf(c *preflight.Cluster) string {
	var kernels []string
	for _, n := range c.Nodes {
		kernels = append(kernels, n.Kernel)
	}
	slices.Sort(kernels)
	kernels = slices.Compact(kernels)
	return fmt.Sprintf("%d, Linux %s", len(c.Nodes), strings.Join(kernels, ", "))
}

// verdictOf returns the exit code's error for findings.
func verdictOf(findings []check.Finding) error {
	return report(io.Discard, findings, "table")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/test/testbed"
)

func upCommand() *cobra.Command {
	var options testbed.Options
	var clusters []string
	var nodes int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "bring up clusters, and keep them until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range clusters {
				options.Clusters = append(options.Clusters, testbed.ClusterSpec{Name: name, Nodes: nodes})
			}
			options.Progress = cmd.OutOrStdout()
			return up(cmd.Context(), options)
		},
	}
	cmd.Flags().StringSliceVar(&clusters, "clusters", []string{"c1", "c2"}, "names of the clusters")
	cmd.Flags().IntVar(&nodes, "nodes", 2, "nodes of each cluster")
	cmd.Flags().StringVar(&options.ID, "id", "", "the testbed's ID (default: random)")
	cmd.Flags().StringVar(&options.CNI, "cni", testbed.CNICalico, "what connects pods: calico or bridge")
	cmd.Flags().StringVar(&options.IPAM, "ipam", "",
		"what gives addresses to pods: calico or host-local (default: calico, host-local with --cni bridge)")
	cmd.Flags().StringVar(&options.IPFamilies, "ip-families", testbed.FamiliesIPv4,
		"of nodes, pods and Services: ipv4 or dual")
	cmd.Flags().StringVar(&options.KubeProxyMode, "kube-proxy-mode", "iptables",
		"iptables, nftables or ipvs, where the kernel has it")
	cmd.Flags().StringVar(&options.Repository, "repo", "",
		"the checkout that programs are built from (default: the one around the working directory)")
	return cmd
}

func up(ctx context.Context, options testbed.Options) error {
	out := options.Progress
	var err error
	if options.Programs, err = currentPrograms(ctx, options.Repository, out); err != nil {
		return err
	}
	tb, err := testbed.Up(ctx, options)
	if err != nil {
		return err
	}
	describe(out, tb)
	<-ctx.Done()
	fmt.Fprintf(out, "\ntaking testbed %s down\n", tb.ID)
	began := time.Now()
	if err := tb.Down(); err != nil {
		return err
	}
	fmt.Fprintf(out, "nothing is left of it (%.1f s)\n", time.Since(began).Seconds())
	return nil
}

func describe(out io.Writer, tb *testbed.Testbed) {
	fmt.Fprintf(out, "\ntestbed %s, files below %s\n", tb.ID, tb.Dir())
	for _, c := range tb.Clusters() {
		fmt.Fprintf(out, "  cluster %s: apiserver %s, pods %s, Services %s\n", c.Name, c.Server, c.PodCIDR, c.ServiceCIDR)
		for _, n := range c.Nodes {
			fmt.Fprintf(out, "    node %s: %s\n", n.Name, n.IP)
		}
	}
	c := tb.Clusters()[0].Name
	fmt.Fprintf(out, `
It stays up until Ctrl-C. From another terminal, plain kubectl reaches the clusters in
  bin/testbed shell                             # kubectl --context %[1]s get pods -A
and, one command at a time, try:
  bin/testbed kubectl %[1]s get nodes -o wide
  bin/testbed kubectl %[1]s create deployment web --image=%[2]s -- testbed echo
  bin/testbed exec %[1]s n1                       # a shell on a node
  bin/testbed exec %[1]s n1 -- birdc -s /run/calico/bird.ctl show route
  bin/testbed logs %[1]s kubelet/n1
`, c, testbed.Image)
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down [ID]",
		Short: "take a testbed down that another process keeps up",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return down(cmd.Context(), cmd.OutOrStdout(), id)
		},
	}
}

// down signals the owner of a testbed to take it down, and waits until it has.
func down(ctx context.Context, out io.Writer, id string) error {
	state, err := testbed.Find(id)
	if err != nil {
		return err
	}
	if state.Owner == 0 {
		return fmt.Errorf("testbed %s is just coming up or going down: try again", state.ID)
	}
	if err := syscall.Kill(state.Owner, syscall.SIGTERM); err != nil {
		return fmt.Errorf("ask process %d, which owns testbed %s: %w", state.Owner, state.ID, err)
	}
	err = testbed.WaitFor(ctx, time.Minute, "testbed "+state.ID+" to go", func(context.Context) error {
		states, err := testbed.List()
		if err != nil {
			return err
		}
		for _, s := range states {
			if s.ID == state.ID {
				return fmt.Errorf("process %d keeps it up", s.Owner)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// An owner without a signal handler was killed by the signal and has left everything.
	_, err = testbed.Sweep()
	fmt.Fprintf(out, "testbed %s is down\n", state.ID)
	return err
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "the testbeds that are up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			states, err := testbed.List()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "ID\tOWNER\tAGE\tSTATE\tCLUSTERS")
			for _, s := range states {
				condition := "in transition"
				if s.Ready != nil {
					condition = "ready"
				}
				var clusters []string
				for _, c := range s.Clusters {
					clusters = append(clusters, fmt.Sprintf("%s (%d nodes)", c.Name, len(c.Nodes)))
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", s.ID, s.Owner, time.Since(s.Started).Round(time.Second), condition,
					strings.Join(clusters, ", "))
			}
			return w.Flush()
		},
	}
}

func cleanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "remove what killed testbeds left; those that are up stay",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			swept, err := testbed.Sweep()
			for _, id := range swept {
				fmt.Fprintf(cmd.OutOrStdout(), "removed the remains of testbed %s\n", id)
			}
			if len(swept) == 0 && err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing is left of any testbed")
			}
			states, listErr := testbed.List()
			for _, s := range states {
				fmt.Fprintf(cmd.OutOrStdout(), "testbed %s is up, kept by process %d: not touched\n", s.ID, s.Owner)
			}
			return errors.Join(err, listErr)
		},
	}
}

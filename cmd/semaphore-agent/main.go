// Command semaphore-agent manages the WireGuard devices, peers and routes of its node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/agent"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func main() {
	var carrier string
	cmd := program.Command(program.Part[config.Agent]{
		Name:  "semaphore-agent",
		Short: "keeps this node's WireGuard devices, peers and routes as its broker wants them",
		Load:  agent.LoadConfig,
		Run: func(ctx context.Context, cfg *config.Agent) error {
			cfg.UserspaceSocket = carrier
			return agent.Run(ctx, cfg)
		},
	})
	cmd.Flags().StringVar(&carrier, "userspace-socket", os.Getenv("SEMAPHORE_USERSPACE_SOCKET"),
		"unix socket of a semaphore-agent wireguard-go --serve in another container, "+
			"which then carries userspace devices; empty for this process to start theirs")
	cmd.AddCommand(cleanupCommand(), guardCommand(), userspaceCommand())
	program.Main(cmd)
}

func cleanupCommand() *cobra.Command {
	var options agent.CleanupOptions
	var wait bool
	var listen string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "return this node to how it was before semaphore-agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load[config.Agent](cmd.Flag("config").Value.String())
			if err != nil {
				return err
			}
			clean := func() error { return agent.Cleanup(cmd.OutOrStdout(), cfg, options) }
			if !wait {
				return clean()
			}
			return cleanAndWait(cmd.Context(), listen, clean)
		},
	}
	cmd.Flags().BoolVar(&options.Keys, "keys", false, "remove the private keys too: a later agent makes new ones")
	cmd.Flags().BoolVar(&options.LeaveDevices, "leave-devices", false,
		"leave devices, peers and routes unchanged, so that semaphore-wireguard can use them")
	cmd.MarkFlagsMutuallyExclusive("keys", "leave-devices")
	cmd.Flags().BoolVar(&wait, "wait", false, "stay until asked to stop, and report on --listen whether the node is clean")
	cmd.Flags().StringVar(&listen, "listen", ":7774", "with --wait: address of /healthz and /readyz")
	return cmd
}

// guardCommand installs the guard between a node's boot and its agent's start; see deploy/boot-guard.
func guardCommand() *cobra.Command {
	var cfg config.Agent
	cmd := &cobra.Command{
		Use: "guard",
		Short: "guard what this node's agent guarded before the node booted: keep packets to and from remote pods from " +
			"passing in the clear",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return agent.GuardAtBoot(cmd.OutOrStdout(), &cfg) },
	}
	cmd.Flags().StringVar(&cfg.StateFile, "state-file", "/var/lib/semaphore-wireguard/agent.state",
		"stateFile of the agent")
	cmd.Flags().BoolVar(&cfg.GuardInbound, "inbound", true, "guardInbound of the agent")
	cmd.Flags().IntVar(&cfg.Routing.Table, "routing-table", kernel.DefaultTableID, "routing.table of the agent")
	cmd.Flags().IntVar(&cfg.Routing.RulePriority, "rule-priority", kernel.DefaultRulePriority,
		"routing.rulePriority of the agent")
	return cmd
}

// cleanAndWait cleans up and then keeps running, because the containers of a DaemonSet must not exit.
func cleanAndWait(ctx context.Context, listen string, clean func() error) error {
	var cleaned atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		pages := program.Pages{Metrics: program.NewRegistry(), Ready: func() (string, error) {
			if !cleaned.Load() {
				return "", errors.New("not clean yet")
			}
			return "", nil
		}}
		return pages.Serve(ctx, listen)
	})
	g.Go(func() error {
		if err := clean(); err != nil {
			return err
		}
		cleaned.Store(true)
		<-ctx.Done()
		return nil
	})
	return g.Wait()
}

// userspaceCommand runs the process of a userspace device, or the server that starts such processes for an agent in
// another container; see docs/adr/0003-userspace-wireguard.md.
func userspaceCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    kernel.UserspaceCommand + " (DEVICE MTU | --serve SOCKET)",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if socket != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(2)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if socket != "" {
				return kernel.ServeUserspace(cmd.Context(), socket)
			}
			mtu, err := strconv.Atoi(args[1])
			if err != nil {
				return fmt.Errorf("mtu %q: %w", args[1], err)
			}
			return kernel.RunUserspace(cmd.Context(), args[0], mtu)
		},
	}
	cmd.Flags().StringVar(&socket, "serve", "", "start the processes of devices on request at this unix socket")
	return cmd
}

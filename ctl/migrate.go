package ctl

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

func migrateCommand() *cobra.Command {
	var bundles, policy string
	var nodes []string
	cmd := &cobra.Command{
		Use:   "migrate FILE...",
		Short: "convert configuration files of the original tools to RemoteClusters",
		Long: `Converts configuration files of the original tools to RemoteClusters, and prints these for kubectl apply. It
changes nothing.

It recognises the files of semaphore-wireguard and of semaphore-service-mirror, and merges what several of
them have about one remote cluster. Values that the objects need and no file has are listed on standard
error: the exit code is 2 then.`,
		Example: `  semaphorectl migrate clusters.json mirror.json --bundles bundles > remotes.yaml
  semaphorectl migrate clusters.json --policy-flags "-target-cluster-name=c2" --node-subnets c2=192.0.2.0/24`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && policy == "" {
				return fmt.Errorf("name a configuration file of semaphore-wireguard or semaphore-service-mirror, or use " +
					"--policy-flags")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			m := remotes.NewMigration()
			for _, file := range args {
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				kind, err := m.Add(file, data)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: a file of %s\n", file, kind)
			}
			if policy != "" {
				if err := m.AddPolicyFlags(policy); err != nil {
					return fmt.Errorf("--policy-flags: %w", err)
				}
			}
			for _, one := range nodes {
				name, subnets, ok := strings.Cut(one, "=")
				if !ok {
					return fmt.Errorf("--node-subnets %q: use CLUSTER=SUBNET[+SUBNET]", one)
				}
				if err := m.SetNodeSubnets(name, strings.Split(subnets, "+")); err != nil {
					return fmt.Errorf("--node-subnets: %w", err)
				}
			}
			if bundles != "" {
				found, err := filepath.Glob(filepath.Join(bundles, "*.pem"))
				if err != nil {
					return err
				}
				for _, file := range found {
					text, err := os.ReadFile(file)
					if err != nil {
						return err
					}
					m.SetBundle(strings.TrimSuffix(filepath.Base(file), ".pem"), string(text))
				}
			}
			return printMigration(cmd, m)
		},
	}
	cmd.Flags().StringVar(&bundles, "bundles", "", "directory with the root certificates of the remotes, CLUSTER.pem")
	cmd.Flags().StringVar(&policy, "policy-flags", "", "command line of semaphore-policy")
	cmd.Flags().StringSliceVar(&nodes, "node-subnets", nil,
		"subnets of a remote's nodes, CLUSTER=SUBNET[+SUBNET], once for each remote")
	return cmd
}

// printMigration prints objects as they are applied: without fields that only a cluster sets.
func printMigration(cmd *cobra.Command, m *remotes.Migration) error {
	objects, notes, missing := m.Objects()
	for _, o := range objects {
		data, err := json.Marshal(map[string]any{
			"apiVersion": o.APIVersion, "kind": o.Kind, "metadata": map[string]string{"name": o.Name}, "spec": o.Spec,
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), "---")
		if err := show.PrintDocument(cmd.OutOrStdout(), data, "yaml"); err != nil {
			return err
		}
	}
	say := func(line string) {
		for _, one := range finding.Wrap(show.Printable(line), "  ", show.LineWidth) {
			fmt.Fprintln(cmd.ErrOrStderr(), one)
		}
	}
	for _, o := range objects {
		pods, _ := preflight.Prefixes(o.Spec.PodSubnets) // another text is reported as such
		nodes, _ := preflight.Prefixes(o.Spec.NodeSubnets)
		for _, why := range preflight.Unusual(pods, nodes) {
			notes = append(notes, o.Name+": "+why+": make sure that they are its own")
		}
	}
	for _, line := range notes {
		say("note: " + line)
	}
	for _, line := range missing {
		say("missing: " + line)
	}
	if len(missing) == 0 && len(objects) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "next: kubectl apply -f FILE with what was printed, in the cluster of these files")
	}
	if len(missing) > 0 {
		return program.ExitError{Code: show.ExitWrong,
			Err: fmt.Errorf("the files do not have %s that the objects need: add them before kubectl apply -f",
				show.Number(uint64(len(missing)), "field", "fields"))}
	}
	return nil
}

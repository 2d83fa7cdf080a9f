package ctl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// defaultClusterDomain is that of the own cluster's services.
const defaultClusterDomain = "cluster.local"

func corednsCommand() *cobra.Command {
	var remotes []string
	var configFile, namespace, clusterDomain string
	cmd := &cobra.Command{
		Use:   "coredns --config FILE | --remote CLUSTER[=PREFIX]…",
		Short: "print the CoreDNS server blocks for names like echo.shop.svc.cluster.c2",
		Long: `Prints a CoreDNS server block for each remote cluster, and one for the services of all clusters, to be added
to the Corefile. They answer NAME.NAMESPACE.svc.cluster.REMOTE, and POD.NAME.NAMESPACE.svc.cluster.REMOTE for the
pods of a headless service, from the mirrors in this cluster; NAME.NAMESPACE.svc.cluster.global from the global
services. What the remotes are is read from the configuration of a broker, or told by flags. In the broker's pod:

  kubectl -n semaphore exec deploy/semaphore-broker -- semaphorectl coredns --config /etc/semaphore/config.yaml

semaphorectl check with the same --config tells whether the cluster's CoreDNS has them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e := validation.IsDNS1123Subdomain(clusterDomain); len(e) > 0 {
				return fmt.Errorf("--cluster-domain %q: %s", clusterDomain, e[0])
			}
			var blocks []coredns.Block
			var err error
			switch {
			case (configFile == "") == (len(remotes) == 0):
				return errors.New("--config, --remote: give one of them")
			case configFile == "":
				blocks, err = blocksOf(remotes, namespace, clusterDomain)
			case cmd.Flags().Changed("mirror-namespace"):
				return errors.New("--mirror-namespace: with --config it is that of the file")
			default:
				var c *config.Broker
				if c, err = config.Load[config.Broker](configFile); err == nil {
					blocks = coredns.Blocks(c, clusterDomain)
				}
			}
			if err != nil {
				return err
			}
			return coredns.Print(cmd.OutOrStdout(), blocks)
		},
	}
	cmd.Flags().StringVar(&configFile, "config", "", "configuration file of the broker")
	cmd.Flags().StringArrayVar(&remotes, "remote", nil, "remote cluster, with =PREFIX where its servicePrefix is not its name; may be repeated")
	cmd.Flags().StringVar(&namespace, "mirror-namespace", "semaphore", "with --remote: mirrorNamespace of the broker's configuration")
	cmd.Flags().StringVar(&clusterDomain, "cluster-domain", defaultClusterDomain, "the domain of this cluster's own services")
	return cmd
}

// blocksOf are the blocks for remotes that flags tell of.
func blocksOf(remotes []string, namespace, clusterDomain string) ([]coredns.Block, error) {
	if e := validation.IsDNS1123Label(namespace); len(e) > 0 {
		return nil, fmt.Errorf("--mirror-namespace %q: %s", namespace, e[0])
	}
	var blocks []coredns.Block
	seen := map[string]bool{}
	for _, r := range remotes {
		cluster, prefix, ok := strings.Cut(r, "=")
		if !ok {
			prefix = cluster
		}
		if err := config.ClusterName(cluster); err != nil {
			return nil, fmt.Errorf("--remote: %w", err)
		}
		if cluster == naming.GlobalCluster {
			if prefix == naming.GlobalPrefix {
				continue // it is printed in any case
			}
			return nil, fmt.Errorf("--remote %q: %s stands for all clusters, whose services are printed in any case", r, cluster)
		}
		if e := validation.IsDNS1035Label(prefix); len(e) > 0 {
			return nil, fmt.Errorf("--remote %q: the prefix of its mirrors: %s", r, e[0])
		}
		if seen[cluster] {
			return nil, fmt.Errorf("--remote %q: the cluster is given twice", r)
		}
		seen[cluster] = true
		blocks = append(blocks, coredns.Block{Cluster: cluster, Prefix: prefix, MirrorNamespace: namespace, ClusterDomain: clusterDomain})
	}
	return append(blocks, coredns.Global(namespace, clusterDomain)), nil
}

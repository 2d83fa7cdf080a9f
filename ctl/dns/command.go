// Package dns has CoreDNS answer the names of remote Services: it prints server blocks, and wires them into the
// configuration of a cluster's CoreDNS.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// NoCorefile is the value of --coredns that turns the check off.
const NoCorefile = "none"

// DefaultClusterDomain is the domain of the own cluster's services.
const DefaultClusterDomain = "cluster.local"

type corednsFlags struct {
	remotes                                     []string
	configFile, namespace, clusterDomain, image string
	clusterSet                                  bool
}

func Command(access *fleet.Access) *cobra.Command {
	var f corednsFlags
	cmd := &cobra.Command{
		Use:   "coredns [--config FILE | --remote CLUSTER[=PREFIX]…]",
		Short: "print the CoreDNS server blocks for names of remote Services",
		Long: `Prints a CoreDNS server block for each remote cluster, and one for the services of all clusters, to be added
to the Corefile. They answer NAME.NAMESPACE.svc.cluster.REMOTE, and POD.NAME.NAMESPACE.svc.cluster.REMOTE for the
pods of a headless service, from the mirrors in this cluster; NAME.NAMESPACE.svc.cluster.global from the global
services. The remotes are the RemoteClusters of the broker's cluster, or those of flags:

  semaphorectl coredns --context c1
  semaphorectl coredns --config broker.yaml
  semaphorectl coredns --remote c2 --remote c3=three

Where the broker imports Services (mcs.enabled), or with --clusterset, a block answers
NAME.NAMESPACE.svc.clusterset.local, too. CoreDNS 1.12.2 and later answer from ServiceImports; they need the right to
read these, which the component features/mcs gives to the ServiceAccount coredns of kube-system. For earlier ones, and
where --coredns-image is not known, the block rewrites names to those of the Services, and pods of headless ones have
no names in it.

semaphorectl check reports whether the cluster's CoreDNS has them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e := validation.IsDNS1123Subdomain(f.clusterDomain); len(e) > 0 {
				return fmt.Errorf("--cluster-domain %q: %s", f.clusterDomain, e[0])
			}
			given := f.configFile != "" || len(f.remotes) > 0
			switch {
			case f.configFile != "" && len(f.remotes) > 0 || given && access.Given():
				return errors.New("--config, --remote, --context: give one of them")
			case !given:
				return f.printOfCluster(cmd, access)
			}
			blocks, err := f.blocks(cmd, access)
			if err != nil {
				return err
			}
			write := coredns.Print
			if knows, _ := coredns.KnowsImports(f.image); knows {
				write = coredns.PrintImports
			}
			err = write(cmd.OutOrStdout(), blocks)
			nextOfBlocks(cmd.ErrOrStderr())
			return err
		},
	}
	cmd.Flags().StringVar(&f.configFile, "config", "", "configuration `file` of a broker")
	cmd.Flags().StringArrayVar(&f.remotes, "remote", nil,
		"remote cluster, with =PREFIX where its servicePrefix is not its name; may be repeated")
	cmd.Flags().StringVar(&f.namespace, "mirror-namespace", "semaphore",
		"with --remote: mirrorNamespace of the broker's configuration")
	cmd.Flags().StringVar(&f.clusterDomain, "cluster-domain", DefaultClusterDomain,
		"the domain of this cluster's own services")
	cmd.Flags().BoolVar(&f.clusterSet, "clusterset", false,
		"with --remote: also the block for clusterset.local, the names of imported Services")
	cmd.Flags().StringVar(&f.image, "coredns-image", "",
		"the `image` of CoreDNS, whose tag says what it knows; with --context that of the Deployment kube-system/coredns")
	return cmd
}

// blocks are those of a configuration file, or of the remotes that flags name.
func (f *corednsFlags) blocks(cmd *cobra.Command, access *fleet.Access) ([]coredns.Block, error) {
	if f.configFile == "" {
		return blocksOf(f.remotes, f.namespace, f.clusterDomain, f.clusterSet)
	}
	if cmd.Flags().Changed("mirror-namespace") {
		return nil, errors.New("--mirror-namespace: with --config it is that of the file")
	}
	c, err := config.Load[config.Broker](f.configFile)
	if err != nil {
		return nil, err
	}
	if c, _, err = fleet.WithObjects(cmd.Context(), c, access); err != nil {
		return nil, err
	}
	return coredns.Blocks(c, f.clusterDomain), nil
}

// imageOfCoreDNS returns the image of the Deployment kube-system/coredns; empty if there is none that the caller may
// read.
func imageOfCoreDNS(ctx context.Context, cluster *fleet.Cluster) string {
	ctx, cancel := context.WithTimeout(ctx, fleet.Within)
	defer cancel()
	found, err := fleet.Get[fleet.Deployment](ctx, cluster.Objects, fleet.DeploymentsGVR, fleet.System, fleet.CoreDNS)
	if err != nil || found == nil {
		return ""
	}
	for _, c := range found.Spec.Template.Spec.Containers {
		if _, known := coredns.KnowsImports(c.Image); known {
			return c.Image
		}
	}
	return ""
}

// printOfCluster prints the output of semaphorectl in the broker's pod, from the broker's configuration.
func (f *corednsFlags) printOfCluster(cmd *cobra.Command, access *fleet.Access) error {
	cluster, err := access.Cluster()
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("mirror-namespace") {
		return errors.New("--mirror-namespace: with --context it is that of the broker's configuration")
	}
	args := []string{"coredns", "--config", fleet.PodConfig, "--cluster-domain", f.clusterDomain}
	if image := cmp.Or(f.image, imageOfCoreDNS(cmd.Context(), cluster)); image != "" {
		args = append(args, "--coredns-image", image)
	}
	out, _, err := cluster.Run(cmd.Context(), fleet.Broker, args...)
	if err != nil {
		return err
	}
	err = show.PrintLines(cmd.OutOrStdout(), string(out))
	nextOfBlocks(cmd.ErrOrStderr())
	return err
}

func nextOfBlocks(w io.Writer) {
	fmt.Fprintln(w, "next: add these blocks to the Corefile (kubectl -n kube-system edit configmap coredns), "+
		"or have\nsemaphorectl link --dns add them and keep them current")
}

// blocksOf returns the blocks for remotes that flags name, and with imports that of imported Services.
func blocksOf(remotes []string, namespace, clusterDomain string, imports bool) ([]coredns.Block, error) {
	if e := validation.IsDNS1123Label(namespace); len(e) > 0 {
		return nil, fmt.Errorf("--mirror-namespace %q: %s", namespace, e[0])
	}
	var named []coredns.Remote
	seen := map[string]bool{}
	for _, r := range remotes {
		cluster, prefix, ok := strings.Cut(r, "=")
		if !ok {
			prefix = naming.ClusterLabel(cluster)
		}
		if err := config.ClusterName(cluster); err != nil {
			return nil, fmt.Errorf("--remote: %w", err)
		}
		if cluster == naming.GlobalCluster {
			if prefix == naming.GlobalPrefix {
				continue // it is printed in any case
			}
			return nil, fmt.Errorf("--remote %q: %s stands for all clusters, whose services are printed in any case", r,
				cluster)
		}
		if e := validation.IsDNS1035Label(prefix); len(e) > 0 {
			return nil,
				fmt.Errorf("--remote %q: the prefix of its mirrors begins names of Services: use lower-case letters, "+
					"digits and '-', a letter first", r)
		}
		if seen[cluster] {
			return nil, fmt.Errorf("--remote %q: the cluster is given twice", r)
		}
		seen[cluster] = true
		named = append(named, coredns.Remote{Cluster: cluster, Prefix: prefix})
	}
	return coredns.Of(named, namespace, clusterDomain, imports), nil
}

// Package dns has CoreDNS answer the names of remote Services: it prints server blocks, and wires them into the
// configuration of a cluster's CoreDNS.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
)

// NoCorefile is the value of --coredns that turns the check off.
const NoCorefile = "none"

const DefaultClusterDomain = "cluster.local"

type corednsFlags struct {
	configFile, clusterDomain, image string
}

func Command(access *fleet.Access) *cobra.Command {
	var f corednsFlags
	cmd := &cobra.Command{
		Use:   "coredns [--config FILE]",
		Short: "print the CoreDNS server blocks for names of remote Services",
		Long: `Prints a CoreDNS server block for each remote cluster, and one for the services of all clusters, to be added
to the Corefile. They answer NAME.NAMESPACE.svc.cluster.REMOTE, and POD.NAME.NAMESPACE.svc.cluster.REMOTE for the
pods of a headless service, from the mirrors in this cluster; NAME.NAMESPACE.svc.cluster.global from the global
services. The remotes are the RemoteClusters of the broker's cluster:

  semaphorectl coredns --context c1
  semaphorectl coredns --config broker.yaml

Where the broker imports Services (mcs.enabled), a block answers NAME.NAMESPACE.svc.clusterset.local, too. CoreDNS
1.12.2 and later answer from ServiceImports; they need the right to read these, which the component features/mcs gives
to the ServiceAccount coredns of kube-system. For earlier ones, and where --coredns-image is not known, the block
rewrites names to those of the Services, and pods of headless ones have no names in it.

semaphorectl check reports whether the cluster's CoreDNS has them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e := validation.IsDNS1123Subdomain(f.clusterDomain); len(e) > 0 {
				return fmt.Errorf("--cluster-domain %q: %s", f.clusterDomain, e[0])
			}
			print := f.printOfCluster
			switch {
			case f.configFile != "" && access.Given():
				return errors.New("--config, --context: give one of them")
			case f.configFile != "":
				print = f.printOfFile
			}
			if err := print(cmd, access); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "next: add these blocks to the Corefile (kubectl -n kube-system edit configmap "+
				"coredns), or have\nsemaphorectl link --dns add them and keep them current")
			return nil
		},
	}
	cmd.Flags().StringVar(&f.configFile, "config", "", "configuration `file` of a broker")
	cmd.Flags().StringVar(&f.clusterDomain, "cluster-domain", DefaultClusterDomain,
		"the domain of this cluster's own services")
	cmd.Flags().StringVar(&f.image, "coredns-image", "",
		"the `image` of CoreDNS, whose tag says what it knows; with --context that of the Deployment kube-system/coredns")
	return cmd
}

// printOfFile prints the blocks of a broker's configuration file and of the RemoteClusters in its cluster.
func (f *corednsFlags) printOfFile(cmd *cobra.Command, access *fleet.Access) error {
	c, err := config.Load[config.Broker](f.configFile)
	if err != nil {
		return err
	}
	d, err := fleet.WithObjects(cmd.Context(), c, fleet.Broker, access)
	if err != nil {
		return err
	}
	knows, _ := coredns.KnowsImports(f.image)
	return coredns.Print(cmd.OutOrStdout(), coredns.Blocks(d.Broker, f.clusterDomain), knows)
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
	args := []string{"coredns", "--config", fleet.PodConfig, "--cluster-domain", f.clusterDomain}
	if image := cmp.Or(f.image, imageOfCoreDNS(cmd.Context(), cluster)); image != "" {
		args = append(args, "--coredns-image", image)
	}
	out, err := cluster.RunIn(cmd.Context(), fleet.Broker, args...)
	if err != nil {
		return err
	}
	return show.PrintLines(cmd.OutOrStdout(), string(out))
}

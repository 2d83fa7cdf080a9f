package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

func buildCommand() *cobra.Command {
	var repo string
	var anyway, all, source bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "check that this machine can hold a testbed, fetch or build the components, once, and print where they are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := components.CheckSystem(cmd.Context(), testbed.Directory); err != nil && !anyway {
				return fmt.Errorf("%w\n(testbed build --anyway builds the components nevertheless)", err)
			}
			builder := &components.Builder{Repository: repo, Progress: cmd.OutOrStdout(), Source: source}
			paths, err := builder.Ensure(cmd.Context())
			if err != nil {
				return err
			}
			server := "(not built: testbed build --all)"
			if all {
				if server, err = builder.EnsureCalicoAPIServer(cmd.Context()); err != nil {
					return err
				}
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, c := range [][2]string{
				{"etcd", paths.Etcd}, {"kube-apiserver", paths.APIServer},
				{"kube-controller-manager", paths.ControllerManager}, {"kube-scheduler", paths.Scheduler},
				{"kubelet", paths.Kubelet}, {"kube-proxy", paths.KubeProxy}, {"kubectl", paths.Kubectl},
				{"containerd", paths.Containerd}, {"its shim", paths.ContainerdShim}, {"ctr", paths.Ctr}, {"runc", paths.Runc},
				{"CNI plugins", paths.CNIPlugins}, {"CoreDNS", paths.CoreDNS},
				{"calico-node", paths.CalicoNode}, {"Calico's CNI plugin", paths.CalicoCNI},
				{"its installer", paths.CalicoCNIInstall},
				{"Calico's kube-controllers", paths.CalicoKubeControllers},
				{"Calico API server", server}, {"Calico's CRDs", paths.CalicoCRDs},
				{"files of calico/node", paths.CalicoNodeFiles}, {"Calico's manifest", paths.CalicoManifest},
				{"BIRD", paths.Bird}, {"runit", paths.Runit}, {"busybox", paths.Busybox},
			} {
				fmt.Fprintf(w, "%s\t%s\n", c[0], c[1])
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&anyway, "anyway", false, "build on a machine that cannot hold a testbed, too")
	cmd.Flags().BoolVar(&all, "all", false, "also build the Calico API server, which only some tests need")
	cmd.Flags().BoolVar(&source, "source", false, "build missing components, and ask no host for official programs")
	cmd.Flags().StringVar(&repo, "repo", "",
		"the checkout whose tools/ are built (default: the one around the working directory)")
	return cmd
}

func depsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "deps",
		Short: "install the few Debian packages that a testbed needs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return components.InstallPackages(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

package ctl

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/pki"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func renderCommand() *cobra.Command {
	var file, dir string
	cmd := &cobra.Command{
		Use:   "render -f FLEET -o DIR",
		Short: "write the objects of all clusters of a fleet from one file, for GitOps",
		Long: `Writes what install and link apply, for all clusters of a file, and reaches no cluster. In DIR each cluster
gets a directory of its name, with manifests.yaml; remoteclusters.yaml, which is applied after it; and coredns.server,
the server blocks for its CoreDNS. The same file makes the same bytes. Keys are not part of it: semaphorectl pki init
--context C makes them in the cluster.

  image: registry.example/semaphore@sha256:…
  clusters:
    - name: c1
      podSubnets: [10.1.0.0/16]
      serviceSubnets: [10.101.0.0/16]
      nodeSubnets: [192.0.2.8/29]
      nodePort: 30843
      broker: 192.0.2.9:30843
      trustBundle: |          # what semaphorectl pki bundle --context c1 prints
        -----BEGIN CERTIFICATE-----
        …
    - name: c2
      …
  links: [[c1, c2]]           # each with each when absent

Further keys of a cluster: features, components, image, expose, namespace, cni (calico or other), clusterDomain.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("-f: %w", err)
			}
			fleet, err := install.ParseFleet(text)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			files, err := render(fleet)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			return writeFiles(cmd.OutOrStdout(), dir, files)
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "`file` of the fleet")
	cmd.Flags().StringVarP(&dir, "output", "o", "", "`directory` to write to")
	required(cmd, "filename", "output")
	return cmd
}

// render makes the files of a fleet, by their paths.
func render(f *install.Fleet) (map[string][]byte, error) {
	out := map[string][]byte{}
	for i := range f.Clusters {
		here := &f.Clusters[i]
		at := fmt.Sprintf("clusters[%d]", i)
		facts := here.Facts()
		v, _, findings := install.Decide(facts, here.Wishes, here.Namespace, program.Version)
		for _, found := range findings {
			if found.Level == "error" {
				return nil, fmt.Errorf("%s: %s: %s", at, found.Subject, found.Evidence)
			}
		}
		objects, err := install.Build(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if out[filepath.Join(here.Name, "manifests.yaml")], err = install.YAML(objects); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		var remotes []*unstructured.Unstructured
		var mirrored []coredns.Remote
		for _, there := range f.Peers(here.Name) {
			bundle := []byte(there.TrustBundle)
			if there.TrustBundle != "" {
				if bundle, err = pki.PeerBundle(here.Name, there.Name, bundle); err != nil {
					return nil, fmt.Errorf("clusters[%d].trustBundle: %w",
						slices.IndexFunc(f.Clusters, func(c install.Cluster) bool { return c.Name == there.Name }), err)
				}
			}
			remote, err := objectOf(&linkedCluster{facts: there.Facts(), name: there.Name, address: there.Broker}, bundle)
			if err != nil {
				return nil, err
			}
			remotes = append(remotes, remote)
			mirrored = append(mirrored, coredns.Remote{Cluster: there.Name})
		}
		if out[filepath.Join(here.Name, "remoteclusters.yaml")], err = install.YAML(remotes); err != nil {
			return nil, err
		}
		if !v.Features.Has(config.Services) {
			continue
		}
		var text bytes.Buffer
		blocks := coredns.Of(mirrored, here.Namespace, here.ClusterDomain, slices.Contains(v.Components, install.MCS))
		if err := coredns.Print(&text, blocks); err != nil {
			return nil, err
		}
		out[filepath.Join(here.Name, "coredns.server")] = text.Bytes()
	}
	return out, nil
}

// writeFiles writes files that differ, and prints which; it removes none.
func writeFiles(w io.Writer, dir string, files map[string][]byte) error {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(dir, name)
		said := "wrote"
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, files[name]) {
			said = "unchanged"
		} else {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, files[name], 0o644); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "%-9s  %s\n", said, strings.TrimPrefix(path, "./")); err != nil {
			return err
		}
	}
	return nil
}

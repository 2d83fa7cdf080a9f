package certs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

const day = 24 * time.Hour

func Command(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pki",
		Short: "make a cluster's certificate authority and its certificates, replace them, and print what peers need to " +
			"trust it",
	}
	cmd.AddCommand(pkiInitCommand(access), pkiBundleCommand(access), pkiExchangeCommand(access), pkiSecretsCommand(),
		pkiShowCommand(), pkiRotateCommand(access), pkiRotateCACommand())
	return cmd
}

func pkiInitCommand(access *fleet.Access) *cobra.Command {
	var dir, cluster string
	var v validity
	cmd := &cobra.Command{
		Use:   "init --cluster NAME {--context C | --dir DIR}",
		Short: "make an authority and the certificates of exporter, broker and semaphorectl",
		Long: `Makes the authority of a cluster and the certificates of its parts: with --context as Secrets of that cluster,
so that the key of the authority is on no disk of this machine; with --dir as files. In a cluster it makes
what is missing and writes over nothing.

  semaphorectl pki init --context c1 --cluster c1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return either(cmd.Context(), access, dir, func() error {
				if err := identity.Init(dir, cluster, v.is(), time.Now()); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "made in %[3]s: the authority of %[1]s, and certificates of %[2]s\n"+
					"keep %[3]s/ca.key where nobody else reads it; for the peers: semaphorectl pki bundle --dir %[3]s\n",
					cluster, strings.Join(identity.Parts, ", "), dir)
				return err
			}, func(ctx context.Context, p *Store) error {
				return p.create(ctx, cmd.ErrOrStderr(), cluster, v.is())
			})
		},
	}
	show.ClusterFlag(cmd, &cluster, "that of this one, as in its configuration files")
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` to write to")
	v.authorityFlags(cmd)
	v.certificateFlags(cmd)
	show.Required(cmd, "cluster")
	return cmd
}

func pkiBundleCommand(access *fleet.Access) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "bundle {--context C | --dir DIR}",
		Short: "print the root certificates that peers of the cluster need; they are public",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bundle []byte
			if err := either(cmd.Context(), access, dir, func() (err error) {
				_, bundle, err = identity.Bundle(dir)
				return err
			}, func(ctx context.Context, p *Store) error {
				own, err := p.Own(ctx)
				if err == nil {
					bundle = own.Bundle
				}
				return err
			}); err != nil {
				return err
			}
			_, err := cmd.OutOrStdout().Write(bundle)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of semaphorectl pki init")
	return cmd
}

func pkiSecretsCommand() *cobra.Command {
	var dir, namespace string
	var peers map[string]string
	cmd := &cobra.Command{
		Use:   "secrets --dir DIR --peer-bundle CLUSTER=FILE…",
		Short: "print the Secrets and the ConfigMap of bundles for kubectl apply, in the own cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bundles := map[string][]byte{}
			for name, file := range peers {
				data, err := os.ReadFile(file)
				if err != nil {
					return fmt.Errorf("--peer-bundle %s=%s: %w", name, file, err)
				}
				bundles[name] = data
			}
			out, err := identity.Secrets(dir, namespace, bundles, time.Now())
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of semaphorectl pki init")
	cmd.Flags().StringVar(&namespace, "namespace", "semaphore", "namespace of the parts")
	cmd.Flags().StringToStringVar(&peers, "peer-bundle", nil,
		"`CLUSTER=FILE`: what semaphorectl pki bundle printed for a peer; may be repeated")
	show.Required(cmd, "dir")
	return cmd
}

var DefaultValidity = identity.Validity{Authority: 10 * 365 * day, Certificate: 365 * day}

// validity is the validity of certificates that a command creates, in days.
type validity struct{ authority, certificate int }

func (v *validity) authorityFlags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&v.authority, "ca-days", int(DefaultValidity.Authority/day),
		"how long the authority is good for, in days")
}

func (v *validity) certificateFlags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&v.certificate, "days", int(DefaultValidity.Certificate/day),
		"how long the certificates are good for, in days")
}

func (v *validity) is() identity.Validity {
	return identity.Validity{Authority: time.Duration(v.authority) * day, Certificate: time.Duration(v.certificate) * day}
}

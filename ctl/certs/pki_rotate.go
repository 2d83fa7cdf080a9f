package certs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/check"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

func pkiRotateCommand(access *fleet.Access) *cobra.Command {
	var dir string
	var parts []string
	var v validity
	cmd := &cobra.Command{
		Use:   "rotate {--context C | --dir DIR}",
		Short: "replace the certificates and keys of the parts; peers need nothing for it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return either(cmd.Context(), access, dir, func() error {
				made, err := identity.Named(parts)
				if err == nil {
					err = identity.Rotate(dir, made, v.is().Certificate, time.Now())
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "made certificates of %s in %s; next:\n  %s\n",
					strings.Join(made, ", "), dir, applySecrets(dir))
				return err
			}, func(ctx context.Context, p *Store) error {
				return p.rotate(ctx, cmd.ErrOrStderr(), parts, v.is().Certificate)
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of semaphorectl pki init")
	cmd.Flags().StringSliceVar(&parts, "part", nil, "exporter, broker or semaphorectl; may be repeated (default: all)")
	v.certificateFlags(cmd)
	return cmd
}

// applySecrets is the command that brings a directory's content into its cluster.
func applySecrets(dir string) string {
	return fmt.Sprintf("semaphorectl pki secrets --dir %s --peer-bundle PEER=FILE… | kubectl apply -f -", dir)
}

func pkiRotateCACommand() *cobra.Command {
	var dir string
	var step int
	var v validity
	cmd := &cobra.Command{
		Use:   "rotate-ca --dir DIR [--step N]",
		Short: "replace the authority in three steps without interruption; without --step: show the next one",
		Long: `Replaces the authority of a cluster in three steps. After each, what it made has to be in use everywhere before
the next is taken, which only the operator can know; the command prints what to do and how to see that it is done.

  1  a next authority is made, and everyone trusts both
  2  the next authority signs new certificates
  3  the old authority is forgotten`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("step") {
				if err := identity.RotateCA(dir, step, v.is(), time.Now()); err != nil {
					return err
				}
			}
			stage, err := identity.StageOf(dir)
			if err != nil {
				return err
			}
			cluster, _, err := identity.Bundle(dir)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), nextStep(stage, cluster, dir, step == 3))
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of semaphorectl pki init")
	cmd.Flags().IntVar(&step, "step", 0, "the step to take: 1, 2 or 3")
	v.authorityFlags(cmd)
	v.certificateFlags(cmd)
	show.Required(cmd, "dir")
	return cmd
}

// nextStep is an operator's task in a stage, in words.
func nextStep(stage identity.Stage, cluster, dir string, done bool) string {
	bundle := fmt.Sprintf(`  in %[1]s: %[2]s
  for the others: semaphorectl pki bundle --dir %[3]s > %[1]s.pem
  in each of them: semaphorectl pki secrets --dir DIR --peer-bundle %[1]s=%[1]s.pem … | kubectl apply -f -
It is done when, in the exporter and the broker of each cluster,
  semaphorectl check --config /etc/semaphore/config.yaml
shows the roots of %[1]s that "semaphorectl pki show --dir %[3]s" does; kubelets take up to two minutes.
`, cluster, applySecrets(dir), dir)
	step := func(n int) string { return fmt.Sprintf("  semaphorectl pki rotate-ca --dir %s --step %d\n", dir, n) }
	switch stage {
	case identity.NextTrusted:
		return "step 1 is done: the bundle has two roots, the old one signs. Give the bundle to everyone:\n" + bundle +
			"Then step 2:\n" + step(2)
	case identity.NextSigns:
		return fmt.Sprintf(`step 2 is done: the new authority signs, the old one is still trusted.
Bring the certificates into the cluster:
  in %s: %s
It is done when, in its exporter and its broker,
  semaphorectl check --config /etc/semaphore/config.yaml
shows them.
Then step 3:
`, cluster, applySecrets(dir)) + step(3)
	case identity.CutShort:
		return "step 2 was cut short. Take it again:\n" + step(2)
	}
	if done {
		return "step 3 is done: the old authority is forgotten here. Have everyone forget it:\n" + bundle
	}
	return fmt.Sprintf("the authority of %s is not being replaced. To begin:\n%s", cluster, step(1))
}

func pkiShowCommand() *cobra.Command {
	var dir string
	var output *show.Outputs
	cmd := &cobra.Command{
		Use:   "show --dir DIR",
		Short: "list the certificates of a directory and when they end",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showPKI(cmd.OutOrStdout(), dir, output.Chosen, time.Now())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`directory` of semaphorectl pki init")
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	show.Required(cmd, "dir")
	return cmd
}

// certificate is a line of pki show.
type certificate struct {
	File        string    `json:"file"`
	Name        string    `json:"name,omitempty"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	Valid       bool      `json:"valid"`
	Fingerprint string    `json:"fingerprint"`
}

func showPKI(out io.Writer, dir, output string, now time.Time) error {
	items, err := identity.Inventory(dir)
	if err != nil {
		return err
	}
	stage, err := identity.StageOf(dir)
	if err != nil {
		return err
	}
	var all []certificate
	for _, item := range items {
		c := certificate{File: item.File, NotBefore: item.Cert.NotBefore.UTC(), NotAfter: item.Cert.NotAfter.UTC(),
			Valid: identity.CheckValidity(item.Cert, now) == nil, Fingerprint: check.Fingerprint(item.Cert)}
		if len(item.Cert.URIs) == 1 {
			c.Name = item.Cert.URIs[0].String()
		}
		all = append(all, c)
	}
	if output != "table" {
		return show.PrintValue(out, map[string]any{"certificates": all, "replacing": stage != identity.Steady}, output)
	}
	text := show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "FILE\tNAME\tUNTIL\tLEFT\tFINGERPRINT")
		for _, c := range all {
			left := fmt.Sprintf("%d days", int(c.NotAfter.Sub(now)/day))
			if !c.Valid {
				left = "NOT VALID NOW"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", c.File, cmp.Or(c.Name, "-"), c.NotAfter.Format("2006-01-02 15:04 MST"), left,
				c.Fingerprint)
		}
	})
	if stage != identity.Steady {
		text += "\nThe authority is being replaced: semaphorectl pki rotate-ca --dir " + dir + " says what is next.\n"
	}
	return show.PrintLines(out, text)
}

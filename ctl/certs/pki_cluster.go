package certs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// pkiWithin bounds all requests to an apiserver.
const pkiWithin = time.Minute

// Store is the authority of a cluster and the certificates that it signed, as Secrets of that cluster.
type Store struct{ *apply.Applier }

func Of(a *apply.Applier) *Store { return &Store{a} }

// either does something in a directory, or with the authority of the one cluster that the flags name, in the time for
// that. It fails unless the flags name one of the two.
func either(ctx context.Context, access *fleet.Access, dir string, inDir func() error,
	inCluster func(context.Context, *Store) error) error {
	switch {
	case (dir == "") == !access.Given():
		return errors.New("--dir, --context: give one of them")
	case dir != "":
		return inDir()
	}
	cluster, err := access.Cluster()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pkiWithin)
	defer cancel()
	return inCluster(ctx, Of(apply.New(cluster, io.Discard)))
}

// Secret returns the data of a Secret; nil if it does not exist. It fails if that is not known.
func (p *Store) Secret(ctx context.Context, name string) (map[string][]byte, error) {
	found, err := fleet.Get[corev1.Secret](ctx, p.Cluster.Objects, fleet.SecretsGVR, p.Cluster.Namespace, name)
	if found == nil || err != nil {
		return nil, err
	}
	if found.Data == nil {
		return map[string][]byte{}, nil
	}
	return found.Data, nil
}

func TlsSecret(namespace, name string, cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace,
			Labels: map[string]string{"app.kubernetes.io/part-of": "semaphore"}},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}

// Authority returns that of the cluster; nil for none. It fails for a Secret that is no authority.
func (p *Store) Authority(ctx context.Context) (*identity.Authority, error) {
	data, err := p.Secret(ctx, identity.AuthoritySecret)
	if err != nil || data == nil {
		return nil, err
	}
	a, err := identity.ParseAuthority(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%s: Secret %s/%s: %w", p.Cluster.Context, p.Cluster.Namespace, identity.AuthoritySecret, err)
	}
	return a, nil
}

// Ensure creates authority, certificates and bundle where they are missing, and returns their names, also beside an
// error. It overwrites nothing, so that it can be called again. It fails if the apiserver refuses, or the authority is
// that of a cluster with another name.
func (p *Store) Ensure(ctx context.Context, name string, v identity.Validity, now time.Time) (made []string,
	err error) {
	a, err := p.Authority(ctx)
	if err != nil {
		return nil, err
	}
	if a == nil {
		if a, err = p.found(ctx, name, v, now); err != nil {
			return nil, err
		}
		made = append(made, "authority")
	}
	if a.Cluster() != name {
		return made, fmt.Errorf("%s: Secret %s/%s is the authority of %q, not of %q", p.Cluster.Context,
			p.Cluster.Namespace, identity.AuthoritySecret, a.Cluster(), name)
	}
	for _, part := range identity.Parts {
		have, err := p.Secret(ctx, identity.SecretName(part))
		if err != nil {
			return made, err
		}
		if have != nil {
			continue
		}
		if err := p.issue(ctx, a, part, v.Certificate, now); err != nil {
			return made, err
		}
		made = append(made, "certificate of "+part)
	}
	cert, _, err := a.PEM()
	if err != nil {
		return made, err
	}
	bundles, err := p.bundles(ctx)
	has := strings.TrimSpace(bundles[name+".pem"])
	if err != nil || strings.Contains(has, strings.TrimSpace(string(cert))) {
		return made, err
	}
	if has != "" { // while another authority replaces this one, parts need the roots of both
		cert = fmt.Appendf(nil, "%s\n%s", has, cert)
	}
	if err := p.trust(ctx, name, cert); err != nil {
		return made, err
	}
	return append(made, "root"), nil
}

// Elsewhere returns why the authority of a cluster without one is elsewhere; empty if there are no certificates either.
// It fails if that is not known.
func (p *Store) Elsewhere(ctx context.Context) (why string, err error) {
	have, err := p.Secret(ctx, identity.SecretName("broker"))
	if have == nil || err != nil {
		return "", err
	}
	return fmt.Sprintf("there is a Secret %s/%s and no %s: the cluster's authority is elsewhere, such as a directory of "+
		"pki init", p.Cluster.Namespace, identity.SecretName("broker"), identity.AuthoritySecret), nil
}

// found creates the authority; if another call created one at the same time, that one counts.
func (p *Store) found(ctx context.Context, name string, v identity.Validity, now time.Time) (*identity.Authority,
	error) {
	if why, err := p.Elsewhere(ctx); err != nil {
		return nil, err
	} else if why != "" {
		return nil, fmt.Errorf("%s: %s", p.Cluster.Context, why)
	}
	a, err := identity.NewAuthority(name, v.Authority, now)
	if err != nil {
		return nil, err
	}
	cert, key, err := a.PEM()
	if err != nil {
		return nil, err
	}
	secret, err := fleet.Object(TlsSecret(p.Cluster.Namespace, identity.AuthoritySecret, cert, key))
	if err != nil {
		return nil, err
	}
	_, err = p.Of(apply.RefOf(secret)).Create(ctx, secret, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return p.Authority(ctx)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s: namespace %s does not exist: kubectl --context %s apply -f "+
			"deploy/namespace/namespace.yaml", p.Cluster.Context, p.Cluster.Namespace, p.Cluster.Context)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", p.Cluster.Context, err)
	}
	return a, nil
}

// issue creates a key and a certificate for a part, in place of the existing ones.
func (p *Store) issue(ctx context.Context, a *identity.Authority, part string, validity time.Duration,
	now time.Time) error {
	cert, key, err := a.Issue(part, validity, now)
	if err != nil {
		return err
	}
	return p.Forced().ApplyTyped(ctx, TlsSecret(p.Cluster.Namespace, identity.SecretName(part), cert, key))
}

// bundles returns the roots of clusters, as CLUSTER.pem.
func (p *Store) bundles(ctx context.Context) (map[string]string, error) {
	return p.Cluster.Objects.ConfigMap(ctx, p.Cluster.Namespace, identity.BundlesConfigMap)
}

// OwnIdentity is the name of a cluster and its roots, with the key pair that shows it.
type OwnIdentity struct {
	*Store
	Name   string
	Bundle []byte
	Proof  keyPair
}

// Own returns the name of the cluster and its roots, as its parts have them: its own certificate has the name, wherever
// its authority is. It fails without that certificate or roots, and if these do not prove it.
func (p *Store) Own(ctx context.Context) (*OwnIdentity, error) {
	secret := identity.SecretName("semaphorectl")
	data, err := p.Secret(ctx, secret)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, fmt.Errorf("%s: no Secret %s/%s: %s --cluster NAME makes it", p.Cluster.Context, p.Cluster.Namespace,
			secret, fleet.CommandFor(p.Cluster, "pki init"))
	}
	out := &OwnIdentity{Store: p, Proof: keyPair{data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]}}
	cert, err := identity.ParseRoot(out.Proof.cert)
	if err == nil && len(cert.URIs) != 1 {
		err = fmt.Errorf("it has %d URIs, and one is the name of its part", len(cert.URIs))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the certificate in Secret %s names no cluster: %w", p.Cluster.Context, secret, err)
	}
	out.Name = cert.URIs[0].Host
	bundles, err := p.bundles(ctx)
	if err != nil {
		return nil, err
	}
	text, ok := bundles[out.Name+".pem"]
	if !ok {
		return nil, fmt.Errorf("%s: ConfigMap %s has no %s.pem", p.Cluster.Context, identity.BundlesConfigMap, out.Name)
	}
	out.Bundle = []byte(text)
	if err := identity.CheckCertificate(out.Bundle, out.Proof.cert, out.Proof.key, out.Name, "semaphorectl",
		time.Now()); err != nil {
		return nil, fmt.Errorf("%s: the roots of %s do not prove the certificate in Secret %s: %w; %s makes another",
			p.Cluster.Context, out.Name, secret, err, fleet.CommandFor(p.Cluster, "pki rotate"))
	}
	return out, nil
}

// create makes the authority of a cluster in that cluster.
func (p *Store) create(ctx context.Context, w io.Writer, name string, v identity.Validity) error {
	made, err := p.Ensure(ctx, name, v, time.Now())
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%s: made in namespace %s: %s", p.Cluster.Context, p.Cluster.Namespace, strings.Join(made, ", "))
	if len(made) == 0 {
		line = fmt.Sprintf("%s: nothing made: all of it is in namespace %s already", p.Cluster.Context, p.Cluster.Namespace)
	}
	_, err = fmt.Fprintf(w, "%s\nnext: %s --context PEER, once PEER has an authority too\n",
		strings.Join(finding.Wrap(line, "  ", show.LineWidth), "\n"), fleet.CommandFor(p.Cluster, "pki exchange"))
	return err
}

// rotate replaces the certificates of parts in a cluster that has its own authority.
func (p *Store) rotate(ctx context.Context, w io.Writer, parts []string, validity time.Duration) error {
	parts, err := identity.Named(parts)
	if err != nil {
		return err
	}
	a, err := p.Authority(ctx)
	if err != nil {
		return err
	}
	if a == nil {
		return fmt.Errorf("%s: no Secret %s/%s: the authority is elsewhere; use --dir", p.Cluster.Context,
			p.Cluster.Namespace, identity.AuthoritySecret)
	}
	for _, part := range parts {
		if err := p.issue(ctx, a, part, validity, time.Now()); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%s: made certificates of %s; parts read them within two minutes, and nothing restarts\n",
		p.Cluster.Context, strings.Join(parts, ", "))
	return err
}

func pkiExchangeCommand(access *fleet.Access) *cobra.Command {
	var says Word
	cmd := &cobra.Command{
		Use:   "exchange --context C1 --context C2…",
		Short: "have clusters trust each other: give the roots of each to all others",
		Long: `Gives the root certificates of each cluster of --context to all others of them. They are public; what matters
is that nobody replaces them on the way, which is through the apiservers, by your kubeconfig. It shows them and
asks before it writes. A cluster whose name stands for another one already is refused. Nothing restarts: parts
read their bundles again.

  semaphorectl pki exchange --context c1 --context c2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := access.Clusters()
			if err != nil {
				return err
			}
			if len(clusters) < 2 {
				return errors.New("--context: give two or more")
			}
			says.In = cmd.InOrStdin()
			return exchange(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), clusters, &says)
		},
	}
	says.Flags(cmd)
	show.CompleteFlag(cmd, "replace", fleet.CompleteRemotes(access))
	return cmd
}

// exchange reads all before it writes anything.
func exchange(ctx context.Context, w, prompt io.Writer, clusters []*fleet.Cluster, says *Word) error {
	reading, cancel := context.WithTimeout(ctx, pkiWithin)
	defer cancel()
	var all []*OwnIdentity
	for _, c := range clusters {
		own, err := Of(apply.New(c, prompt)).Own(reading)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(other *OwnIdentity) bool { return other.Name == own.Name }); i >= 0 {
			return fmt.Errorf("%s and %s: both are named %q", all[i].Cluster.Context, c.Context, own.Name)
		}
		all = append(all, own)
	}
	var gets []*Introduction
	for _, here := range all {
		for _, there := range all {
			if here == there {
				continue
			}
			x, err := Introduce(here, there)
			if err != nil {
				return err
			}
			gets = append(gets, x)
		}
	}
	if err := says.Propose(reading, w, gets); err != nil {
		return err
	}
	return says.Agreed(ctx, pkiWithin, w, prompt, gets, func(writing context.Context) error {
		return Write(writing, gets, func(x *Introduction) error {
			_, err := fmt.Fprintf(w, "%s trusts %s by root %s\n", x.Here.Name, x.Name, fingerprints(x.Bundle))
			return err
		})
	})
}

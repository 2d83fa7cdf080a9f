package ctl

import (
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/pki"
)

// pkiWithin bounds all requests to an apiserver.
const pkiWithin = time.Minute

// clusterPKI is the authority of a cluster and the certificates that it signed, as Secrets of that cluster.
type clusterPKI struct {
	cluster    *fleet.Cluster
	secrets    dynamic.ResourceInterface
	configMaps dynamic.ResourceInterface
}

func pkiOf(c *fleet.Cluster) (*clusterPKI, error) {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: client for the apiserver: %w", c.Context, err)
	}
	return &clusterPKI{
		cluster: c, secrets: client.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.Namespace),
		configMaps: client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(c.Namespace),
	}, nil
}

// pkiIn returns that of the one cluster that the flags name.
func pkiIn(access *fleet.Access) (*clusterPKI, error) {
	cluster, err := access.Cluster()
	if err != nil {
		return nil, err
	}
	return pkiOf(cluster)
}

// secret returns the data of a Secret; nil if it does not exist.
func (p *clusterPKI) secret(ctx context.Context, name string) (map[string][]byte, error) {
	found, err := p.secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.cluster.Context, err)
	}
	var secret corev1.Secret
	if err := fromUnstructured(found, &secret); err != nil {
		return nil, fmt.Errorf("%s: Secret %s: %w", p.cluster.Context, name, err)
	}
	return secret.Data, nil
}

func tlsSecret(namespace, name string, cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace,
			Labels: map[string]string{"app.kubernetes.io/part-of": "semaphore"}},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}

// authority returns that of the cluster; nil for none.
func (p *clusterPKI) authority(ctx context.Context) (*pki.Authority, error) {
	data, err := p.secret(ctx, pki.AuthoritySecret)
	if err != nil || data == nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%s: Secret %s/%s: %w", p.cluster.Context, p.cluster.Namespace, pki.AuthoritySecret, err)
	}
	return a, nil
}

// ensure creates what the cluster lacks of an authority, certificates and bundle, and prints it. It overwrites nothing,
// so that it can be called again after an interruption.
func (p *clusterPKI) ensure(ctx context.Context, name string, v pki.Validity, now time.Time) (made []string,
	err error) {
	a, err := p.authority(ctx)
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
		return made, fmt.Errorf("%s: Secret %s/%s is the authority of %q, not of %q", p.cluster.Context, p.cluster.Namespace,
			pki.AuthoritySecret, a.Cluster(), name)
	}
	for _, part := range pki.Parts {
		have, err := p.secret(ctx, pki.SecretName(part))
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
	return made, p.trust(ctx, name, cert)
}

// found creates the authority; if another call created one at the same time, that one counts.
func (p *clusterPKI) found(ctx context.Context, name string, v pki.Validity, now time.Time) (*pki.Authority, error) {
	if have, err := p.secret(ctx, pki.SecretName("broker")); err != nil {
		return nil, err
	} else if have != nil {
		return nil, fmt.Errorf("%s: there is a Secret %s/%s and no %s: the cluster's authority is elsewhere, such as a "+
			"directory of pki init",
			p.cluster.Context, p.cluster.Namespace, pki.SecretName("broker"), pki.AuthoritySecret)
	}
	a, err := pki.NewAuthority(name, v.Authority, now)
	if err != nil {
		return nil, err
	}
	cert, key, err := a.PEM()
	if err != nil {
		return nil, err
	}
	secret, err := objectFrom(tlsSecret(p.cluster.Namespace, pki.AuthoritySecret, cert, key))
	if err != nil {
		return nil, err
	}
	_, err = p.secrets.Create(ctx, secret, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return p.authority(ctx)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s: namespace %s does not exist: kubectl --context %s apply -f "+
			"deploy/namespace/namespace.yaml", p.cluster.Context, p.cluster.Namespace, p.cluster.Context)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", p.cluster.Context, err)
	}
	return a, nil
}

// issue creates a key and a certificate for a part, in place of the existing ones.
func (p *clusterPKI) issue(ctx context.Context, a *pki.Authority, part string, validity time.Duration,
	now time.Time) error {
	cert, key, err := a.Issue(part, validity, now)
	if err != nil {
		return err
	}
	secret, err := objectFrom(tlsSecret(p.cluster.Namespace, pki.SecretName(part), cert, key))
	if err != nil {
		return err
	}
	if _, err := serverSideApply(ctx, p.secrets, secret.GetName(), secret, true); err != nil {
		return fmt.Errorf("%s: %w", p.cluster.Context, err)
	}
	return nil
}

// fieldManager is semaphorectl's field manager.
const fieldManager = "semaphorectl"

// trust writes the roots of a cluster to the ConfigMap of bundles, and keeps those of others.
func (p *clusterPKI) trust(ctx context.Context, name string, bundle []byte) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{name + ".pem": string(bundle)}})
	if err != nil {
		return err
	}
	_, err = p.configMaps.Patch(ctx, pki.BundlesConfigMap, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		_, err = p.configMaps.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": pki.BundlesConfigMap,
				"namespace": p.cluster.Namespace},
			"data": map[string]any{name + ".pem": string(bundle)},
		}}, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.cluster.Context, err)
	}
	return nil
}

// own returns the name of the cluster and its roots, as its parts have them: its own certificate has the name, wherever
// its authority is.
func (p *clusterPKI) own(ctx context.Context) (name string, bundle []byte, err error) {
	data, err := p.secret(ctx, pki.SecretName("semaphorectl"))
	if err != nil {
		return "", nil, err
	}
	if data == nil {
		return "", nil, fmt.Errorf("%s: no Secret %s/%s: %s --cluster NAME makes it", p.cluster.Context,
			p.cluster.Namespace, pki.SecretName("semaphorectl"), commandFor(p.cluster, "pki init"))
	}
	cert, err := pki.ParseRoot(data[corev1.TLSCertKey])
	if err != nil || len(cert.URIs) != 1 {
		return "", nil, fmt.Errorf("%s: the certificate in Secret %s names no cluster: %w", p.cluster.Context,
			pki.SecretName("semaphorectl"), err)
	}
	name = cert.URIs[0].Host
	found, err := p.configMaps.Get(ctx, pki.BundlesConfigMap, metav1.GetOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", p.cluster.Context, err)
	}
	text, ok, err := unstructured.NestedString(found.Object, "data", name+".pem")
	if err != nil || !ok {
		return "", nil, fmt.Errorf("%s: ConfigMap %s has no %s.pem", p.cluster.Context, pki.BundlesConfigMap, name)
	}
	return name, []byte(text), nil
}

// initIn creates the authority of a cluster in that cluster.
func initIn(ctx context.Context, w io.Writer, access *fleet.Access, name string, v pki.Validity) error {
	p, err := pkiIn(access)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pkiWithin)
	defer cancel()
	made, err := p.ensure(ctx, name, v, time.Now())
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%s: made in namespace %s: %s", p.cluster.Context, p.cluster.Namespace, strings.Join(made, ", "))
	if len(made) == 0 {
		line = fmt.Sprintf("%s: nothing made: all of it is in namespace %s already", p.cluster.Context, p.cluster.Namespace)
	}
	_, err = fmt.Fprintf(w, "%s\nnext: %s --context PEER, once PEER has an authority too\n",
		strings.Join(cli.Wrap(line, "  ", cli.LineWidth), "\n"), commandFor(p.cluster, "pki exchange"))
	return err
}

// rotateIn replaces the certificates of parts in a cluster that has its own authority.
func rotateIn(ctx context.Context, w io.Writer, access *fleet.Access, parts []string, validity time.Duration) error {
	p, err := pkiIn(access)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pkiWithin)
	defer cancel()
	a, err := p.authority(ctx)
	if err != nil {
		return err
	}
	if a == nil {
		return fmt.Errorf("%s: no Secret %s/%s: the authority is elsewhere; use --dir", p.cluster.Context,
			p.cluster.Namespace,
			pki.AuthoritySecret)
	}
	if len(parts) == 0 {
		parts = pki.Parts
	}
	for _, part := range parts {
		if err := p.issue(ctx, a, part, validity, time.Now()); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%s: made certificates of %s; parts read them within two minutes, and nothing restarts\n",
		p.cluster.Context, strings.Join(parts, ", "))
	return err
}

// bundleIn prints the roots of a cluster as its parts have them.
func bundleIn(ctx context.Context, w io.Writer, access *fleet.Access) error {
	p, err := pkiIn(access)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pkiWithin)
	defer cancel()
	_, bundle, err := p.own(ctx)
	if err == nil {
		_, err = w.Write(bundle)
	}
	return err
}

func pkiExchangeCommand(access *fleet.Access) *cobra.Command {
	return &cobra.Command{
		Use:   "exchange --context C1 --context C2…",
		Short: "have clusters trust each other: give the roots of each to all others",
		Long: `Gives the root certificates of each cluster of --context to all others of them. They are public; what matters
is that nobody replaces them on the way, which is through the apiservers, by your kubeconfig. Nothing
restarts: parts read their bundles again.

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
			ctx, cancel := context.WithTimeout(cmd.Context(), pkiWithin)
			defer cancel()
			return exchange(ctx, cmd.OutOrStdout(), clusters)
		},
	}
}

// exchange reads all before it writes anything.
func exchange(ctx context.Context, w io.Writer, clusters []*fleet.Cluster) error {
	type party struct {
		*clusterPKI
		name   string
		bundle []byte
	}
	var all []party
	for _, c := range clusters {
		p, err := pkiOf(c)
		if err != nil {
			return err
		}
		name, bundle, err := p.own(ctx)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(other party) bool { return other.name == name }); i >= 0 {
			return fmt.Errorf("%s and %s: both are named %q", all[i].cluster.Context, c.Context, name)
		}
		all = append(all, party{p, name, bundle})
	}
	for _, here := range all {
		for _, there := range all {
			if here.name == there.name {
				continue
			}
			bundle, err := pki.PeerBundle(here.name, there.name, there.bundle)
			if err != nil {
				return fmt.Errorf("%s: %w", there.cluster.Context, err)
			}
			if err := here.trust(ctx, there.name, bundle); err != nil {
				return err
			}
			root, err := pki.ParseRoot(bundle)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s trusts %s by root %s\n", here.name, there.name,
				check.Fingerprint(root)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Package link connects clusters, ends that, and has a broker's cluster read one without semaphore.
package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	neturl "net/url"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/certs"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

var rbac = schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}

var podMonitor = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"}

// foreignCluster is a cluster in which no part of semaphore runs.
type foreignCluster struct {
	*apply.Applier
	facts *preflight.Cluster
	name  string
	// named is set if the operator gave the name.
	named bool
	// api is the URL of its apiserver for exporters, and roots are those of the kubeconfig.
	api   string
	roots []byte
}

// agentless are the flags of link and unlink for such clusters.
type agentless struct {
	contexts []string
	apis     map[string]string
	features []string
}

// foreign reads the clusters of --agentless, each CONTEXT or CONTEXT=NAME.
func (l *linker) foreign(ctx context.Context, look bool) ([]*foreignCluster, error) {
	var out []*foreignCluster
	for _, text := range l.agentless.contexts {
		name, as, _ := strings.Cut(text, "=")
		c, err := l.access.One(name)
		if err != nil {
			return nil, err
		}
		f := &foreignCluster{name: as, named: as != "", api: l.agentless.apis[name], Applier: apply.New(c, l.progress)}
		f.Force = true // no fields of others: the objects are ours
		if look || f.name == "" {
			if f.facts, err = preflight.Survey(ctx, c); err != nil {
				return nil, err
			}
			if f.name == "" {
				f.name = f.facts.Name()
			}
			toLink(f.facts, f.name)
			if err := l.says.Given(f.facts); err != nil {
				return nil, err
			}
		}
		if err := config.ClusterName(f.name); err != nil {
			return nil, fmt.Errorf("--agentless %s: %w; name it by --agentless %s=NAME", text, err, name)
		}
		if look {
			if err := f.reach(c.Config); err != nil {
				return nil, err
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// reach decides how pods of other clusters reach the apiserver: by the kubeconfig's address, unless that is this
// machine.
func (f *foreignCluster) reach(cfg *rest.Config) error {
	if f.api == "" {
		f.api = cfg.Host
		u, err := neturl.Parse(cfg.Host)
		if err != nil || u.Scheme != "https" {
			return fmt.Errorf("--api %[1]s: the kubeconfig has %[2]q for it, which is no https URL: give --api %[1]s=https://…",
				f.Cluster.Context, cfg.Host)
		}
		ip, err := netip.ParseAddr(u.Hostname())
		if u.Hostname() == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
			return fmt.Errorf("--api %s: the kubeconfig has %s for it, which is this machine alone: give the URL by which pods "+
				"of the other clusters reach it, --api %s=https://…", f.Cluster.Context, cfg.Host,
				f.Cluster.Context)
		}
	}
	f.roots = cfg.CAData
	if len(f.roots) == 0 && cfg.CAFile != "" {
		var err error
		if f.roots, err = os.ReadFile(cfg.CAFile); err != nil {
			return fmt.Errorf("%s: roots of the apiserver: %w", f.Cluster.Context, err)
		}
	}
	return nil
}

func (l *linker) readers(ctx context.Context) ([]*linkedCluster, error) {
	out, err := l.given(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range out {
		p.Force = true
	}
	return out, nil
}

func (l *linker) checkAgentless() error {
	a := &l.agentless
	for _, f := range a.features {
		if !apply.AllFeatures.Has(config.Feature(f)) {
			return fmt.Errorf("--features %q: use encryption, services, policy", f)
		}
	}
	for name, text := range a.apis {
		if u, err := neturl.Parse(text); err != nil || u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--api %s=%s: use a URL such as https://api.c2.example.org:6443", name, text)
		}
		if !slices.ContainsFunc(a.contexts, func(c string) bool { return c == name || strings.HasPrefix(c, name+"=") }) {
			return fmt.Errorf("--api %s: --agentless does not name this context", name)
		}
	}
	switch {
	case len(a.contexts) == 0 && len(a.features) > 0:
		return errors.New("--features: it is for --agentless")
	case len(a.contexts) > 0 && l.withAll:
		return errors.New("--with-all: without --agentless; name the clusters that read by --context")
	case len(a.contexts) > 0 && l.dryRun.On():
		return errors.New("--dry-run: with --agentless there are Secrets; the manifests are in deploy/reader and " +
			"deploy/foreign-exporter")
	}
	return nil
}

// read creates exporters beside the brokers of --context that read the clusters of --agentless. Whatever prevents that
// is found before the first write.
func (l *linker) read(asking context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(asking, linkWithin)
	defer cancel()
	there, err := l.foreign(ctx, true)
	if err != nil {
		return err
	}
	here, err := l.readers(ctx)
	if err != nil {
		return err
	}
	type pair struct {
		here  *linkedCluster
		there *foreignCluster
	}
	var found []show.Finding
	var gets []*certs.Introduction
	wanted, intro := map[pair]config.Features{}, map[pair]*certs.Introduction{}
	for _, f := range there {
		found = append(found, preflight.NotRead(f.facts)...)
	}
	for _, p := range here {
		found = append(found, preflight.NotRead(p.facts)...)
		for _, f := range there {
			features, err := l.featuresOf(ctx, p, f)
			if err != nil {
				return err
			}
			one, err := p.mayRead(ctx, f, features)
			if err != nil {
				return err
			}
			found = append(found, one...)
			x, err := p.introductionOf(ctx, f)
			if err != nil {
				return err
			}
			wanted[pair{p, f}], intro[pair{p, f}], gets = features, x, append(gets, x)
		}
	}
	if err := printPreventing(w, found); err != nil {
		return err
	}
	if err := l.says.Propose(ctx, w, gets); err != nil {
		return err
	}
	return l.says.Agreed(asking, linkWithin, w, l.progress, gets, func(ctx context.Context) error {
		var failed error
		for _, p := range here {
			for _, f := range there {
				if err := readOne(ctx, w, p, f, intro[pair{p, f}], wanted[pair{p, f}]); err != nil {
					return errors.Join(failed, err)
				}
			}
			failed = errors.Join(failed, dns.Wire(ctx, w, p.Applier, l.dns))
		}
		deliver(ctx, given(gets))
		return failed
	})
}

// mayRead returns the obstacles to reading a cluster for features.
func (p *linkedCluster) mayRead(ctx context.Context, f *foreignCluster, features config.Features) ([]show.Finding,
	error) {
	found := preflight.JudgePair(p.facts, f.facts)
	for _, c := range []*preflight.Cluster{p.facts, f.facts} {
		if len(c.Pods.Prefixes) == 0 {
			found = append(found, show.Blocker(c.Context, finding.SubnetsUnknown, "pod subnets",
				"name them: --pod-subnets "+c.Context+"=CIDR",
				"none were found, and by them the broker tells addresses of the two clusters apart"))
		}
	}
	exporter, err := p.Get(ctx, apply.NamespaceRef(naming.ForeignNamespace(f.name)))
	if err != nil {
		return nil, err
	}
	if exporter != nil && exporter.GetLabels()[apply.ForeignLabel] != p.Cluster.Namespace {
		found = append(found, show.Blocker(p.facts.Context, finding.NamespaceTaken, "namespace "+exporter.GetName(),
			"name the cluster otherwise, by --agentless CONTEXT=NAME",
			"it is there already, and is no exporter's of this installation"))
	}
	has, err := f.features(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	for _, feature := range has {
		if !features.Has(feature) {
			unlink := fleet.CommandFor(p.Cluster, "unlink")
			found = append(found, show.Blocker(p.facts.Context, finding.FeatureInUse,
				f.name+" is read for "+string(feature),
				fmt.Sprintf("%s --agentless %s=%s --yes, then link again; or name this feature, too", unlink,
					f.Cluster.Context, f.name),
				"if the exporter no longer published these objects, %s would keep what it has of them as it is",
				p.facts.Context))
		}
	}
	remote, err := p.Get(ctx, remoteRef(f.name))
	if err != nil {
		return nil, err
	}
	if remote != nil && exporter == nil {
		found = append(found, show.Blocker(p.facts.Context, finding.ClusterNameTaken, "RemoteCluster "+remote.GetName(),
			fmt.Sprintf("unlink the two first, or delete it: kubectl --context %s delete remotecluster %s",
				p.facts.Context, f.name), "it is there already, for a cluster with an exporter of its own"))
	}
	return found, nil
}

// readOne creates everything that one exporter for one cluster needs.
func readOne(ctx context.Context, w io.Writer, p *linkedCluster, f *foreignCluster, x *certs.Introduction,
	features config.Features) error {
	image, err := p.image(ctx)
	if err != nil {
		return err
	}
	components, err := p.components(ctx)
	if err != nil {
		return err
	}
	what := apply.Foreign{Cluster: f.name, Reader: p.Name, Parts: p.Cluster.Namespace, Image: image,
		APIURL: f.api, Features: features, Roots: len(f.roots) > 0, Components: components}
	token, err := f.account(ctx, what)
	if err != nil {
		return err
	}
	objects, err := apply.BuildForeign(what)
	if err != nil {
		return err
	}
	if _, err := p.Apply(ctx, objects[0]); err != nil { // the namespace
		return err
	}
	root, err := p.prove(ctx, what, token)
	if err != nil {
		return err
	}
	remote := x.Object
	if err := unstructured.SetNestedField(remote.Object, string(root), "spec", "trustBundle"); err != nil {
		return err
	}
	clear := ""
	if p.encrypts() && !features.Has(config.Encryption) {
		clear = "; packets to and from its pods are not encrypted"
		if err := unstructured.SetNestedField(remote.Object, string(config.Clear), "spec", "encryption"); err != nil {
			return err
		}
	}
	if err := p.PinSubnets(ctx, x.Name, x.Pods); err != nil {
		return err
	}
	objects[0] = remote
	if err := p.ApplyAll(ctx, objects); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: RemoteCluster %s: pods %s, read by an exporter in namespace %s%s\n", p.facts.Context,
		f.name, preflight.Subnets{Prefixes: x.Pods}, what.Namespace(), clear)
	return err
}

// components returns those of the parts that an exporter beside them gets, too. A caller without the right to list
// PodMonitors makes none.
func (p *linkedCluster) components(ctx context.Context) (out []string, err error) {
	for _, c := range []struct {
		component string
		may       bool
		kind      schema.GroupVersionKind
		name      string
	}{
		{"openshift/nonroot", true, rbac.WithKind("RoleBinding"), "semaphore-openshift"},
		{"monitors", p.facts.PodMonitors, podMonitor, "semaphore"},
	} {
		if !c.may {
			continue
		}
		found, err := p.Get(ctx, apply.Ref{GroupVersionKind: c.kind, Namespace: p.Cluster.Namespace,
			Name: c.name})
		if err != nil {
			return nil, err
		}
		if found != nil {
			out = append(out, c.component)
		}
	}
	return out, nil
}

// featuresOf returns the features that an exporter for another cluster exports: those of the flag, else those for which
// it reads already, else those that the reader imports without agents in the other cluster.
func (l *linker) featuresOf(ctx context.Context, p *linkedCluster, f *foreignCluster) (out config.Features, err error) {
	for _, feature := range l.agentless.features {
		out = append(out, config.Feature(feature))
	}
	if len(out) > 0 {
		return out, nil
	}
	// Without an exporter, an interrupted call may have created a part of the rights.
	if _, does, err := reads(ctx, p.Applier, f.name); err != nil {
		return nil, err
	} else if does {
		if out, err = f.features(ctx, p.Name); err != nil || len(out) > 0 {
			return out, err
		}
	}
	for _, feature := range []config.Feature{config.Services, config.Policy} {
		if p.installed == nil || p.installed.Values.Features.Has(feature) {
			out = append(out, feature)
		}
	}
	return out, nil
}

func (f *foreignCluster) features(ctx context.Context, reader string) (out config.Features, err error) {
	for _, feature := range apply.AllFeatures {
		role, err := f.Get(ctx, apply.Ref{
			GroupVersionKind: rbac.WithKind("ClusterRole"),
			Name:             "semaphore-reader-" + string(feature) + "-" + reader})
		if err != nil {
			return nil, err
		}
		if role != nil {
			out = append(out, feature)
		}
	}
	return out, nil
}

func (p *linkedCluster) image(ctx context.Context) (string, error) {
	broker, err := fleet.Get[fleet.Deployment](ctx, p.Cluster.Objects, fleet.DeploymentsGVR,
		p.Cluster.Namespace, "semaphore-broker")
	if err != nil {
		return "", err
	}
	if broker == nil {
		return "", fmt.Errorf("%s: no Deployment %s/semaphore-broker, beside which an exporter could run", p.facts.Context,
			p.Cluster.Namespace)
	}
	for _, c := range broker.Spec.Template.Spec.Containers {
		if c.Name == fleet.Broker {
			return c.Image, nil
		}
	}
	return "", nil
}

// account creates the ServiceAccount in the cluster that is read, and returns its token with the apiserver's roots, as
// a Secret has them.
func (f *foreignCluster) account(ctx context.Context, what apply.Foreign) (map[string][]byte, error) {
	objects, err := apply.BuildReader(what)
	if err != nil {
		return nil, err
	}
	if err := f.ApplyAll(ctx, objects); err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	secret := apply.Ref{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Secret"),
		Namespace: apply.ReaderNamespace, Name: what.ReaderName()}
	err = f.Until(ctx, secret.String(), func() (string, error) {
		s, err := fleet.Get[corev1.Secret](ctx, f.Cluster.Objects, fleet.SecretsGVR, secret.Namespace, secret.Name)
		if err != nil || s == nil {
			return "it is not there", err
		}
		if len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
			return "Kubernetes has not written a token into it", nil
		}
		roots := bytes.TrimSpace(s.Data[corev1.ServiceAccountRootCAKey])
		if len(f.roots) > 0 && !bytes.Contains(roots, bytes.TrimSpace(f.roots)) {
			roots = append(append(roots, '\n'), bytes.TrimSpace(f.roots)...)
		}
		out[corev1.ServiceAccountTokenKey] = s.Data[corev1.ServiceAccountTokenKey]
		out[corev1.ServiceAccountRootCAKey] = append(roots, '\n')
		return "", nil
	})
	return out, err
}

// ManualRevocation returns the commands by which a person with the cluster's kubeconfig revokes a reader's rights. It
// fails as apply.BuildReader does.
func ManualRevocation(cluster, reader string) (string, error) {
	what := apply.Foreign{Cluster: cluster, Reader: reader, Features: apply.AllFeatures}
	objects, err := apply.BuildReader(what)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("  kubectl -n %s delete --ignore-not-found serviceaccount,secret %s\n"+
		"  kubectl delete --ignore-not-found clusterrolebinding,clusterrole", apply.ReaderNamespace, what.ReaderName())
	for _, o := range objects {
		if o.GetKind() == "ClusterRole" {
			text += " \\\n    " + o.GetName()
		}
	}
	return text + fmt.Sprintf("\n  # where no other cluster reads it: kubectl delete namespace %s\n",
		apply.ReaderNamespace), nil
}

// prove writes the exporter's Secrets: its token, the roots of the own cluster, and a certificate with the name of the
// cluster that it reads. It keeps a certificate that is valid for at least half of its lifetime. It returns the root
// that signed it.
func (p *linkedCluster) prove(ctx context.Context, what apply.Foreign, token map[string][]byte) ([]byte, error) {
	now := time.Now()
	name := identity.SecretName("exporter")
	have, err := certs.Of(apply.New(p.Cluster.In(what.Namespace()), io.Discard)).Secret(ctx, name)
	if err != nil {
		return nil, err
	}
	var root []byte
	if remote, err := p.Get(ctx, remoteRef(what.Cluster)); err == nil && remote != nil {
		text, _, _ := unstructured.NestedString(remote.Object, "spec", "trustBundle")
		root = []byte(text)
	}
	half := now.Add(certs.DefaultValidity.Certificate / 2)
	if identity.CheckCertificate(root, have[corev1.TLSCertKey], have[corev1.TLSPrivateKeyKey], what.Cluster, "exporter",
		half) != nil {
		var cert, key []byte
		root, cert, key, err = identity.Alone(what.Cluster, "exporter", certs.DefaultValidity.Certificate, now)
		if err != nil {
			return nil, err
		}
		if err := p.ApplyTyped(ctx, certs.TlsSecret(what.Namespace(), name, cert, key)); err != nil {
			return nil, err
		}
	}
	if err := p.ApplyTyped(ctx, &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: apply.ReaderSecret, Namespace: what.Namespace()},
		Type:       corev1.SecretTypeOpaque, Data: token,
	}); err != nil {
		return nil, err
	}
	return root, p.ApplyTyped(ctx, &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: identity.BundlesConfigMap, Namespace: what.Namespace()},
		Data:       map[string]string{p.Name + ".pem": string(p.Bundle), what.Cluster + ".pem": string(root)},
	})
}

func (p *linkedCluster) encrypts() bool {
	return p.installed == nil || p.installed.Values.Features.Has(config.Encryption)
}

// introductionOf returns a cluster's share of one that its exporter is to read. No key shows who that is: the exporter
// that reads it already must have the same apiserver.
func (p *linkedCluster) introductionOf(ctx context.Context, f *foreignCluster) (*certs.Introduction, error) {
	facts := *f.facts
	if !p.encrypts() {
		facts.IPs.Prefixes = nil
	}
	source, err := sourceOf(ctx, f.Cluster)
	if err != nil {
		return nil, err
	}
	x := &certs.Introduction{Here: p.OwnIdentity, There: f.Cluster.Context, Name: f.name, Facts: &facts,
		Source: source, Doubt: errors.New("no exporter reads it from here")}
	if _, does, err := reads(ctx, p.Applier, f.name); err != nil || !does {
		return x, err
	}
	api, err := readsFrom(ctx, p.Applier, f.name)
	if err != nil {
		return nil, err
	}
	// An interrupted call has not written the configuration.
	if x.Doubt = nil; api != "" && api != f.api {
		x.Doubt = fmt.Errorf("its exporter reads %s, not %s", api, f.api)
	}
	return x, nil
}

// isRead returns an error if a cluster's name is from that cluster alone, and the exporter of that name reads another
// one.
func isRead(ctx context.Context, a *apply.Applier, f *foreignCluster) error {
	if f.named {
		return nil
	}
	api, err := readsFrom(ctx, a, f.name)
	if err != nil || api == "" || api == f.Cluster.Config.Host {
		return err
	}
	return fmt.Errorf("%s: the exporter for %s reads %s, not %s: name the cluster, --agentless %s=NAME",
		a.Cluster.Context,
		f.name, api, f.Cluster.Config.Host, f.Cluster.Context)
}

// readsFrom returns the URL of the apiserver that the exporter for a cluster reads; empty if there is none.
func readsFrom(ctx context.Context, a *apply.Applier, cluster string) (string, error) {
	exporter, err := a.Cluster.In(naming.ForeignNamespace(cluster)).ConfigOf(ctx, "semaphore-exporter")
	return exporter.Kube.RemoteAPIURL, err
}

// unread deletes the objects that read created.
func (l *linker) unread(ctx context.Context, w io.Writer) error {
	there, err := l.foreign(ctx, false)
	if err != nil {
		return err
	}
	here, err := l.readers(ctx)
	if err != nil {
		return err
	}
	var all []*share
	for _, p := range here {
		for _, f := range there {
			if err := isRead(ctx, p.Applier, f); err != nil {
				return err
			}
			s, err := shareOf(ctx, p.Applier, f.name)
			if err != nil {
				return err
			}
			stays := s.remote != nil && linked(s.remote)
			if stays {
				s.remote, s.subnets = nil, false
				fmt.Fprintf(w, "%s: RemoteCluster %s has a broker: it is linked, and stays\n", p.facts.Context,
					f.name)
			}
			if !stays || s.read {
				all = append(all, s)
			}
			if l.yes {
				continue
			}
			fmt.Fprintf(w, "%s: may have the ServiceAccount %s/%s, and its rights\n", f.Cluster.Context,
				apply.ReaderNamespace, apply.Foreign{Cluster: f.name, Reader: p.Name}.ReaderName())
		}
	}
	if err := l.leave(ctx, w, all); err != nil {
		return err
	}
	if !l.yes {
		return show.OnlyPlanned("removed")
	}
	for _, p := range here {
		for _, f := range there {
			if err := f.close(ctx, w, apply.Foreign{Cluster: f.name, Reader: p.Name, Features: apply.AllFeatures}); err != nil {
				return err
			}
		}
	}
	return nil
}

// linked reports whether a RemoteCluster has a broker: then it was linked since.
func linked(remote *unstructured.Unstructured) bool {
	broker, has, _ := unstructured.NestedMap(remote.Object, "spec", "broker")
	return has && len(broker) > 0
}

// reads returns the namespace of the exporter for a cluster, if there is one beside the broker.
func reads(ctx context.Context, a *apply.Applier, cluster string) (ref apply.Ref, does bool, err error) {
	ref = apply.NamespaceRef(naming.ForeignNamespace(cluster))
	found, err := a.Get(ctx, ref)
	return ref, err == nil && found != nil && found.GetLabels()[apply.ForeignLabel] == a.Cluster.Namespace, err
}

// endReading deletes the exporter for a cluster, if there is one beside the broker.
func endReading(ctx context.Context, w io.Writer, a *apply.Applier, cluster string) error {
	ref, does, err := reads(ctx, a, cluster)
	if err != nil || !does {
		return err
	}
	if err := a.RemoveAll(ctx, ref); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: %s with the exporter that read %s deleted\n", a.Cluster.Context, ref, cluster)
	return err
}

// close deletes one reader's ServiceAccount and rights, and the namespace with the last of them.
func (f *foreignCluster) close(ctx context.Context, w io.Writer, what apply.Foreign) error {
	objects, err := apply.BuildReader(what)
	if err != nil {
		return err
	}
	var own []apply.Ref
	for _, o := range slices.Backward(objects) {
		if o.GetKind() != "Namespace" {
			own = append(own, apply.RefOf(o))
		}
	}
	if err := f.RemoveAll(ctx, own...); err != nil {
		return err
	}
	others, err := fleet.List[corev1.ServiceAccount](ctx, f.Cluster.Objects, fleet.AccountsGVR,
		apply.ReaderNamespace, metav1.ListOptions{LabelSelector: apply.PartOf + "=semaphore"})
	if err != nil {
		return err
	}
	if len(others) == 0 {
		if err := f.RemoveAll(ctx, apply.NamespaceRef(apply.ReaderNamespace)); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%s: ServiceAccount %s/%s deleted, and its rights\n", f.Cluster.Context,
		apply.ReaderNamespace, what.ReaderName())
	return err
}

// ExportersBeside returns the namespaces of exporters for other clusters. It fails if the namespaces cannot be listed.
func ExportersBeside(ctx context.Context, a *apply.Applier) ([]apply.Ref, error) {
	all, err := fleet.List[corev1.Namespace](ctx, a.Cluster.Objects, fleet.NamespacesGVR, "",
		metav1.ListOptions{LabelSelector: apply.ForeignLabel + "=" + a.Cluster.Namespace})
	var out []apply.Ref
	for _, n := range all {
		out = append(out, apply.NamespaceRef(n.Name))
	}
	return out, err
}

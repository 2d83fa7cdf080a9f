package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/diagnose/preflight"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/mcs/definitions"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// installer is a call of install.
type installer struct {
	access  *fleet.Access
	wishes  install.Wishes
	dryRun  string
	output  string
	timeout time.Duration
	force   bool
	dns     bool
}

func installCommand(access *fleet.Access) *cobra.Command {
	i := installer{access: access}
	var features []string
	cmd := &cobra.Command{
		Use:   "install --context C",
		Short: "install semaphore in a cluster, or upgrade what install has installed",
		Long: `Installs semaphore in a cluster: finds out what the cluster is like, prints that and what follows from it,
makes the cluster's authority and certificates in the cluster, applies the manifests and waits until all parts are
ready. Keys never touch this machine. Nothing is written where something stands in the way.

  semaphorectl install --context c1
  semaphorectl install --context c2
  semaphorectl link --context c1 --context c2

It can be called again: with the same semaphorectl nothing changes, with a newer one it is the upgrade. What was
wanted before is wanted again unless a flag says otherwise.

  semaphorectl install --context c1 --features services,policy
  semaphorectl install --context c1 --dry-run=client -o yaml > c1.yaml

Exit code 0 when all parts are ready, 1 when the cluster cannot be asked or does not do what it should in time, 2 when
something stands in the way.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, f := range features {
				i.wishes.Features = append(i.wishes.Features, config.Feature(f))
			}
			if err := i.check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), i.timeout)
			defer cancel()
			return i.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&i.wishes.Name, "cluster", "", "`name` of the cluster, by which others know it (default: as found)")
	f.StringSliceVar(&features, "features", nil,
		"of encryption, services and policy (default: all, without Calico all but policy)")
	f.StringSliceVar(&i.wishes.Components, "components", nil,
		"directories of deploy/features beyond those that the cluster is found to need, such as userspace-wireguard")
	f.StringVar(&i.wishes.Image, "image", "", "`REPOSITORY:TAG` or REPOSITORY@DIGEST (default: that of this release)")
	f.Var((*prefixesFlag)(&i.wishes.PodSubnets), "pod-subnets", "subnets of the pods (default: as found)")
	f.Var((*prefixesFlag)(&i.wishes.ServiceSubnets), "service-subnets", "subnets of the Services (default: as found)")
	f.Var((*prefixesFlag)(&i.wishes.NodeSubnets), "node-subnets", "subnets of the nodes' InternalIPs (default: as found)")
	f.StringVar(&i.wishes.Expose, "expose", "",
		"how other clusters reach the broker: NodePort, LoadBalancer or ClusterIP (default NodePort)")
	f.IntVar(&i.wishes.NodePort, "node-port", 0, "that `port` of the nodes (default: the cluster chooses)")
	f.BoolVar(&i.dns, "dns", false, "also have CoreDNS answer names of remote Services, and the broker keep them "+
		"current; restarts CoreDNS")
	f.StringVar(&i.dryRun, "dry-run", "none", "client writes nothing and prints the objects")
	f.StringVarP(&i.output, "output", "o", "", "with --dry-run=client: yaml or json")
	f.BoolVar(&i.force, "force-conflicts", false, "take over fields of our objects that somebody else has set")
	f.DurationVar(&i.timeout, "timeout", 5*time.Minute, "how long all of it may take")
	completeFlag(cmd, "features", oneOf("encryption", "services", "policy"))
	completeFlag(cmd, "components", oneOf(install.Components()...))
	completeFlag(cmd, "expose", oneOf(install.NodePort, install.LoadBalancer, install.ClusterIP))
	completeFlag(cmd, "dry-run", oneOf("none", "client"))
	completeFlag(cmd, "output", oneOf(plannedFormats...))
	return cmd
}

// prefixesFlag is a list of networks.
type prefixesFlag []netip.Prefix

var _ pflag.Value = (*prefixesFlag)(nil)

func (p *prefixesFlag) String() string { return preflight.Subnets{Prefixes: *p}.String() }

func (p *prefixesFlag) Type() string { return "CIDRs" }

func (p *prefixesFlag) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return fmt.Errorf("%q is no network, such as 10.1.0.0/16", one)
		}
		*p = append(*p, prefix)
	}
	return nil
}

// flagOf is the flag of a wish; most have its name.
var flagOf = map[string]string{"name": "cluster", "podSubnets": "pod-subnets", "serviceSubnets": "service-subnets",
	"nodeSubnets": "node-subnets", "nodePort": "node-port"}

func (i *installer) check() error {
	var field *install.FieldError
	if err := i.wishes.Check(); errors.As(err, &field) {
		flag := field.Field
		if other, ok := flagOf[flag]; ok {
			flag = other
		}
		return fmt.Errorf("--%s: %w", flag, field.Err)
	}
	switch {
	case !slices.Contains([]string{"none", "client"}, i.dryRun):
		return fmt.Errorf("--dry-run %q: use client or none", i.dryRun)
	case checkPlanned(i.output) != nil:
		return checkPlanned(i.output)
	case i.output != "" && i.dryRun == "none":
		return errors.New("--output: it is for --dry-run=client")
	case i.wishes.Name != "" && len(i.access.Contexts) > 1:
		return errors.New("--cluster: give one --context with it; clusters have different names")
	}
	return nil
}

// installation is the desired state of one cluster.
type installation struct {
	*applier
	pki     *clusterPKI
	facts   *preflight.Cluster
	before  *install.Record
	wishes  install.Wishes
	values  install.Values
	reasons []install.Reason
	objects []*unstructured.Unstructured
}

// run decides for all clusters before it writes to one.
func (i *installer) run(ctx context.Context, w, progress io.Writer) error {
	clusters, err := i.access.Clusters()
	if err != nil {
		return err
	}
	facts, err := surveyAll(ctx, i.access)
	if err != nil {
		return err
	}
	said := w
	if i.dryRun == "client" { // standard output is for kubectl
		said = progress
	}
	var all []*installation
	var findings []check.Finding
	for n, c := range clusters {
		one, found, err := i.decide(ctx, c, facts[n], progress)
		if err != nil {
			return err
		}
		for _, other := range all {
			findings = append(findings, preflight.JudgePair(other.facts, one.facts)...)
		}
		all, findings = append(all, one), append(findings, found...)
		if err := one.describe(said); err != nil {
			return err
		}
	}
	if err := printBlockers(said, findings); err != nil {
		return err
	}
	if i.output == "json" {
		var clusters []planned
		for _, one := range all {
			clusters = append(clusters, planned{one.cluster.Context, one.objects})
		}
		return printPlanned(w, clusters)
	}
	for _, one := range all {
		if i.dryRun == "client" {
			text, err := install.YAML(one.objects)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "---\n# %s. Its keys: %s --cluster %s\n%s",
				cli.Printable(one.cluster.Context), commandFor(one.cluster, "pki init"), one.values.Cluster, text); err != nil {
				return err
			}
			continue
		}
		if err := one.install(ctx, w); err != nil {
			return err
		}
		said, err := wireDNS(ctx, one.applier, i.dns)
		if err != nil {
			return err
		}
		if said != "" {
			if _, err := fmt.Fprintf(w, "%s: %s\n", cli.Printable(one.cluster.Context), cli.Printable(said)); err != nil {
				return err
			}
		}
	}
	return nil
}

// printBlockers prints findings, and returns an error if one of them is an error.
func printBlockers(w io.Writer, findings []check.Finding) error {
	findings = slices.DeleteFunc(slices.Clone(findings), func(f check.Finding) bool { return f.Level == check.OK })
	if len(findings) == 0 {
		return nil
	}
	err := report(w, findings, "table")
	if !slices.ContainsFunc(findings, func(f check.Finding) bool { return f.Level == check.Error }) {
		_, err = fmt.Fprintln(w)
		return err
	}
	return program.ExitError{Code: cli.ExitWrong, Err: fmt.Errorf("%w: %w", errStandsInTheWay, err)}
}

// withDNS returns wishes with the component by which the broker keeps CoreDNS's blocks current, if --dns wires them and
// there will be names of remote Services.
func (i *installer) withDNS(w install.Wishes) install.Wishes {
	if i.dns && (w.Features == nil || w.Features.Has(config.Services)) && !slices.Contains(w.Components, install.DNS) {
		w.Components = append(slices.Clone(w.Components), install.DNS)
	}
	return w
}

// decide reads the cluster's state, and makes the objects to apply.
func (i *installer) decide(ctx context.Context, c *fleet.Cluster, facts *preflight.Cluster,
	progress io.Writer) (*installation, []check.Finding, error) {
	a, err := applierOf(c, progress)
	if err != nil {
		return nil, nil, err
	}
	a.force = i.force
	one := &installation{applier: a, facts: facts, wishes: i.wishes}
	if one.pki, err = pkiOf(c); err != nil {
		return nil, nil, err
	}
	if one.before, err = a.record(ctx); err != nil {
		return nil, nil, err
	}
	var findings []check.Finding
	var refuse refusal = func(code finding.Code, subject, fix, evidence string, args ...any) {
		findings = append(findings, check.Finding{Code: code, Level: check.Error, Subject: c.Context + ": " + subject,
			Side: c.Context, Evidence: fmt.Sprintf(evidence, args...), Fix: fix})
	}
	var has string // the name that the cluster has already
	if one.before != nil {
		has, one.wishes = one.before.Values.Cluster, i.wishes.Over(one.before.Wishes)
	}
	if authority, err := one.pki.authority(ctx); err != nil {
		return nil, nil, err
	} else if authority != nil {
		has = authority.Cluster()
	}
	if i.wishes.Name != "" && has != "" && has != i.wishes.Name {
		refuse(finding.OtherName, "name", "install without --cluster, or uninstall first",
			"semaphore is installed as %q, not as %q: other clusters, certificates and objects have that name", has,
			i.wishes.Name)
	}
	if one.wishes.Name == "" {
		one.wishes.Name = has
	}
	one.wishes = i.withDNS(one.wishes)
	if err := one.occupied(ctx, refuse); err != nil {
		return nil, nil, err
	}
	var found []check.Finding
	one.values, one.reasons, found = install.Decide(facts, one.wishes, c.Namespace, program.Version)
	one.wishes.Name = one.values.Cluster
	facts.Names = []string{one.values.Cluster}
	facts.Pods.Prefixes, facts.Services.Prefixes = one.values.PodSubnets, one.values.ServiceSubnets
	facts.IPs.Prefixes = one.values.NodeSubnets
	findings = append(findings, found...)
	if one.before != nil {
		for _, f := range one.before.Values.Features {
			if !one.values.Features.Has(f) {
				refuse(finding.FeatureRemoved, "features", "follow docs/removal.md#one-feature, or uninstall and install again",
					"%s is to be taken away: what it made in the cluster and on its nodes would stay", f)
			}
		}
		if err := one.encryptable(ctx, refuse); err != nil {
			return nil, nil, err
		}
	}
	if slices.ContainsFunc(findings, func(f check.Finding) bool { return f.Level == check.Error }) {
		return one, findings, nil
	}
	one.objects, err = install.Build(one.values)
	return one, findings, err
}

// refusal records why a cluster is not written to.
type refusal func(code finding.Code, subject, fix, evidence string, args ...any)

// encryptable refuses to add encryption while a RemoteCluster has no nodeSubnets: exporter and broker would not start.
func (i *installation) encryptable(ctx context.Context, refuse refusal) error {
	if !i.values.Features.Has(config.Encryption) || i.before.Values.Features.Has(config.Encryption) {
		return nil
	}
	list, err := i.client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: RemoteClusters: %w", i.cluster.Context, err)
	}
	for _, o := range list.Items {
		var r v1alpha1.RemoteCluster
		if err := fromUnstructured(&o, &r); err != nil {
			return fmt.Errorf("%s: RemoteCluster %s: %w", i.cluster.Context, o.GetName(), err)
		}
		if len(r.Spec.PodSubnets) > 0 && len(r.Spec.NodeSubnets) == 0 {
			refuse(finding.NoNodeSubnets, "RemoteCluster "+r.Name,
				fmt.Sprintf("name the subnets of its nodes: kubectl --context %s edit remotecluster %s", i.cluster.Context, r.Name),
				"encryption is to be added, and spec.nodeSubnets is missing")
		}
	}
	return nil
}

// occupied refuses a cluster in which another program installed semaphore, or in which the namespace belongs to others.
func (i *installation) occupied(ctx context.Context, refuse refusal) error {
	if i.before == nil {
		broker, err := i.get(ctx, i.workload("Deployment", "semaphore-broker"))
		if err != nil {
			return err
		}
		if broker != nil && fieldsOf(broker) != fieldManager {
			refuse(finding.OtherInstallation, "Deployment semaphore-broker",
				"upgrade it as it was installed, or remove it first",
				"semaphore is installed already, by %s", fieldsOf(broker))
		}
	}
	c := i.cluster
	namespace, err := i.get(ctx, namespaceRef(c.Namespace))
	if err != nil {
		return err
	}
	switch {
	case namespace == nil:
	case namespace.GetDeletionTimestamp() != nil:
		refuse(finding.NamespaceEnds, "namespace "+c.Namespace, "wait until it is deleted", "it is being deleted")
	case namespace.GetLabels()[partOf] != "semaphore":
		refuse(finding.NamespaceTaken, "namespace "+c.Namespace, fmt.Sprintf("use another one (-n); or, where it is for "+
			"semaphore alone: kubectl --context %s label namespace %s %s=semaphore", c.Context, c.Namespace, partOf),
			"it is there already, and uninstall deletes it with all that is in it")
	}
	return nil
}

// partOf is the label of the manifests that marks a namespace as semaphore's.
const partOf = "app.kubernetes.io/part-of"

// fieldsOf returns who created an object, by its managedFields.
func fieldsOf(o *unstructured.Unstructured) string {
	for _, m := range o.GetManagedFields() {
		if m.Subresource == "" {
			return m.Manager
		}
	}
	return "somebody else"
}

func namespaceRef(name string) install.Ref {
	return install.Ref{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Name: name}
}

// describe prints what was found and what follows from it.
func (i *installation) describe(w io.Writer) error {
	if err := describe(w, i.facts); err != nil || i.objects == nil {
		return err
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	v := i.values
	fmt.Fprintln(t, "to install")
	fmt.Fprintf(t, "  as\t%s, in namespace %s\n", v.Cluster, v.Namespace)
	var features []string
	for _, f := range v.Features {
		features = append(features, string(f))
	}
	fmt.Fprintf(t, "  features\t%s\n", strings.Join(features, ", "))
	for _, c := range v.Components {
		why := ""
		for _, r := range i.reasons {
			if r.Component == c {
				why = " (" + r.Why + ")"
			}
		}
		fmt.Fprintf(t, "  component\t%s%s\n", c, why)
	}
	image := v.Image
	if image == "" {
		image = "of the manifests, " + install.Repository + ":main"
	}
	fmt.Fprintf(t, "  image\t%s\n", image)
	reached := "Service of type " + v.Expose
	if v.NodePort != 0 {
		reached += fmt.Sprintf(", port %d", v.NodePort)
	}
	fmt.Fprintf(t, "  other clusters reach the broker by\t%s\n", reached)
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return cli.PrintLines(w, text.String())
}

// definitionRef names the definition of RemoteClusters, whose objects wait for it.
func definitionRef(objects []*unstructured.Unstructured) (install.Ref, bool) {
	for _, o := range objects {
		if o.GetKind() == "CustomResourceDefinition" {
			return install.RefOf(o), true
		}
	}
	return install.Ref{}, false
}

// defineMCS applies the definitions of the Multi-Cluster Services API that are absent or older, with the caller's
// rights: no part may write any.
func (i *installation) defineMCS(ctx context.Context, w io.Writer) error {
	done, err := definitions.Apply(ctx, crds{i.client.Resource(schema.GroupVersionResource{
		Group: apiextensionsv1.GroupName, Version: "v1", Resource: "customresourcedefinitions"})}, false)
	for _, d := range done {
		if _, err := fmt.Fprintf(w, "%s: CustomResourceDefinition %s: %s, as %s\n", cli.Printable(i.cluster.Context), d.Name,
			d.Action, cli.Printable(d.Why)); err != nil {
			return err
		}
	}
	return err
}

// crds reads and writes CustomResourceDefinitions.
type crds struct{ api dynamic.ResourceInterface }

func (c crds) Get(ctx context.Context, name string,
	o metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	found, err := c.api.Get(ctx, name, o)
	return crdOf(found, err)
}

func (c crds) Create(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition,
	o metav1.CreateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	u, err := unstructuredCRD(d)
	if err != nil {
		return nil, err
	}
	made, err := c.api.Create(ctx, u, o)
	return crdOf(made, err)
}

func (c crds) Update(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition,
	o metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	u, err := unstructuredCRD(d)
	if err != nil {
		return nil, err
	}
	made, err := c.api.Update(ctx, u, o)
	return crdOf(made, err)
}

func crdOf(u *unstructured.Unstructured, err error) (*apiextensionsv1.CustomResourceDefinition, error) {
	if err != nil {
		return nil, err
	}
	d := &apiextensionsv1.CustomResourceDefinition{}
	return d, fromUnstructured(u, d)
}

func unstructuredCRD(d *apiextensionsv1.CustomResourceDefinition) (*unstructured.Unstructured, error) {
	u, err := objectFrom(d)
	if err != nil {
		return nil, err
	}
	u.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return u, nil
}

// install applies the objects, and waits until they are ready.
func (i *installation) install(ctx context.Context, w io.Writer) error {
	began := time.Now()
	counts := map[string]int{}
	if err := i.applyAll(ctx, counts, isFirst); err != nil {
		return err
	}
	if ref, ok := definitionRef(i.objects); ok {
		if err := i.served(ctx, ref); err != nil {
			return err
		}
	}
	if slices.Contains(i.values.Components, install.MCS) {
		if err := i.defineMCS(ctx, w); err != nil {
			return err
		}
	}
	made, err := i.pki.ensure(ctx, i.values.Cluster, defaultValidity, time.Now())
	if err != nil {
		return err
	}
	if len(made) > 0 {
		i.say("made in the cluster: %s", strings.Join(made, ", "))
	}
	record := &install.Record{Wishes: i.wishes, Values: i.values, Version: program.Version}
	for _, o := range i.objects {
		record.Objects = append(record.Objects, install.RefOf(o))
	}
	// The record precedes the objects, so that an interrupted call leaves no object that is not recorded.
	now := *record
	var stale []install.Ref
	if i.before != nil {
		stale = i.before.Without(record.Objects)
		now.Objects = slices.Concat(record.Objects, stale)
	}
	if err := i.keep(ctx, &now); err != nil {
		return err
	}
	if err := i.applyAll(ctx, counts, func(kind string) bool { return !isFirst(kind) }); err != nil {
		return err
	}
	for _, o := range i.objects {
		if install.Runs(o.GetKind()) {
			if err := i.ready(ctx, install.RefOf(o)); err != nil {
				return err
			}
		}
	}
	if err := i.removeStale(ctx, stale); err != nil {
		return err
	}
	if err := i.keep(ctx, record); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: installed as %s: %s; all parts are ready after %s\n", cli.Printable(i.cluster.Context),
		i.values.Cluster, joined(counts), time.Since(began).Round(100*time.Millisecond))
	return err
}

// isFirst reports whether objects of a kind must exist before others are applied.
func isFirst(kind string) bool { return kind == "Namespace" || kind == "CustomResourceDefinition" }

// applyAll applies the objects of some kinds, and counts their outcomes.
func (i *installation) applyAll(ctx context.Context, counts map[string]int, which func(kind string) bool) error {
	for _, o := range i.objects {
		if !which(o.GetKind()) {
			continue
		}
		outcome, err := i.apply(ctx, o)
		if err != nil {
			return err
		}
		counts[outcome]++
	}
	return nil
}

// removeStale removes the objects of the last installation that this one lacks. It keeps namespaces and definitions:
// others may have objects in them.
func (i *installation) removeStale(ctx context.Context, stale []install.Ref) error {
	stale = slices.DeleteFunc(stale, func(r install.Ref) bool { return isFirst(r.Kind) })
	for _, r := range slices.Backward(stale) {
		i.say("deleting %s, which the installation no longer has", r)
		if err := i.remove(ctx, r); err != nil {
			return err
		}
	}
	return i.gone(ctx, stale...)
}

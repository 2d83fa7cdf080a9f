// Package install installs semaphore in clusters, and removes it.
package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/certs"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

type installer struct {
	access  *fleet.Access
	wishes  apply.Wishes
	dryRun  show.DryRun
	output  *show.Outputs
	timeout time.Duration
	force   bool
	dns     bool
}

func Command(access *fleet.Access) *cobra.Command {
	i := installer{access: access}
	var features []string
	cmd := &cobra.Command{
		Use:   "install --context C",
		Short: "install semaphore in a cluster, or upgrade what install has installed",
		Long: `Installs semaphore in a cluster: detects the cluster's properties, prints them with the resulting settings,
makes the cluster's authority and certificates in the cluster, applies the manifests and waits until all parts are
ready. Keys never touch this machine. It writes nothing if a problem prevents that.

  semaphorectl install --context c1
  semaphorectl install --context c2
  semaphorectl link --context c1 --context c2

It can be called again: with the same semaphorectl nothing changes, with a newer one it is the upgrade. Options
of earlier runs are kept unless you pass a flag.

  semaphorectl install --context c1 --features services,policy
  semaphorectl install --context c1 --dry-run=client -o yaml > c1.yaml

Exit code 0 when all parts are ready, 1 when the cluster cannot be asked or does not do what it should in time, 2 when
a problem prevents it.`,
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
	show.ClusterFlag(cmd, &i.wishes.Name, "that of this one (default: as found)")
	f.StringSliceVar(&features, "features", nil,
		"of encryption, services and policy (default: all, without Calico all but policy)")
	f.StringSliceVar(&i.wishes.Components, "components", nil,
		"directories of deploy/features beyond those that the cluster is found to need or can have, such as own-names; "+
			"those of earlier runs stay, unless the list is empty; -NAME leaves one out, such as -mcs")
	f.StringVar(&i.wishes.Image, "image", "", "`REPOSITORY:TAG` or REPOSITORY@DIGEST (default: that of this release)")
	f.Var((*prefixesFlag)(&i.wishes.PodSubnets), "pod-subnets", "subnets of the pods (default: as found)")
	f.Var((*prefixesFlag)(&i.wishes.ServiceSubnets), "service-subnets", "subnets of the Services (default: as found)")
	f.Var((*prefixesFlag)(&i.wishes.NodeSubnets), "node-subnets", "subnets of the nodes' InternalIPs (default: as found)")
	f.StringVar(&i.wishes.Expose, "expose", "",
		"how other clusters reach the broker: NodePort, LoadBalancer or ClusterIP (default NodePort)")
	f.IntVar(&i.wishes.NodePort, "node-port", 0, "that `port` of the nodes (default: the cluster chooses)")
	f.BoolVar(&i.dns, "dns", false, "also have CoreDNS answer names of remote Services, and the broker keep them "+
		"current; restarts CoreDNS")
	i.output = show.PlannedFlags(cmd, &i.dryRun)
	f.BoolVar(&i.force, "force-conflicts", false, "take over fields of our objects that somebody else has set")
	show.TimeoutFlag(cmd, &i.timeout, 5*time.Minute)
	show.CompleteFlag(cmd, "features", show.OneOf("encryption", "services", "policy"))
	show.CompleteFlag(cmd, "components", show.OneOf(apply.Components()...))
	show.CompleteFlag(cmd, "expose", show.OneOf(apply.NodePort, apply.LoadBalancer, apply.ClusterIP))
	return cmd
}

type prefixesFlag []netip.Prefix

var _ pflag.Value = (*prefixesFlag)(nil)

func (p *prefixesFlag) String() string { return preflight.Subnets{Prefixes: *p}.String() }

func (p *prefixesFlag) Type() string { return "CIDRs" }

func (p *prefixesFlag) Set(text string) error {
	all, err := preflight.Prefixes(strings.Split(text, ","))
	*p = append(*p, all...)
	return err
}

// flagOf is the flag of a wish; most have its name.
var flagOf = map[string]string{"name": "cluster", "podSubnets": "pod-subnets", "serviceSubnets": "service-subnets",
	"nodeSubnets": "node-subnets", "nodePort": "node-port"}

// check fails with the name of the flag for a wish that is invalid, or does not go with another.
func check(w apply.Wishes) error {
	var field *apply.FieldError
	if err := w.Check(); errors.As(err, &field) {
		return fmt.Errorf("--%s: %w", cmp.Or(flagOf[field.Field], field.Field), field.Err)
	}
	return nil
}

func (i *installer) check() error {
	if err := check(i.wishes); err != nil {
		return err
	}
	if i.wishes.Name != "" && len(i.access.Contexts) > 1 {
		return errors.New("--cluster: give one --context with it; clusters have different names")
	}
	return show.CheckPlanned(i.output, i.dryRun)
}

// installation is the desired state of one cluster.
type installation struct {
	*apply.Applier
	pki     *certs.Store
	facts   *preflight.Cluster
	before  *apply.Record
	wishes  apply.Wishes
	values  apply.Values
	reasons []apply.Reason
	objects []*unstructured.Unstructured
	// resubnetted is set once the ConfigMap semaphore-subnets is another, which running parts read.
	resubnetted bool
	// began is when the installation began, and counts are the outcomes of its objects.
	began  time.Time
	counts map[string]int
}

// run decides for all clusters before it writes to one.
func (i *installer) run(ctx context.Context, w, progress io.Writer) error {
	clusters, err := i.access.Clusters()
	if err != nil {
		return err
	}
	facts, err := preflight.SurveyAll(ctx, i.access)
	if err != nil {
		return err
	}
	said := w
	if i.dryRun.On() { // standard output is for kubectl
		said = progress
	}
	var all []*installation
	var findings []show.Finding
	for n, c := range clusters {
		one, found, err := i.decide(ctx, c, facts[n], progress)
		if err != nil {
			return err
		}
		for _, other := range all {
			findings = append(findings, preflight.JudgePair(other.facts, one.facts)...)
		}
		all, findings = append(all, one), append(findings, found...)
		preflight.Describe(said, one.facts)
		if one.objects != nil {
			_ = show.PrintLines(said, show.Tabbed(one.plan))
		}
	}
	if err := show.PrintBlockers(said, findings); err != nil {
		return err
	}
	if i.dryRun.On() {
		var clusters []show.Planned
		for _, one := range all {
			clusters = append(clusters, show.Planned{Context: one.Cluster.Context, Objects: one.objects,
				Comment: fmt.Sprintf("%s. Its keys: %s --cluster %s", one.Cluster.Context,
					fleet.CommandFor(one.Cluster, "pki init"), one.values.Cluster)})
		}
		return show.PrintPlanned(w, clusters, i.output.Chosen)
	}
	if _, err := fleet.AllOf(all, func(one *installation) (any, error) { return nil, one.try(ctx) }); err != nil {
		return prevented(fmt.Errorf("nothing was written: %w", err))
	}
	var failed error
	for _, one := range all {
		if err := one.install(ctx, w); err != nil {
			return errors.Join(failed, err)
		}
		failed = errors.Join(failed, dns.Wire(ctx, w, one.Applier, i.dns))
	}
	for _, one := range all {
		failed = errors.Join(failed, one.finish(ctx, w))
	}
	return failed
}

// decide reads the cluster's state, and makes the objects to apply.
func (i *installer) decide(ctx context.Context, c *fleet.Cluster, facts *preflight.Cluster,
	progress io.Writer) (*installation, []show.Finding, error) {
	a := apply.New(c, progress)
	a.Force = i.force
	one := &installation{Applier: a, facts: facts, wishes: i.wishes, pki: certs.Of(a)}
	var err error
	if one.before, err = a.Record(ctx); err != nil {
		return nil, nil, err
	}
	var findings []show.Finding
	var refuse refusal = func(code finding.Code, subject, fix, evidence string, args ...any) {
		findings = append(findings, show.Blocker(c.Context, code, subject, fix, evidence, args...))
	}
	var has string // the name that the cluster has already
	if one.before != nil {
		has, one.wishes = one.before.Values.Cluster, i.wishes.Over(one.before.Wishes)
		// Without the definitions of its types nothing is withdrawn from other clusters; without the component all would be.
		facts.MCS = facts.MCS || slices.Contains(one.before.Values.Components, apply.MCS)
		if err := check(one.wishes); err != nil {
			return nil, nil, fmt.Errorf("%s: with the options of earlier runs: %w", c.Context, err)
		}
	}
	authority, err := one.authority(ctx, !i.dryRun.On(), refuse)
	if err != nil {
		return nil, nil, err
	}
	has = cmp.Or(authority, has)
	if i.wishes.Name != "" && has != "" && has != i.wishes.Name {
		refuse(finding.ClusterNameDiffers, "name", "install without --cluster, or uninstall first",
			"semaphore is installed as %q, not as %q: other clusters, certificates and objects have that name", has,
			i.wishes.Name)
	}
	one.wishes.Name = cmp.Or(one.wishes.Name, has)
	if w := &one.wishes; i.dns && (w.Features == nil || w.Features.Has(config.Services)) &&
		!slices.Contains(w.Components, apply.DNS) { // there will be names of remote Services
		w.Components = append(slices.Clone(w.Components), apply.DNS)
	}
	if err := one.occupied(ctx, refuse); err != nil {
		return nil, nil, err
	}
	var found []show.Finding
	one.values, one.reasons, found = apply.Decide(facts, one.wishes, c.Namespace, program.Version)
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
	}
	prevents := func(f show.Finding) bool { return f.Level == finding.Error }
	if !slices.ContainsFunc(findings, prevents) {
		if err := one.keeps(ctx, refuse); err != nil {
			return nil, nil, err
		}
	}
	if slices.ContainsFunc(findings, prevents) {
		return one, findings, nil
	}
	one.objects, err = apply.Build(one.values)
	return one, findings, err
}

// refusal records why a cluster is not written to.
type refusal func(code finding.Code, subject, fix, evidence string, args ...any)

// authority returns the cluster's name in its authority, empty for none. To write to the cluster, it refuses one whose
// authority is elsewhere: who applies objects by files may keep it there.
func (i *installation) authority(ctx context.Context, write bool, refuse refusal) (name string, err error) {
	a, err := i.pki.Authority(ctx)
	if err != nil {
		return "", err
	}
	if a != nil {
		return a.Cluster(), nil
	}
	if !write {
		return "", nil
	}
	why, err := i.pki.Elsewhere(ctx)
	if why != "" {
		refuse(finding.OtherInstallation, "authority", "install and upgrade it by files (docs/overlays.md), or remove the "+
			"Secrets semaphore-*-tls first, and install makes others", "%s", why)
	}
	return "", err
}

// keeps refuses values by which the parts would end with nodes of a RemoteCluster, or with all of it, that they accept
// now. New pods of broker and exporter would not start, but agents read the subnets at once. The broker's own store has
// what they accept: an object may have another spec by now, and the record may be lost.
func (i *installation) keeps(ctx context.Context, refuse refusal) error {
	before, err := i.Cluster.Objects.InEffect(ctx, i.Cluster.Namespace, fleet.Broker)
	if err != nil {
		return err
	}
	is, err := i.values.Broker()
	if err != nil {
		return fmt.Errorf("%s: the broker would not start: %w", i.Cluster.Context, err)
	}
	list, err := i.Cluster.Objects.RemoteClusters(ctx)
	if err != nil && list == nil {
		return err
	}
	all := remotes.Objects{}
	if err != nil || list == nil { // what cannot be read may need the upgrade, and stays in effect
		maps.Copy(all, before)
	}
	for _, r := range list {
		all[r.Name] = remotes.Of(r, "")
	}
	verdicts := remotes.Decide(is, before, all, nil).Verdicts
	for _, is := range all.ByAge() {
		o, was := before[is.Name]
		if !was {
			continue
		}
		v, subject := verdicts[o.Name], "RemoteCluster "+o.Name
		theirs, _ := preflight.Prefixes(o.Spec.NodeSubnets)
		if own, their, found := i.guessed(theirs); found {
			refuse(finding.NodesInside, subject, fmt.Sprintf("name the nodes of this cluster alone: %s --node-subnets %s",
				fleet.CommandFor(i.Cluster, "install"), apply.Addresses(i.facts.Nodes)),
				"its nodes are in %s, and %s, in which this cluster accepts none, is guessed to be its own", their, own)
		} else if v.InEffect == nil && len(theirs) == 0 && i.values.Features.Has(config.Encryption) {
			refuse(finding.NoNodeSubnets, subject, fmt.Sprintf("name the subnets of its nodes: kubectl --context %s edit "+
				"remotecluster %s", i.Cluster.Context, o.Name), "encryption is to be added, and spec.nodeSubnets is missing")
		} else if v.InEffect == nil {
			refuse(v.Reason, subject, "name other subnets of this cluster (--pod-subnets, --service-subnets, "+
				"--node-subnets), or correct the object", "it would no longer be in effect: %s", v.Message)
		}
	}
	return nil
}

// guessed returns a subnet of the own nodes that is guessed, and new, and overlaps one of a remote's.
func (i *installation) guessed(theirs []netip.Prefix) (own, their netip.Prefix, found bool) {
	if i.wishes.NodeSubnets != nil {
		return own, their, false
	}
	for _, own := range i.values.NodeSubnets {
		at := slices.IndexFunc(theirs, own.Overlaps)
		if at >= 0 && (i.before == nil || !preflight.Within(own, i.before.Values.NodeSubnets)) {
			return own, theirs[at], true
		}
	}
	return own, their, false
}

// occupied refuses a cluster in which semaphore is in another namespace or by another program, and one in which the
// namespace belongs to others.
func (i *installation) occupied(ctx context.Context, refuse refusal) error {
	c := i.Cluster
	var brokers []metav1.PartialObjectMetadata
	var err error
	if i.before == nil {
		if brokers, err = fleet.List[metav1.PartialObjectMetadata](ctx, c.Objects, fleet.DeploymentsGVR, "",
			metav1.ListOptions{FieldSelector: "metadata.name=semaphore-broker"}); err != nil {
			return err
		}
	}
	for _, broker := range brokers {
		if broker.Namespace != c.Namespace { // whose rights and policies have the same names
			refuse(finding.OtherInstallation, "namespace "+broker.Namespace, "upgrade it there: -n "+broker.Namespace,
				"semaphore is installed there, and a cluster has it once")
		} else if by := fieldsOf(&broker); by != apply.FieldManager {
			refuse(finding.OtherInstallation, "Deployment semaphore-broker",
				"upgrade it as it was installed, or remove it first", "semaphore is installed already, by %s", by)
		} else if len(i.wishes.Features) == 0 {
			// Otherwise features and subnets would be decided again, as in a new cluster.
			refuse(finding.RecordLost, "ConfigMap "+apply.RecordName,
				"restore it; or give --features, and the other flags with which it was installed",
				"semaphorectl installed semaphore there, and the record of how is gone")
		}
	}
	namespace, err := i.Get(ctx, apply.NamespaceRef(c.Namespace))
	if err != nil {
		return err
	}
	switch {
	case namespace == nil:
	case namespace.GetDeletionTimestamp() != nil:
		refuse(finding.NamespaceEnds, "namespace "+c.Namespace, "wait until it is deleted", "it is being deleted")
	case namespace.GetLabels()[apply.PartOf] != "semaphore":
		refuse(finding.NamespaceTaken, "namespace "+c.Namespace, fmt.Sprintf("use another one (-n); or, where it is for "+
			"semaphore alone: kubectl --context %s label namespace %s %s=semaphore", c.Context, c.Namespace, apply.PartOf),
			"it is there already, and uninstall deletes it with all that is in it")
	}
	return nil
}

// fieldsOf returns who created an object, by its managedFields.
func fieldsOf(o metav1.Object) string {
	for _, m := range o.GetManagedFields() {
		if m.Subresource == "" {
			return m.Manager
		}
	}
	return "another program"
}

func (i *installation) plan(t io.Writer) {
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
	for _, r := range i.reasons {
		if r.Without {
			fmt.Fprintf(t, "  without\t%s (%s)\n", r.Component, r.Why)
		}
	}
	fmt.Fprintf(t, "  image\t%s\n", cmp.Or(v.Image, "of the manifests, "+apply.Repository+":main"))
	reached := "Service of type " + v.Expose
	if v.NodePort != 0 {
		reached += fmt.Sprintf(", port %d", v.NodePort)
	}
	fmt.Fprintf(t, "  other clusters reach the broker by\t%s\n", reached)
	fmt.Fprintln(t)
}

// defineMCS applies the definitions of the Multi-Cluster Services API that are absent or older, with the caller's
// rights: no part may write any.
func (i *installation) defineMCS(ctx context.Context, w io.Writer) error {
	done, err := mcs.ApplyDefinitions(ctx, i.Objects.Client)
	for _, d := range done {
		fmt.Fprintf(w, "%s: CustomResourceDefinition %s: %s, as %s\n", show.Printable(i.Cluster.Context),
			d.Name, d.Action, show.Printable(d.Why))
	}
	return err
}

// try has the apiserver judge the objects before the first is written: parts of two versions could be left otherwise.
func (i *installation) try(ctx context.Context) error {
	_, err := fleet.AllOf(i.objects, func(o *unstructured.Unstructured) (any, error) {
		return nil, i.Try(ctx, o)
	})
	return err
}

// prevented is an error with the exit code of a problem if the apiserver answered, and did not only fail to.
func prevented(err error) error {
	if answer := apierrors.APIStatus(nil); errors.As(err, &answer) {
		return program.ExitError{Code: show.ExitWrong, Err: err}
	}
	return err
}

// install applies the objects, waits until the Deployments are ready, and removes what this installation lacks. It
// waits for no agent: a node that is away must delay nothing else.
func (i *installation) install(ctx context.Context, w io.Writer) error {
	i.began, i.counts = time.Now(), map[string]int{}
	if err := i.applyAll(ctx, isFirst); err != nil {
		return err
	}
	record := &apply.Record{Wishes: i.wishes, Values: i.values, Version: program.Version}
	for _, o := range i.objects {
		record.Objects = append(record.Objects, apply.RefOf(o))
	}
	// The record precedes keys and objects: uninstall finds by it what an interrupted call leaves.
	now := *record
	var stale []apply.Ref
	if i.before != nil {
		stale = i.before.Without(record.Objects)
		now.Objects = slices.Concat(record.Objects, stale)
	}
	if err := i.Keep(ctx, &now); err != nil {
		return err
	}
	if i.before == nil { // without the namespace its objects could not be tried
		if err := i.try(ctx); err != nil {
			return prevented(err)
		}
	}
	for _, o := range i.objects {
		if o.GetKind() == "CustomResourceDefinition" { // its objects wait for it
			if err := i.Served(ctx, apply.RefOf(o)); err != nil {
				return err
			}
		}
	}
	if slices.Contains(i.wishes.Components, apply.MCS) {
		if err := i.defineMCS(ctx, w); err != nil {
			return err
		}
	}
	made, err := i.pki.Ensure(ctx, i.values.Cluster, certs.DefaultValidity, time.Now())
	if err != nil {
		return err
	}
	if len(made) > 0 {
		i.Say("made in the cluster: %s", strings.Join(made, ", "))
	}
	if err := i.applyAll(ctx, func(kind string) bool { return !isFirst(kind) }); err != nil {
		return err
	}
	for _, o := range i.objects {
		if apply.Runs(o.GetKind()) && o.GetKind() != daemonSet {
			if err := i.Ready(ctx, apply.RefOf(o)); err != nil {
				return err
			}
		}
	}
	i.refresh(ctx)
	if err := i.removeStale(ctx, stale); err != nil {
		return err
	}
	if err := i.endOwnNames(ctx); err != nil {
		return err
	}
	return i.Keep(ctx, record)
}

const daemonSet = "DaemonSet"

// finish waits until the agents are ready, and prints the outcome.
func (i *installation) finish(ctx context.Context, w io.Writer) error {
	for _, o := range i.objects {
		if o.GetKind() == daemonSet {
			if err := i.ready(ctx, w, apply.RefOf(o)); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s: installed as %s: %s; all parts are ready after %s\n", show.Printable(i.Cluster.Context),
		i.values.Cluster, apply.Joined(i.counts), time.Since(i.began).Round(100*time.Millisecond))
	return err
}

// refresh has kubelets look for changed subnets now.
func (i *installation) refresh(ctx context.Context) {
	if !i.resubnetted {
		return
	}
	if err := i.Refresh(ctx, fleet.Agent, fleet.Broker, fleet.Exporter); err != nil {
		i.Say("parts read the changed subnets when their kubelets next look, within two minutes by default: %v", err)
	}
}

// isFirst reports whether objects of a kind must exist before others are applied.
func isFirst(kind string) bool { return kind == "Namespace" || kind == "CustomResourceDefinition" }

// applyAll applies the objects of some kinds, and counts their outcomes.
func (i *installation) applyAll(ctx context.Context, which func(kind string) bool) error {
	for _, o := range i.objects {
		if !which(o.GetKind()) {
			continue
		}
		outcome, err := i.Apply(ctx, o)
		if err != nil {
			return err
		}
		i.counts[outcome]++
		i.resubnetted = i.resubnetted || outcome == apply.Changed && o.GetLabels()[fleet.SubnetsLabel] != ""
	}
	return nil
}

// removeStale removes the objects of the last installation that this one lacks. It keeps namespaces and definitions:
// others may have objects in them.
func (i *installation) removeStale(ctx context.Context, stale []apply.Ref) error {
	stale = slices.DeleteFunc(stale, func(r apply.Ref) bool { return isFirst(r.Kind) })
	for _, r := range slices.Backward(stale) {
		i.Say("deleting %s, which the installation no longer has", r)
		if err := i.Remove(ctx, r); err != nil {
			return err
		}
	}
	return i.Gone(ctx, stale...)
}

// endOwnNames deletes the slices under own names of Services where the broker writes none: without the component it has
// no right to delete them, and nothing else would. Services would continue to lead to other clusters.
func (i *installation) endOwnNames(ctx context.Context) error {
	if slices.Contains(i.values.Components, apply.OwnNames) {
		return nil
	}
	all, err := fleet.List[metav1.PartialObjectMetadata](ctx, i.Cluster.Objects, fleet.SlicesGVR, "",
		metav1.ListOptions{LabelSelector: ownSlices})
	if err != nil {
		return err
	}
	var ended []apply.Ref
	for _, s := range all {
		i.Say("deleting EndpointSlice %s/%s: own names of Services lead to no other cluster any more", s.Namespace, s.Name)
		ended = append(ended, apply.Ref{GroupVersionKind: fleet.SlicesGVR.GroupVersion().WithKind("EndpointSlice"),
			Namespace: s.Namespace, Name: s.Name})
	}
	return i.RemoveAll(ctx, ended...) // the garbage collector deletes them, which takes a moment
}

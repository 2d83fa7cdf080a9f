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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func uninstallCommand(access *fleet.Access) *cobra.Command {
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall --context C",
		Short: "remove from a cluster what install and the parts made: without --yes it only says what",
		Long: `Removes semaphore from a cluster that install has installed it in: stops the parts, removes what they made in
the cluster and on every node, and then the manifests, keys and the namespace. It says first what that is; only with
--yes it does it. It can be called again after an interruption.

Other clusters cannot tell a cluster without semaphore from one that is down: unlink it first.

  semaphorectl unlink --context c1 --context c2
  semaphorectl uninstall --context c1 --yes

Exit code 0 when all is removed, 1 when the cluster cannot be asked or something stays, 2 without --yes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := access.Clusters()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			var all []*removal
			for _, c := range clusters {
				r, err := planRemoval(ctx, c, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				if r == nil {
					if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: semaphore is not installed\n", c.Context); err != nil {
						return err
					}
					continue
				}
				if err := r.print(cmd.OutOrStdout()); err != nil {
					return err
				}
				all = append(all, r)
			}
			if len(all) > 0 && !yes {
				return program.ExitError{Code: cli.ExitWrong, Err: errors.New("nothing was removed: --yes does it")}
			}
			for _, r := range all {
				if err := r.run(ctx, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long all of it may take")
	return cmd
}

// removal is what will be removed from one cluster.
type removal struct {
	*applier
	record *install.Record
	// remotes are the names of the RemoteClusters.
	remotes []string
	// nodes are the annotations to remove of each node.
	nodes map[string][]string
	// beside are the namespaces of exporters for other clusters, and read the names of those clusters.
	beside []install.Ref
	read   []string
	// lines describe the removal.
	lines []string
}

// owned are the kinds that a broker writes, for counting.
var owned = []struct {
	groups   []string
	resource string
	what     string
}{
	{[]string{""}, "services", "mirrored Services"},
	{[]string{"crd.projectcalico.org", "projectcalico.org"}, "globalnetworksets", "GlobalNetworkSets"},
	{[]string{"crd.projectcalico.org", "projectcalico.org"}, "networksets", "NetworkSets"},
	{[]string{"crd.projectcalico.org", "projectcalico.org"}, "ippools", "IPPools"},
	{[]string{"crd.projectcalico.org", "projectcalico.org"}, "ipreservations", "IPReservations"},
}

// planRemoval reads what exists; nil for nothing.
func planRemoval(ctx context.Context, c *fleet.Cluster, progress io.Writer) (*removal, error) {
	a, err := applierOf(c, progress)
	if err != nil {
		return nil, err
	}
	r := &removal{applier: a, nodes: map[string][]string{}}
	if r.record, err = a.record(ctx); err != nil {
		return nil, err
	}
	if r.record == nil {
		broker, err := a.get(ctx, a.workload("Deployment", "semaphore-broker"))
		if err != nil {
			return nil, err
		}
		if broker != nil {
			return nil, fmt.Errorf("%s: semaphore is installed, but not by semaphorectl install (no ConfigMap %s/%s): "+
				"docs/removal.md says how to remove what kubectl or Helm has installed", c.Context, c.Namespace, install.RecordName)
		}
		return nil, nil
	}
	add := func(format string, args ...any) { r.lines = append(r.lines, fmt.Sprintf(format, args...)) }
	add("the parts, their rights and configuration: %d objects", len(r.record.Objects))
	add("the namespace %s, with the authority and all keys and certificates of %s", c.Namespace, r.record.Values.Cluster)
	list, err := a.client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s: RemoteClusters: %w", c.Context, err)
	}
	if err == nil {
		for _, o := range list.Items {
			r.remotes = append(r.remotes, o.GetName())
		}
	}
	if r.beside, err = a.exportersBeside(ctx); err != nil {
		return nil, err
	}
	r.planRemotes(add)
	for _, kind := range owned {
		n, err := a.count(ctx, kind.groups, kind.resource)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			add("%d %s", n, kind.what)
		}
	}
	if d, err := dnsOf(ctx, a); err != nil && !errors.Is(err, errNoCoreDNS) {
		return nil, err
	} else if err == nil && d.wired {
		add("our server blocks of CoreDNS, which is restarted")
	}
	if err := r.readNodes(ctx); err != nil {
		return nil, err
	}
	if len(r.nodes) > 0 {
		add("annotations for tunnels of %d nodes", len(r.nodes))
	}
	if slices.Contains(r.record.Values.Features, "encryption") {
		add("on every node: devices, routes, guard, keys and state of tunnels")
	}
	return r, nil
}

// planRemotes adds what is removed of other clusters, and what remains there.
func (r *removal) planRemotes(add func(string, ...any)) {
	var linked []string
	for _, name := range r.remotes {
		if slices.Contains(r.beside, namespaceRef(naming.ForeignNamespace(name))) {
			r.read = append(r.read, name)
		} else {
			linked = append(linked, name)
		}
	}
	if len(linked) > 0 {
		add("the RemoteClusters %s; these clusters keep what they have of %s until unlink or forget there",
			strings.Join(linked, ", "), r.record.Values.Cluster)
	}
	for _, ref := range r.beside {
		add("%s, with an exporter that reads another cluster", ref)
		// An interrupted call has removed the RemoteCluster; a hash in place of the name does not identify the cluster.
		if name, known := naming.ForeignCluster(ref.Name); known && !slices.Contains(r.remotes, name) {
			r.read = append(r.read, name)
		}
	}
	for _, name := range r.read {
		add("the RemoteCluster %s, read from here; its ServiceAccount stays in %[1]s, unless first:", name)
		add("  %s --agentless CONTEXT=%s", commandFor(r.cluster, "unlink"), name)
	}
}

// closeThere prints how to remove the ServiceAccounts in clusters that were read from here.
func (r *removal) closeThere(w io.Writer) error {
	for _, name := range r.read {
		text, err := manualRevocation(name, r.record.Values.Cluster)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s keeps a ServiceAccount that %s read it by; with the kubeconfig of %[1]s:\n%[3]s",
			name, r.record.Values.Cluster, text); err != nil {
			return err
		}
	}
	return nil
}

// count counts the broker's objects of a type, in the first group that serves it.
func (a *applier) count(ctx context.Context, groups []string, resource string) (int, error) {
	for _, group := range groups {
		version := "v1"
		if group == "projectcalico.org" {
			version = "v3"
		}
		list, err := a.client.Resource(schema.GroupVersionResource{Group: group, Version: version,
			Resource: resource}).List(ctx,
			metav1.ListOptions{LabelSelector: naming.LabelManagedBy + "=" + naming.ManagedByBroker})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", a.cluster.Context, resource, err)
		}
		return len(list.Items), nil
	}
	return 0, nil
}

// readNodes finds the annotations of nodes. If semaphore-wireguard runs beside semaphore, those of other clusters may
// be its own.
func (r *removal) readNodes(ctx context.Context) error {
	daemons, err := r.client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}).
		List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%s: DaemonSets: %w", r.cluster.Context, err)
	}
	shared := slices.ContainsFunc(daemons.Items, func(d unstructured.Unstructured) bool {
		return strings.Contains(d.GetName(), "semaphore-wireguard")
	})
	nodes, err := r.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%s: nodes: %w", r.cluster.Context, err)
	}
	for _, n := range nodes.Items {
		for key := range n.GetAnnotations() {
			if cluster, ok := naming.WireGuardAnnotationCluster(key); ok && (!shared || slices.Contains(r.remotes, cluster)) {
				r.nodes[n.GetName()] = append(r.nodes[n.GetName()], key)
			}
		}
	}
	return nil
}

func (r *removal) print(w io.Writer) error {
	text := fmt.Sprintf("%s: to remove\n", r.cluster.Context)
	for _, line := range r.lines {
		text += "  " + line + "\n"
	}
	return cli.PrintLines(w, text)
}

// run removes everything. The parts are stopped first, so that they restore nothing; what they wrote is removed while
// the rights for that exist.
func (r *removal) run(ctx context.Context, w io.Writer) error {
	began := time.Now()
	r.say("stopping the parts")
	if err := r.removeAll(ctx, r.workload("Deployment", "semaphore-exporter"),
		r.workload("Deployment", "semaphore-broker"), r.workload("DaemonSet", "semaphore-agent")); err != nil {
		return err
	}
	if err := r.removeAll(ctx, r.beside...); err != nil {
		return err
	}
	if err := unwireDNS(ctx, r.applier); err != nil {
		return err
	}
	r.say("removing what the parts made")
	r.force = true // the namespace will be deleted
	cleanup, err := install.BuildCleanup(r.record.Values)
	if err != nil {
		return err
	}
	if err := r.clean(ctx, cleanup); err != nil {
		return err
	}
	// The cleanup leaves those for clusters that have no RemoteCluster any more.
	for node, keys := range r.nodes {
		if err := r.unannotate(ctx, node, keys); err != nil {
			return err
		}
	}
	r.say("removing the rest")
	// The namespace comes first, because its objects are deleted with it, and the record with it last.
	if err := r.removeAll(ctx, r.outside(cleanup)...); err != nil {
		return err
	}
	if err := r.removeAll(ctx, namespaceRef(r.cluster.Namespace)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s: removed, after %s\n", cli.Printable(r.cluster.Context),
		time.Since(began).Round(100*time.Millisecond)); err != nil {
		return err
	}
	return r.closeThere(w)
}

// outside returns the installed objects and those of the cleanup that are not deleted with the namespace, the last
// installed first.
func (r *removal) outside(cleanup []*unstructured.Unstructured) (refs []install.Ref) {
	all := slices.Clone(r.record.Objects)
	for _, o := range cleanup {
		all = append(all, install.RefOf(o))
	}
	for _, ref := range all {
		if ref.Kind != "Namespace" && ref.Namespace != r.cluster.Namespace && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	slices.Reverse(refs)
	return refs
}

// clean runs the Job and the DaemonSet that undo what broker and agents did. It replaces a failed Job of an earlier
// call, whose pods cannot be changed.
func (r *removal) clean(ctx context.Context, cleanup []*unstructured.Unstructured) error {
	if err := r.removeAll(ctx, r.workload("Job", "semaphore-cleanup")); err != nil {
		return err
	}
	for _, o := range cleanup {
		if _, err := r.apply(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range cleanup {
		if !install.Runs(o.GetKind()) {
			continue
		}
		if err := r.ready(ctx, install.RefOf(o)); err != nil {
			return err
		}
	}
	return nil
}

// unannotate removes annotations of a node; a node that no longer exists has none.
func (r *removal) unannotate(ctx context.Context, node string, keys []string) error {
	gone := map[string]any{}
	for _, key := range keys {
		gone[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": gone}})
	if err != nil {
		return err
	}
	if _, err := r.client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Patch(ctx, node, types.MergePatchType,
		patch, metav1.PatchOptions{FieldManager: fieldManager}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: annotations of node %s: %w", r.cluster.Context, node, err)
	}
	return nil
}

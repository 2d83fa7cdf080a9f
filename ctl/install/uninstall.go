package install

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/link"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

func Uninstall(access *fleet.Access) *cobra.Command {
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall --context C",
		Short: "remove semaphore from a cluster; prints the plan, and --yes executes it",
		Long: `Removes semaphore from a cluster that install has installed it in: stops the parts, removes what they made in
the cluster and on every node, and then the manifests, keys and the namespace. Without --yes it prints this plan
alone. It can be called again after an interruption.

Other clusters cannot tell a cluster without semaphore from one that is down: unlink it first.

  semaphorectl unlink --context c1,c2 --yes
  semaphorectl uninstall --context c1 --yes

Exit code 0 when all is removed, or without --yes; 1 when the cluster cannot be asked or something stays.`,
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
					fmt.Fprintf(cmd.OutOrStdout(), "%s: semaphore is not installed\n", c.Context)
					continue
				}
				r.print(cmd.OutOrStdout())
				all = append(all, r)
			}
			if len(all) > 0 && !yes {
				return show.OnlyPlanned("removed")
			}
			for _, r := range all {
				if err := r.run(ctx, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	show.YesFlag(cmd, &yes)
	show.TimeoutFlag(cmd, &timeout, 10*time.Minute)
	return cmd
}

// removal has the objects to remove from one cluster.
type removal struct {
	*apply.Applier
	record  *apply.Record
	remotes []string
	// nodes are the annotations to remove of each node.
	nodes map[string][]string
	// beside are the namespaces of exporters for other clusters, and read the names of those clusters.
	beside []apply.Ref
	read   []string
	lines  []string
}

// ownedBy selects a broker's objects, and ownSlices its EndpointSlices under own names of Services.
const ownedBy, ownSlices = naming.LabelManagedBy + "=" + naming.ManagedByBroker, ownedBy + "," + naming.LabelOwnName

// owned are the kinds that a broker writes, for counting.
var owned = []struct {
	of             []schema.GroupVersionResource
	selector, what string
}{
	{[]schema.GroupVersionResource{fleet.ServicesGVR}, ownedBy, "mirrored Services"},
	{[]schema.GroupVersionResource{fleet.SlicesGVR}, ownSlices, "EndpointSlices of other clusters beside Services"},
	{fleet.CalicoTypes("globalnetworksets"), ownedBy, "GlobalNetworkSets"},
	{fleet.CalicoTypes("networksets"), ownedBy, "NetworkSets"},
	{fleet.CalicoTypes("ippools"), ownedBy, "IPPools"}, {fleet.CalicoTypes("ipreservations"), ownedBy, "IPReservations"},
}

// planRemoval reads the existing objects; nil for none.
func planRemoval(ctx context.Context, c *fleet.Cluster, progress io.Writer) (*removal, error) {
	a := apply.New(c, progress)
	r := &removal{Applier: a, nodes: map[string][]string{}}
	var err error
	if r.record, err = a.Record(ctx); err != nil {
		return nil, err
	}
	if r.record == nil {
		broker, err := a.Get(ctx, a.Workload("Deployment", "semaphore-broker"))
		if err != nil {
			return nil, err
		}
		if broker != nil {
			return nil, fmt.Errorf("%s: semaphore is installed, but not by semaphorectl install (no ConfigMap %s/%s): "+
				"docs/removal.md says how to remove what kubectl or Helm has installed", c.Context, c.Namespace,
				apply.RecordName)
		}
		return nil, nil
	}
	add := func(format string, args ...any) { r.lines = append(r.lines, fmt.Sprintf(format, args...)) }
	removed := len(slices.DeleteFunc(slices.Clone(r.record.Objects), outlives))
	add("the parts, their rights and configuration: %d objects", removed)
	add("the namespace %s, with the authority and all keys and certificates of %s", c.Namespace, r.record.Values.Cluster)
	// Their names are enough, so that one that cannot be read does not keep semaphore in the cluster.
	remotes, err := fleet.List[metav1.PartialObjectMetadata](ctx, c.Objects, v1alpha1.RemoteClusters, "",
		metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for _, one := range remotes {
		r.remotes = append(r.remotes, one.Name)
	}
	if r.beside, err = link.ExportersBeside(ctx, a); err != nil {
		return nil, err
	}
	r.planRemotes(add)
	for _, kind := range owned {
		list, err := c.Objects.First(ctx, kind.of, "", metav1.ListOptions{LabelSelector: kind.selector})
		if err != nil {
			return nil, err
		}
		if list != nil && len(list.Items) > 0 {
			add("%d %s", len(list.Items), kind.what)
		}
	}
	if d, err := dns.Find(ctx, a); err != nil && !errors.Is(err, dns.ErrNoCoreDNS) {
		return nil, err
	} else if err == nil && d.Wired {
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
	if removed < len(r.record.Objects) {
		add("the admission policy %s and its binding stay (docs/removal.md has the reason)", outliving)
	}
	return r, nil
}

// outliving is the name of an admission policy and of its binding, which outlive semaphore: while there is no binding
// with a ConfigMap as its parameter, an apiserver stops to follow ConfigMaps until it restarts
// (https://github.com/kubernetes/kubernetes/issues/130887).
const outliving = "semaphore-slice-addresses"

func outlives(ref apply.Ref) bool {
	return ref.Name == outliving && strings.HasPrefix(ref.Kind, "ValidatingAdmissionPolicy")
}

// planRemotes adds the RemoteClusters to remove, and the objects that remain in their clusters.
func (r *removal) planRemotes(add func(string, ...any)) {
	var linked []string
	for _, name := range r.remotes {
		if slices.Contains(r.beside, apply.NamespaceRef(naming.ForeignNamespace(name))) {
			r.read = append(r.read, name)
		} else {
			linked = append(linked, name)
		}
	}
	if len(linked) > 0 {
		add("the RemoteClusters %s; these clusters keep what they have of %s until unlink there",
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
		add("  %s --agentless CONTEXT=%s --yes", fleet.CommandFor(r.Cluster, "unlink"), name)
	}
}

// closeThere prints how to remove the ServiceAccounts in clusters that were read from here.
func (r *removal) closeThere(w io.Writer) error {
	for _, name := range r.read {
		text, err := link.ManualRevocation(name, r.record.Values.Cluster)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "the ServiceAccount for %[2]s still exists in %[1]s; with the kubeconfig of %[1]s:\n"+
			"%[3]s", name, r.record.Values.Cluster, text)
	}
	return nil
}

// readNodes finds the annotations of nodes. If semaphore-wireguard runs beside semaphore, those of other clusters may
// be its own.
func (r *removal) readNodes(ctx context.Context) error {
	daemons, err := fleet.List[metav1.PartialObjectMetadata](ctx, r.Cluster.Objects, fleet.DaemonSetsGVR, "",
		metav1.ListOptions{})
	if err != nil {
		return err
	}
	shared := slices.ContainsFunc(daemons, func(d metav1.PartialObjectMetadata) bool {
		return strings.Contains(d.Name, "semaphore-wireguard")
	})
	nodes, err := fleet.List[metav1.PartialObjectMetadata](ctx, r.Cluster.Objects, fleet.NodesGVR, "",
		metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		for key := range n.Annotations {
			if cluster, ok := naming.WireGuardAnnotationCluster(key); ok && (!shared || slices.Contains(r.remotes, cluster)) {
				r.nodes[n.Name] = append(r.nodes[n.Name], key)
			}
		}
	}
	return nil
}

func (r *removal) print(w io.Writer) {
	text := fmt.Sprintf("%s: to remove\n", r.Cluster.Context)
	for _, line := range r.lines {
		text += "  " + line + "\n"
	}
	_ = show.PrintLines(w, text)
}

// run removes everything. The parts are stopped first, so that they restore nothing; their objects are removed while
// the rights for that exist.
func (r *removal) run(ctx context.Context, w io.Writer) error {
	began := time.Now()
	r.Say("stopping the parts")
	if err := r.RemoveAll(ctx, r.Workload("Deployment", "semaphore-exporter"),
		r.Workload("Deployment", "semaphore-broker"), r.Workload("DaemonSet", "semaphore-agent")); err != nil {
		return err
	}
	if err := r.RemoveAll(ctx, r.beside...); err != nil {
		return err
	}
	if err := dns.Unwire(ctx, r.Applier); err != nil {
		return err
	}
	r.Say("removing the parts' objects")
	r.Force = true // the namespace will be deleted
	cleanup, err := apply.BuildCleanup(r.record.Values)
	if err != nil {
		return err
	}
	// A failed Job of an earlier call is replaced: its pods cannot be changed.
	if err := r.RemoveAll(ctx, r.Workload("Job", "semaphore-cleanup")); err != nil {
		return err
	}
	if err := r.ApplyAll(ctx, cleanup); err != nil {
		return err
	}
	// The cleanup leaves those for clusters that have no RemoteCluster any more.
	for node, keys := range r.nodes {
		if err := r.unannotate(ctx, node, keys); err != nil {
			return err
		}
	}
	r.Say("removing the rest")
	// The namespace comes first, because its objects are deleted with it, and the record with it last.
	if err := r.RemoveAll(ctx, r.outside(cleanup)...); err != nil {
		return err
	}
	if err := r.RemoveAll(ctx, apply.NamespaceRef(r.Cluster.Namespace)); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: removed, after %s\n", show.Printable(r.Cluster.Context),
		time.Since(began).Round(100*time.Millisecond))
	return r.closeThere(w)
}

// outside returns the installed objects and those of the cleanup that are not deleted with the namespace, the last
// installed first.
func (r *removal) outside(cleanup []*unstructured.Unstructured) (refs []apply.Ref) {
	all := slices.Clone(r.record.Objects)
	for _, o := range cleanup {
		all = append(all, apply.RefOf(o))
	}
	for _, ref := range all {
		if ref.Kind != "Namespace" && ref.Namespace != r.Cluster.Namespace && !outlives(ref) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	slices.Reverse(refs)
	return refs
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
	if _, err := r.Objects.Client.Resource(fleet.NodesGVR).Patch(ctx, node, types.MergePatchType,
		patch, metav1.PatchOptions{FieldManager: apply.FieldManager}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: annotations of node %s: %w", r.Cluster.Context, node, err)
	}
	return nil
}

package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file removes the broker's objects from a cluster.
//
// Its input is the broker's configuration and the RemoteClusters, its output a report. It knows objects by their labels
// and names alone: no engine, stream or informer.

type Options struct {
	DryRun bool
	// LeaveAnnotations leaves the annotations of nodes to semaphore-wireguard, which uses the same.
	LeaveAnnotations bool
}

// Run removes from the cluster all that the broker wrote: the objects with its labels, and the WireGuard annotations of
// the remotes of the configuration and of RemoteClusters. It reports its work to out. It can be repeated. Stop the
// broker and the agents before, or they restore the removed objects. It continues after what fails, and returns all
// errors.
func Run(ctx context.Context, cfg *config.Broker, o Options, out io.Writer) error {
	rest, err := kube.Config(cfg.Kube, "cleanup")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kube.Protobuf(rest))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	objects, err := metadata.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	c := &cleaner{ctx: ctx, objects: objects, dryRun: o.DryRun, named: map[string]bool{}, out: out}
	c.slices(metav1.NamespaceAll, writes.OwnedOwnSlices) // first: traffic to Services of users leads to them
	c.written(writes.Service, corev1.SchemeGroupVersion, cfg.MirrorNamespace, writes.Owned, " in "+cfg.MirrorNamespace)
	c.slices(cfg.MirrorNamespace, writes.Owned)
	// Those that route the broker's own Services to the leader: nothing else deletes them.
	c.slices(cmp.Or(os.Getenv("POD_NAMESPACE"), cfg.MirrorNamespace), discoveryv1.LabelManagedBy+"="+leader.ManagedBy)
	// ServiceImports go also where the feature is off by now, and where ServiceExports are not served. The API stays.
	for _, version := range mcs.Versions {
		c.written(writes.ServiceImport, schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: version},
			metav1.NamespaceAll, writes.Owned, "")
	}
	if client, err := mcs.New(rest, writes.FieldManager); err != nil {
		c.fail("conditions of serviceexports", err)
	} else {
		c.conditions(client)
	}
	c.slices(metav1.NamespaceAll, writes.OwnedImportSlices) // also where the API is not served any more
	c.configMaps(client, cfg.MirrorNamespace)
	if calico, err := kube.Calico(rest); errors.Is(err, kube.ErrNoCalico) {
		c.printf("no sets and pools: %v", err)
	} else if err != nil {
		c.fail("sets and pools", err)
	} else {
		for _, kind := range []writes.ObjectKind{writes.GlobalNetworkSet, writes.NetworkSet, writes.IPPool,
			writes.IPReservation} {
			c.written(kind, calico.GroupVersion, metav1.NamespaceAll, writes.Owned, "")
		}
	}
	if !o.LeaveAnnotations {
		c.nodes(client, append(c.remoteClusters(), cfg.Names()...))
	}
	verb := "removed"
	if o.DryRun {
		verb = "to remove"
	}
	c.printf("%d %s", c.done, verb)
	return errors.Join(c.errs...)
}

// cleaner continues after an error, to remove as much as possible.
type cleaner struct {
	ctx context.Context
	// objects reads and deletes objects of any type. It decodes their metadata alone, so that one whose remaining part
	// cannot be read is deleted, too.
	objects metadata.Interface
	dryRun  bool
	named   map[string]bool
	out     io.Writer
	done    int
	errs    []error
}

func (c *cleaner) printf(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

func (c *cleaner) fail(what string, err error) {
	c.printf("failed: %s: %v", what, err)
	c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
}

// remove removes one object, unless it no longer exists.
func (c *cleaner) remove(what string, do func() error) {
	if c.dryRun {
		if !c.named[what] { // two selectors may have it
			c.printf("would remove %s", what)
			c.named[what] = true
			c.done++
		}
		return
	}
	if err := do(); apierrors.IsNotFound(err) {
		return
	} else if err != nil {
		c.fail(what, err)
		return
	}
	c.printf("removed %s", what)
	c.done++
}

// written removes the objects of one type that a label selector selects, in one namespace or in all. Errors of the list
// have which behind the name of the type.
func (c *cleaner) written(kind writes.ObjectKind, in schema.GroupVersion, namespace, selector, which string) {
	api := c.objects.Resource(in.WithResource(kind.Plural()))
	all, err := api.Namespace(namespace).List(c.ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) {
		return // the cluster does not serve the type
	}
	if err != nil {
		c.fail("listing "+kind.Plural()+which, err)
		return
	}
	for _, o := range all.Items {
		c.remove(string(kind)+" "+path.Join(o.Namespace, o.Name), func() error {
			return api.Namespace(o.Namespace).Delete(c.ctx, o.Name, *metav1.NewPreconditionDeleteOptions(string(o.UID)))
		})
	}
}

func (c *cleaner) slices(namespace, selector string) {
	c.written(writes.EndpointSlice, discoveryv1.SchemeGroupVersion, namespace, selector, " "+selector)
}

func (c *cleaner) configMaps(client kubernetes.Interface, namespace string) {
	names := []string{stored.DrainsName}
	for i := range stored.Shards {
		names = append(names, stored.Name(i))
	}
	api := client.CoreV1().ConfigMaps(namespace)
	for _, name := range names {
		object, err := api.Get(c.ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			c.fail("looking for the configmap "+namespace+"/"+name, err)
		case object.Labels[naming.LabelManagedBy] == naming.ManagedByBroker:
			c.remove(fmt.Sprintf("configmap %s/%s", namespace, name), func() error {
				return api.Delete(c.ctx, name, *metav1.NewPreconditionDeleteOptions(string(object.UID)))
			})
		}
	}
}

// conditions removes those that the exporter wrote to ServiceExports, also where the feature is off by now.
func (c *cleaner) conditions(client *mcs.Client) {
	exports, err := client.WithOwnConditions(c.ctx)
	if err != nil {
		c.fail("listing serviceexports", err)
		return
	}
	for _, e := range exports {
		c.remove(fmt.Sprintf("conditions of serviceexport %s/%s", e.Namespace, e.Name), func() error {
			return client.RemoveOwnConditions(c.ctx, &e)
		})
	}
}

func (c *cleaner) remoteClusters() (names []string) {
	list, err := c.objects.Resource(v1alpha1.RemoteClusters).List(c.ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the type is not served
	}
	if err != nil {
		c.fail("listing RemoteClusters", err)
		return nil
	}
	for _, o := range list.Items {
		names = append(names, o.Name)
	}
	return names
}

// nodes removes annotations for tunnels to these remotes. Those for other clusters may be semaphore-wireguard's.
func (c *cleaner) nodes(client kubernetes.Interface, remotes []string) {
	nodes, err := client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
	if err != nil {
		c.fail("listing nodes", err)
		return
	}
	for _, n := range nodes.Items {
		keys := annotationsOf(&n, remotes)
		if len(keys) == 0 {
			continue
		}
		gone := map[string]any{}
		for _, key := range keys {
			gone[key] = nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "annotations": gone}})
		if err != nil {
			c.fail("annotations of node "+n.Name, err)
			continue
		}
		c.remove(fmt.Sprintf("annotations %v of node %s", keys, n.Name), func() error {
			_, err := client.CoreV1().Nodes().Patch(c.ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
	}
}

// annotationsOf returns the keys of a node's annotations for tunnels to remotes, sorted.
func annotationsOf(n *corev1.Node, remotes []string) []string {
	var keys []string
	for key := range n.Annotations {
		if cluster, ok := naming.WireGuardAnnotationCluster(key); ok && slices.Contains(remotes, cluster) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

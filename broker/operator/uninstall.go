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

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
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
	// DryRun reports what would be removed, and removes nothing.
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
	c := &cleaner{ctx: ctx, dryRun: o.DryRun, out: out}
	c.slices(client, metav1.NamespaceAll, writes.OwnedOwnSlices) // first: traffic to Services of users leads to them
	c.services(client, cfg.MirrorNamespace)
	// Those that route the broker's own Services to the leader: nothing else deletes them.
	c.slices(client, cmp.Or(os.Getenv("POD_NAMESPACE"), cfg.MirrorNamespace),
		discoveryv1.LabelManagedBy+"="+leader.ManagedBy)
	if client, err := mcs.New(rest, writes.FieldManager); err != nil {
		c.fail("serviceimports and conditions of serviceexports", err)
	} else {
		c.imports(client)
		c.conditions(client)
	}
	c.slices(client, metav1.NamespaceAll, writes.OwnedImportSlices) // also where the API is not served any more
	c.configMaps(client, cfg.MirrorNamespace)
	if calico, err := kube.Calico(rest); errors.Is(err, kube.ErrNoCalico) {
		c.printf("no sets and pools: %v", err)
	} else if err != nil {
		c.fail("sets and pools", err)
	} else {
		c.calico(calico)
	}
	if !o.LeaveAnnotations {
		c.nodes(client, append(c.remoteClusters(rest), cfg.Names()...))
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
	ctx    context.Context
	dryRun bool
	out    io.Writer
	done   int
	errs   []error
}

func (c *cleaner) printf(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

func (c *cleaner) fail(what string, err error) {
	c.printf("failed: %s: %v", what, err)
	c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
}

// remove removes one object, unless it no longer exists.
func (c *cleaner) remove(what string, do func() error) {
	if c.dryRun {
		c.printf("would remove %s", what)
		c.done++
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

func (c *cleaner) services(client kubernetes.Interface, namespace string) {
	services, err := client.CoreV1().Services(namespace).List(c.ctx, metav1.ListOptions{LabelSelector: writes.Owned})
	if err != nil {
		c.fail("listing services in "+namespace, err)
	} else {
		for _, s := range services.Items {
			c.remove(fmt.Sprintf("service %s/%s", namespace, s.Name), func() error {
				return client.CoreV1().Services(namespace).Delete(c.ctx, s.Name, only(s.UID))
			})
		}
	}
	c.slices(client, namespace, writes.Owned)
}

// slices removes those with a label, in one namespace or in all.
func (c *cleaner) slices(client kubernetes.Interface, namespace, selector string) {
	all, err := client.DiscoveryV1().EndpointSlices(namespace).List(c.ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		c.fail("listing endpointslices "+selector, err)
		return
	}
	for _, s := range all.Items {
		c.remove(fmt.Sprintf("endpointslice %s/%s", s.Namespace, s.Name), func() error {
			return client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(c.ctx, s.Name, only(s.UID))
		})
	}
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
				return api.Delete(c.ctx, name, only(object.UID))
			})
		}
	}
}

// named makes lists of objects that cannot be read, too: a name and a UID suffice to delete them.
func named() *kube.Unread {
	return &kube.Unread{Earlier: func(metadata kube.Object) (kube.Object, bool) { return metadata, true }}
}

// imports removes ServiceImports, also where the feature is off by now. The API and the ServiceExports stay.
func (c *cleaner) imports(client *mcs.Client) {
	imports := client.Imports()
	list, err := imports.Follow(writes.Owned, named()).ListWithContextFunc(c.ctx, metav1.ListOptions{})
	if errors.Is(err, mcs.ErrNotServed) {
		return // then there are none
	}
	if err != nil {
		c.fail("listing serviceimports", err)
		return
	}
	for _, i := range list.(*mcsv1beta1.ServiceImportList).Items {
		c.remove(fmt.Sprintf("serviceimport %s/%s", i.Namespace, i.Name), func() error {
			return imports.Delete(c.ctx, i.Namespace, i.Name, only(i.UID))
		})
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

func only(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

func (c *cleaner) calico(client *kube.CalicoClient) {
	removeOwned(c, writes.GlobalNetworkSet, func(string) kube.CalicoResource[*calicov3.GlobalNetworkSet] {
		return client.GlobalNetworkSets()
	})
	removeOwned(c, writes.NetworkSet, client.NetworkSets)
	removeOwned(c, writes.IPPool, func(string) kube.CalicoResource[*calicov3.IPPool] { return client.IPPools() })
	removeOwned(c, writes.IPReservation, func(string) kube.CalicoResource[*calicov3.IPReservation] {
		return client.IPReservations()
	})
}

func removeOwned[T kube.CalicoObject](c *cleaner, kind writes.ObjectKind,
	in func(namespace string) kube.CalicoResource[T]) {
	list, err := cache.ToListerWatcherWithContext(in("").Follow(writes.Owned, named())).ListWithContext(c.ctx,
		metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return // the cluster does not serve the type
	}
	if err != nil {
		c.fail("listing "+kind.Plural(), err)
		return
	}
	if err := meta.EachListItem(list, func(object runtime.Object) error {
		o := object.(T)
		c.remove(string(kind)+" "+path.Join(o.GetNamespace(), o.GetName()), func() error {
			return in(o.GetNamespace()).Delete(c.ctx, o.GetName(), o.GetUID(), "")
		})
		return nil
	}); err != nil {
		c.fail("listing "+kind.Plural(), err)
	}
}

func (c *cleaner) remoteClusters(cfg *rest.Config) (names []string) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		c.fail("RemoteClusters", err)
		return nil
	}
	list, err := client.Resource(v1alpha1.RemoteClusters).List(c.ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the type is not served
	}
	if err != nil {
		c.fail("listing RemoteClusters", err)
		return nil
	}
	for _, o := range list.Items {
		names = append(names, o.GetName())
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

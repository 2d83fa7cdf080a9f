package broker

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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/front"
	"github.com/kube-semaphore/semaphore/broker/standing"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Cleanup removes from the cluster all that the broker wrote: what bears its labels, and the WireGuard annotations of the
// configured remotes. It tells out what it does, or with dryRun what it would. It can be run again; the broker and
// the agents must be stopped before, or they put back what is removed.
func Cleanup(ctx context.Context, cfg *config.Broker, dryRun bool, out io.Writer) error {
	rest, err := kube.Config(cfg.Kube, "cleanup")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kube.Protobuf(rest))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	quiet, err := kubernetes.NewForConfig(kube.Protobuf(kube.Quiet(rest)))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	c := &cleaner{ctx: ctx, dryRun: dryRun, out: out}
	c.services(client, cfg.MirrorNamespace)
	c.front(client, cmp.Or(os.Getenv("POD_NAMESPACE"), cfg.MirrorNamespace))
	c.endpoints(quiet, cfg.MirrorNamespace)
	c.configMaps(client, cfg.MirrorNamespace)
	if calico, err := kube.Calico(rest); errors.Is(err, kube.ErrNoCalico) {
		c.say("no sets and pools: %v", err)
	} else if err != nil {
		c.fail("sets and pools", err)
	} else {
		c.calico(calico)
	}
	c.nodes(client, cfg.Remotes)
	verb := "removed"
	if dryRun {
		verb = "to remove"
	}
	c.say("%d %s", c.done, verb)
	return errors.Join(c.errs...)
}

// cleaner goes on after an error: the more is removed the better.
type cleaner struct {
	ctx    context.Context
	dryRun bool
	out    io.Writer
	done   int
	errs   []error
}

func (c *cleaner) say(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

func (c *cleaner) fail(what string, err error) {
	c.say("failed: %s: %v", what, err)
	c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
}

// remove removes one thing, unless it has gone already.
func (c *cleaner) remove(what string, do func() error) {
	if c.dryRun {
		c.say("would remove %s", what)
		c.done++
		return
	}
	if err := do(); apierrors.IsNotFound(err) {
		return
	} else if err != nil {
		c.fail(what, err)
		return
	}
	c.say("removed %s", what)
	c.done++
}

func (c *cleaner) services(client kubernetes.Interface, namespace string) {
	owned := metav1.ListOptions{LabelSelector: apply.Owned}
	services, err := client.CoreV1().Services(namespace).List(c.ctx, owned)
	if err != nil {
		c.fail("listing services in "+namespace, err)
	} else {
		for _, s := range services.Items {
			c.remove(fmt.Sprintf("service %s/%s", namespace, s.Name), func() error {
				return client.CoreV1().Services(namespace).Delete(c.ctx, s.Name, only(s.UID))
			})
		}
	}
	slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(c.ctx, owned)
	if err != nil {
		c.fail("listing endpointslices in "+namespace, err)
		return
	}
	c.slices(client, namespace, slices.Items)
}

func (c *cleaner) slices(client kubernetes.Interface, namespace string, all []discoveryv1.EndpointSlice) {
	for _, s := range all {
		c.remove(fmt.Sprintf("endpointslice %s/%s", namespace, s.Name), func() error {
			return client.DiscoveryV1().EndpointSlices(namespace).Delete(c.ctx, s.Name, only(s.UID))
		})
	}
}

// front removes what led the broker's own Services to the leader: nobody else deletes it with them.
func (c *cleaner) front(client kubernetes.Interface, namespace string) {
	slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(c.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + front.ManagedBy})
	if err != nil {
		c.fail("listing endpointslices in "+namespace, err)
		return
	}
	c.slices(client, namespace, slices.Items)
}

// endpoints removes those that were written on request (services.endpoints), also where they are not any more.
func (c *cleaner) endpoints(client kubernetes.Interface, namespace string) {
	api := client.CoreV1().Endpoints(namespace)
	list, err := api.List(c.ctx, metav1.ListOptions{LabelSelector: apply.Owned})
	if err != nil {
		c.fail("listing endpoints in "+namespace, err)
		return
	}
	for _, e := range list.Items {
		c.remove(fmt.Sprintf("endpoints %s/%s", namespace, e.Name), func() error { return api.Delete(c.ctx, e.Name, only(e.UID)) })
	}
}

func (c *cleaner) configMaps(client kubernetes.Interface, namespace string) {
	names := []string{apply.DrainsName}
	for i := range standing.Shards {
		names = append(names, standing.Name(i))
	}
	api := client.CoreV1().ConfigMaps(namespace)
	for _, name := range names {
		object, err := api.Get(c.ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			c.fail("looking for the configmap "+namespace+"/"+name, err)
		case object.Labels[naming.LabelManagedBy] == naming.ManagedByBroker:
			c.remove(fmt.Sprintf("configmap %s/%s", namespace, name), func() error { return api.Delete(c.ctx, name, only(object.UID)) })
		}
	}
}

func only(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

func (c *cleaner) calico(client *kube.CalicoClient) {
	removeOwned(c, "globalnetworkset", func(string) kube.CalicoResource[*calicov3.GlobalNetworkSet] { return client.GlobalNetworkSets() })
	removeOwned(c, "networkset", client.NetworkSets)
	removeOwned(c, "ippool", func(string) kube.CalicoResource[*calicov3.IPPool] { return client.IPPools() })
	removeOwned(c, "ipreservation", func(string) kube.CalicoResource[*calicov3.IPReservation] { return client.IPReservations() })
}

func removeOwned[T kube.CalicoObject](c *cleaner, kind string, in func(namespace string) kube.CalicoResource[T]) {
	list, err := cache.ToListerWatcherWithContext(in("").ListWatch(apply.Owned)).ListWithContext(c.ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return // a type that the cluster does not serve
	}
	if err != nil {
		c.fail("listing "+kind+"s", err)
		return
	}
	if err := meta.EachListItem(list, func(object runtime.Object) error {
		o := object.(T)
		c.remove(kind+" "+path.Join(o.GetNamespace(), o.GetName()), func() error {
			return in(o.GetNamespace()).Delete(c.ctx, o.GetName(), o.GetUID(), "")
		})
		return nil
	}); err != nil {
		c.fail("listing "+kind+"s", err)
	}
}

func (c *cleaner) nodes(client kubernetes.Interface, remotes []config.Remote) {
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

// annotationsOf are the keys of a node's annotations for tunnels to remotes, sorted.
func annotationsOf(n *corev1.Node, remotes []config.Remote) []string {
	var keys []string
	for key := range n.Annotations {
		cluster, ok := naming.WireGuardAnnotationCluster(key)
		if ok && slices.ContainsFunc(remotes, func(r config.Remote) bool { return r.Name == cluster }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

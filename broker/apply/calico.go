package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// How often a cluster that serves no Calico types, or an apiserver that cannot be asked, is asked again.
const (
	askAgain      = 30 * time.Second
	askAgainAfter = 2 * time.Second
)

// Calico finds out, for as long as it takes, under which group the cluster serves Calico's types. That group is used
// until the cluster serves it no more.
type Calico struct {
	cfg *rest.Config
	log *slog.Logger
	// again, and againAfter a failure, is when a cluster is asked again.
	again, againAfter time.Duration

	asking  sync.Mutex // held by who asks
	mu      sync.Mutex
	client  *kube.CalicoClient
	problem string
}

// NewCalico makes it; nothing is asked yet.
func NewCalico(cfg *rest.Config, log *slog.Logger) *Calico {
	return &Calico{cfg: cfg, log: log, again: askAgain, againAfter: askAgainAfter}
}

// Problem is why there is no client yet; empty when there is one or nobody has asked.
func (c *Calico) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// connect returns the client, or the context's error.
func (c *Calico) connect(ctx context.Context) (*kube.CalicoClient, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	for {
		c.mu.Lock()
		client, last := c.client, c.problem
		c.mu.Unlock()
		if client != nil {
			return client, nil
		}
		client, err := kube.Calico(c.cfg)
		if err == nil {
			client.FieldManager = fieldManager
		}
		c.mu.Lock()
		c.client, c.problem = client, ""
		if err != nil {
			c.problem = err.Error()
		}
		now := c.problem
		c.mu.Unlock()
		if err == nil {
			c.log.Info("found Calico", "group", client.GroupVersion.String())
			return client, nil
		}
		wait := c.againAfter
		if errors.Is(err, kube.ErrNoCalico) {
			wait = c.again
		}
		if now != last {
			c.log.Warn("no policy sets and IPPools yet; the rest goes on", "again", wait, "error", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ListSets lists GlobalNetworkSets, whichever group serves them.
func (c *Calico) ListSets(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return cache.ToListerWatcherWithContext(client.GlobalNetworkSets().ListWatch("")).ListWithContext(ctx, options)
}

// Unserved takes note that the cluster does not serve the types as the client has them: it is asked anew.
func (c *Calico) unserved(client *kube.CalicoClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == client {
		c.client, c.problem = nil, fmt.Sprintf("the cluster does not serve %s any more", client.GroupVersion)
		c.log.Warn("Calico's types are gone; asking how they are served now", "group", client.GroupVersion.String())
	}
}

// Sets keeps the GlobalNetworkSets.
func Sets(calico *Calico, adoption *Adoption, desired Desired[*calicov3.GlobalNetworkSet], options Options) *Objects[*calicov3.GlobalNetworkSet] {
	return newObjects(kind[*calicov3.GlobalNetworkSet]{
		name:    "globalnetworkset",
		example: &calicov3.GlobalNetworkSet{},
		paced:   true,
		connect: connectCalico(calico, adoption, func(c *kube.CalicoClient, _ string) kube.CalicoResource[*calicov3.GlobalNetworkSet] {
			return c.GlobalNetworkSets()
		}),
		merge: func(have, want *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet {
			out := have.DeepCopy()
			mergeSetMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Spec.Nets = want.Spec.Nets
			return out
		},
		equal: func(a, b *calicov3.GlobalNetworkSet) bool { return equality.Semantic.DeepEqual(a, b) },
	}, desired, options)
}

// mergeSetMeta leaves a set that was taken over the value of the label managed-by that its tool gave it: policies of its users may
// select by it.
func mergeSetMeta(have, want *metav1.ObjectMeta) {
	was := have.Labels[naming.LabelSetManagedBy]
	mergeMeta(have, want)
	if slices.Contains(config.Originals, was) {
		have.Labels[naming.LabelSetManagedBy] = was
	}
}

// NetworkSets keeps the sets in namespaces. Their names are NAMESPACE/NAME.
func NetworkSets(calico *Calico, desired Desired[*calicov3.NetworkSet], options Options) *Objects[*calicov3.NetworkSet] {
	return newObjects(kind[*calicov3.NetworkSet]{
		name:       "networkset",
		example:    &calicov3.NetworkSet{},
		everywhere: true,
		paced:      true,
		connect:    connectCalico(calico, nil, (*kube.CalicoClient).NetworkSets),
		merge: func(have, want *calicov3.NetworkSet) *calicov3.NetworkSet {
			out := have.DeepCopy()
			mergeSetMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Spec.Nets = want.Spec.Nets
			return out
		},
		equal: func(a, b *calicov3.NetworkSet) bool { return equality.Semantic.DeepEqual(a, b) },
	}, desired, options)
}

// Pools keeps the disabled IPPools of the remotes' pod subnets. Where somebody else has a pool of such a subnet, under
// whatever name, none is made beside it: Calico cannot tell which of two counts.
func Pools(calico *Calico, desired Desired[*calicov3.IPPool], options Options) *Objects[*calicov3.IPPool] {
	return newObjects(kind[*calicov3.IPPool]{
		name:    "ippool",
		example: &calicov3.IPPool{},
		connect: func(ctx context.Context) (connection[*calicov3.IPPool], error) {
			var pools kube.CalicoResource[*calicov3.IPPool]
			out, err := connectCalico(calico, nil, func(c *kube.CalicoClient, _ string) kube.CalicoResource[*calicov3.IPPool] {
				pools = c.IPPools()
				return pools
			})(ctx)
			if err == nil {
				out.blocked = func(ctx context.Context, want *calicov3.IPPool) error { return foreignPool(ctx, pools, want) }
			}
			return out, err
		},
		merge: func(have, want *calicov3.IPPool) *calicov3.IPPool {
			out := have.DeepCopy()
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Spec.Disabled, out.Spec.NATOutgoing = want.Spec.Disabled, want.Spec.NATOutgoing
			out.Spec.DisableBGPExport = want.Spec.DisableBGPExport
			out.Spec.IPIPMode, out.Spec.VXLANMode = want.Spec.IPIPMode, want.Spec.VXLANMode
			out.Spec.NodeSelector = want.Spec.NodeSelector
			return out
		},
		equal:   func(a, b *calicov3.IPPool) bool { return equality.Semantic.DeepEqual(a, b) },
		replace: func(have, want *calicov3.IPPool) bool { return have.Spec.CIDR != want.Spec.CIDR }, // it cannot change
	}, desired, options)
}

// foreignPool is the conflict with a pool of somebody else that overlaps the one that we want.
func foreignPool(ctx context.Context, pools kube.CalicoResource[*calicov3.IPPool], want *calicov3.IPPool) error {
	subnet, err := netip.ParsePrefix(want.Spec.CIDR)
	if err != nil {
		return fmt.Errorf("ippool %s: spec.cidr: %w", want.Name, err)
	}
	list, err := cache.ToListerWatcherWithContext(pools.ListWatch("")).ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("looking for other IPPools that have %s: %w", subnet, err)
	}
	for _, p := range list.(*calicov3.IPPoolList).Items {
		kube.Unveil(&p)
		has, err := netip.ParsePrefix(p.Spec.CIDR)
		if err != nil || ours(&p) || !has.Overlaps(subnet) {
			continue
		}
		return conflict{kind: "ippool", name: p.Name, hint: fmt.Sprintf(
			"its %s overlaps %s of the cluster %s, so none is made beside it; remove it to have one made, or see to it yourself that it is disabled, without natOutgoing and with disableBGPExport",
			has, subnet, want.Labels[naming.LabelSourceCluster])}
	}
	return nil
}

// calicoClient writes one of Calico's types.
type calicoClient[T kube.CalicoObject] struct {
	in func(namespace string) kube.CalicoResource[T]
}

// connectCalico reaches one of Calico's types, once what is to be ours is marked as such.
func connectCalico[T kube.CalicoObject](calico *Calico, adoption *Adoption, of func(c *kube.CalicoClient, namespace string) kube.CalicoResource[T]) func(context.Context) (connection[T], error) {
	return func(ctx context.Context) (connection[T], error) {
		c, err := calico.connect(ctx)
		if err != nil {
			return connection[T]{}, err
		}
		in := func(namespace string) kube.CalicoResource[T] { return of(c, namespace) }
		adopter := adopter[T]{adoption, in, c.Veils(), calico.log}
		adopter.all(ctx)
		out := connection[T]{
			client:    calicoClient[T]{in},
			listWatch: in("").ListWatch(Owned),
			adopt:     adopter.one,
			unserved:  func() { calico.unserved(c) },
		}
		return out, nil
	}
}

func (c calicoClient[T]) Get(ctx context.Context, like T) (T, error) {
	return wrap(c.in(like.GetNamespace()).Get(ctx, like.GetName()))
}

func (c calicoClient[T]) Create(ctx context.Context, o T) (T, error) {
	return wrap(c.in(o.GetNamespace()).Create(ctx, o))
}

func (c calicoClient[T]) Update(ctx context.Context, o T) (T, error) {
	return wrap(c.in(o.GetNamespace()).Update(ctx, o))
}

func (c calicoClient[T]) Delete(ctx context.Context, o T) error {
	return c.in(o.GetNamespace()).Delete(ctx, o.GetName(), o.GetUID(), o.GetResourceVersion())
}

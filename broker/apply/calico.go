package apply

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// How often a cluster that serves no Calico types, or an apiserver that cannot be asked, is asked again.
const (
	askAgain      = 30 * time.Second
	askAgainAfter = 2 * time.Second
)

// Calico finds out, once and for as long as it takes, under which group the cluster serves Calico's types.
type Calico struct {
	cfg *rest.Config
	log *slog.Logger

	asking  sync.Mutex // held by who asks
	mu      sync.Mutex
	client  *kube.CalicoClient
	problem string
}

// NewCalico makes it; nothing is asked yet.
func NewCalico(cfg *rest.Config, log *slog.Logger) *Calico { return &Calico{cfg: cfg, log: log} }

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
		wait := askAgainAfter
		if errors.Is(err, kube.ErrNoCalico) {
			wait = askAgain
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

// Sets keeps the GlobalNetworkSets.
func Sets(calico *Calico, desired Desired[*calicov3.GlobalNetworkSet], options Options) *Objects[*calicov3.GlobalNetworkSet] {
	return newObjects(kind[*calicov3.GlobalNetworkSet]{
		name:    "globalnetworkset",
		example: &calicov3.GlobalNetworkSet{},
		connect: connectCalico(calico, (*kube.CalicoClient).GlobalNetworkSets),
		merge: func(have, want *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet {
			out := have.DeepCopy()
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Spec.Nets = want.Spec.Nets
			return out
		},
		equal: func(a, b *calicov3.GlobalNetworkSet) bool { return equality.Semantic.DeepEqual(a, b) },
	}, desired, options)
}

// Pools keeps the disabled IPPools of the remotes' pod subnets.
func Pools(calico *Calico, desired Desired[*calicov3.IPPool], options Options) *Objects[*calicov3.IPPool] {
	return newObjects(kind[*calicov3.IPPool]{
		name:    "ippool",
		example: &calicov3.IPPool{},
		connect: connectCalico(calico, (*kube.CalicoClient).IPPools),
		merge: func(have, want *calicov3.IPPool) *calicov3.IPPool {
			out := have.DeepCopy()
			mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
			out.Spec.Disabled, out.Spec.NATOutgoing = want.Spec.Disabled, want.Spec.NATOutgoing
			out.Spec.IPIPMode, out.Spec.VXLANMode = want.Spec.IPIPMode, want.Spec.VXLANMode
			out.Spec.NodeSelector = want.Spec.NodeSelector
			return out
		},
		equal:   func(a, b *calicov3.IPPool) bool { return equality.Semantic.DeepEqual(a, b) },
		replace: func(have, want *calicov3.IPPool) bool { return have.Spec.CIDR != want.Spec.CIDR }, // it cannot change
	}, desired, options)
}

// calicoClient writes one of Calico's types.
type calicoClient[T kube.CalicoObject] struct{ kube.CalicoResource[T] }

func connectCalico[T kube.CalicoObject](calico *Calico, of func(*kube.CalicoClient) kube.CalicoResource[T]) func(context.Context) (client[T], cache.ListerWatcher, error) {
	return func(ctx context.Context) (client[T], cache.ListerWatcher, error) {
		c, err := calico.connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		return calicoClient[T]{of(c)}, of(c).ListWatch(Owned), nil
	}
}

func (c calicoClient[T]) Create(ctx context.Context, o T) (T, error) {
	return wrap(c.CalicoResource.Create(ctx, o))
}

func (c calicoClient[T]) Update(ctx context.Context, o T) (T, error) {
	return wrap(c.CalicoResource.Update(ctx, o))
}

func (c calicoClient[T]) Delete(ctx context.Context, o T) error {
	return c.CalicoResource.Delete(ctx, o.GetName(), o.GetUID(), o.GetResourceVersion())
}

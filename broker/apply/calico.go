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

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/migrate"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Intervals of discovery: while the cluster serves no Calico types, and while the apiserver does not answer.
const (
	askAgain      = 30 * time.Second
	askAgainAfter = 2 * time.Second
)

// Calico discovers under which API group the cluster serves Calico's types, and retries until it finds one. It uses
// that group until the cluster no longer serves it.
type Calico struct {
	cfg *rest.Config
	log *slog.Logger
	// again is the interval of discovery; againAfter is the interval after a failure.
	again, againAfter time.Duration

	asking  sync.Mutex // held during discovery
	mu      sync.Mutex
	client  *kube.CalicoClient
	problem *kube.Problem
}

func NewCalico(cfg *rest.Config, log *slog.Logger) *Calico {
	return &Calico{cfg: cfg, log: log, again: askAgain, againAfter: askAgainAfter, problem: kube.NewProblem(log)}
}

// Problem is the reason why there is no client yet; empty if there is one or discovery has not begun.
func (c *Calico) Problem() string { return c.problem.Text() }

// connect returns the client, or the error of the context.
func (c *Calico) connect(ctx context.Context) (*kube.CalicoClient, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	for {
		c.mu.Lock()
		client := c.client
		c.mu.Unlock()
		if client != nil {
			return client, nil
		}
		client, err := kube.Calico(c.cfg)
		if err == nil {
			client.FieldManager = writes.FieldManager
			c.mu.Lock()
			c.client = client
			c.mu.Unlock()
			c.problem.Set("")
			c.log.Info("found Calico", "group", client.GroupVersion.String())
			return client, nil
		}
		c.problem.Set(err.Error())
		wait := c.againAfter
		if errors.Is(err, kube.ErrNoCalico) {
			wait = c.again
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// ListSets lists GlobalNetworkSets of the group that serves them. It waits for Calico, and fails if ctx ends first or
// the request fails.
func (c *Calico) ListSets(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return cache.ToListerWatcherWithContext(client.GlobalNetworkSets().Follow("", &kube.Unread{})).ListWithContext(ctx,
		options)
}

// unserved records that the cluster does not serve the types under the client's group. Discovery starts again.
func (c *Calico) unserved(client *kube.CalicoClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == client {
		c.client = nil
		c.problem.Set(fmt.Sprintf("the cluster no longer serves %s", client.GroupVersion))
	}
}

func Sets(
	calico *Calico, adoption *migrate.Sets, desired writes.Desired[*calicov3.GlobalNetworkSet], options Options,
) *Objects[*calicov3.GlobalNetworkSet] {
	k := setKind(writes.GlobalNetworkSet, &calicov3.GlobalNetworkSet{},
		func(s *calicov3.GlobalNetworkSet) (*metav1.ObjectMeta, *[]string) { return &s.ObjectMeta, &s.Spec.Nets })
	k.connect = connectCalico(calico, adoption, k.unread,
		func(c *kube.CalicoClient, _ string) kube.CalicoResource[*calicov3.GlobalNetworkSet] {
			return c.GlobalNetworkSets()
		})
	return newObjects(k, desired, options)
}

// NetworkSets keeps the sets in namespaces. Their names are NAMESPACE/NAME.
func NetworkSets(calico *Calico, desired writes.Desired[*calicov3.NetworkSet],
	options Options) *Objects[*calicov3.NetworkSet] {
	k := setKind(writes.NetworkSet, &calicov3.NetworkSet{},
		func(s *calicov3.NetworkSet) (*metav1.ObjectMeta, *[]string) { return &s.ObjectMeta, &s.Spec.Nets })
	k.everywhere, k.connect = true, connectCalico(calico, nil, k.unread, (*kube.CalicoClient).NetworkSets)
	return newObjects(k, desired, options)
}

// setKind is how sets of either type are compared and merged; parts is where one has its metadata and its addresses.
func setKind[T writes.Object](name writes.ObjectKind, example T, parts func(T) (*metav1.ObjectMeta,
	*[]string)) kind[T] {
	return kind[T]{
		Kind: writes.Kind[T]{
			Name:  name,
			Paced: true,
			Merge: func(have, want T) T {
				out := have.DeepCopyObject().(T)
				meta, nets := parts(out)
				wantMeta, wantNets := parts(want)
				mergeSetMeta(meta, wantMeta)
				*nets = *wantNets
				return out
			},
			Equal: func(a, b T) bool { return equality.Semantic.DeepEqual(a, b) },
			Empty: func(have T) T {
				out := have.DeepCopyObject().(T)
				_, nets := parts(out)
				*nets = []string{}
				return out
			},
		},
		example: example,
		unread:  &kube.Unread{},
	}
}

// mergeSetMeta keeps the value of the label managed-by that the previous tool gave an adopted set, because policies of
// its users may select by it.
func mergeSetMeta(have, want *metav1.ObjectMeta) {
	was := have.Labels[naming.LabelSetManagedBy]
	mergeMeta(have, want)
	if slices.Contains(config.Originals, was) {
		have.Labels[naming.LabelSetManagedBy] = was
	}
}

// Pools writes the disabled IPPools for the remotes' pod subnets. If another owner's pool already has such a subnet,
// under any name, the broker creates none: with two pools of one subnet it is undefined which of them Calico uses.
func Pools(calico *Calico, desired writes.Desired[*calicov3.IPPool], options Options) *Objects[*calicov3.IPPool] {
	unread := &kube.Unread{}
	return newObjects(kind[*calicov3.IPPool]{
		unread: unread,
		Kind: writes.Kind[*calicov3.IPPool]{
			Name: writes.IPPool,
			Merge: func(have, want *calicov3.IPPool) *calicov3.IPPool {
				out := have.DeepCopy()
				mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
				out.Spec.Disabled, out.Spec.NATOutgoing = want.Spec.Disabled, want.Spec.NATOutgoing
				out.Spec.DisableBGPExport = want.Spec.DisableBGPExport
				out.Spec.IPIPMode, out.Spec.VXLANMode = want.Spec.IPIPMode, want.Spec.VXLANMode
				out.Spec.NodeSelector = want.Spec.NodeSelector
				return out
			},
			Equal: func(a, b *calicov3.IPPool) bool { return equality.Semantic.DeepEqual(a, b) },
			// spec.cidr is immutable
			Replace: func(have, want *calicov3.IPPool) bool { return have.Spec.CIDR != want.Spec.CIDR },
		},
		example: &calicov3.IPPool{},
		connect: func(ctx context.Context) (connection[*calicov3.IPPool], error) {
			var pools kube.CalicoResource[*calicov3.IPPool]
			out, err := connectCalico(calico, nil, unread,
				func(c *kube.CalicoClient, _ string) kube.CalicoResource[*calicov3.IPPool] {
					pools = c.IPPools()
					return pools
				})(ctx)
			if err == nil {
				out.blocked = func(ctx context.Context, want *calicov3.IPPool) error { return foreignPool(ctx, pools, want) }
			}
			return out, err
		},
	}, desired, options)
}

// foreignPool is the conflict with an overlapping pool that the broker did not create. It leaves a pool of that very
// name to the apiserver, which refuses the create: the pool may be the broker's, without its label.
func foreignPool(ctx context.Context, pools kube.CalicoResource[*calicov3.IPPool], want *calicov3.IPPool) error {
	subnet, err := netip.ParsePrefix(want.Spec.CIDR)
	if err != nil {
		return fmt.Errorf("ippool %s: spec.cidr: %w", want.Name, err)
	}
	// Calico cannot read a pool that this cannot read, either.
	list, err := cache.ToListerWatcherWithContext(pools.Follow("", &kube.Unread{})).ListWithContext(ctx,
		metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("looking for other IPPools that have %s: %w", subnet, err)
	}
	for _, p := range list.(*calicov3.IPPoolList).Items {
		kube.CopyCalicoMetadata(&p)
		has, err := netip.ParsePrefix(p.Spec.CIDR)
		if err != nil || writes.Ours(&p) || p.Name == want.Name || !has.Overlaps(subnet) {
			continue
		}
		return writes.NotOurs{Kind: writes.IPPool, Name: p.Name, Hint: fmt.Sprintf(
			"its %s overlaps %s of the cluster %s, so none is made beside it; remove it to have one made, or see to it "+
				"yourself that it is disabled, without natOutgoing and with disableBGPExport",
			has, subnet, want.Labels[naming.LabelSourceCluster])}
	}
	return nil
}

type calicoClient[T kube.CalicoObject] struct {
	in func(namespace string) kube.CalicoResource[T]
}

// connectCalico connects to one of Calico's types, after it has labeled the objects to adopt.
func connectCalico[T kube.CalicoObject](
	calico *Calico, adoption *migrate.Sets, unread *kube.Unread,
	of func(c *kube.CalicoClient, namespace string) kube.CalicoResource[T],
) func(context.Context) (connection[T], error) {
	return func(ctx context.Context) (connection[T], error) {
		c, err := calico.connect(ctx)
		if err != nil {
			return connection[T]{}, err
		}
		in := func(namespace string) kube.CalicoResource[T] { return of(c, namespace) }
		adopter := migrate.Adopter[T]{Sets: adoption, In: in, HidesMetadata: c.HidesMetadata(), Log: calico.log}
		adopter.All(ctx)
		out := connection[T]{
			client:    calicoClient[T]{in},
			listWatch: in("").Follow(writes.Owned, unread),
			adoptAll:  adopter.All,
			adopt:     adopter.One,
			unserved:  func() { calico.unserved(c) },
		}
		return out, nil
	}
}

func (c calicoClient[T]) Get(ctx context.Context, like T) (T, error) {
	have, err := c.in(like.GetNamespace()).Get(ctx, like.GetName())
	if err == nil {
		kube.CopyCalicoMetadata(have) // the Calico API server may have written it
	}
	return wrap(have, err)
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

package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// calicoWithin bounds the answer of an apiserver.
const calicoWithin = 10 * time.Second

// gatherCalico reads how the Calico of a broker's cluster treats the pods of remotes; nil if there is nothing to check.
func gatherCalico(ctx context.Context, c *config.Broker, access *fleet.Access) *Calico {
	if !c.Features.Has(config.Encryption) {
		return nil
	}
	out := &Calico{}
	there, err := ofCalico(ctx, c, access,
		func(ctx context.Context, cfg *rest.Config) error { return readCalico(ctx, cfg, out) })
	if !there {
		return nil
	}
	out.Err, out.Forbidden = err, apierrors.IsForbidden(err)
	for _, r := range c.Remotes {
		for _, subnet := range r.PodPrefixes {
			out.Remotes = append(out.Remotes, RemoteSubnet{Cluster: r.Name, Subnet: subnet})
		}
	}
	return out
}

// ofCalico calls read for the Calico of a broker's cluster, with the broker's own access or the caller's. there is
// false if there is no cluster to ask, or no Calico in it.
func ofCalico(ctx context.Context, c *config.Broker, access *fleet.Access,
	read func(context.Context, *rest.Config) error) (there bool, err error) {
	cfg, err := fleet.ConfigOf(access, c.Kube)
	if errors.Is(err, rest.ErrNotInCluster) {
		return false, nil
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, calicoWithin)
		defer cancel()
		err = read(ctx, cfg)
	}
	return !errors.Is(err, kube.ErrNoCalico), err
}

func readCalico(ctx context.Context, cfg *rest.Config, out *Calico) error {
	client, err := kube.Calico(cfg)
	if err != nil {
		return err
	}
	out.PoolResource = "ippools." + client.GroupVersion.Group
	list, err := cache.ToListerWatcherWithContext(client.IPPools().ListWatch("")).ListWithContext(ctx,
		metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range list.(*calicov3.IPPoolList).Items {
		prefix, err := netip.ParsePrefix(p.Spec.CIDR)
		if err != nil {
			return fmt.Errorf("ippool %s: spec.cidr: %w", p.Name, err)
		}
		out.Pools = append(out.Pools, Pool{
			Name: p.Name, CIDR: prefix, Disabled: p.Spec.Disabled, DisableBGPExport: p.Spec.DisableBGPExport,
			NATOutgoing: p.Spec.NATOutgoing,
		})
	}
	affinities, err := kube.NewBlockAffinities(cfg).ListWatch().ListWithContextFunc(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case errors.Is(err, kube.ErrNoBlocks):
		return nil
	case err != nil:
		return err
	}
	out.Blocks = len(affinities.(*kube.BlockAffinityList).Items) > 0
	resource, strict, err := kube.StrictAffinity(ctx, cfg)
	if err != nil {
		return err
	}
	out.Strict, out.StrictFix = strict, "calicoctl ipam configure --strictaffinity=true"
	if resource != "" {
		out.StrictFix = fmt.Sprintf(`kubectl patch %s default --type merge -p '{"spec":{"strictAffinity":true}}'`, resource)
	}
	return nil
}

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// brokersCluster is the cluster of a broker, or why it cannot be read.
type brokersCluster struct {
	*fleet.Objects
	*config.Broker
	err error
}

// none is set if nothing says how to reach an apiserver.
func (b *brokersCluster) none() bool { return errors.Is(b.err, rest.ErrNotInCluster) }

// read reads something of the cluster within the time for one thing, and returns why that fails.
func (b *brokersCluster) read(ctx context.Context, read func(context.Context) error) error {
	if b.err != nil {
		return b.err
	}
	ctx, cancel := context.WithTimeout(ctx, fleet.Within)
	defer cancel()
	return read(ctx)
}

// gatherCalico reads how the Calico of the cluster treats the pods of remotes; nil if there is nothing to check.
func (b *brokersCluster) gatherCalico(ctx context.Context) *Calico {
	if b.none() || !b.Features.Has(config.Encryption) {
		return nil
	}
	out := &Calico{}
	out.Err = b.read(ctx, func(ctx context.Context) (err error) {
		if out.Pools, out.PoolResource, err = b.IPPools(ctx); err == nil {
			out.IPAM, err = b.IPAM(ctx)
		}
		return err
	})
	if errors.Is(out.Err, kube.ErrNoCalico) {
		return nil
	}
	for _, r := range b.Remotes {
		out.Remotes = append(out.Remotes, preflight.Remote{Name: r.Name, Pods: r.PodPrefixes})
	}
	return out
}

// gatherPolicies reads which sets the policies of the cluster select; nil if there is nothing to check. The broker
// itself has no right to read them.
func (b *brokersCluster) gatherPolicies(ctx context.Context) *Policies {
	if b.none() || !b.Features.Has(config.Policy) {
		return nil
	}
	out := &Policies{}
	out.Err = b.read(ctx, func(ctx context.Context) error {
		c := &policy.Cluster{}
		unread, sets, err := b.Policies(ctx, "", c)
		if err = errors.Join(append(slices.Concat(unread, sets), err)...); err == nil {
			out.Total, out.Open = len(c.GlobalPolicies)+len(c.Policies), policy.OpenToRemotes(c)
		}
		return err
	})
	if errors.Is(out.Err, kube.ErrNoCalico) {
		return nil
	}
	return out
}

// policyKeys is the ConfigMap by which admission policies judge.
type policyKeys struct {
	namespace, name string
	value           func(key string) (text string, found bool)
}

// policyKeys returns those of the cluster. In its container a broker has them as files; its token may not read the
// object.
func (b *brokersCluster) policyKeys(ctx context.Context) (all []policyKeys, err error) {
	if dir := os.Getenv("POLICY_KEYS"); dir != "" {
		var more []string
		for _, r := range b.Remotes {
			more = append(more, config.KeyRemotePodSubnets+r.Name)
		}
		value, err := config.PolicyKeysIn(dir, more...)
		return []policyKeys{{b.MirrorNamespace, "semaphore-subnets", value}}, err
	}
	err = b.read(ctx, func(ctx context.Context) error {
		found, err := b.PolicyKeys(ctx, "")
		for _, one := range found {
			all = append(all, policyKeys{one.Namespace, one.Name, func(key string) (string, bool) {
				text, ok := one.Data[key]
				return text, ok
			}})
		}
		return err
	})
	return all, err
}

// gatherPolicyKeys compares a broker's file and its remotes with the keys by which its cluster's admission policies
// judge; nil if no cluster is reached, or if it has no such ConfigMap yet.
func (b *brokersCluster) gatherPolicyKeys(ctx context.Context) *PolicyKeys {
	if b.none() {
		return nil
	}
	all, err := b.policyKeys(ctx)
	if err != nil {
		return &PolicyKeys{Err: fmt.Errorf("what admission policies judge by: %w", err)}
	}
	if len(all) == 0 {
		return nil
	}
	out := &PolicyKeys{}
	for _, one := range all {
		out.Differ = errors.Join(out.Differ, config.ComparePolicyKeys(b.Broker, one.value))
		if !b.GlobalServices.OwnNames {
			continue
		}
		for _, r := range b.Remotes {
			key, want := config.RemotePodSubnets(r.Name, r.PodPrefixes)
			have, _ := one.value(key)
			out.Remotes = append(out.Remotes, RemoteKey{Namespace: one.namespace, ConfigMap: one.name, Remote: r.Name,
				Key: key, Have: have, Want: want})
		}
	}
	return out
}

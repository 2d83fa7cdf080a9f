package certs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// This file holds the keys of the ConfigMap semaphore-subnets for remotes: admission policies let the broker write
// endpoints under own names of Services only in the pod subnets that the operator gave the remote, here.

// PinSubnets writes the key for a remote. A cluster without the ConfigMap has no policies that read it. It fails if the
// apiserver refuses.
func (p *Store) PinSubnets(ctx context.Context, remote string, pods []netip.Prefix, dryRun ...string) error {
	key, value := config.RemotePodSubnets(remote, pods)
	return p.setSubnets(ctx, key, &value, dryRun...)
}

// UnpinSubnets removes the key for a remote. It fails as PinSubnets does.
func (p *Store) UnpinSubnets(ctx context.Context, remote string) error {
	return p.setSubnets(ctx, config.KeyRemotePodSubnets+remote, nil)
}

// HasSubnets reports whether there is a key for a remote. It fails if the ConfigMaps cannot be read.
func (p *Store) HasSubnets(ctx context.Context, remote string) (has bool, err error) {
	all, err := p.Cluster.Objects.PolicyKeys(ctx, p.Cluster.Namespace)
	for _, one := range all {
		_, is := one.Data[config.KeyRemotePodSubnets+remote]
		has = has || is
	}
	return has, err
}

// setSubnets writes one key, or removes it for nil, where it is another. It is a merge patch, as the other keys are
// those of install or of an overlay.
func (p *Store) setSubnets(ctx context.Context, key string, value *string, dryRun ...string) error {
	all, err := p.Cluster.Objects.PolicyKeys(ctx, p.Cluster.Namespace)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]*string{key: value}})
	if err != nil {
		return err
	}
	for _, in := range all {
		if is, has := in.Data[key]; has == (value != nil) && (!has || is == *value) {
			continue
		}
		if _, err := p.Of(apply.ConfigMapRef(in.Namespace, in.Name)).Patch(ctx, in.Name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: apply.FieldManager, DryRun: dryRun}); err != nil {
			return fmt.Errorf("%s: ConfigMap %s/%s: key %s: %w", p.Cluster.Context, in.Namespace, in.Name, key, err)
		}
	}
	return nil
}

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	decide "github.com/kube-semaphore/semaphore/internal/remotes"
)

// OwnCluster returns a part's cluster: by the caller's kubeconfig if one is given, else by the part's access. It fails
// if no client can be made for that.
func OwnCluster(access *Access, own config.Kube) (*Objects, error) {
	if access.Given() {
		c, err := access.Cluster()
		if err != nil {
			return nil, err
		}
		return New("", c.Config)
	}
	cfg, err := kube.Config(own, "ctl")
	if err != nil {
		return nil, err
	}
	return New("", cfg)
}

// WithObjects returns the decision of a part about the RemoteClusters of its cluster; own has what the part judges them
// with, and its kube and leaderElection. It fails if the cluster cannot be read, or does not serve RemoteClusters.
// The specs in effect before matter only if an object is not accepted.
func WithObjects(ctx context.Context, own *config.Broker, part string, access *Access) (decide.Decision, error) {
	before, all, err := remoteObjects(ctx, own, part, access)
	d := decide.Decide(own, before, all, nil)
	accepted := !slices.ContainsFunc(slices.Collect(maps.Values(d.Verdicts)),
		func(v decide.Verdict) bool { return !v.Accepted() })
	if err != nil && (all == nil || !accepted || !apierrors.IsForbidden(err)) {
		return decide.Decision{}, fmt.Errorf("the RemoteClusters of the %s's cluster cannot be read: %w", part, err)
	}
	return d, nil
}

// remoteObjects returns the RemoteClusters of a part's cluster, and before, those that the part has in effect.
func remoteObjects(ctx context.Context, own *config.Broker, part string, access *Access) (before, all decide.Objects,
	err error) {
	cluster, err := OwnCluster(access, own.Kube)
	if err != nil {
		return nil, nil, err
	}
	namespace := own.LeaderElection.Namespace
	if access.Given() {
		namespace = cmp.Or(namespace, access.Namespace)
	}
	if namespace, err = kube.Namespace(namespace); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	list, err := cluster.RemoteClusters(ctx)
	if err == nil && list == nil {
		err = errors.New("it does not serve them")
	}
	if err != nil {
		return nil, nil, err
	}
	all = decide.Objects{}
	for _, r := range list {
		all[r.Name] = decide.Of(r, "")
	}
	before, err = cluster.InEffect(ctx, namespace, part)
	return before, all, err
}

// InEffect returns the RemoteClusters that a part has in effect, as it keeps them for its own start; none if it has
// kept none. It fails if that is not known, and returns those that it could read.
func (c *Objects) InEffect(ctx context.Context, namespace, part string) (decide.Objects, error) {
	name := "semaphore-" + part + "-remotes"
	stored, err := c.ConfigMap(ctx, namespace, name)
	if text := stored[decide.StoredKey]; text != "" {
		before, err := decide.ReadObjects(text)
		return before, c.unread("ConfigMap "+namespace+"/"+name, err)
	}
	return nil, err
}

package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	decide "github.com/kube-semaphore/semaphore/internal/remotes"
)

// OwnCluster returns a broker's cluster: by the caller's kubeconfig if one is given, else by the broker's access. It
// fails if no client can be made for that.
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

// WithObjects returns a broker's configuration with the remotes of its cluster's RemoteClusters. bundles are the root
// certificates of objects, PEM, by cluster. It fails if the cluster cannot be read, or does not serve RemoteClusters.
func WithObjects(ctx context.Context, c *config.Broker, access *Access) (_ *config.Broker,
	bundles map[string]string, err error) {
	own, err := OwnCluster(access, c.Kube)
	if err != nil {
		return nil, nil, fmt.Errorf("the RemoteClusters of the broker's cluster cannot be read: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	list, err := own.RemoteClusters(ctx)
	if err == nil && list == nil {
		err = errors.New("it does not serve them")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the RemoteClusters of the broker's cluster cannot be read: %w", err)
	}
	all := decide.Objects{}
	for _, r := range list {
		all[r.Name] = decide.Of(r, "")
	}
	d := decide.Decide(c, nil, all, nil)
	return d.Broker, d.Bundles(), nil
}

package ctl

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	decide "github.com/kube-semaphore/semaphore/internal/remotes"
)

// withObjects returns a broker's configuration with the remotes of its cluster's RemoteClusters, if its file names
// none. bundles are the root certificates of objects, PEM, by cluster.
func withObjects(ctx context.Context, c *config.Broker, access *fleet.Access) (_ *config.Broker,
	bundles map[string]string, err error) {
	if !c.Follows {
		return c, nil, nil
	}
	cfg, err := restConfig(access, c.Kube)
	if err != nil {
		return nil, nil, fmt.Errorf("the file names no remotes, and the RemoteClusters of its cluster cannot be read: %w",
			err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("client for RemoteClusters: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, corefileWithin)
	defer cancel()
	list, err := client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the file names no remotes, and the RemoteClusters of its cluster cannot be read: %w",
			err)
	}
	all := decide.Objects{}
	for i := range list.Items {
		var r v1alpha1.RemoteCluster
		if err := fromUnstructured(&list.Items[i], &r); err != nil {
			return nil, nil, fmt.Errorf("RemoteCluster %s: %w", list.Items[i].GetName(), err)
		}
		all[r.Name] = decide.Of(&r, "")
	}
	d, bundles := decide.Decide(c, nil, all, nil), map[string]string{}
	for name, o := range d.InEffect {
		if o.Spec.TrustBundle != "" {
			bundles[name] = o.Spec.TrustBundle
		}
	}
	return d.Broker, bundles, nil
}

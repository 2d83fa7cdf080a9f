package fleet

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	decide "github.com/kube-semaphore/semaphore/internal/remotes"
)

// ConfigOf returns the access to a broker's cluster: the caller's kubeconfig if one is given, else the broker's
// access.
func ConfigOf(access *Access, own config.Kube) (*rest.Config, error) {
	if !access.Given() {
		return kube.Config(own, "ctl")
	}
	cluster, err := access.Cluster()
	if err != nil {
		return nil, err
	}
	return cluster.Config, nil
}

// WithObjects returns a broker's configuration with the remotes of its cluster's RemoteClusters. bundles are the root
// certificates of objects, PEM, by cluster.
func WithObjects(ctx context.Context, c *config.Broker, access *Access) (_ *config.Broker,
	bundles map[string]string, err error) {
	cfg, err := ConfigOf(access, c.Kube)
	if err != nil {
		return nil, nil, fmt.Errorf("the RemoteClusters of the broker's cluster cannot be read: %w",
			err)
	}
	client, err := read.New(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("client for RemoteClusters: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, read.Within)
	defer cancel()
	list, err := client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the RemoteClusters of the broker's cluster cannot be read: %w",
			err)
	}
	all := decide.Objects{}
	for i := range list.Items {
		r, err := RemoteCluster(&list.Items[i])
		if err != nil {
			return nil, nil, err
		}
		all[r.Name] = decide.Of(r, "")
	}
	d, bundles := decide.Decide(c, nil, all, nil), map[string]string{}
	for name, o := range d.InEffect {
		if o.Spec.TrustBundle != "" {
			bundles[name] = o.Spec.TrustBundle
		}
	}
	return d.Broker, bundles, nil
}

// RemoteCluster converts a RemoteCluster. The parts write its status; what cannot be read of that does not matter here.
func RemoteCluster(u *unstructured.Unstructured) (*v1alpha1.RemoteCluster, error) {
	data, err := u.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("RemoteCluster %s: %w", u.GetName(), err)
	}
	r, bad := kube.ReadObject(v1alpha1.Kind, data, func() *v1alpha1.RemoteCluster { return &v1alpha1.RemoteCluster{} })
	if bad != nil && bad.Whole {
		return nil, bad
	}
	return r, nil
}

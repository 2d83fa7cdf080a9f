package check

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// gatherPolicies reads which sets the policies of a broker's cluster select; nil if there is nothing to check. The
// broker itself has no right to read them.
func gatherPolicies(ctx context.Context, c *config.Broker, access *fleet.Access) *Policies {
	if !c.Features.Has(config.Policy) {
		return nil
	}
	out := &Policies{}
	there, err := ofCalico(ctx, c, access,
		func(ctx context.Context, cfg *rest.Config) error { return readPolicies(ctx, cfg, out) })
	if !there {
		return nil
	}
	out.Err, out.Forbidden = err, apierrors.IsForbidden(err)
	return out
}

// list reads all objects of one of Calico's types. An older Calico may not have it.
func list[T any](ctx context.Context, client dynamic.Interface, gv schema.GroupVersion, resource string,
	into *[]T) (err error) {
	if *into, err = read.List[T](ctx, client, gv.WithResource(resource), "", metav1.ListOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("list %s.%s: %w", resource, gv.Group, err)
	}
	return nil
}

func readPolicies(ctx context.Context, cfg *rest.Config, out *Policies) error {
	calico, err := kube.Calico(cfg)
	if err != nil {
		return err
	}
	client, err := read.New(cfg)
	if err != nil {
		return err
	}
	c := &policy.Cluster{}
	for _, err := range []error{
		list(ctx, client, calico.GroupVersion, "globalnetworkpolicies", &c.GlobalPolicies),
		list(ctx, client, calico.GroupVersion, "networkpolicies", &c.Policies),
		list(ctx, client, calico.GroupVersion, "globalnetworksets", &c.GlobalSets),
		list(ctx, client, calico.GroupVersion, "networksets", &c.Sets),
	} {
		if err != nil {
			return err
		}
	}
	namespaces, err := client.Resource(read.NamespacesGVR).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	c.Namespaces = map[string]map[string]string{}
	for i := range namespaces.Items {
		c.Namespaces[namespaces.Items[i].GetName()] = namespaces.Items[i].GetLabels()
	}
	out.Total, out.Open = len(c.GlobalPolicies)+len(c.Policies), policy.OpenToRemotes(c)
	return nil
}

package ctl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/diagnose/explain"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// gatherPolicies reads which sets the policies of a broker's cluster select; nil if there is nothing to check. The
// broker itself has no right to read them.
func gatherPolicies(ctx context.Context, c *config.Broker, access *fleet.Access) *check.Policies {
	if !c.Features.Has(config.Policy) {
		return nil
	}
	out := &check.Policies{}
	there, err := ofCalico(ctx, c, access,
		func(ctx context.Context, cfg *rest.Config) error { return readPolicies(ctx, cfg, out) })
	if !there {
		return nil
	}
	out.Err, out.Forbidden = err, apierrors.IsForbidden(err)
	return out
}

// into reads an object into a list.
func into[T any](list *[]T) func(map[string]any) error {
	return func(object map[string]any) error {
		var one T
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &one)
		*list = append(*list, one)
		return err
	}
}

func readPolicies(ctx context.Context, cfg *rest.Config, out *check.Policies) error {
	calico, err := kube.Calico(cfg)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	c := &explain.Cluster{}
	for resource, add := range map[string]func(map[string]any) error{
		"globalnetworkpolicies": into(&c.GlobalPolicies), "networkpolicies": into(&c.Policies),
		"globalnetworksets": into(&c.GlobalSets), "networksets": into(&c.Sets),
	} {
		found, err := client.Resource(calico.GroupVersion.WithResource(resource)).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // an older Calico has no such type
		}
		if err != nil {
			return fmt.Errorf("list %s.%s: %w", resource, calico.GroupVersion.Group, err)
		}
		for i := range found.Items {
			if err := add(found.Items[i].Object); err != nil {
				return fmt.Errorf("%s %s: %w", resource, found.Items[i].GetName(), err)
			}
		}
	}
	namespaces, err := client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	c.Namespaces = map[string]map[string]string{}
	for i := range namespaces.Items {
		c.Namespaces[namespaces.Items[i].GetName()] = namespaces.Items[i].GetLabels()
	}
	out.Total, out.Open = len(c.GlobalPolicies)+len(c.Policies), explain.OpenToRemotes(c)
	return nil
}

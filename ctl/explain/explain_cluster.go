package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// readFor reads from a cluster the objects that decide about a pod. Unread names objects that could decide and that the
// caller may not read; without the pod it returns an error.
func readFor(ctx context.Context, c *fleet.Objects, namespace, name string) (*policy.Cluster, *corev1.Pod, error) {
	pod, err := fleet.Get[corev1.Pod](ctx, c, fleet.PodsGVR, namespace, name)
	if err == nil && pod == nil {
		err = errors.New("it does not exist")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	out := &policy.Cluster{}
	unread := func(format string, args ...any) { out.Unread = append(out.Unread, fmt.Sprintf(format, args...)) }
	if out.KubePolicies, err = fleet.List[networkingv1.NetworkPolicy](ctx, c,
		networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), namespace, metav1.ListOptions{}); err != nil {
		return nil, nil, err
	}
	out.ServiceAccounts = map[string]map[string]string{}
	accounts, err := fleet.List[corev1.ServiceAccount](ctx, c, fleet.AccountsGVR, namespace, metav1.ListOptions{})
	if err != nil {
		unread("labels of ServiceAccounts: %v", err)
	}
	for _, a := range accounts {
		out.ServiceAccounts[a.Name] = a.Labels
	}
	not, sets, err := c.Policies(ctx, namespace, out)
	for _, what := range not {
		unread("%v", what)
	}
	for _, what := range sets {
		out.UnreadLast = append(out.UnreadLast, what.Error())
	}
	if errors.Is(err, kube.ErrNoCalico) { // no policy asks for those labels then
		out.Aside, out.Unread = append(out.Unread, fmt.Sprintf("Calico's policies and sets: %v", err)), nil
	} else if err != nil {
		return nil, nil, err
	}
	others(ctx, c, out)
	return out, pod, nil
}

// others names the policies that Calico knows and explain does not. Baseline policies come last.
func others(ctx context.Context, c *fleet.Objects, out *policy.Cluster) {
	unread := func(format string, args ...any) { out.Unread = append(out.Unread, fmt.Sprintf(format, args...)) }
	served, err := kube.NewServed(c.Config)
	if err != nil {
		unread("which other kinds of policies there are: %v", err)
		return
	}
	groups, err := served.Groups(ctx)
	if err != nil {
		unread("which other kinds of policies there are: %v", err)
	}
	for _, g := range groups {
		if g.Name != "policy.networking.k8s.io" {
			continue
		}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			resources, err := served.Resources(ctx, gv)
			if err != nil {
				unread("policies of %s: %v", gv, err)
			}
			for _, r := range resources {
				if strings.Contains(r.Name, "/") {
					continue // a subresource
				}
				found, err := fleet.List[metav1.PartialObjectMetadata](ctx, c, gv.WithResource(r.Name), "", metav1.ListOptions{})
				what := fmt.Sprintf("%d %s of %s", len(found), r.Name, gv)
				switch {
				case err != nil:
					unread("%v", err)
				case len(found) == 0:
				case r.Name == "baselineadminnetworkpolicies":
					out.UnreadLast = append(out.UnreadLast, what+", which come after those of namespaces")
				default:
					unread("%s, which may come before and after those of namespaces", what)
				}
			}
		}
	}
}

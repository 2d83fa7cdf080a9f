package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// reader reads what decides about a pod, with the caller's rights.
type reader struct {
	dynamic dynamic.Interface
	// calico is the group under which the cluster serves Calico's types.
	calico schema.GroupVersion
	out    *policy.Cluster
}

// readCluster reads from a cluster what explain needs. What the caller may not read, and could decide, is named in
// Unread; without the pod it returns an error.
func readCluster(ctx context.Context, access *fleet.Access, namespace, pod string,
	timeout time.Duration) (*policy.Cluster, *corev1.Pod, error) {
	cluster, err := access.Cluster()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return readFor(ctx, cluster.Config, namespace, pod)
}

func readFor(ctx context.Context, cfg *rest.Config, namespace, name string) (*policy.Cluster, *corev1.Pod, error) {
	dyn, err := read.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	served, err := kube.NewServed(cfg)
	if err != nil {
		return nil, nil, err
	}
	found, err := dyn.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace).Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("--to %s/%s: %w", namespace, name, err)
	}
	var pod corev1.Pod
	if err := read.Into(found, &pod); err != nil {
		return nil, nil, fmt.Errorf("--to %s/%s: %w", namespace, name, err)
	}
	r := &reader{dynamic: dyn, out: &policy.Cluster{}}
	if err := r.kubernetes(ctx, namespace); err != nil {
		return nil, nil, err
	}
	if err := r.findCalico(cfg); err != nil {
		return nil, nil, err
	}
	r.calicoTypes(ctx, namespace)
	r.others(ctx, served)
	return r.out, &pod, nil
}

func (r *reader) unread(format string, args ...any) {
	r.out.Unread = append(r.out.Unread, fmt.Sprintf(format, args...))
}

func (r *reader) kubernetes(ctx context.Context, namespace string) (err error) {
	if r.out.KubePolicies, err = read.List[networkingv1.NetworkPolicy](ctx, r.dynamic,
		networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), namespace, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("list NetworkPolicies of %s: %w", namespace, err)
	}
	if r.out.KubePolicies == nil { // it was read, and has none
		r.out.KubePolicies = []networkingv1.NetworkPolicy{}
	}
	r.out.Namespaces, r.out.ServiceAccounts = map[string]map[string]string{}, map[string]map[string]string{}
	namespaces, err := read.List[corev1.Namespace](ctx, r.dynamic, read.NamespacesGVR,
		"", metav1.ListOptions{})
	if err != nil {
		r.unread("labels of namespaces: %v", err)
	}
	for _, n := range namespaces {
		r.out.Namespaces[n.Name] = n.Labels
	}
	accounts, err := read.List[corev1.ServiceAccount](ctx, r.dynamic,
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"), namespace, metav1.ListOptions{})
	if err != nil {
		r.unread("labels of ServiceAccounts: %v", err)
	}
	for _, a := range accounts {
		r.out.ServiceAccounts[a.Name] = a.Labels
	}
	return nil
}

// findCalico finds the group that the cluster serves Calico's types in, as the broker does.
func (r *reader) findCalico(cfg *rest.Config) error {
	calico, err := kube.Calico(cfg)
	switch {
	case errors.Is(err, kube.ErrNoCalico):
		r.unread("Calico's policies and sets: %v", err)
	case err != nil:
		return err
	default:
		r.calico = calico.GroupVersion
	}
	return nil
}

func (r *reader) calicoTypes(ctx context.Context, namespace string) {
	if r.calico.Empty() {
		return
	}
	list(ctx, r, "tiers", "", &r.out.Tiers)
	list(ctx, r, "globalnetworkpolicies", "", &r.out.GlobalPolicies)
	list(ctx, r, "networkpolicies", namespace, &r.out.Policies)
	list(ctx, r, "globalnetworksets", "", &r.out.GlobalSets)
	list(ctx, r, "networksets", "", &r.out.Sets)
}

// list reads all objects of one of Calico's types; of all namespaces where none is named.
func list[T any](ctx context.Context, r *reader, resource, namespace string, into *[]T) {
	found, err := read.List[T](ctx, r.dynamic, r.calico.WithResource(resource), namespace, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // an older Calico has no such type
		r.unread("%s.%s: %v", resource, r.calico.Group, err)
	}
	*into = append(*into, found...)
}

// others names the kinds of policies that Calico knows and explain does not.
func (r *reader) others(ctx context.Context, served *kube.Served) {
	groups, err := served.Groups(ctx)
	if err != nil {
		r.unread("which other kinds of policies there are: %v", err)
		return
	}
	for _, g := range groups {
		if g.Name == "policy.networking.k8s.io" {
			var versions []string
			for _, v := range g.Versions {
				versions = append(versions, v.Version)
			}
			r.unread("policies of %s (%s), which may come before and after those of namespaces", g.Name,
				strings.Join(versions, ", "))
		}
	}
}

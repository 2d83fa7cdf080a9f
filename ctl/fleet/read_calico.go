package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type Pool struct {
	Name             string       `json:"name"`
	CIDR             netip.Prefix `json:"cidr"`
	Disabled         bool         `json:"disabled,omitempty"`
	DisableBGPExport bool         `json:"disableBGPExport,omitempty"`
	NATOutgoing      bool         `json:"natOutgoing,omitempty"`
	// Managed means that a broker made it, for pods of a remote.
	Managed bool `json:"managed,omitempty"`
	// Encapsulations are ipip and vxlan, as far as they are on.
	Encapsulations []string `json:"encapsulations,omitempty"`
}

// IPPools returns Calico's pools, and the resource by which kubectl knows them. It fails with kube.ErrNoCalico for a
// cluster without Calico, and for pools that cannot be read, beside the others.
func (c *Objects) IPPools(ctx context.Context) (pools []Pool, resource string, err error) {
	client, err := kube.Calico(c.Config)
	if err != nil {
		return nil, "", err
	}
	resource = "ippools." + client.GroupVersion.Group
	list, err := List[calicov3.IPPool](ctx, c, client.GroupVersion.WithResource("ippools"), "", metav1.ListOptions{})
	for _, p := range list {
		prefix, bad := netip.ParsePrefix(p.Spec.CIDR)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("ippool %s: spec.cidr: %w", p.Name, bad))
			continue
		}
		pool := Pool{Name: p.Name, CIDR: prefix, Disabled: p.Spec.Disabled, DisableBGPExport: p.Spec.DisableBGPExport,
			NATOutgoing: p.Spec.NATOutgoing, Managed: p.Labels[naming.LabelManagedBy] == naming.ManagedByBroker}
		if p.Spec.IPIPMode != "" && p.Spec.IPIPMode != calicov3.IPIPModeNever {
			pool.Encapsulations = append(pool.Encapsulations, "ipip")
		}
		if p.Spec.VXLANMode != "" && p.Spec.VXLANMode != calicov3.VXLANModeNever {
			pool.Encapsulations = append(pool.Encapsulations, "vxlan")
		}
		pools = append(pools, pool)
	}
	return pools, resource, err
}

// IPAM is how Calico's IPAM gives out addresses.
type IPAM struct {
	// Blocks is set if it has assigned blocks to nodes, else their podCIDRs do; Strict if nodes may take no IP of another
	// node's block.
	Blocks bool `json:"blocks"`
	Strict bool `json:"strictAffinity"`
	// Configs is kubectl's name of the resource with that setting; empty if the cluster serves none.
	Configs string `json:"ipamConfigs,omitempty"`
}

// IPAM reads how Calico's IPAM gives out addresses. It fails if an object cannot be read, beside those before.
func (c *Objects) IPAM(ctx context.Context) (out IPAM, err error) {
	affinities, err := kube.NewBlockAffinities(c.Config).Follow(nil).ListWithContextFunc(ctx,
		metav1.ListOptions{Limit: 1})
	if errors.Is(err, kube.ErrNoBlocks) {
		return out, nil
	}
	if err != nil {
		return out, c.unread("Calico's BlockAffinities", err)
	}
	if out.Blocks = len(affinities.(*kube.BlockAffinityList).Items) > 0; !out.Blocks {
		return out, nil
	}
	out.Configs, out.Strict, err = kube.StrictAffinity(ctx, c.Config)
	return out, c.unread("the configuration of Calico's IPAM", err)
}

// BeStrict is the command that sets Strict; context is empty for the current one.
func (i IPAM) BeStrict(context string) string {
	if i.Configs == "" {
		return "calicoctl ipam configure --strictaffinity=true"
	}
	if context != "" {
		context = "--context " + context + " "
	}
	return fmt.Sprintf(`kubectl %spatch %s default --type merge -p '{"spec":{"strictAffinity":true}}'`, context,
		i.Configs)
}

// Policies reads the labels of namespaces and Calico's policies and sets, by which explain and check judge: the
// policies of one namespace, and of all where none is named. Each of unread is about one type; sets are those about
// sets. err is kube.ErrNoCalico for a cluster without Calico, or why that is not known.
func (c *Objects) Policies(ctx context.Context, namespace string, into *policy.Cluster) (unread, sets []error,
	err error) {
	namespaces, err := List[corev1.Namespace](ctx, c, NamespacesGVR, "", metav1.ListOptions{})
	if err != nil {
		unread = append(unread, fmt.Errorf("labels of namespaces: %w", err))
	}
	into.Namespaces = map[string]map[string]string{}
	for _, n := range namespaces {
		into.Namespaces[n.Name] = n.Labels
	}
	calico, err := kube.Calico(c.Config)
	if err != nil {
		return unread, nil, err
	}
	gv, all := calico.GroupVersion, metav1.ListOptions{}
	add := func(to *[]error, err error) {
		if err != nil && !apierrors.IsNotFound(err) { // an older Calico has no such type
			*to = append(*to, err)
		}
	}
	global, namespaced := gv.WithResource("globalnetworkpolicies"), gv.WithResource("networkpolicies")
	into.Tiers, err = List[calicov3.Tier](ctx, c, gv.WithResource("tiers"), "", all)
	add(&unread, err)
	into.GlobalPolicies, err = List[calicov3.GlobalNetworkPolicy](ctx, c, global, "", all)
	add(&unread, err)
	into.Policies, err = List[calicov3.NetworkPolicy](ctx, c, namespaced, namespace, all)
	add(&unread, err)
	if !calico.HidesMetadata() {
		// Calico's API server leaves out the tiers that the caller may not read, and says so only if asked for one of them
		// (EnsureTierSelector in its apiserver/pkg/registry/projectcalico/util).
		for _, t := range into.Tiers {
			of := metav1.ListOptions{LabelSelector: "projectcalico.org/tier=" + t.Name, Limit: 1}
			_, err = List[metav1.PartialObjectMetadata](ctx, c, global, "", of)
			add(&unread, err)
			_, err = List[metav1.PartialObjectMetadata](ctx, c, namespaced, namespace, of)
			add(&unread, err)
		}
	}
	into.GlobalSets, err = List[calicov3.GlobalNetworkSet](ctx, c, gv.WithResource("globalnetworksets"), "", all)
	add(&sets, err)
	into.Sets, err = List[calicov3.NetworkSet](ctx, c, gv.WithResource("networksets"), "", all)
	add(&sets, err)
	if calico.HidesMetadata() { // calicoctl, too, stores a set's labels so
		for i := range into.GlobalSets {
			kube.CopyCalicoMetadata(&into.GlobalSets[i])
		}
		for i := range into.Sets {
			kube.CopyCalicoMetadata(&into.Sets[i])
		}
	}
	return unread, sets, nil
}

package check

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// subnetsLabel is the label by which admission policies find the ConfigMap with the own subnets.
const subnetsLabel = "semaphore.uw.io/subnets=true"

// gatherPolicyKeys compares a broker's file with what the admission policies of its cluster judge by; nil if no cluster
// is reached, or if it has no such ConfigMap yet.
func gatherPolicyKeys(ctx context.Context, c *config.Broker, access *fleet.Access) *PolicyKeys {
	cfg, err := fleet.ConfigOf(access, c.Kube)
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil
	}
	var list *unstructured.UnstructuredList
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, calicoWithin)
		defer cancel()
		var client dynamic.Interface
		if client, err = read.New(cfg); err == nil {
			list, err = client.Resource(read.ConfigMapsGVR).List(ctx,
				metav1.ListOptions{LabelSelector: subnetsLabel})
		}
	}
	if err != nil {
		return &PolicyKeys{Err: fmt.Errorf("what admission policies judge by: %w", err)}
	}
	if len(list.Items) == 0 {
		return nil
	}
	out := &PolicyKeys{}
	for i := range list.Items {
		data, _, _ := unstructured.NestedStringMap(list.Items[i].Object, "data")
		err := config.ComparePolicyKeys(c, func(key string) (string, bool) { text, ok := data[key]; return text, ok })
		out.Differ = errors.Join(out.Differ, err)
	}
	return out
}

package mcs

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// ClusterIDProperty is the ClusterProperty with the cluster's ID within its ClusterSet (KEP-2149).
const ClusterIDProperty = "cluster.clusterset.k8s.io"

// aboutVersions of the About API (group about.k8s.io), best first. Their schemas are the same.
var aboutVersions = []string{"v1beta1", "v1alpha1"}

// ClusterID returns the value of the cluster's ClusterProperty cluster.clusterset.k8s.io; empty, and no error, if there
// is none or the About API is not served. It fails if the read is refused or undecodable.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, version := range aboutVersions {
		data, err := kube.Answer(c.unversioned.Get().AbsPath("/apis/about.k8s.io/" + version + "/clusterproperties/" +
			ClusterIDProperty).Do(ctx))
		if apierrors.IsNotFound(err) {
			continue
		}
		var property struct {
			Spec struct {
				Value string `json:"value"`
			} `json:"spec"`
		}
		if err == nil {
			err = json.Unmarshal(data, &property)
		}
		if err != nil {
			return "", fmt.Errorf("ClusterProperty %s: %w", ClusterIDProperty, err)
		}
		return property.Spec.Value, nil
	}
	return "", nil
}

package remotes

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
)

// ReadDocuments returns the RemoteClusters among documents, as they would be if the documents were applied, and their
// names. It fails for one with an unknown field or another version of the API.
func ReadDocuments(documents []string, now time.Time) (objects Objects, names []string, err error) {
	objects = Objects{}
	for i, text := range documents {
		var d metav1.TypeMeta
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			return nil, nil, fmt.Errorf("object %d: %w", i+1, err)
		}
		if d.Kind != v1alpha1.Kind {
			continue
		}
		var r v1alpha1.RemoteCluster
		if err := yaml.UnmarshalStrict([]byte(text), &r); err != nil {
			return nil, nil, fmt.Errorf("object %d, a RemoteCluster: %w", i+1, err)
		}
		if want := v1alpha1.RemoteClusters.GroupVersion().String(); d.APIVersion != want {
			return nil, nil, fmt.Errorf("RemoteCluster %s: apiVersion: %q is not %q", r.Name, d.APIVersion, want)
		}
		objects[r.Name] = Object{Name: r.Name, Created: now.UTC(), Generation: 1, Spec: r.Spec}
		names = append(names, r.Name)
	}
	return objects, names, nil
}

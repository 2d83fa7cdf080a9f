package remotes

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
)

// Propose returns the objects as they would be if the documents were applied, and the names of those that are among the
// documents. Documents of other kinds do not count.
func Propose(objects Objects, documents []string, now time.Time) (proposed Objects, names []string, err error) {
	proposed = maps.Clone(objects)
	if proposed == nil {
		proposed = Objects{}
	}
	for i, text := range documents {
		var d metav1.TypeMeta
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			return nil, nil, fmt.Errorf("object %d: %w", i+1, err)
		}
		if d.Kind != "RemoteCluster" {
			continue
		}
		var r v1alpha1.RemoteCluster
		if err := yaml.UnmarshalStrict([]byte(text), &r); err != nil {
			return nil, nil, fmt.Errorf("object %d, a RemoteCluster: %w", i+1, err)
		}
		if want := v1alpha1.RemoteClusters.GroupVersion().String(); d.APIVersion != want {
			return nil, nil, fmt.Errorf("RemoteCluster %s: apiVersion: %q is not %q", r.Name, d.APIVersion, want)
		}
		o := Object{Name: r.Name, Created: now.UTC(), Generation: 1, Spec: r.Spec}
		if was, had := proposed[r.Name]; had {
			o.UID, o.Created, o.ListenPort, o.Definition = was.UID, was.Created, was.ListenPort, was.Definition
			o.Generation = was.Generation
			if !sameSpec(was.Spec, o.Spec) {
				o.Generation++
			}
		}
		proposed[r.Name] = o
		names = append(names, r.Name)
	}
	return proposed, names, nil
}

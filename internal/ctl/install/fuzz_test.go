package install

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzFleet: whatever the file of a fleet contains, there is an error that says something, or each cluster has what its
// installation needs, and each link is between two of them.
func FuzzFleet(f *testing.F) {
	const c1 = "{name: c1, podSubnets: [10.1.0.0/16], serviceSubnets: [10.101.0.0/16], nodeSubnets: [192.0.2.0/28], " +
		"broker: 'b:1'}"
	for _, text := range []string{
		"clusters:\n- " + c1 + "\n- {name: c2, podSubnets: [10.2.0.0/16], serviceSubnets: [10.102.0.0/16], nodeSubnets: " +
			"[192.0.2.16/28], broker: 'b:2'}\n",
		"clusters:\n- " + c1 + "\nlinks: [[c1, c1], [], [c2]]\n",
		"clusters:\n- " + c1 + "\n- " + c1 + "\n", "clusters: [null]\n", "image: 7\n", "[]", "",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fleet, err := ParseFleet(text)
		if (err == nil) == (fleet == nil) {
			t.Fatalf("%+v and error %v", fleet, err)
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		for i := range fleet.Clusters {
			c := &fleet.Clusters[i]
			if c.Name == "" || c.Namespace == "" || len(c.PodSubnets) == 0 || len(c.NodeSubnets) == 0 {
				t.Errorf("clusters[%d] is %+v", i, c)
			}
			for _, peer := range fleet.Peers(c.Name) {
				if peer.Name == c.Name || peer.Broker == "" {
					t.Errorf("%s is linked with %+v", c.Name, peer)
				}
			}
		}
	})
}

// FuzzRecord: whatever the ConfigMap with the record of an installation contains, there is an error, or a record.
func FuzzRecord(f *testing.F) {
	f.Add("features: [services]\n", "cluster: c1\n", "v1 ConfigMap semaphore/semaphore-broker\n/ x y\n")
	f.Add("{", "a: &a [*a]", "v1")
	f.Fuzz(func(t *testing.T, wishes, values, objects string) {
		r, err := ParseRecord(&unstructured.Unstructured{Object: map[string]any{"data": map[string]any{
			"wishes.yaml": wishes, "values.yaml": values, "objects": objects}}})
		if (err == nil) == (r == nil) {
			t.Fatalf("%+v and error %v", r, err)
		}
	})
}

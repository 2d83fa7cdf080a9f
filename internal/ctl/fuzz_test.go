package ctl

import (
	"encoding/json"
	"testing"
)

// FuzzDocuments: whatever an operator's file of objects contains, there is an error, or objects of the kinds that
// preview knows, each as JSON.
func FuzzDocuments(f *testing.F) {
	for _, text := range []string{
		"kind: RemoteCluster\nmetadata: {name: c2}\n", "kind: ServiceList\nitems: [{kind: Service}, {kind: Pod}]\n",
		"kind: List\nitems: [null, {}]\n", "kind: RemoteClusterList\n", "kind: [x]", "a: &a [*a]", "{", "null", "---\n...\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := documentsOf(text)
		if err != nil {
			return
		}
		for _, d := range all {
			if d.Kind == "" || !json.Valid([]byte(d.text)) {
				t.Errorf("%q has the object %+v", text, d)
			}
		}
	})
}

// FuzzSets: whatever a file of sets contains, there is an error, or what a broker may have said.
func FuzzSets(f *testing.F) {
	f.Add([]byte(`{"cluster": "c1", "sets": [{"name": "s", "addresses": ["10.2.0.1"], "new": 1}], "links": [{}]}`))
	f.Add([]byte("cluster: c1\nsets: [null]\nlinks: [7]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sets, err := readSets(text)
		if (err == nil) == (sets == nil) || sets != nil && sets.Cluster == "" {
			t.Fatalf("%+v and error %v", sets, err)
		}
	})
}

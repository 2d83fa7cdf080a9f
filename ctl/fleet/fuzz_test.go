package fleet

import (
	"testing"
)

// FuzzSets: whatever a file of sets contains, there is an error, or what a broker may have said.
func FuzzSets(f *testing.F) {
	f.Add([]byte(`{"cluster": "c1", "sets": [{"name": "s", "addresses": ["10.2.0.1"], "new": 1}], "links": [{}]}`))
	f.Add([]byte("cluster: c1\nsets: [null]\nlinks: [7]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sets, err := ReadSets(text)
		if (err == nil) == (sets == nil) || sets != nil && sets.Cluster == "" {
			t.Fatalf("%+v and error %v", sets, err)
		}
	})
}

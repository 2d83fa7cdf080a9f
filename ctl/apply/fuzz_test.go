package apply

import (
	"testing"
)

// FuzzRecord: whatever the ConfigMap with the record of an installation contains, there is an error, or a record.
func FuzzRecord(f *testing.F) {
	f.Add("features: [services]\n", "cluster: c1\n", "v1 ConfigMap semaphore/semaphore-broker\n/ x y\n")
	f.Add("{", "a: &a [*a]", "v1")
	f.Fuzz(func(t *testing.T, wishes, values, objects string) {
		r, err := ParseRecord(map[string]string{"wishes.yaml": wishes, "values.yaml": values, "objects": objects})
		if (err == nil) == (r == nil) {
			t.Fatalf("%+v and error %v", r, err)
		}
	})
}

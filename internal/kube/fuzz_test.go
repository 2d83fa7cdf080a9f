package kube

import (
	"encoding/json"
	"maps"
	"net/netip"
	"testing"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzIPAMBlock: whatever a block of Calico's IPAM contains, its free addresses lie in the block, each once.
func FuzzIPAMBlock(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"cidr":"10.1.1.0/30","affinity":"host:n1","allocations":[0,null,null,1],` +
			`"unallocated":[2,1],"deleted":"false"}}`,
		`{"spec":{"cidr":"255.255.255.252/30","allocations":[null,null,null,null,null,null],"unallocated":[5,4,-1,9,0,0]}}`,
		`{"spec":{"cidr":"fd00::/122","affinity":"host:","deleted":true,"allocations":[null],"unallocated":[0]}}`,
		`{"spec":{"cidr":"none","unallocated":[0]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var b IPAMBlock
		if json.Unmarshal(data, &b) != nil {
			return
		}
		b.OfNode("n1")
		seen := map[netip.Addr]bool{}
		for _, addr := range b.LastFree() {
			if seen[addr] || !b.Free(addr) || !netip.MustParsePrefix(b.Spec.CIDR).Contains(addr) {
				t.Errorf("%s is free in %s, seen already: %t", addr, data, seen[addr])
			}
			seen[addr] = true
		}
	})
}

// FuzzCalicoMetadata: whatever the metadata of one of Calico's objects is, and that which the Calico API server stores
// in its annotation, the object gets labels and annotations that it stores and no other field, once; or stays as it is.
func FuzzCalicoMetadata(f *testing.F) {
	for _, text := range []string{
		`{"labels":{"app.kubernetes.io/managed-by":"semaphore-broker"},"annotations":{"a":"b"}}`,
		`{"name":"other","uid":"1","resourceVersion":"7","namespace":"n","creationTimestamp":null,"labels":null}`,
		`{"annotations":{"projectcalico.org/metadata":"{\"labels\":{\"a\":\"b\"}}"}}`,
		`{"labels":["a"]}`, `null`, ``, `{"labels":{"a":1}}`,
	} {
		f.Add([]byte(`{"metadata":{"name":"p","labels":{"x":"y"}},"spec":{"cidr":"10.2.0.0/16"}}`), text)
	}
	f.Fuzz(func(t *testing.T, data []byte, stored string) {
		pool := &calicov3.IPPool{}
		if json.Unmarshal(data, pool) != nil {
			return
		}
		if pool.Annotations == nil {
			pool.Annotations = map[string]string{}
		}
		pool.Annotations[calicoMetadata] = stored
		before := pool.DeepCopy()
		if !CopyCalicoMetadata(pool) {
			if !equality.Semantic.DeepEqual(pool, before) {
				t.Fatalf("nothing is copied, and %+v is %+v", before, pool)
			}
			return
		}
		var meta metav1.ObjectMeta
		if err := json.Unmarshal([]byte(stored), &meta); err != nil {
			t.Fatalf("%q is read: %v", stored, err)
		}
		for key, value := range pool.Annotations {
			if meta.Annotations[key] != value {
				t.Fatalf("annotation %q=%q is not stored in %q", key, value, stored)
			}
		}
		if !maps.Equal(pool.Labels, meta.Labels) {
			t.Fatalf("labels %v of %q", pool.Labels, stored)
		}
		if CopyCalicoMetadata(pool) {
			t.Fatalf("%q is copied twice", stored)
		}
		pool.Labels, pool.Annotations = before.Labels, before.Annotations
		if !equality.Semantic.DeepEqual(pool, before) {
			t.Fatalf("%q changes more: %+v is %+v", stored, before, pool)
		}
	})
}

package kube

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// FuzzIPAMBlock: whatever a block of Calico's IPAM contains, its free addresses lie in the block, each once.
func FuzzIPAMBlock(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"cidr":"10.1.1.0/30","affinity":"host:n1","allocations":[0,null,null,1],"unallocated":[2,1],"deleted":"false"}}`,
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

package stored

import (
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// FuzzUnpack: whatever is in the ConfigMap, packed or not, unpacking it does not panic, gives peers or an error and
// never both, and what is unpacked is the same when it is packed again.
func FuzzUnpack(f *testing.F) {
	packed := testkit.Value(pack([]*semaphorev1.Peer{peer("c2", "n1", 1, "10.2.1.0/24"),
		peer("c2", "n2", 2, "10.2.2.0/24", "fd00:2::/64")}))(f)
	f.Add(packed)
	f.Add(packed[:len(packed)-1])
	f.Add([]byte("\x0a\x00\x0a\x00"))
	f.Add([]byte("\x0a\x04\x12\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, data := range [][]byte{data, gzipped(t, data)} {
			peers, err := unpack(data)
			if err != nil {
				if peers != nil {
					t.Errorf("%d peers and the error %v", len(peers), err)
				}
				continue
			}
			again := testkit.Value(pack(peers))(t)
			if got, err := unpack(again); err != nil || len(got) != len(peers) {
				t.Errorf("%d peers are %d once packed again, %v", len(peers), len(got), err)
			}
		}
	})
}

package nodes

import (
	"encoding/json"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"net/netip"
	"reflect"
	"testing"
)

// FuzzReserved: whatever the annotation of a shard says, the result is an error, or reservations that Calico's IPAM can
// read and that are the same when they are written and read again.
func FuzzReserved(f *testing.F) {
	f.Add(`{"n1":{"10.1.1.63":"ready","fd00::1":"pending"},"n2":{"10.1.2.63":"retired"},"n3":{}}`)
	f.Add(`{"n1":{"":"ready"}}`)
	f.Add(`{"n1":{"::ffff:10.1.1.1":"ready"},"n2":null}`)
	f.Add(`{"n1":{"fe80::1%eth0":"ready"}}`)
	f.Add(`{"n1":{"10.1.1.1":"used"}}`)
	f.Add("null")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		said, err := parseReserved(text)
		if err != nil {
			return
		}
		for node, addrs := range said {
			for addr := range addrs {
				prefix := netip.PrefixFrom(addr, addr.BitLen())
				if again, err := netip.ParsePrefix(prefix.String()); err != nil || again != prefix {
					t.Errorf("node %q: %s is reserved as %q: %v", node, addr, prefix, err)
				}
			}
		}
		written := testkit.Value(json.Marshal(said))(t)
		if again, err := parseReserved(string(written)); err != nil || !reflect.DeepEqual(again, said) {
			t.Errorf("%q is %v, and read again %v, %v", text, said, again, err)
		}
	})
}

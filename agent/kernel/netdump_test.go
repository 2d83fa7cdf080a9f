package kernel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestDumpOfOneFamily: a dump returns addresses and routes of the family that was asked for, and nothing for a family
// that the kernel lacks, as IPv6 with ipv6.disable=1. The kernel itself answers such a request with all families.
func TestDumpOfOneFamily(t *testing.T) {
	t.Parallel()
	for _, family := range []uint8{unix.AF_INET, unix.AF_X25} {
		for name, r := range map[string]dumpRequest{
			"addresses": {Type: unix.RTM_GETADDR, Answer: unix.RTM_NEWADDR, Header: nl.NewIfAddrmsg(int(family))},
			"routes": {Type: unix.RTM_GETROUTE, Answer: unix.RTM_NEWROUTE,
				Header: &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}}},
		} {
			n := 0
			testkit.Must(t, dump(r, func(m []byte) {
				if n++; m[0] != family {
					t.Errorf("%s of family %d: one of family %d", name, family, m[0])
				}
			}))
			if has := family == unix.AF_INET; has != (n > 0) { // every machine has 127.0.0.1
				t.Errorf("%d %s of family %d", n, name, family)
			}
		}
	}
}
